"""An example shows each public method, and public methods name their errors."""

import builtins
import importlib
import inspect

import pytest

from sqlbuffer import ReplayBuffer, errors
from tests.docs.public_methods import (
    OF_PEERS,
    documented,
    is_shown,
    named_errors,
    public_methods,
    raised_errors,
    resolved,
    unnamed,
)

METHODS = {
    name: getattr(ReplayBuffer, name)
    for name, member in vars(ReplayBuffer).items()
    if not name.startswith("_") and not isinstance(member, property)
}
# A method that takes one of these raises the error for a wrong one.
ERROR_OF = {
    "condition": errors.ConditionError,
    "condition_or_seqs": errors.ConditionError,
    "query_condition": errors.ConditionError,
    "fields": errors.FieldError,
    "arrays": errors.FieldError,
}
# They do nothing of their own that can fail: a `StorageError` can come from any call.
WITHOUT_ERRORS = {"model_version"}
# The condition is that of the call that draws, which names the error.
OF_OTHERS = {"Candidates.first_of_tasks": {"ConditionError"}}
# The names of classes are in camel case.
CLASSES = [
    name
    for name in documented()
    if not name.rpartition(".")[2].islower() and not name.startswith(OF_PEERS)
]
COMPAT = "sqlbuffer.compat."


def class_of(name):
    if name.startswith("sqlbuffer.torch"):
        pytest.importorskip("torch")
    return resolved(name)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_buffer_has_an_example_of_its_own(name):
    assert ">>> " in inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_buffer_names_errors(name):
    assert bool(named_errors(METHODS[name])) == (name not in WITHOUT_ERRORS)


# Pages on how to come from other libraries run the methods of those.
@pytest.mark.parametrize("name", [name for name in CLASSES if not name.startswith(COMPAT)])
def test_an_example_shows_each_method(name):
    cls = class_of(name)
    # Examples close with `with`, or leave that to the end of the process.
    methods = [each for each in public_methods(cls) if each[0] != "close"]
    assert [name for name, owner, own in methods if not is_shown(owner, name, own)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASSES)
def test_a_method_names_the_errors_of_its_code_and_of_its_arguments(name):
    cls, missing = class_of(name), {}
    for method, owner, own in public_methods(cls):
        parameters = inspect.signature(own).parameters
        raised = raised_errors(own, owner)
        if not name.startswith(COMPAT):
            raised |= {error for each, error in ERROR_OF.items() if each in parameters}
        missing[method] = unnamed(raised, own) - OF_OTHERS.get(own.__qualname__, set())
    assert {method: names for method, names in missing.items() if names} == {}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASSES)
def test_errors_that_a_method_names_exist(name):
    named = {error for *_, own in public_methods(class_of(name)) for error in named_errors(own)}
    own = vars(importlib.import_module(name.rpartition(".")[0]))
    known = {*vars(errors), *vars(builtins), *own}
    assert sorted(named - known) == []
