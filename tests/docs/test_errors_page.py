"""Every error has an entry in docs/reference/errors.md, and messages lead there."""

import copy
import inspect
import pickle
import re
import traceback

import pytest

from sqlbuffer import errors
from sqlbuffer.cli.errors import exit_code
from tests.docs.pages import text_of

PAGE = errors.REFERENCE
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.SQLBufferError)
}
ENTRIES = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text_of(PAGE), re.M | re.S))


def test_each_error_has_an_entry():
    assert sorted(ENTRIES) == sorted(CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_has_causes_a_remedy_the_exit_code_and_a_message(name):
    entry = ENTRIES[name]
    code = exit_code(CLASSES[name])
    assert re.search(rf"\n- Causes: .*?\n- Remedy: .*?\n- Exit code: {code}\n", entry, re.S)
    assert len(re.findall(r"^```text\n.+\n```$", entry, re.M)) == 1


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_names_the_built_in_base_class(name):
    bases = [base for base in CLASSES[name].__bases__ if base.__module__ == "builtins"]
    wanted = [base.__name__ for base in bases if base is not Exception]
    assert [base for base in wanted if f"also a `{base}`" not in ENTRIES[name].replace(
        "also an", "also a"
    )] == []  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_the_index_of_the_page_names_each_error(name):
    start = text_of(PAGE).partition("## SQLBufferError")[0]
    assert f"(#{name.lower()})" in start


@pytest.mark.parametrize("name", CLASSES)
def test_a_traceback_names_the_entry_once_also_after_pickling(name):
    error = CLASSES[name]("what happened")
    note = f"See {PAGE}#{name.lower()}"
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    for each in (error, again, copy.copy(error)):
        assert each.__notes__ == [note]
        assert str(each) == "what happened"
        assert traceback.format_exception_only(each)[-1] == f"{note}\n"


def test_a_class_of_another_module_leads_to_its_public_base_class():
    class Inner(errors.StorageUnreachableError):
        pass

    assert Inner("away").__notes__ == [f"See {PAGE}#storageunreachableerror"]


def test_the_example_of_the_page_runs(read):
    read(PAGE)
