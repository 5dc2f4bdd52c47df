"""Every public name is on a page of docs/reference/api, and its docstring has an example."""

import importlib
import inspect
import re

import pytest

from tests.docs.pages import text_of
from tests.docs.public_methods import API, DIRECTIVE, documented, resolved
from tests.support.markdown import ROOT

MODULES = ["sqlbuffer", "sqlbuffer.aio", "sqlbuffer.orm", "sqlbuffer.torch", "sqlbuffer.monitoring"]
MODULES += ["sqlbuffer.interchange", "sqlbuffer.web", "sqlbuffer.integrations.ray"]
MODULES += ["sqlbuffer.integrations.sb3"]
COMPAT = ["aworld", "ding", "memmap", "minestudio"]
# Calls return them; users do not import them.
RETURNED = {"sqlbuffer.stats.Stats", "sqlbuffer.stats.Distribution"}
RETURNED |= {"sqlbuffer.rate_limits.FlowState"}
NEED_PEERS = {"sqlbuffer.integrations.sb3"}


def public_names(module):
    if module in NEED_PEERS:
        return {"SQLReplayBuffer"}
    if module.endswith(".torch"):
        return {"Dataset", "IterableDataset"}
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", None) == module and not name.startswith("_")
    ]
    return set(names)


def test_every_public_name_is_on_one_page():
    public = {f"{module}.{name}" for module in MODULES for name in public_names(module)}
    assert sorted(documented()) == sorted(public | RETURNED)


def test_classes_are_shown_with_all_their_public_methods():
    assert '"members": True' in (ROOT / "docs/conf.py").read_text(encoding="utf-8")
    options = {options.strip() for page in API for *_, options in DIRECTIVE.findall(text_of(page))}
    assert options <= {"", ":exclude-members: model_config, model_fields, model_computed_fields"}


@pytest.mark.parametrize("module", COMPAT)
def test_the_page_on_compatibility_names_what_each_module_has(module):
    found = importlib.import_module(f"sqlbuffer.compat.{module}")
    text = text_of("docs/reference/api/compat.md")
    section = text.partition(f"## sqlbuffer.compat.{module}\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"`(\w+)`", section)) == sorted(found.__all__)


@pytest.mark.parametrize("name", documented())
def test_a_public_class_or_function_has_an_example(name):
    if name.startswith("sqlbuffer.torch"):
        pytest.importorskip("torch")
    if name.startswith("sqlbuffer.integrations.sb3"):
        pytest.importorskip("stable_baselines3", reason="allowed: checked in tests/peers")
    assert ">>> " in (inspect.getdoc(resolved(name)) or "")


@pytest.mark.parametrize("name", [name for name in documented() if name.islower()])
def test_a_public_function_names_its_errors(name):
    assert "\nRaises:\n" in inspect.getdoc(resolved(name))
