"""Each public method of a buffer has an example, and public methods name their errors."""

import inspect

import pytest

import sqlbuffer
from sqlbuffer import ReplayBuffer, aio, errors

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
# Methods of other public classes that take one of these.
OTHERS = {
    f"{cls.__name__}.{name}": member
    for cls in [*(getattr(sqlbuffer, name) for name in sqlbuffer.__all__), aio.AsyncReplayBuffer]
    if inspect.isclass(cls) and cls is not ReplayBuffer
    for name, member in vars(cls).items()
    if inspect.isfunction(member)
    and not name.startswith("_")
    and ERROR_OF.keys() & inspect.signature(member).parameters.keys()
}
# They do nothing of their own that can fail: a `StorageError` can come from any call.
WITHOUT_ERRORS = {"model_version"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_an_example(name):
    assert ">>> " in inspect.getdoc(METHODS[name])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_its_errors(name):
    text = inspect.getdoc(METHODS[name])
    raises = text.partition("Raises:\n")[2].partition("\n\n")[0]
    assert bool(raises) == (name not in WITHOUT_ERRORS)
    parameters = inspect.signature(METHODS[name]).parameters
    wanted = {error for parameter, error in ERROR_OF.items() if parameter in parameters}
    assert [error for error in sorted(wanted) if f"{error}:" not in raises] == []


@pytest.mark.parametrize("name", METHODS)
def test_errors_that_a_method_names_exist(name):
    text = inspect.getdoc(METHODS[name])
    raises = text.partition("Raises:\n")[2].partition("\n\n")[0]
    names = [
        line.strip().partition(":")[0]
        for line in raises.splitlines()
        if line.startswith("    ") and not line.startswith("     ")
    ]
    builtin = {"TypeError", "ValueError"}
    assert [name for name in names if name not in builtin and not hasattr(errors, name)] == []


@pytest.mark.parametrize("name", OTHERS)
def test_a_method_of_another_class_names_the_error_of_its_arguments(name):
    text = inspect.getdoc(OTHERS[name])
    raises = text.partition("Raises:\n")[2].partition("\n\n")[0]
    parameters = inspect.signature(OTHERS[name]).parameters
    wanted = {error for parameter, error in ERROR_OF.items() if parameter in parameters}
    assert [error for error in sorted(wanted) if f"{error}:" not in raises] == []
