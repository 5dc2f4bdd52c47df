"""Every public name is on a page of docs/reference/api, and its docstring has an example."""

import importlib
import inspect
import re

import pytest

import sqlbuffer
from tests.docs.pages import text_of
from tests.docs.public_methods import API, DIRECTIVE, OF_PEERS, documented, resolved
from tests.support.markdown import ROOT

MODULES = ["sqlbuffer", "sqlbuffer.aio", "sqlbuffer.orm", "sqlbuffer.torch", "sqlbuffer.monitoring"]
MODULES += ["sqlbuffer.interchange", "sqlbuffer.web", "sqlbuffer.integrations.ray"]
MODULES += ["sqlbuffer.integrations.sb3", "sqlbuffer.integrations.torchrl", "sqlbuffer.llm"]
COMPAT = ["aworld", "ding", "memmap", "minestudio"]
# Calls return them; users do not import them.
RETURNED = {"sqlbuffer.stats.Stats", "sqlbuffer.stats.Distribution"}
RETURNED |= {"sqlbuffer.rate_limits.FlowState", "sqlbuffer.spaces.Spaces"}
# Values that are neither classes nor functions.
DATA = {"sqlbuffer.llm.LLM_FIELDS"}
# They refuse nothing.
WITHOUT_ERRORS = {f"sqlbuffer.compat.ding.{name}" for name in ("generate_id", "register_buffer")}
WITHOUT_ERRORS |= {"sqlbuffer.llm.answer_messages"}
NEED_PEERS = {
    "sqlbuffer.integrations.sb3": {"SQLReplayBuffer", "SQLHerReplayBuffer"},
    "sqlbuffer.integrations.torchrl": {"SQLReplayBuffer"},
}


def public_names(module):
    if module in NEED_PEERS:
        return NEED_PEERS[module]
    if module.endswith(".torch"):
        return {"Dataset", "IterableDataset"}
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", None) == module and not name.startswith("_")
    ]
    return set(names)


def own_names(module):
    """Return the names of a compat module that are not those of `sqlbuffer`."""
    found = importlib.import_module(f"sqlbuffer.compat.{module}")
    same = {name for name in sqlbuffer.__all__ if vars(found).get(name) is getattr(sqlbuffer, name)}
    return set(found.__all__) - same


def test_every_public_name_is_on_one_page():
    public = {f"{module}.{name}" for module in MODULES for name in public_names(module)}
    public |= {f"sqlbuffer.compat.{each}.{name}" for each in COMPAT for name in own_names(each)}
    assert sorted(documented()) == sorted((public - DATA) | RETURNED)
    assert all(f".. py:data:: {name}" in "".join(map(text_of, API)) for name in DATA)


def test_classes_are_shown_with_all_their_public_methods():
    assert '"members": True' in (ROOT / "docs/conf.py").read_text(encoding="utf-8")
    options = {options.strip() for page in API for *_, options in DIRECTIVE.findall(text_of(page))}
    inherited = ":inherited-members:"  # the methods of bases that are on no page
    own = f"{inherited} list, Sequence"  # without those of Python's sequences
    exclude = ":exclude-members: model_config, model_fields, model_computed_fields"
    assert options <= {"", exclude, inherited, own}


@pytest.mark.parametrize("module", COMPAT)
def test_the_page_on_compatibility_names_what_a_module_has_of_sqlbuffer(module):
    found = importlib.import_module(f"sqlbuffer.compat.{module}")
    text = text_of("docs/reference/api/compat.md")
    section = text.partition(f"## sqlbuffer.compat.{module}\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) - {"sqlbuffer"} == set(found.__all__) - own_names(
        module
    )


@pytest.mark.parametrize(
    "name",
    [name for name in documented() if not (name.endswith("Error") or name.startswith(OF_PEERS))],
)
def test_a_public_class_or_function_has_an_example(name):
    if name.startswith("sqlbuffer.torch"):
        pytest.importorskip("torch")
    assert ">>> " in (inspect.getdoc(resolved(name)) or "")


@pytest.mark.parametrize("name", [name for name in documented() if name.split(".")[-1].islower()])
def test_a_public_function_names_its_errors(name):
    assert ("\nRaises:\n" in inspect.getdoc(resolved(name))) == (name not in WITHOUT_ERRORS)
