"""The examples in help texts are commands that exist."""

import re
import shlex
import subprocess
import sys
from decimal import Decimal

import pytest
from typer.main import get_command

from sqlbuffer.cli import app
from sqlbuffer.cli.output import shown
from tests.cli.test_errors import commands

COMMANDS = list(commands(get_command(app)))


def examples():
    for path in COMMANDS:
        command = get_command(app)
        for name in path:
            command = command.commands[name]
        for line in command.epilog.splitlines():
            if line.startswith("  "):
                yield path, line.strip()


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "line"), list(examples()), ids=lambda value: str(value)[:60])
def test_an_example_parses(path, line):
    program, *words = shlex.split(re.split(r" [|<>] ", line)[0])
    assert program == "sqlbuffer"
    assert tuple(words[: len(path)]) == path
    command = get_command(app)
    for name in path:
        command = command.commands[name]
    # Parsed, not run: an option or a word too many raises.
    context = command.make_context(" ".join(path), words[len(path) :])
    assert bool(context.params) == bool(command.params)


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_list_of_commands_shows_the_first_sentence_whole(run, command):
    listing = run(*command[:-1], "--help").stdout
    line = next(line for line in listing.splitlines() if line.startswith(f"  {command[-1]} "))
    assert line.endswith(".")
    assert not line.endswith("...")


@pytest.mark.parametrize("name", ["info", "ls", "show", "sql", "sample", "doctor"])
def test_every_listing_prints_the_four_formats(run, name):
    text = run(name, "--help").stdout
    assert all(f"--{format_}" in text for format_ in ("json", "csv", "ndjson"))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("ls", "[URL] [BUFFER]"),
        ("show", "[URL] TASK"),
        ("sql", "[URL] SELECT"),
        ("resize", "[URL] N|unlimited"),
        ("create", "[URL] NAME"),
        ("info", "[URL]"),
    ],
)
def test_the_usage_tells_what_may_be_left_out(run, command, words):
    assert f"{command} [OPTIONS] {words}\n" in run(command, "--help").stdout


def test_help_names_the_exit_codes(run):
    text = " ".join(run("--help").stdout.split())
    assert "0 ok, 1 failed, 2 usage, 3 unreachable or not there, 4 needs" in text
    assert "5 busy" in text


def test_no_command_at_all_prints_the_help(run):
    result = run()
    assert result.exit_code == 2
    assert "Commands:" in result.output


# Cells of tables.


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (None, "-"),
        (True, "true"),
        (12345, "12,345"),
        (0.12345, "0.1235"),
        (12345.6, "12,346"),
        (Decimal("2.5"), "2.5"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        ("Task-A", "Task-A"),
        ("", ""),
    ],
)
def test_shows_a_value_as_a_person_reads_it(value: object, cell: str) -> None:
    assert shown(value) == cell


def test_python_m_is_the_same_command(tmp_path):
    printed = [
        subprocess.run(
            [sys.executable, *way, "ls", "--help"], capture_output=True, text=True, cwd=tmp_path
        )
        for way in (
            ["-m", "sqlbuffer"],
            ["-c", "from sqlbuffer.cli import app; app(prog_name='sqlbuffer')"],
        )
    ]
    assert [one.returncode for one in printed] == [0, 0]
    assert printed[0].stdout == printed[1].stdout
    assert "Usage: sqlbuffer ls" in printed[0].stdout
