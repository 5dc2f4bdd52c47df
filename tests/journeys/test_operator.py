"""An operator sets a database up, lets others in, backs it up, restores and upgrades it."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    SchemaTooNewError,
    StorageError,
    StorageReadOnlyError,
    WrongPasswordError,
)
from tests.journeys.conftest import Terminal
from tests.support.servers import own_server, server_programs

PASSWORD, WRONG = "swordfish@8:30", "halibut@9:15"
# Who connects by the network is asked for a password; the administrator is at the machine.
RULES = """local all me,rollouts,trainer,alice scram-sha-256
local all all trust
"""
# What a later release leaves behind that this one must not use.
NEWER = (
    "UPDATE sqlbuffer_alembic_version SET version_num = '9999'; "
    "UPDATE schema_info SET min_client = '9998'"
)
Done = Callable[[str], str]


@pytest.fixture
def server(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[URL]:
    """Yield the administrator's URL of a server that asks all others for passwords, with psql,
    pg_dump and pg_restore at hand.
    """
    programs = server_programs()
    if programs is None or not (programs / "pg_restore").exists():
        pytest.skip("allowed: no programs of PostgreSQL on this machine")
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    with own_server(programs) as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            found = admin.execute("SHOW hba_file").fetchone()
            Path(found[0] if found else "").write_text(RULES)
            admin.execute("SELECT pg_reload_conf()")
        yield make_url(server.url)


@pytest.fixture
def done(terminal: Terminal) -> Callable[[str], str]:
    """Run a command line that succeeds; return what it prints."""

    def enter(line: str) -> str:
        answer = terminal(line)
        assert answer.code == 0, f"{line}: {answer.err}{answer.out}"
        return answer.out

    return enter


def fill(url: str) -> None:
    with ReplayBuffer(url, "walk", fields={"obs": "float32"}) as buffer:
        for step in range(100):
            buffer.add(obs=0.1 * step, reward=1.0, task_id=f"task-{step // 10}")


@pytest.mark.thorough
@pytest.mark.slow
def test_runs_a_server(server: URL, terminal: Terminal, done: Done) -> None:
    def url_of(user: str, database: str, password: str = PASSWORD) -> str:
        url = server.set(username=user, password=password, database=database)
        return url.render_as_string(hide_password=False)

    admin = server.render_as_string()
    replay, restored = url_of("me", "replay"), url_of("me", "restored")
    for user in ("me", "rollouts", "trainer", "alice"):
        done(f"psql -qc \"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'\" '{admin}'")

    # Set it up. A command that comes too early says what to type.
    done(f"psql -qc 'CREATE DATABASE replay OWNER me' '{admin}'")
    early = terminal(f"sqlbuffer ls '{replay}'")
    assert early.code == 4
    assert "run `sqlbuffer db init" in early.err
    done(f"sqlbuffer db init '{replay}'")
    assert "the schema serves this package" in done(f"sqlbuffer db check '{replay}'")

    # Let others in, each with the least rights. A call that takes more says which role may.
    postgres = server.set(database="replay").render_as_string()
    done(f"sqlbuffer db roles | psql -q '{postgres}'")
    for group, user in (("writer", "rollouts"), ("learner", "trainer"), ("analyst", "alice")):
        done(f"psql -qc 'GRANT sqlbuffer_{group} TO {user}' '{postgres}'")
    fill(url_of("rollouts", "replay"))
    task = QueryBuilder().eq("task_id", "task-0")
    with ReplayBuffer(url_of("rollouts", "replay"), "walk") as buffer:
        assert len(buffer) == 100
        with pytest.raises(StorageReadOnlyError, match="sqlbuffer_learner also deletes"):
            buffer.delete(task)
    with ReplayBuffer(url_of("alice", "replay"), "walk") as buffer:
        assert len(buffer.sample(8)) == 8
        with pytest.raises(StorageReadOnlyError, match="sqlbuffer_writer stores"):
            buffer.extend({"obs": [1.0]})
    with ReplayBuffer(url_of("trainer", "replay"), "walk") as buffer:
        assert buffer.delete(task) == 10

    # A wrong password is named as what it is, and repeated nowhere.
    wrong_url = url_of("rollouts", "replay", WRONG)
    with pytest.raises(WrongPasswordError, match="check the user and the password") as refused:
        ReplayBuffer(wrong_url, "walk")
    answer = terminal(f"sqlbuffer ls '{wrong_url}'")
    assert answer.code == 3
    assert "check the user and the password" in answer.err
    for said in (str(refused.value), answer.out, answer.err):
        assert "halibut" not in said

    # Dump and restore. The roles may there what they might before.
    done(f"pg_dump --format=custom --file=replay.dump '{replay}'")
    done(f"psql -qc 'CREATE DATABASE restored OWNER me' '{admin}'")
    done(f"pg_restore --exit-on-error --dbname='{restored}' replay.dump")
    checks = done(f"sqlbuffer doctor '{restored}'").splitlines()
    assert [line for line in checks if not line.startswith("OK ")] == []
    with ReplayBuffer(replay, "walk") as old, ReplayBuffer(restored, "walk") as new:
        assert list(new) == list(old)
        new.extend({"obs": [1.0]}, task_id="after")
        assert new.get_by_task_id("after")[0].seq == 101
    with ReplayBuffer(url_of("alice", "restored"), "walk") as buffer:
        assert len(buffer) == 91

    # Read-only for the time of maintenance.
    done(f"psql -qc 'ALTER DATABASE restored SET default_transaction_read_only = on' '{admin}'")
    with ReplayBuffer(restored, "walk") as buffer:
        assert len(buffer.sample(8)) == 8
        with pytest.raises(StorageReadOnlyError, match="default_transaction_read_only is on"):
            buffer.extend({"obs": [1.0]})
    done(f"psql -qc 'ALTER DATABASE restored RESET default_transaction_read_only' '{admin}'")

    # Upgrade: there is nothing to do, until another machine has done it with a later release.
    assert "the schema is at head already" in done(f"sqlbuffer db upgrade '{restored}'")
    done(f"psql -qc \"{NEWER}\" '{restored}'")
    with pytest.raises(SchemaTooNewError, match="git pull && pip install"):
        ReplayBuffer(restored, "walk")
    assert terminal(f"sqlbuffer db upgrade '{restored}'").code == 4


def test_runs_a_file(terminal: Terminal, done: Done) -> None:
    # Set it up, and copy it while it is in use.
    done("sqlbuffer db init replay.db")
    assert "the schema serves this package" in done("sqlbuffer db check replay.db")
    fill("replay.db")
    with ReplayBuffer("replay.db", "walk") as buffer:
        stored = list(buffer)
        backup("replay.db", "copy.db")
    checks = done("sqlbuffer doctor copy.db --full").splitlines()
    assert [line for line in checks if not line.startswith("OK ")] == []

    # A damaged file: the message says what to try.
    damaged = bytearray(Path("replay.db").read_bytes())
    damaged[4096:-4096] = b"\xff" * (len(damaged) - 8192)
    Path("replay.db").write_bytes(damaged)
    with pytest.raises(StorageError, match="restore a backup, or save what can be read"):
        ReplayBuffer("replay.db", "walk")
    answer = terminal("sqlbuffer doctor replay.db --full")
    assert answer.code == 1
    assert "restore a backup" in answer.out

    # Restore.
    for name in ("replay.db", "replay.db-wal", "replay.db-shm"):
        Path(name).unlink(missing_ok=True)
    Path("copy.db").rename("replay.db")
    with ReplayBuffer("replay.db", "walk") as buffer:
        assert list(buffer) == stored
        buffer.extend({"obs": [1.0]}, task_id="after")
        assert buffer.get_by_task_id("after")[0].seq == 101

    # Read-only.
    with ReplayBuffer("sqlite:///replay.db?mode=ro", "walk") as buffer:
        assert len(buffer.sample(8)) == 8
        with pytest.raises(StorageReadOnlyError, match="to write, open it without mode=ro"):
            buffer.clear()

    # Upgrade: there is nothing to do, until another program has done it with a later release.
    assert "the schema is at head already" in done("sqlbuffer db upgrade replay.db")
    with closing(sqlite3.connect("replay.db")) as connection:
        connection.executescript(NEWER)
    for command in ("check", "upgrade"):
        answer = terminal(f"sqlbuffer db {command} replay.db")
        assert answer.code == 4
        assert "git pull && pip install ." in answer.err


def backup(source: str, target: str) -> None:
    """What docs/how-to/back-up.md says to do."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
