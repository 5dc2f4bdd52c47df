import sqlite3
import subprocess
import sys
import warnings

import psycopg
import pytest
import sqlalchemy
from typer.main import get_command

from sqlbuffer import ReplayBuffer, errors
from sqlbuffer.cli import app, db
from sqlbuffer.cli.errors import TaskNotFoundError, UsageError, exit_code
from tests.support.cli_errors import error_lines
from tests.support.malformed_urls import MALFORMED_URLS, NO_PASSWORD, SECRET

CONTRACT = {
    UsageError: 2,
    TaskNotFoundError: 3,
    errors.URLError: 2,
    errors.BufferConfigError: 2,
    errors.ConditionError: 2,
    errors.FieldError: 2,
    errors.StorageUnreachableError: 3,
    errors.WrongPasswordError: 3,
    errors.RoleMissingError: 3,
    errors.DatabaseMissingError: 3,
    errors.BufferNotFoundError: 3,
    errors.SchemaMissingError: 4,
    errors.SchemaOutdatedError: 4,
    errors.SchemaTooNewError: 4,
    errors.StorageBusyError: 5,
    errors.StorageReadOnlyError: 1,
    errors.StorageFullError: 1,
    errors.MissingExtraError: 1,
    errors.SQLBufferError: 1,
}


def commands(group, *path):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize(("error", "code"), CONTRACT.items(), ids=lambda value: str(value))
def test_exit_codes_are_a_contract(error, code):
    assert exit_code(error("what to do")) == code


@pytest.mark.thorough
@pytest.mark.parametrize("command", list(commands(get_command(app))), ids=" ".join)
def test_help_of_every_command_has_an_example(run, command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert f"Example:\n    sqlbuffer {' '.join(command)}" in result.output


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from sqlbuffer.cli import app; app(['--help'], standalone_mode=False); "
        "heavy = {'alembic', 'gymnasium', 'numpy', 'psycopg', 'pydantic', 'sqlalchemy'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_version_is_printed(run):
    result = run("--version")
    assert result.exit_code == 0
    assert result.output.strip()


@pytest.mark.parametrize("arguments", [("nonsense",), ("info", "--nonsense"), ("db", "nonsense")])
def test_a_command_that_does_not_exist_is_a_usage_error(run, arguments):
    assert run(*arguments).exit_code == 2


@pytest.mark.parametrize("url", ["rubbish", "mysql://host/replay", "sqlite://"])
@pytest.mark.parametrize("command", [("info",), ("db", "init"), ("db", "check"), ("db", "current")])
def test_a_url_that_cannot_be_used_is_a_usage_error_in_one_line(run, command, url):
    result = run(*command, url)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(error_lines(result.stderr)) == 1
    assert "sqlite:///replay.db" in result.stderr or "SQLite and PostgreSQL" in result.stderr


def test_a_server_that_does_not_answer_is_unreachable_and_its_password_stays_hidden(run):
    result = run("info", "postgresql://me:secret@localhost:1/replay")
    assert result.exit_code == 3
    assert len(error_lines(result.stderr)) == 1
    assert "check that the server runs" in result.stderr
    assert "secret" not in result.output


@pytest.mark.thorough
def test_no_malformed_url_is_echoed(run):
    for url in MALFORMED_URLS:
        for words in (("info", url), ("db", "init", url)):
            result = run(*words)
            assert result.exit_code in (2, 3), url
            assert SECRET not in result.output, url


@pytest.mark.thorough
@pytest.mark.parametrize("url", [*MALFORMED_URLS[::11], *MALFORMED_URLS[101:120:9], NO_PASSWORD])
def test_a_url_in_the_wrong_place_is_not_echoed(run, sqlite_url, url):
    ReplayBuffer(sqlite_url).close()
    for words in (
        ("info", sqlite_url, url),
        ("info", sqlite_url, "--buffer", url),
        ("show", sqlite_url, url),
        ("sample", sqlite_url, "--eq", url),
        ("sample", sqlite_url, f"--condition={url}"),
        ("resize", sqlite_url, url),
        ("nonsense", url),
        (url,),
    ):
        result = run(*words)
        assert result.exit_code != 0
        assert SECRET not in result.output, words


def test_a_url_without_a_password_is_shown_where_it_helps(run):
    result = run("db", "init", "postgresql://me@127.0.0.1:1/db")
    assert "postgresql://me@127.0.0.1:1/db" in result.output


def test_a_file_that_is_no_database_is_named(run, tmp_path):
    (tmp_path / "notes.txt").write_text("no database, but long enough to be mistaken for one\n" * 9)
    result = run("info", "sqlite:///notes.txt")
    assert result.exit_code == 3
    assert "notes.txt" in result.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (sqlite3.OperationalError("disk I/O error\nmore"), "the database refused: disk I/O error"),
        (psycopg.errors.UndefinedColumn("no column"), "the database refused: no column"),
        (sqlalchemy.exc.ArgumentError("odd"), "the database refused: odd"),
        (PermissionError(13, "Permission denied", "replay.db"), "Permission denied: replay.db"),
    ],
)
def test_an_error_that_nobody_foresaw_is_one_line(run, monkeypatch, error, line):
    def fail(url):
        raise error

    monkeypatch.setattr(db, "database", fail)
    result = run("db", "current", "sqlite:///replay.db")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"sqlbuffer: {line}")
    assert len(error_lines(result.stderr)) == 1


def test_a_defect_of_the_package_keeps_its_traceback(run, monkeypatch):
    def fail(url):
        raise TypeError("a defect")

    monkeypatch.setattr(db, "database", fail)
    with pytest.raises(TypeError, match="a defect"):
        run("db", "current", "sqlite:///replay.db")


def test_a_warning_is_one_line(run, monkeypatch, make_database_url):
    def warn(url):
        # As outside of tests, where no filter makes it an error.
        warnings.showwarning("mind the gap", UserWarning, "file.py", 1)
        return url

    monkeypatch.setattr(db, "database", warn)
    result = run("db", "current", make_database_url("sqlite", schema=True))
    assert result.stderr == "sqlbuffer: warning: mind the gap\n"


def test_a_usage_error_names_the_help_of_its_command(run):
    result = run("db", "sql", "--nonsense")
    assert result.stderr == "sqlbuffer: No such option: --nonsense; see `root db sql --help`\n"


def test_an_error_names_the_command_that_explains_it_but_not_for_a_program(run):
    words = ("info", "mysql://host/replay")
    assert run(*words).stderr.splitlines()[1:] == ["See `sqlbuffer errors URLError`"]
    assert len(run(*words, "--json").stderr.splitlines()) == 1


def test_a_usage_error_names_no_command(run):
    assert len(run("show").stderr.splitlines()) == 1
