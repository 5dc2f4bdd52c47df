"""The benchmarks run end to end on both databases."""

import json

import pytest

from tests.benchmarks import __main__ as command
from tests.benchmarks.report import BEGIN, END, sections, short
from tests.integrations.test_benchmarks import EVERY, assert_complete


@pytest.mark.timeout(900)
def test_a_tiny_run_prints_every_line_for_both_databases(postgres_server, capsys):
    command.main(["--rows", "1000"], postgres_server)
    assert_complete(capsys.readouterr().out, "1,000 rows", {""})


@pytest.mark.timeout(900)
def test_a_tiny_run_on_sqlite_prints_every_line(capsys, tmp_path):
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Before\n\n{BEGIN}\nearlier\n{END}\n\nAfter.\n")
    command.main(["--rows", "1000", "--database", "sqlite", "--write", str(document)])
    printed = capsys.readouterr().out
    assert_complete(printed, "1,000 rows", {""}, EVERY - {"PostgreSQL"})
    assert "**A reduced run**" in printed
    written = document.read_text()
    (section,) = sections(f"{BEGIN}\n{printed}\n{END}").values()
    assert json.loads(document.with_suffix(".json").read_text()) == {"figures": section}
    assert short(section) in written
    assert "earlier" not in written
    assert written.startswith("# Before\n")
    assert written.endswith("\nAfter.\n")
