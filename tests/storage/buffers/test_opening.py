"""What opening creates, finds and refuses."""

import gc
import os
import pickle
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import QueuePool

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.compat.aworld import InMemoryStorage
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    BufferNotFoundError,
    SchemaMissingError,
    SchemaOutdatedError,
    SchemaTooNewError,
    StorageError,
    StorageReadOnlyError,
    StorageUnreachableError,
    URLError,
)
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.migrations import migrate
from tests.compat.aworld.aworld_rows import row
from tests.support.processes import run_at_once
from tests.support.sql import buffer_id, is_sqlite, run, run_outside_transaction, scalar
from tests.support.statements import tables_used
from tests.support.stepped_rows import make_row, make_rows, step_is, steps_of

NO_SERVER = "postgresql://user:s3cret@127.0.0.1:1/db?connect_timeout=2"


def version_of(url):
    return scalar(url, f"SELECT version_num FROM {migrate.VERSION_TABLE}")


def path_of(url):
    return make_url(url).database


def test_a_new_sqlite_file_is_created_at_head(sqlite_url):
    with ReplayBuffer(sqlite_url, max_capacity=5) as buffer:
        buffer.store(make_row(1))
    assert version_of(sqlite_url) == migrate.HEAD
    assert scalar(sqlite_url, "PRAGMA journal_mode") == "wal"
    assert steps_of(ReplayBuffer(sqlite_url)) == [1]


def test_an_empty_file_is_a_new_sqlite_database(sqlite_url):
    open(path_of(sqlite_url), "w").close()
    ReplayBuffer(sqlite_url)
    assert version_of(sqlite_url) == migrate.HEAD


def test_a_sqlite_file_with_tables_of_others_is_not_touched_unasked(sqlite_url):
    run(sqlite_url, "CREATE TABLE theirs (n integer)")
    with open(path_of(sqlite_url), "rb") as file:
        before = file.read()
    with pytest.raises(SchemaMissingError, match=r"sqlbuffer db init .*create=True"):
        ReplayBuffer(sqlite_url)
    with open(path_of(sqlite_url), "rb") as file:
        assert file.read() == before
    with ReplayBuffer(sqlite_url, create=True) as buffer:
        assert buffer.store(make_row(1)).inserted == 1
    assert run(sqlite_url, "SELECT * FROM theirs") == []


def test_create_false_creates_neither_file_nor_buffer(sqlite_url, buffer_url):
    with pytest.raises(BufferNotFoundError, match="there is no file"):
        ReplayBuffer(sqlite_url, create=False)
    assert not os.path.exists(path_of(sqlite_url))
    with pytest.raises(BufferNotFoundError, match="'default'"):
        ReplayBuffer(buffer_url, create=False)
    assert ReplayBuffer.list(buffer_url) == []
    ReplayBuffer(buffer_url)
    assert ReplayBuffer(buffer_url, create=False).name == "default"


def test_listing_creates_nothing(sqlite_url):
    with pytest.raises(BufferNotFoundError, match="there is no file"):
        ReplayBuffer.list(sqlite_url)
    assert not os.path.exists(path_of(sqlite_url))


