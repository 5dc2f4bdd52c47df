"""Which word is the database."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli.options import database
from sqlbuffer.errors import StorageUnreachableError
from tests.cli.conftest import ODD_TASK
from tests.support.cli_errors import error_lines

OWN = "sqlite:///replay.db"


@pytest.fixture
def here(run):
    """Make replay.db in the folder that the commands run in."""
    with ReplayBuffer(OWN, name="mine") as buffer:
        buffer.add(task_id=ODD_TASK, step=1)
        buffer.add(task_id="sqlite.notes", step=1)
        yield run


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("url", [OWN, "replay.db", "./replay.db"])
@pytest.mark.parametrize(
    "words",
    [
        ("info",),
        ("ls",),
        ("show", ODD_TASK),
        ("sql", "SELECT 1"),
        ("sample",),
        ("resize", "5"),
        ("delete", "--task", ODD_TASK, "--yes"),
        ("doctor",),
        ("db", "check"),
        ("db", "current"),
        ("db", "init"),
        ("db", "upgrade"),
        ("db", "sql"),
    ],
    ids=lambda words: " ".join(words)[:10],
)
def test_the_database_is_named_behind_the_command_or_in_the_environment(
    here, monkeypatch, words, url
):
    at = 2 if words[0] == "db" else 1
    assert here(*words[:at], url, *words[at:]).exit_code == 0
    if words[0] == "delete":
        with ReplayBuffer(OWN, name="mine") as buffer:
            buffer.add(task_id=ODD_TASK, step=1)
    monkeypatch.setenv("SQLBUFFER_URL", OWN)
    assert here(*words).exit_code == 0


def test_a_lone_word_of_ls_is_a_database_or_a_buffer(here, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", OWN)
    assert "sqlite.notes" in here("ls", "mine").stdout
    assert "sqlite.notes" not in here("ls", "replay.db").stdout
    assert "sqlite.notes" in here("ls", "replay.db", "mine").stdout


def test_a_path_outside_the_folder_is_a_database(here, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    result = here("ls", str(tmp_path / "replay.db"))
    assert result.exit_code == 0
    assert "mine" in result.stdout


def test_a_path_is_made_by_init(run, tmp_path):
    assert run("db", "init", "new.db").exit_code == 0
    assert (tmp_path / "new.db").is_file()


@pytest.mark.parametrize("command", [("ls",), ("info",), ("doctor",), ("sample",), ("db", "check")])
@pytest.mark.parametrize("path", ["missing.db", "./missing", "/missing/replay"])
def test_a_path_that_is_not_there_is_named(run, tmp_path, command, path):
    result = run(*command, path)
    assert result.exit_code == 3
    text = result.output
    assert "there is no file" in text
    assert "missing" in text
    assert "sqlbuffer db init" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("ls",), ("show", "t"), ("sql", "SELECT 1"), ("resize", "5")])
def test_without_any_database_the_error_says_where_one_is_named(run, command):
    result = run(*command)
    assert result.exit_code == 3
    assert "no database is named" in result.stderr
    assert "SQLBUFFER_URL" in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        (("show", OWN), "sqlbuffer ls URL --tasks"),
        (("show",), "sqlbuffer show URL TASK"),
        (("sql", "replay.db"), "sqlbuffer sql URL"),
        (("resize", "postgresql://me@host/db"), "sqlbuffer resize URL 100000"),
    ],
)
def test_a_missing_word_is_a_usage_error_that_says_what_to_type(here, command, remedy):
    result = here(*command)
    assert result.exit_code == 2
    assert remedy in result.stderr
    assert len(error_lines(result.stderr)) == 1


@pytest.mark.parametrize("command", [("ls",), ("info",), ("sample",), ("db", "check")])
@pytest.mark.parametrize("folder", [".", "./", "..", "./data", "data/"])
def test_a_folder_is_told_with_a_database_in_it(run, tmp_path, command, folder):
    (tmp_path / "data").mkdir()
    result = run(*command, folder)
    assert result.exit_code == 3
    assert "is a folder; name a database in it, such as" in result.stderr
    (tmp_path / "data" / "runs.db").touch()
    shown = run(*command, folder).stderr
    assert ("data/runs.db" in shown) == ("data" in folder)


def test_a_word_that_is_taken_for_a_buffer_is_named_if_there_is_no_database(run):
    result = run("ls", "cartpole")
    assert result.exit_code == 3
    assert "'cartpole' is not a file or a URL: no database is named" in result.stderr


def test_a_folder_is_no_database_in_python(tmp_path):
    with pytest.raises(StorageUnreachableError, match="is a folder"):
        ReplayBuffer(f"sqlite:///{tmp_path}", retry_s=0)


def test_a_path_that_no_url_can_say_is_refused(here, tmp_path):
    (tmp_path / "what?.db").touch()
    result = here("ls", "what?.db")
    assert result.exit_code == 2
    assert "question mark" in result.stderr


@pytest.mark.parametrize("word", ["me@db.internal/replay.db", "rubbish", "x" * 5000, "a\0b"])
def test_a_word_that_is_neither_stays_for_the_library_to_judge(word):
    assert database(word) == word
