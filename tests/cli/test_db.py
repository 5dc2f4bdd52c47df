import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import make_newer


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