def test_postgresql_gets_the_schema_only_when_asked(postgres_url):
    for create in (None, False):
        with pytest.raises(SchemaMissingError, match="sqlbuffer db init") as info:
            ReplayBuffer(postgres_url, create=create)
        assert "create=True" in str(info.value)
    assert scalar(postgres_url, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    ReplayBuffer(postgres_url, create=True).store(make_row(1))
    assert version_of(postgres_url) == migrate.HEAD
    assert len(ReplayBuffer(postgres_url)) == 1
    assert len(ReplayBuffer(postgres_url, create=True)) == 1


@pytest.fixture
def package_one_revision_later(monkeypatch):
    monkeypatch.setattr(migrate, "REVISIONS", (*migrate.REVISIONS, "9000"))
    monkeypatch.setattr(migrate, "HEAD", "9000")


@pytest.mark.parametrize("create", [None, True, False])
def test_an_older_schema_is_refused_with_the_command_to_run(
    buffer_url, package_one_revision_later, create
):
    resolved = shown_url(resolve_url(buffer_url))
    with pytest.raises(SchemaOutdatedError) as info:
        ReplayBuffer(buffer_url, create=create)
    assert f"`sqlbuffer db upgrade '{resolved}'`" in str(info.value)
    with pytest.raises(SchemaOutdatedError):
        ReplayBuffer.list(buffer_url)
    with pytest.raises(SchemaOutdatedError):
        ReplayBuffer.drop(buffer_url, "default")


def make_newer(url):
    run(url, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    run(url, "UPDATE schema_info SET min_client = '9999'")


def test_a_newer_schema_says_to_upgrade_the_package(buffer_url):
    make_newer(buffer_url)
    for create in (None, True, False):
        with pytest.raises(SchemaTooNewError, match="git pull && pip install") as info:
            ReplayBuffer(buffer_url, create=create)
        assert "9999" in str(info.value)
    with pytest.raises(SchemaTooNewError):
        migrate.upgrade(buffer_url)
    assert version_of(buffer_url) == "9999"


def open_and_store(url, number):
    buffer = ReplayBuffer(url, name="shared", max_capacity=100, create=True)
    return buffer.store(make_row(number)).inserted


@pytest.mark.thorough
@pytest.mark.slow
def test_8_processes_create_schema_and_buffer_at_once(database_url):
    results = run_at_once([(open_and_store, database_url, i) for i in range(8)])
    assert results == [1] * 8
    assert ReplayBuffer.list(database_url) == ["shared"]
    buffer = ReplayBuffer(database_url, name="shared")
    assert sorted(steps_of(buffer)) == list(range(8))
    assert buffer.max_capacity == 100


def open_with_capacity(url, capacity):
    try:
        ReplayBuffer(url, name="shared", max_capacity=capacity)
    except BufferConfigError:
        return "refused"
    return "opened"


def test_when_two_capacities_race_one_wins_and_the_other_hears_of_it(buffer_url):
    results = run_at_once([(open_with_capacity, buffer_url, capacity) for capacity in (10, 20)])
    assert sorted(results) == ["opened", "refused"]


def test_another_capacity_than_the_stored_one_is_refused_and_both_are_named(buffer_url):
    ReplayBuffer(buffer_url, max_capacity=1_000)
    with pytest.raises(BufferConfigError) as info:
        ReplayBuffer(buffer_url, max_capacity=2_000)
    for part in ("'default'", "1000", "2000", "max_capacity", "resize"):
        assert part in str(info.value)
    assert ReplayBuffer(buffer_url, max_capacity=1_000).max_capacity == 1_000
    assert ReplayBuffer(buffer_url).max_capacity == 1_000


def test_a_capacity_for_an_unlimited_buffer_is_refused(buffer_url):
    ReplayBuffer(buffer_url)
    with pytest.raises(BufferConfigError, match=r"unlimited.*2000"):
        ReplayBuffer(buffer_url, max_capacity=2_000)


def test_another_eviction_than_the_stored_one_is_refused_and_both_are_named(buffer_url):
    ReplayBuffer(buffer_url, evict_by="task")
    with pytest.raises(BufferConfigError, match=r"(?s)evict_by='task'.*evict_by='row'"):
        ReplayBuffer(buffer_url, evict_by="row")
    assert ReplayBuffer(buffer_url).evict_by == "task"


def test_an_unknown_eviction_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match="row, task, episode, got 'step'"):
        ReplayBuffer(buffer_url, evict_by="step")
    assert ReplayBuffer.list(buffer_url) == []


def test_a_capacity_larger_than_any_number_of_rows_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match="max_capacity"):
        ReplayBuffer(buffer_url, max_capacity=2**63)
    assert ReplayBuffer(buffer_url, max_capacity=2**62).store(make_row(1)).inserted == 1


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 10_000, 5, None, b"x"])
def test_a_name_that_cannot_be_stored_is_refused(buffer_url, name):
    with pytest.raises(ArgumentError, match="name"):
        ReplayBuffer(buffer_url, name=name)


