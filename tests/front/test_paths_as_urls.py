"""A database is named by a URL, or by the path of its SQLite file."""

import pathlib
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.errors import StorageReadOnlyError, StorageUnreachableError, URLError

FORMS = [
    "replay.db",
    "./replay.db",
    "runs/replay",
    "runs/lr=0.1 10:30/a.db",
    "replay.sqlite3",
    "~/replay.db",
    "a b%23#c.db",
]
TYPOS = [
    "replay",
    "postgres",
    "localhost",
    "db.internal",
    "localhost:5432/replay",
    "me@db.internal/replay",
    "postgresql//me/replay",
    "postgres:/me/replay",
    "sqlite//replay.db",
    "host=db dbname=replay",
    "replay.db?mode=ro",
    "",
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "runs" / "lr=0.1 10:30").mkdir(parents=True)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [str, pathlib.Path])
@pytest.mark.parametrize("form", FORMS)
def test_a_path_names_a_sqlite_file(here, form, kind):
    with ReplayBuffer(kind(form)) as buffer:
        buffer.add(task_id="t")
    path = here / form.removeprefix("~/")
    assert path.is_file()
    with ReplayBuffer(buffer.url) as same:
        assert len(same) == 1
    assert ReplayBuffer.list(kind(form)) == ["default"]
    assert CliRunner().invoke(app, ["ls", form, "--csv"]).output.splitlines()[1:]


def test_a_path_object_needs_no_suffix_and_no_slash(here):
    with ReplayBuffer(pathlib.Path("replay")) as buffer:
        buffer.add(task_id="t")
    assert (here / "replay").is_file()
    assert len(ReplayBuffer("replay")) == 1  # a file that is there needs neither


def test_the_environment_names_a_path(here, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", "replay.db")
    ReplayBuffer().close()
    assert (here / "replay.db").is_file()


@pytest.mark.thorough
@pytest.mark.parametrize("word", TYPOS)
def test_a_word_that_names_nothing_is_refused_with_what_to_write(here, word):
    with pytest.raises(URLError, match="postgresql://user@host/database"):
        ReplayBuffer(word)
    assert [path.name for path in here.iterdir()] == ["runs"]
    result = CliRunner().invoke(app, ["info", word])
    assert result.exit_code == 2
    assert "postgresql://user@host/database" in result.output


@pytest.mark.parametrize("word", ["host=db password=secret", "me:secret@db", "me:se@secret/x@"])
def test_what_may_be_a_password_is_not_repeated(word):
    with pytest.raises(URLError) as caught:
        ReplayBuffer(word)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_question_mark_in_a_path_is_refused(here, kind):
    (here / "what?.db").touch()
    with pytest.raises(URLError, match="question mark"):
        ReplayBuffer(kind("what?.db"))


@pytest.mark.parametrize("option", ["mode=ro", "immutable=1"])
@pytest.mark.parametrize("name", ["replay.db", "a b%23#c.db"])
def test_a_url_that_only_reads_refuses_writes(here, name, option):
    with ReplayBuffer(name) as buffer:
        buffer.add(task_id="t")
    url = f"sqlite:///{quote(name)}?{option}"
    with ReplayBuffer(url) as buffer:
        assert buffer.url.endswith(f".db?{option}")
        assert len(ReplayBuffer(buffer.url)) == 1
        assert len(buffer) == len(buffer.sample(1)) == 1
        with pytest.raises(StorageReadOnlyError):
            buffer.add(task_id="t")
        with pytest.raises(StorageReadOnlyError):
            buffer.clear()
    for words in (["ls"], ["sql"]):
        last = ["SELECT count(*) FROM v_experiences"] if words == ["sql"] else []
        result = CliRunner().invoke(app, [*words, url, *last])
        assert result.exit_code == 0
    assert len(ReplayBuffer(name)) == 1


def test_a_file_that_is_missing_is_not_made_for_reading(here):
    with pytest.raises(StorageUnreachableError, match="unable to open"):
        ReplayBuffer("sqlite:///missing.db?mode=ro")
    assert not (here / "missing.db").exists()


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(URLError, match="one of ro, rw, rwc"):
        ReplayBuffer("sqlite:///replay.db?mode=r")
