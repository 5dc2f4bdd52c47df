"""Messages name what a user can find: public classes and functions, and no internal ones."""

import ast
import builtins
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import sqlbuffer
from sqlbuffer import errors

ROOT = Path(sqlbuffer.__file__).parent
PUBLIC_MODULES = ["aio", "orm", "errors", "compat.aworld", "compat.ding", "compat.minestudio"]
PUBLIC_MODULES += ["compat.memmap", "torch", "recording", "fields", "monitoring"]
PUBLIC_MODULES += ["interchange"]
# What other libraries have, and messages tell to call.
OTHERS = {"make", "flatnonzero", "to_dense", "dequantize", "time", "filterwarnings"}
OTHERS |= {"set_buffer_size"}  # a function of the user
OTHERS |= {"exclude", "MultiStepTransform", "aec_to_parallel"}  # of TorchRL and PettingZoo


def texts_of(node):
    """Yield the texts in an expression, with braces in the place of values."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from texts_of(child)


def is_message(node):
    """Return True for what a user reads: an error, a warning, a line of the log."""
    if isinstance(node, ast.Raise):
        return node.exc is not None
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    is_log = isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "logger"
    return name.endswith(("Error", "Warning")) or name == "warn" or is_log


@cache
def messages():
    """Return each message, and where it stands."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", text)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if is_message(node)
        for text in texts_of(node.exc if isinstance(node, ast.Raise) else node)
    ]


def public_names():
    found = {"sqlbuffer": set(sqlbuffer.__all__)}
    for name in PUBLIC_MODULES:
        module = importlib.import_module(f"sqlbuffer.{name}")
        found[name] = set(getattr(module, "__all__", None) or vars(module))
    objects = [getattr(sqlbuffer, name) for name in sqlbuffer.__all__]
    for name in PUBLIC_MODULES:
        module = importlib.import_module(f"sqlbuffer.{name}")
        objects += [getattr(module, each) for each in found[name]]
    names = set().union(*found.values())
    for each in objects:
        if inspect.isclass(each):
            names |= {attribute for attribute in dir(each) if not attribute.startswith("_")}
    return names


@pytest.fixture(scope="module")
def public():
    return public_names()


@pytest.fixture(scope="module")
def own_classes():
    found = set()
    for path in ROOT.rglob("*.py"):
        found |= {
            node.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)
        }
    return found


def test_there_are_messages_to_look_at():
    assert len(messages()) > 500


def test_a_call_that_a_message_names_is_public(public):
    known = public | OTHERS | set(dir(builtins))
    wrong = [
        (where, name, text)
        for where, text in messages()
        for name in re.findall(r"([A-Za-z_][A-Za-z0-9_]*)\(", text)
        if name not in known
    ]
    assert wrong == []


def test_a_class_that_a_message_names_is_public(public, own_classes):
    internal = own_classes - public - {"Field", "Limits"}  # words, too
    internal -= {
        "SQLHerReplayBuffer",
        "SQLReplayBuffer",
    }  # public, of a module that needs another library
    wrong = [
        (where, name, text)
        for where, text in messages()
        for name in re.findall(r"[A-Z][a-z]+[A-Za-z]*", text)
        if name in internal
    ]
    assert wrong == []


def test_a_message_names_nothing_private():
    wrong = [
        (where, text)
        for where, text in messages()
        if re.search(r"(?<![\w*{.\-/\['])_[a-z]\w+", text)
    ]
    assert wrong == []


def test_a_module_that_a_message_names_can_be_imported():
    modules = {name for _, name, _ in pkgutil.walk_packages(sqlbuffer.__path__, "sqlbuffer.")}
    for where, text in messages():
        for name in re.findall(r"\bsqlbuffer(?:\.[a-z_0-9]+)+", text):
            assert name in modules or hasattr(errors, name.rpartition(".")[2]), (where, text)
            assert not name.startswith("sqlbuffer.storage"), (where, text)


def test_no_text_asks_an_index_for_sqlbuffer():
    """It is on none: an extra and a later release are installed from the checkout."""
    asked = re.compile(r"pip install (?:--\S+ )*['\"]?sqlbuffer\b")
    places = [*ROOT.rglob("*.py"), *ROOT.parent.glob("docs/**/*.md"), ROOT.parent / "README.md"]
    places += ROOT.parent.glob("docs/examples/*.py")
    assert [str(path) for path in places if asked.search(path.read_text("utf-8"))] == []