def test_the_url_may_come_from_the_environment(buffer_url, monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", buffer_url)
    ReplayBuffer(name="from_environment").store(make_row(1))
    assert ReplayBuffer.list() == ["from_environment"]
    assert len(ReplayBuffer(buffer_url, name="from_environment")) == 1


def test_without_any_url_there_is_a_file_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with ReplayBuffer() as buffer:
        buffer.store(make_row(1))
    assert (tmp_path / "sqlbuffer.db").exists()


def test_a_relative_path_stays_the_same_file_when_the_working_folder_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    buffer = ReplayBuffer("sqlite:///replay.db")
    buffer.store(make_row(1))
    monkeypatch.chdir("elsewhere")
    assert len(buffer) == 1
    assert len(ReplayBuffer(f"sqlite:///{tmp_path}/replay.db")) == 1
    buffer.close()


def test_sqlalchemy_urls_are_taken(buffer_url):
    buffer = ReplayBuffer(make_url(buffer_url))
    buffer.store(make_row(1))
    assert len(ReplayBuffer(buffer_url)) == 1
    assert ReplayBuffer.list(make_url(buffer_url)) == ["default"]


@pytest.fixture
def engine(buffer_url):
    """Return a user's own engine, with settings of their own."""
    drivername = "sqlite" if is_sqlite(buffer_url) else "postgresql+psycopg"
    engine = create_engine(make_url(buffer_url).set(drivername=drivername), pool_size=2)
    yield engine
    engine.dispose()


def test_an_engine_is_taken_and_used(engine, buffer_url):
    buffer = ReplayBuffer(engine, name="own", max_capacity=10)
    assert buffer.store_batch(make_rows(range(13), prefix="r")).inserted == 13
    assert buffer.store_batch(make_rows(range(13), prefix="r")).inserted == 3
    assert len(buffer) == buffer.size() == 10
    assert len(buffer.sample(4)) == 4
    assert len(buffer.sample_tasks(1)[0]) == 10
    assert ReplayBuffer.list(engine) == ["own"]
    assert len(ReplayBuffer(buffer_url, name="own")) == 10
    if isinstance(engine.pool, QueuePool):
        assert engine.pool.checkedin() > 0
    buffer.close()
    assert len(buffer) == 10
    ReplayBuffer.drop(engine, "own")
    assert ReplayBuffer.list(engine) == []
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0


def test_an_engine_gets_a_schema(database_url):
    drivername = "sqlite" if is_sqlite(database_url) else "postgresql+psycopg"
    engine = create_engine(make_url(database_url).set(drivername=drivername))
    ReplayBuffer(engine, create=True).store(make_row(1))
    assert version_of(database_url) == migrate.HEAD
    engine.dispose()


def test_a_database_in_memory_belongs_to_its_buffer():
    one, other = ReplayBuffer("sqlite://"), ReplayBuffer("sqlite:///:memory:", max_capacity=2)
    one.store(make_row(1))
    other.store_batch(make_rows(range(4)))
    assert (len(one), len(other)) == (1, 2)
    assert len(one.sample(5)) == 1


def messages_of(call):
    """Return every text that an error of the call shows, causes included."""
    with pytest.raises(Exception) as info:  # noqa: PT011
        call()
    texts, error = [], info.value
    while error is not None:
        texts += [str(error), repr(error)]
        error = error.__cause__
    return texts


@pytest.mark.parametrize(
    "url",
    [
        NO_SERVER,
        "mysql://user:s3cret@host/db",
        "postgresql+psycopg2://user:s3cret@host/db",
        "postgresql//user:s3cret@host/db",
        "postgresql:user:s3cret@host",
        "oracle+nonsense://user:s3cret@host:port/db",
        "sqlite+aiosqlite://user:s3cret@/db",
        "user:s3cret@host/db",
        "postgresql://user:s3cret@host:notaport/db",
        "postgresql://127.0.0.1:1/db?user=user&password=s3cret",
    ],
)
def test_a_password_is_in_no_message(url):
    for make in (
        lambda: ReplayBuffer(url, retry_s=0),
        lambda: ReplayBuffer.list(url, retry_s=0),
        lambda: ReplayBuffer.drop(url, "default", retry_s=0),
        lambda: migrate.upgrade(url),
    ):
        assert not [text for text in messages_of(make) if "s3cret" in text]


def test_a_password_is_in_no_repr(postgres_url):
    url = make_url(postgres_url)
    url = url.set(username=url.username or "postgres", password=url.password or "s3cret")
    buffer = ReplayBuffer(url, create=True)
    password = url.password or ""
    assert f":{password}@" not in repr(buffer)
    assert "postgresql://" in repr(buffer)
    for shown in (repr(buffer._store), str(vars(buffer._store)), buffer.sql(), buffer.explain()):
        assert f":{password}@" not in shown
    make_newer(postgres_url)
    assert not [text for text in messages_of(lambda: ReplayBuffer(url)) if f":{password}@" in text]
    engine_for(resolve_url(url)).dispose()


def test_an_unreachable_server_is_named():
    with pytest.raises(StorageUnreachableError, match=r"127\.0\.0\.1.*check that the server runs"):
        ReplayBuffer(NO_SERVER, retry_s=0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u@host/db", "SQLite and PostgreSQL, not mysql"),
        ("postgresql+psycopg2://u@host/db", r"postgresql\+psycopg://"),
        ("postgresql+asyncpg://u@host/db", r"postgresql\+psycopg://"),
        ("sqlite+aiosqlite:///x.db", "sqlite:///"),
        ("replay", "sqlite:///replay.db or postgresql://"),
        ("", "sqlite:///replay.db or postgresql://"),
        (5, "sqlite:///replay.db or postgresql://"),
    ],
)
def test_an_unknown_driver_or_a_url_that_is_none_is_refused(url, message):
    with pytest.raises(URLError, match=message):
        ReplayBuffer(url)


