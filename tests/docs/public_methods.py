"""Methods of the classes on the API pages: where an example shows them, and what they raise."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import sqlbuffer
from sqlbuffer.errors import SQLBufferError
from tests.docs.pages import pages, text_of

API = [page for page in pages() if page.startswith("docs/reference/api/")]
DIRECTIVE = re.compile(
    r"^\.\. auto(class|function|exception):: (\S+)\n((?:   :.*\n)*)", re.MULTILINE
)
Errors = set[Any]
# Sphinx leaves such a method out: other modules of the package call it, users do not.
PRIVATE = ":meta private:"
# Importing them needs another library; tests/peers has their tests.
OF_PEERS = ("sqlbuffer.integrations.sb3.", "sqlbuffer.integrations.torchrl.")


def documented() -> list[str]:
    """Return the classes, functions and exceptions on the pages, in order."""
    return [name for page in API for _, name, _ in DIRECTIVE.findall(text_of(page))]


def resolved(name: str) -> Any:
    """Return what a name on the pages stands for."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def function_of(member: Any) -> FunctionType | None:
    """Return the function of a method or property; None for other members of a class."""
    if isinstance(member, (classmethod, staticmethod)):
        member = member.__func__
    elif isinstance(member, property):
        member = member.fget
    return member if isinstance(member, FunctionType) else None


def public_methods(cls: type) -> Iterator[tuple[str, type, FunctionType]]:
    """Yield the methods that the page of a class shows, without its properties.

    One of `sqlbuffer.aio` stands for the method to whose docs it refers. Each comes with its class.
    """
    for name, member in vars(cls).items():
        method = function_of(member)
        if name.startswith("_") or method is None or isinstance(member, property):
            continue
        text = inspect.getdoc(method) or ""
        other = re.search(r"; see `sqlbuffer\.(\w+)\.(\w+)`\.", text)
        if other is not None and cls.__module__ == "sqlbuffer.aio":
            owner = getattr(sqlbuffer, other[1])
            yield name, owner, getattr(owner, other[2])
        elif PRIVATE not in text:
            yield name, cls, method


def code_of_examples(documented_object: Any) -> str:
    """Return the lines that the example of a docstring runs."""
    text = inspect.getdoc(documented_object) or ""
    return "\n".join(re.findall(r"^ *(?:>>>|\.\.\.) (.*)", text, re.MULTILINE))


def is_shown(cls: type, name: str, method: FunctionType) -> bool:
    """Return True if an example runs the method: its own, or one of its class or of a base.

    The example of a base class may define the method instead. A method that replaces one of another
    library's class is documented there.
    """
    used = re.compile(rf"(?:\.|def ){re.escape(name)}\(")
    examples = map(code_of_examples, cls.__mro__[:-1])
    return (
        bool(code_of_examples(method))
        or any(map(used.search, examples))
        or any(name in vars(base) for base in cls.__mro__[:-1] if not _is_of_package(base))
    )


def named_errors(method: Any) -> set[str]:
    """Return the errors under `Raises` of a docstring."""
    text = (inspect.getdoc(method) or "").partition("Raises:\n")[2].partition("\n\n")[0]
    return set(re.findall(r"^    (\w+):", text, re.MULTILINE))


def raised_errors(method: FunctionType, cls: type) -> Errors:
    """Return the library's errors for which the code of a method has a `raise`.

    The code is its body, the members of its class that it uses, and the functions and classes that
    these call by name: those of their own module in the same way, others by their bodies alone.
    """
    found = _raised(method, cls, method.__module__, set())
    return {each for each in found if isinstance(each, type) and issubclass(each, SQLBufferError)}


def unnamed(raised: Errors, method: FunctionType) -> set[str]:
    """Return the errors that a docstring names neither themselves nor by a base class."""
    named = named_errors(method) - {SQLBufferError.__name__}
    return {each.__name__ for each in raised if named.isdisjoint(b.__name__ for b in each.__mro__)}


def _raised(function: FunctionType, cls: type, module: str, seen: set[Any]) -> Errors:
    function = inspect.unwrap(function)
    if function in seen:
        return set()
    seen.add(function)
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    found: Errors = set()
    for part in ast.walk(node):
        match part:
            case ast.Raise(exc=ast.Call(func=ast.Name(id=name))):
                found.add(function.__globals__.get(name))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                callee = function_of(inspect.getattr_static(cls, name, None))
                if callee is not None and _is_ours(callee) and function.__module__ == module:
                    found |= _raised(callee, cls, module, seen)
            case ast.Call(func=ast.Name(id=name)):
                for callee in _called(function.__globals__.get(name)):
                    if function.__module__ == module:
                        caught = _caught(node)
                        inner = _raised(callee, cls, module, seen)
                        found |= {
                            each for each in inner if getattr(each, "__name__", 0) not in caught
                        }
    return found


def _is_ours(function: FunctionType) -> bool:
    """Return True if the source of the function is in the package; dataclasses generate some."""
    return "/sqlbuffer/" in function.__code__.co_filename


def _is_of_package(cls: type) -> bool:
    return cls.__module__.startswith("sqlbuffer")


def _called(target: Any) -> Iterator[FunctionType]:
    """Yield the functions of the package that a call of a name runs."""
    if isinstance(target, type):
        for name in ("__init__", "__post_init__"):
            yield from filter(_is_ours, filter(None, [function_of(vars(target).get(name))]))
    elif isinstance(target, FunctionType) and _is_ours(target):
        yield target


def _caught(node: ast.AST) -> set[str]:
    """Return the errors that a function turns into others."""
    handlers = [part for part in ast.walk(node) if isinstance(part, ast.ExceptHandler)]
    return {
        handler.type.id
        for handler in handlers
        if isinstance(handler.type, ast.Name)
        and not any(isinstance(part, ast.Raise) and part.exc is None for part in handler.body)
    }
