"""Each public method of a buffer has an example, and names the errors that it can raise."""

import inspect

import pytest

from sqlbuffer import ReplayBuffer, errors

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
