"""An example shows each public method, and public methods name their errors."""

import inspect

import pytest

from sqlbuffer import ReplayBuffer, errors
from tests.docs.public_methods import (
    documented,
    is_shown,
    named_errors,
    public_methods,
    raised_errors,
    resolved,
)

METHODS = {
    name: getattr(ReplayBuffer, name)
    for name, member in vars(ReplayBuffer).items()
    if not name.startswith("_") and not isinstance(member, property)
}
# A method that takes one of these raises the error for a wrong one.
ERROR_OF = {
    "condition": "ConditionError",
    "condition_or_seqs": "ConditionError",
    "query_condition": "ConditionError",
    "fields": "FieldError",
    "arrays": "FieldError",
}
# They do nothing of their own that can fail: a `StorageError` can come from any call.
WITHOUT_ERRORS = {"model_version"}
# The condition is that of the call that draws, which names the error.
OF_OTHERS = {"Candidates.first_of_tasks": {"ConditionError"}}
# The names of classes are in camel case.
CLASSES = [name for name in documented() if not name.rpartition(".")[2].islower()]


def class_of(name):
    if name.startswith("sqlbuffer.torch"):
        pytest.importorskip("torch")
    if name.startswith("sqlbuffer.integrations.sb3"):
        pytest.importorskip("stable_baselines3", reason="allowed: checked in tests/peers")
    return resolved(name)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_buffer_has_an_example_of_its_own(name):
    assert ">>> " in inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_buffer_names_errors(name):
    assert bool(named_errors(METHODS[name])) == (name not in WITHOUT_ERRORS)


@pytest.mark.parametrize("name", CLASSES)
def test_an_example_shows_each_method(name):
    cls = class_of(name)
    # Examples close with `with`, or leave that to the end of the process.
    methods = [each for each in public_methods(cls) if each[0] != "close"]
    assert [name for name, owner, own in methods if not is_shown(owner, name, own)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_method_names_the_errors_of_its_code_and_of_its_arguments(name):
    cls, missing = class_of(name), {}
    for method, owner, own in public_methods(cls):
        parameters = inspect.signature(own).parameters
        wanted = {error for each, error in ERROR_OF.items() if each in parameters}
        wanted |= raised_errors(own, owner)
        missing[method] = wanted - named_errors(own) - OF_OTHERS.get(own.__qualname__, set())
    assert {method: names for method, names in missing.items() if names} == {}


@pytest.mark.parametrize("name", CLASSES)
def test_errors_that_a_method_names_exist(name):
    builtin = {"TypeError", "ValueError", "IndexError"}
    named = {error for *_, own in public_methods(class_of(name)) for error in named_errors(own)}
    assert {each for each in named - builtin if not hasattr(errors, each)} == set()