@pytest.mark.thorough
def test_opening_logs_nothing_above_debug(database_url):
    code = f"""
import logging
logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s")
from sqlbuffer import ReplayBuffer
ReplayBuffer({database_url!r}, create=True).close()
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert "DEBUG sqlbuffer" in lines
    assert {line.split()[0] for line in lines} == {"DEBUG"}


def test_a_damaged_file_says_what_to_try(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.store_batch(make_rows(range(500)))
    with open(path_of(sqlite_url), "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(path_of(sqlite_url)) - 4096))
    said = r"is damaged: .*restore a backup, or save what can be read: `sqlite3 .* \.recover"
    with pytest.raises(StorageError, match=said) as info:
        ReplayBuffer(sqlite_url).sample(4)
    assert f"`sqlbuffer doctor {path_of(sqlite_url)} --full`" in str(info.value)


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    for create in (None, True):
        with pytest.raises(StorageUnreachableError, match="not a SQLite file"):
            ReplayBuffer(f"sqlite:///{path}", create=create)
    assert path.read_text() == "not a database, " * 100


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"nowhere"):
        ReplayBuffer(f"sqlite:///{tmp_path}/nowhere/replay.db")


@pytest.mark.parametrize(
    "form",
    ["sqlite:///file:{}?mode=ro&uri=true", "sqlite:///file:{}?mode=ro", "sqlite:///{}?mode=ro"],
)
def test_a_sqlite_file_opened_for_reading_only_can_be_read_and_not_written(sqlite_url, form):
    ReplayBuffer(sqlite_url).store_batch(make_rows(range(5)))
    url = form.format(path_of(sqlite_url))
    buffer = ReplayBuffer(url, create=False)
    assert (len(buffer), len(buffer.sample(3))) == (5, 3)
    for write in (
        lambda: buffer.store(make_row(1)),
        lambda: buffer.clear(),
        lambda: buffer.resize(3),
        lambda: ReplayBuffer(url, name="new"),
    ):
        with pytest.raises(StorageReadOnlyError):
            write()
    buffer.close()
    assert len(ReplayBuffer(sqlite_url)) == 5


def write_as_nobody(url):
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        ReplayBuffer(url).store(make_row(1))
    except StorageReadOnlyError as error:
        return str(error)
    return None


def test_a_sqlite_file_without_write_permission_says_so(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    path = path_of(sqlite_url)
    folders = [os.path.dirname(path)]
    while os.geteuid() == 0 and os.path.dirname(folders[-1]) != "/":
        folders.append(os.path.dirname(folders[-1]))
    modes = [os.stat(folder).st_mode for folder in folders]
    for folder in folders:
        os.chmod(folder, 0o555)
    os.chmod(path, 0o444)
    try:
        (message,) = run_at_once([(write_as_nobody, sqlite_url)])
    finally:
        for folder, mode in zip(folders, modes, strict=True):
            os.chmod(folder, mode)
    assert message is not None
    assert path.removesuffix(".db") in message


def test_a_locked_sqlite_file_is_reported_as_busy(sqlite_url, monkeypatch):
    from sqlbuffer.errors import StorageBusyError

    buffer = ReplayBuffer(sqlite_url)
    monkeypatch.setattr("sqlbuffer.storage.dialects.BUSY_TIMEOUT_S", 0.1)
    monkeypatch.setattr("sqlbuffer.storage.database.engine.BUSY_TIMEOUT_S", 0.1)
    buffer.close()
    engine_for(resolve_url(sqlite_url)).dispose()
    short = ReplayBuffer(create_engine(sqlite_url, connect_args={"timeout": 0.1}))
    holder = sqlite3.connect(path_of(sqlite_url), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageBusyError, match="another program holds the file"):
        short.store(make_row(1))
    holder.execute("ROLLBACK")
    assert short.store(make_row(1)).inserted == 1
    holder.close()
    short._store.engine.dispose()


@pytest.fixture
def owner_url(postgres_server, postgres_url):
    """Return a database of an owner who is no superuser, with the public schema closed."""
    url = make_url(postgres_url)
    role, password = f"owner_{url.database}", "pw"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        identifiers = {"role": sql.Identifier(role), "database": sql.Identifier(url.database)}
        for statement in (
            "CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD 'pw'",
            "ALTER DATABASE {database} OWNER TO {role}",
        ):
            connection.execute(sql.SQL(statement).format(**identifiers))
    yield url.set(username=role, password=password)
    engine_for(resolve_url(url.set(username=role, password=password))).dispose()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("REASSIGN OWNED BY {role} TO CURRENT_USER").format(**identifiers)
        )
        connection.execute(sql.SQL("DROP OWNED BY {role}").format(**identifiers))
        connection.execute(sql.SQL("DROP ROLE {role}").format(**identifiers))


def test_an_owner_who_is_no_superuser_can_create_and_use_everything(owner_url):
    buffer = ReplayBuffer(owner_url, create=True, max_capacity=5)
    buffer.store_batch(make_rows(range(8), prefix="r"))
    assert len(buffer) == 5
    assert len(buffer.sample(3)) == 3
    by_task = ReplayBuffer(owner_url, name="by_task", max_capacity=5, evict_by="task")
    by_task.store_batch(make_rows(range(8)))
    assert len(by_task) == 5
    buffer.resize(3)
    assert buffer.clear() == 3
    ReplayBuffer.drop(owner_url, "default")
    migrate.downgrade(owner_url, "base")
    migrate.upgrade(owner_url)
    assert ReplayBuffer.list(owner_url) == []


def test_opening_again_changes_nothing(buffer_url):
    ReplayBuffer(buffer_url, max_capacity=7)
    before = run(buffer_url, "SELECT * FROM buffers")
    for _ in range(3):
        ReplayBuffer(buffer_url)
    assert run(buffer_url, "SELECT * FROM buffers") == before
    assert buffer_id(buffer_url) == before[0][0]


def test_a_copy_that_lost_its_journal_mode_gets_it_back(sqlite_url, tmp_path):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.store(make_row(1))
    copy = tmp_path / "copy.db"
    run_outside_transaction(sqlite_url, f"VACUUM INTO '{copy}'")
    assert scalar(f"sqlite:///{copy}", "PRAGMA journal_mode") == "delete"
    with ReplayBuffer(f"sqlite:///{copy}") as buffer:
        assert len(buffer) == 1
    assert scalar(f"sqlite:///{copy}", "PRAGMA journal_mode") == "wal"


def test_a_buffer_tells_how_it_was_made(buffer_url):
    with ReplayBuffer(buffer_url, name="plain") as plain:
        told = (plain.alpha, plain.max_use, plain.max_staleness, plain.min_size)
        assert told == (None, None, None, 0)
        assert plain.track_samples is False
    made = {"max_use": 3, "max_staleness": 0, "min_size": 5, "track_samples": True}
    ReplayBuffer(buffer_url, name="limited", priorities=True, alpha=0.5, **made).close()
    with ReplayBuffer(buffer_url, name="limited") as again:
        assert {name: getattr(again, name) for name in made} == made
        assert again.alpha == 0.5


# Whoever opens a buffer does not wait for the modules of what it may do later.

OPENING = "from sqlbuffer import ReplayBuffer; ReplayBuffer(url)"
LISTING = "from sqlbuffer.cli import app; app(['ls', url], standalone_mode=False)"
IMPORTED = """
import sys
url = sys.argv[1]
{}
needless = {{"alembic", "psycopg", "sqlalchemy.dialects.postgresql"}} | {{
    f"sqlbuffer.{{name}}" for name in (
        "front", "storage.chunks", "storage.draws", "storage.episodes", "storage.leases",
        "storage.priorities", "storage.rows", "storage.sampling", "storage.work",
        "storage.writing",
    )
}}
assert not needless & set(sys.modules), needless & set(sys.modules)
"""


@pytest.mark.parametrize("call", [OPENING, LISTING], ids=["open", "ls"])
def test_opening_and_listing_a_file_import_nothing_for_later_calls(sqlite_url, call):
    ReplayBuffer(sqlite_url).close()
    code = IMPORTED.format(call)
    subprocess.run([sys.executable, "-c", code, sqlite_url], check=True, stdout=subprocess.DEVNULL)


def test_a_new_file_is_made_without_importing_what_later_calls_need(sqlite_url):
    code = IMPORTED.format(OPENING)
    subprocess.run([sys.executable, "-c", code, sqlite_url], check=True, stdout=subprocess.DEVNULL)


# Core calls do what the layout of a buffer needs, and nothing where it is plain.


CALLS = {
    "delete": lambda buffer: buffer.delete(step_is(1)),
    "clear": lambda buffer: buffer.clear(),
    "resize": lambda buffer: buffer.resize(2),
}
IN_SLOTS = {"name": "slots", "max_episodes": 3, "max_timesteps": 4, "fields": {"r": "float"}}
DELETE = """
import sys
from sqlbuffer import QueryBuilder, ReplayBuffer
with ReplayBuffer(sys.argv[1], name="slots", create=False) as buffer:
    assert buffer.delete(QueryBuilder().eq("r", 1).build()) == 1
