"""`sqlbuffer copy` copies buffers into another database."""

import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import KINDS
from tests.support.copied_buffers import json_rows, typed_steps
from tests.support.sql import connected
from tests.support.views import shown


@pytest.mark.parametrize("kind", KINDS)
def test_copies_all_buffers_of_a_database_into_one_without_them(run, kind, make_database_url):
    source, target = make_database_url("sqlite"), make_database_url(kind, schema=kind != "sqlite")
    json_rows(source, "rows").close()
    typed_steps(source, "steps").close()

    result = run("copy", source, target)

    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["copied 'rows'", "copied 'steps'"]
    assert "labels, priorities, uses and quarantine are those of the time" in lines[0]
    for name in ("rows", "steps"):
        assert shown(target, name) == shown(source, name)
    again = run("copy", source, target)
    assert again.exit_code == 0
    assert again.stdout.count("already: ") == 2


@pytest.mark.thorough
def test_copies_the_steps_of_one_buffer_that_match(run, buffer_url):
    source = json_rows(buffer_url, "rows")
    ReplayBuffer(buffer_url, "other")
    result = run("copy", buffer_url, "some.db", "--buffer", "rows", "--eq", "agent_id=agent-1")
    assert result.exit_code == 0, result.stderr
    assert ReplayBuffer.list("some.db") == ["rows"]
    copied = ReplayBuffer("some.db", "rows")
    expected = [row.seq for row in source if row.exp_meta.agent_id == "agent-1"]
    assert [row.seq for row in copied] == expected
    wanted = '{"field": "step", "op": "lt", "value": 15}'
    result = run("copy", buffer_url, "less.db", "--buffer", "rows", "--condition", wanted)
    assert result.exit_code == 0, result.stderr
    assert max(row.exp_meta.step for row in ReplayBuffer("less.db", "rows")) == 14


def test_names_what_is_not_copied(run, buffer_url):
    ReplayBuffer(buffer_url, "ring")
    with connected(buffer_url) as connection:
        connection.exec_driver_sql("UPDATE buffers SET layout = 'ring'")
    result = run("copy", buffer_url, "copy.db")
    assert result.exit_code == 1
    assert "buffers of sqlbuffer.compat are not copied alone: 'ring'" in result.stderr
    result = run("copy", buffer_url, "copy.db", "--buffer", "nothing")
    assert result.exit_code == 3
    assert "no buffer 'nothing'" in result.stderr


@pytest.mark.thorough
def test_info_and_doctor_name_an_unfinished_copy(run, buffer_url, monkeypatch):
    source = json_rows(buffer_url, "rows")
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_ROWS", 10)
    target = ReplayBuffer(buffer_url, "copy", config=source.config)

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.copy_to(target, on_progress=interrupt)

    named = "buffer 'copy' is an unfinished copy of 'rows' in "
    assert named in run("info", buffer_url).stderr
    found = run("doctor", buffer_url).stdout
    assert "WARN copy 'copy': unfinished copy of 'rows' in " in found
    assert "and its configuration says" not in found
    source.copy_to(target)
    assert named not in run("info", buffer_url).stderr
    assert "unfinished copy" not in run("doctor", buffer_url).stdout


def test_a_server_without_the_schema_is_told_how_to_make_it(run, sqlite_url, make_database_url):
    json_rows(sqlite_url, "rows")
    result = run("copy", sqlite_url, make_database_url("postgresql"))
    assert result.exit_code == 4
    assert "run `sqlbuffer db init" in result.stderr


@pytest.mark.thorough
def test_doctor_names_the_hold_of_a_copy(run, buffer_url):
    source = json_rows(buffer_url, "rows")
    found = []
    source.copy_to(
        ReplayBuffer(buffer_url, "copy", config=source.config),
        on_progress=lambda *_: found.append(run("doctor", buffer_url).stdout),
    )
    assert "OK   hold on 'rows': a copy keeps steps above seq " in found[0]
    assert "hold on" not in run("doctor", buffer_url).stdout
