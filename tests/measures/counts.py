"""Count modules, code, docstrings and imports of the package and of its tests.

`python -m tests.measures.counts [FOLDER ...]` prints a line for each folder. A line of code is one
with a token that is neither a comment nor a docstring. Imports are the lines of import statements.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WITHOUT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Counts:
    """What a folder holds, in modules and in lines."""

    modules: int
    small_modules: int
    empty_inits: int
    lines: int
    code: int
    docstrings: int
    imports: int
    single_importers: int

    def __str__(self) -> str:
        return (
            f"{self.modules} modules ({self.small_modules} under 60 lines, "
            f"{self.single_importers} with one importer, {self.empty_inits} inits without code), "
            f"{self.lines:,} lines: {self.code:,} of code, {self.docstrings:,} of docstrings "
            f"({100 * self.docstrings / max(self.code, 1):.0f} per 100), "
            f"{self.imports:,} of imports ({100 * self.imports / max(self.code, 1):.1f} %)"
        )


def count(folder: Path) -> Counts:
    """Count what is in a folder of Python modules."""
    texts = {path: path.read_text() for path in sorted(folder.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    code = {path: _lines_of_code(texts[path], trees[path]) for path in texts}
    importers = _importers(folder, trees)
    return Counts(
        modules=len(texts),
        small_modules=sum(len(text.splitlines()) < 60 for text in texts.values()),
        empty_inits=sum(path.name == "__init__.py" and not code[path] for path in texts),
        lines=sum(len(text.splitlines()) for text in texts.values()),
        code=sum(map(len, code.values())),
        docstrings=sum(len(_docstring_lines(tree)) for tree in trees.values()),
        imports=sum(len(set(_import_lines(tree))) for tree in trees.values()),
        single_importers=sum(
            len(importers[path]) == 1 for path in texts if path.name != "__init__.py"
        ),
    )


def _lines_of_code(text: str, tree: ast.Module) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines: set[int] = set()
    for token in tokens:
        if token.type not in _WITHOUT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - _docstring_lines(tree)


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def _import_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _importers(folder: Path, trees: dict[Path, ast.Module]) -> dict[Path, set[Path]]:
    """Return who imports each module, by the statements alone."""
    root = folder.resolve().parent
    while (root / "__init__.py").exists():
        root = root.parent
    modules = {_module_name(root, path): path for path in trees}
    importers: dict[Path, set[Path]] = {path: set() for path in trees}
    for path, tree in trees.items():
        for name in _imported_names(tree):
            if name in modules:
                importers[modules[name]].add(path)
    return importers


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _module_name(root: Path, path: Path) -> str:
    parts = path.resolve().relative_to(root).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def main() -> None:
    """Print what each folder holds."""
    for name in sys.argv[1:] or ["sqlbuffer", "tests"]:
        if not Path(name).is_dir():
            raise SystemExit(f"{name} is no folder: name folders of Python modules")
        print(f"{name}: {count(Path(name))}")


if __name__ == "__main__":
    main()
