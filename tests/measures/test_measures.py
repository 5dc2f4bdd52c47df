"""The scripts that measure the code and its tests, on code of which the figures are known."""

import ast
from pathlib import Path

from tests.measures.counts import count
from tests.measures.planted_bugs import bugs_of, drawn_bugs

WINDOWS = Path(__file__).parents[2] / "sqlbuffer" / "batches" / "windows.py"
MODULE = '''"""Two lines
of docstring."""

import os
from package import (
    other,
)


def name():  # a comment
    """A line."""
    return os.name, other
'''


def test_lines_are_counted_by_what_they_are(tmp_path):
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "other.py").write_text("X = 1\n")
    (folder / "first.py").write_text(MODULE)
    counts = count(folder)
    assert (counts.modules, counts.small_modules, counts.empty_inits) == (3, 3, 1)
    assert (counts.lines, counts.code, counts.docstrings, counts.imports) == (13, 7, 3, 4)
    assert counts.single_importers == 1


def test_each_planted_bug_is_another_program():
    source = WINDOWS.read_text()
    bugs = list(bugs_of(WINDOWS))
    programs = {ast.dump(ast.parse(bug.planted(source))) for bug in bugs}
    assert ast.dump(ast.parse(source)) not in programs
    assert {bug.kind for bug in bugs} >= {"dropped bound", "flipped comparison", "off by one"}
    lines = {node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)}
    assert {bug.line for bug in bugs} <= lines


def test_a_seed_draws_the_same_bugs_of_each_kind():
    bugs = drawn_bugs(1, 10, ["batches"])
    assert bugs == drawn_bugs(1, 10, ["batches"]) != drawn_bugs(2, 10, ["batches"])
    assert len({bug.kind for bug in bugs}) == 5
