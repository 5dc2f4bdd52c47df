"""The benchmark of training loops runs end to end; how fast they are is not asserted."""

import json
import re

import pytest

from tests.benchmarks import sb3_loops as command
from tests.benchmarks.report import HEADER


def lines_of(text):
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return [line for line in cells if len(line) == len(HEADER)][2:]


def stored_lines(stored):
    (rows,) = stored["training loops"]["tables"]
    return [list(row.values()) for row in rows]


def assert_complete(lines):
    for what, _, has_target in command.LOOPS:
        found = [line for line in lines if line[0].startswith(what)]
        assert [line[1].partition(",")[0] for line in found] == ["SQLite", "PostgreSQL"]
        for _, _, measured, target, _, absolute in found:
            assert re.match(r"\d", measured)
            assert "ms, Stable-Baselines3" in absolute
            assert (target != "reported") is has_target
    for what in command.CALLS:
        found = [line for line in lines if line[0].startswith(what)]
        assert [line[1].partition(",")[0] for line in found] == ["SQLite", "PostgreSQL"]
    assert len(lines) == 2 * (len(command.LOOPS) + len(command.CALLS))


@pytest.mark.slow
def test_a_tiny_run_prints_every_line_for_both_databases(
    postgres_server, capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(command, "ROUND", 10)
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Before\n\n{command.BEGIN}\nearlier\n{command.END}\n\nAfter.\n")
    command.main(["--steps=200", "--rounds=1", "--write", str(document)], postgres_server)
    lines = lines_of(capsys.readouterr().out)
    assert_complete(lines)
    assert {line[4] for line in lines} == {""}, "a small run says nothing about the targets"
    written = document.read_text()
    stored = json.loads(document.with_suffix(".json").read_text())
    assert stored_lines(stored) == lines
    assert "earlier" not in written


def test_the_document_has_every_line():
    lines = stored_lines(json.loads(command.DOCUMENT.with_suffix(".json").read_text()))
    assert_complete(lines)
    assert all(line[4] == "yes" for line in lines if line[3] != "reported")