assert not [name for name in sys.modules if name.startswith("sqlbuffer.compat")]
"""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_a_plain_buffer_uses_no_table_of_compat(buffer_url, call):
    with ReplayBuffer(buffer_url, max_capacity=9) as buffer:
        buffer.store_batch([make_row(step) for step in range(5)])
        names = ["payload_changes", "documents", "experiences"]
        with tables_used(buffer, names) as used:
            CALLS[call](buffer)
        assert used == {"experiences"}


@pytest.mark.thorough
def test_a_process_without_compat_empties_slots(buffer_url):
    with closing(memmap.ReplayBuffer(buffer_url, **IN_SLOTS)) as buffer:
        buffer.store_episode(r=[1.0])
        buffer.store_episode(r=[2.0])
        subprocess.run([sys.executable, "-c", DELETE, buffer_url], check=True)
        assert buffer.episode_lens[:].tolist() == [0, 1, 0]


@pytest.mark.parametrize("call", CALLS)
def test_a_layout_that_the_process_does_not_know_is_refused(buffer_url, call):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_row(1))
    run(buffer_url, "UPDATE buffers SET layout = 'spiral'")
    with ReplayBuffer(buffer_url, create=False) as buffer:
        with pytest.raises(BufferConfigError, match="'spiral', which this process does not know"):
            CALLS[call](buffer)
        assert len(buffer) == 1


def test_only_compat_names_a_layout(buffer_url):
    ReplayBuffer(buffer_url).close()
    assert scalar(buffer_url, "SELECT layout FROM buffers") is None


# The connections of a private storage are closed before its file is removed.


@pytest.mark.thorough
@pytest.mark.slow
def test_private_file_goes_with_its_storage_but_not_with_a_copy():
    storage = InMemoryStorage()
    file = Path(storage.buffer._store.url.database)
    copy = pickle.loads(pickle.dumps(storage))
    del copy
    gc.collect()
    storage.add(row())
    assert file.exists()
    pool = storage.buffer._store.engine.pool
    assert pool.checkedin()
    del storage
    gc.collect()
    assert not file.parent.exists()
    assert not pool.checkedin()
