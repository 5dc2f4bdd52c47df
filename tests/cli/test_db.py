import sqlite3

import psycopg
import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import make_newer
from tests.support.array_rows import make_array_row
from tests.support.cli_errors import error_lines
from tests.support.schema import objects_of, schema_of
from tests.support.sql import connected, is_sqlite


@pytest.mark.thorough
def test_init_creates_the_schema_once(run, database_url):
    first, second = run("db", "init", database_url), run("db", "init", database_url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "created the schema, revision 0001" in first.output
    assert "there already, revision 0001" in second.output
    assert ReplayBuffer.list(database_url) == []


def test_upgrade_at_head_says_so(run, schema_url):
    result = run("db", "upgrade", schema_url)
    assert result.exit_code == 0
    assert "at head already" in result.output


def test_check_and_current_at_head(run, schema_url):
    assert run("db", "check", schema_url).exit_code == 0
    assert run("db", "current", schema_url).output == "0001 (head)\n"


@pytest.mark.parametrize("command", [("db", "check"), ("db", "upgrade"), ("info",)])
def test_a_database_without_the_schema_needs_init(run, postgres_url, command):
    result = run(*command, postgres_url)
    assert result.exit_code == 4
    assert "sqlbuffer db init" in result.stderr
    assert run("db", "current", postgres_url).output == "no schema (head is 0001)\n"


@pytest.mark.parametrize("command", [("db", "check"), ("db", "upgrade"), ("db", "init"), ("info",)])
def test_a_newer_schema_asks_for_a_newer_package(run, schema_url, command):
    make_newer(schema_url, "9999")
    result = run(*command, schema_url)
    assert result.exit_code == 4
    assert "git pull && pip install ." in result.stderr


def test_doctor_names_a_newer_schema_that_only_added(run, schema_url):
    make_newer(schema_url, "0001")
    result = run("doctor", schema_url)
    assert "revision 9999, later than this package's own, 0001, which it supports" in result.output


@pytest.mark.thorough
@pytest.mark.parametrize("command", [("db", "check"), ("db", "upgrade"), ("db", "init"), ("ls",)])
def test_a_newer_schema_that_only_added_is_used(run, schema_url, command):
    make_newer(schema_url, "0001")
    assert run(*command, schema_url).exit_code == 0
    assert run("db", "current", schema_url).output == "9999 (head is 0001)\n"
    assert "later than its own" in run("db", "check", schema_url).output
    assert run("db", "sql", schema_url).stdout == ""


@pytest.mark.parametrize(
    "command", [("db", "check"), ("db", "current"), ("db", "upgrade"), ("info",)]
)
@pytest.mark.parametrize("url", [(), ("sqlite:///missing.db",)], ids=["default", "named"])
def test_a_missing_file_is_not_created(run, tmp_path, command, url):
    result = run(*command, *url)
    assert result.exit_code == 3
    assert "there is no file" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_the_database(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", "sqlite:///named.db")
    assert run("db", "init").exit_code == 0
    assert (tmp_path / "named.db").is_file()
    assert run("db", "check").exit_code == 0


# `sqlbuffer db sql` prints what `db init` and `db upgrade` would run.


def execute_script(url, script):
    """Run a script of several statements as `sqlite3` or `psql` would."""
    if is_sqlite(url):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executescript(script)
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(script)


def printed(run, *words):
    result = run("db", "sql", *words)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def empty_url(database_url):
    """Return a database that is there, also as a file, and empty."""
    with connected(database_url):
        return database_url


@pytest.mark.thorough
@pytest.mark.slow
def test_the_script_makes_the_schema_that_init_makes(run, empty_url, make_database_url):
    kind = "sqlite" if is_sqlite(empty_url) else "postgresql"
    script = printed(run, "--dialect", kind)
    execute_script(empty_url, script)
    assert run("db", "check", empty_url).exit_code == 0
    with (
        connected(empty_url) as connection,
        connected(make_database_url(kind, schema=True)) as migrated,
    ):
        assert schema_of(connection) == schema_of(migrated)
        names = [row[:2] for row in objects_of(connection)]
        assert names == [row[:2] for row in objects_of(migrated)]
        if kind == "postgresql":
            assert objects_of(connection) == objects_of(migrated)
    with ReplayBuffer(empty_url, max_capacity=5, evict_by="task") as buffer:
        buffer.store_batch([make_array_row(task=n // 3, step=n % 3) for n in range(9)])
        assert len(buffer) == len(list(buffer)) == 3
    assert run("doctor", empty_url).exit_code == 0


def test_an_empty_database_gets_the_whole_script(run, empty_url):
    kind = "sqlite" if is_sqlite(empty_url) else "postgresql"
    assert printed(run, empty_url) == printed(run, "--dialect", kind)
    assert run("db", "check", empty_url).exit_code == 4


def test_a_script_that_fails_leaves_nothing(run, empty_url):
    kind = "sqlite" if is_sqlite(empty_url) else "postgresql"
    script = printed(run, "--dialect", kind)
    broken = script.replace("CREATE VIEW v_buffers", "CREATE VIEW v_tasks")
    assert broken != script
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        execute_script(empty_url, broken)
    assert run("db", "current", empty_url).stdout.startswith("no schema")
    execute_script(empty_url, script)
    assert run("db", "check", empty_url).exit_code == 0


def test_a_schema_at_head_needs_no_script(run, schema_url):
    result = run("db", "sql", schema_url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "at head already" in result.stderr


def test_a_newer_schema_is_refused(run, schema_url):
    make_newer(schema_url, "9999")
    result = run("db", "sql", schema_url)
    assert result.exit_code == 4
    assert "git pull && pip install ." in result.stderr


@pytest.mark.parametrize(
    "words", [("sqlite:///x.db", "--dialect", "sqlite"), ("--dialect", "mysql")]
)
def test_a_dialect_is_one_of_two_and_goes_without_a_url(run, words):
    result = run("db", "sql", *words)
    assert result.exit_code == 2
    assert len(error_lines(result.stderr)) == 1


def test_no_database_is_opened_for_a_dialect(run, tmp_path):
    assert "CREATE TABLE experiences" in printed(run, "--dialect", "sqlite")
    assert list(tmp_path.iterdir()) == []
