"""The shape of the package: small folders, small files, and names that occur once."""

import ast
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import sqlbuffer

ROOT = Path(sqlbuffer.__file__).parent
TESTS = Path(__file__).parent
MOST_MODULES, MOST_LINES, MOST_STATEMENTS = 16, 400, 5
# Every capability has its own of these.
EVERYWHERE = {"base", "errors", "tables", "sqlite", "postgresql"}


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


def folders() -> list[Path]:
    return [ROOT, *(path.parent for path in ROOT.rglob("__init__.py") if path.parent != ROOT)]


@pytest.mark.parametrize("folder", folders(), ids=lambda path: path.name)
def test_a_folder_has_few_modules(folder: Path) -> None:
    named = [path.name for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(named) <= MOST_MODULES, sorted(named)


def test_files_are_short() -> None:
    lines = {
        name: len(path.read_text().splitlines())
        for name, path in MODULES.items()
        # All public methods of the buffer stand in one body, with their docstrings.
        if path.name != "tables.py" and name != "sqlbuffer.buffer"
    }
    assert {name: n for name, n in lines.items() if n > MOST_LINES} == {}


def test_methods_of_the_buffer_delegate() -> None:
    (buffer,) = (
        node
        for node in ast.walk(trees()["sqlbuffer.buffer"])
        if isinstance(node, ast.ClassDef) and node.name == "ReplayBuffer"
    )
    assert buffer.bases == []
    methods = [node for node in buffer.body if isinstance(node, ast.FunctionDef)]
    public = [
        method
        for method in methods
        if not method.name.startswith("_")
        and "overload" not in map(ast.unparse, method.decorator_list)
    ]
    assert len(public) > 50
    assert [method.name for method in public if ast.get_docstring(method) is None] == []
    assert {m.name: n for m in public if (n := len(m.body) - 1) > MOST_STATEMENTS} == {}


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name, place in names:
        found[name].append(place)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_module_name_occurs_twice() -> None:
    names = ((module.rpartition(".")[2], module) for module in MODULES if ".compat" not in module)
    assert {n: m for n, m in repeated(names).items() if n not in EVERYWHERE} == {}


def test_no_public_class_name_occurs_twice() -> None:
    # A mapped class has the name of what it maps.
    mapped = {"Experience": {"sqlbuffer.orm.mapped_classes", "sqlbuffer.steps.data_rows"}}
    names = (
        (node.name, module)
        for module, tree in trees().items()
        if ".compat" not in module
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name: set(places) for name, places in repeated(names).items()} == mapped


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


def test_dialects_have_fewer_than_ten_operations_and_the_same_ones() -> None:
    operations = {
        name: sorted(
            node.name
            for node in trees()[f"sqlbuffer.storage.dialects.{name}"].body
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        )
        for name in ("sqlite", "postgresql")
    }
    assert 0 < len(operations["sqlite"]) < 10
    assert operations["sqlite"] == operations["postgresql"]


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
