"""What imports what: no circles, migrations alone, tests through public names."""

import ast
import itertools
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sqlbuffer

ROOT = Path(sqlbuffer.__file__).parent
TESTS = Path(__file__).parent


def modules() -> dict[str, Path]:
    """Return the path of each module, by its dotted name."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


# Not where tests are collected: each worker does that.
@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[str]:
    """Yield the package's modules that a module imports, wherever it does."""
    for node in ast.walk(trees()[name]):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@cache
def all_imports() -> dict[str, set[str]]:
    return {name: {m for m in imports(name) if m in MODULES and m != name} for name in MODULES}


def cycle_of(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the nodes of a circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert cycle_of(all_imports()) == []


@pytest.mark.parametrize(
    "package", sorted({m.rpartition(".")[0] for m in MODULES} - {""}), ids=lambda name: name
)
def test_no_folders_import_each_other_in_a_circle(package: str) -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    inside = f"{package}."
    for name, others in all_imports().items():
        if not name.startswith(inside):
            continue
        part = name.removeprefix(inside).partition(".")[0]
        below = {m.removeprefix(inside).partition(".")[0] for m in others if m.startswith(inside)}
        graph[part] |= below - {part}
    assert cycle_of(graph) == []


def inner_uses(path: Path) -> Iterator[str]:
    """Yield what a test file uses of the inside of the package."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlbuffer.storage"):
            yield f"{path.name}:{node.lineno}: {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr == "_store":
            yield f"{path.name}:{node.lineno}: _store"


def test_tests_outside_storage_use_public_names_only() -> None:
    # The hooks: what a test needs of the inside to make databases, and to hold housekeeping.
    inside = [
        TESTS / "storage",
        TESTS / "integrations" / "storage",
        TESTS / "support" / "storage_hooks.py",
    ]
    outside = [
        path for path in TESTS.rglob("*.py") if not any(path.is_relative_to(p) for p in inside)
    ]
    assert list(itertools.chain.from_iterable(map(inner_uses, outside))) == []


@pytest.mark.parametrize(
    "script",
    sorted((TESTS.parent / "alembic" / "versions").glob("*.py")),
    ids=lambda path: path.stem,
)
def test_a_migration_imports_nothing_from_the_package(script: Path) -> None:
    imported = {
        name
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
        if name
    }
    assert imported
    assert {name for name in imported if name.partition(".")[0] == "sqlbuffer"} == set()


# What `make test` does not install, by extra.
NOT_OF_TESTS = ("dev", "docs", "integrations")
ELSEWHERE = ("integrations", "peers", "nightly")


def extras_of_others() -> set[str]:
    """Return the names under which the libraries of the other extras are imported."""
    extras = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    named = [text for extra in NOT_OF_TESTS for text in extras["optional-dependencies"][extra]]
    names = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in named}
    return names | {"importlinter", "grimp", "playwright"}


def imported_at_once(path: Path) -> Iterator[str]:
    """Yield what a module imports when it is imported itself."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_make_test_needs_no_library_of_another_extra():
    others = extras_of_others()
    assert {"coverage", "mypy", "h5py"} <= others
    pending = [
        *(p for p in TESTS.rglob("test_*.py") if p.relative_to(TESTS).parts[0] not in ELSEWHERE),
        *(p for p in TESTS.rglob("conftest.py") if p.relative_to(TESTS).parts[0] not in ELSEWHERE),
    ]
    seen, wrong = set(pending), []
    while pending:
        path = pending.pop()
        for name in imported_at_once(path):
            if name.split(".")[0] in others:
                wrong.append((str(path.relative_to(TESTS)), name))
            module = (TESTS.parent / name.replace(".", "/")).with_suffix(".py")
            if name.startswith("tests.") and module.exists() and module not in seen:
                seen.add(module)
                pending.append(module)
    assert wrong == []
