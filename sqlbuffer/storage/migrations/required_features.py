"""Check that a database has the features that the library needs, by using them."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from sqlbuffer.errors import UnsupportedDatabaseError
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.urls import shown_url

_ENGINES = "use PostgreSQL 15 or later itself, not a system that only speaks its protocol"
_POOLER = "set the pooler to transaction mode, in pgbouncer: pool_mode = transaction"
_LOCKS = "advisory locks"
_TRANSACTIONS = "transactions of several statements"
# URLs, without their databases, of the servers that this process has checked.
_checked: set[URL] = set()


class _Missing(Exception):
    """A feature does not do what it should."""


def check_sqlite(connection: Connection, url: URL) -> None:
    """Raise an error if this SQLite lacks what the schema needs; 0.02 ms.

    Raises:
        UnsupportedDatabaseError: It does.
    """
    try:
        # Both came with SQLite 3.38.
        connection.exec_driver_sql("""SELECT '["a"]' ->> 0, unixepoch()""").one()
    except DBAPIError as error:
        raise UnsupportedDatabaseError(
            f"{shown_url(url)}: SQLite (of Python's sqlite3) lacks the operator ->> or the "
            f"function unixepoch: {error.orig}; use a Python with SQLite 3.38 or later"
        ) from error


def check_postgresql(engine: Engine, url: URL) -> None:
    """Raise an error if a server lacks a feature that the schema or the library needs.

    It opens two connections of its own, and leaves nothing behind.

    Args:
        engine: The engine.
        url: Its resolved URL, for messages.

    Raises:
        UnsupportedDatabaseError: The server lacks a feature, which the message names.
    """
    with _new_connection(engine) as first, _new_connection(engine) as second:
        _check_transactions(first, url)
        _check_locks(first, second, url)
        _check_schema_features(first, url)


def check_advisory_locks(engine: Engine, url: URL) -> None:
    """Raise an error if an advisory lock of one connection does not keep another one out.

    Args:
        engine: The engine.
        url: Its resolved URL, for messages.

    Raises:
        UnsupportedDatabaseError: It does not.
    """
    with _new_connection(engine) as first, _new_connection(engine) as second:
        _check_locks(first, second, url)


def check_first_opening(connection: Connection, url: URL) -> None:
    """Raise an error if transactions or advisory locks do not work; once for each server.

    It needs no right to create anything, so it covers a schema that was restored, or that is
    reached through another pooler. If the server takes no second connection now, a later opening
    checks it.

    Args:
        connection: A connection that has not begun a transaction.
        url: The resolved URL of the server.

    Raises:
        UnsupportedDatabaseError: They do not.
    """
    server = url.set(database=None)
    if server in _checked:
        return
    with _manual(connection) as first, ExitStack() as stack:
        _check_transactions(first, url)
        if _session(first) != first.info.backend_pid:
            # A second connection may wait for ever: all sessions behind the pooler are in use, by
            # processes that wait for a second one.
            _check_listed_lock(first, url)
        else:
            try:
                second = stack.enter_context(_new_connection(connection.engine))
            except psycopg.OperationalError:
                return
            _check_locks(first, second, url)
    _checked.add(server)


@contextmanager
def _new_connection(engine: Engine) -> Iterator[Any]:
    """Open a connection of psycopg that is not in use elsewhere."""
    # The engine's own pool may have one connection, which is in use.
    pool = engine.pool.recreate()
    with ExitStack() as stack:
        stack.callback(pool.dispose)
        connection = pool.connect()
        stack.callback(connection.close)
        driver = cast("Any", connection.driver_connection)
        driver.autocommit = False
        yield driver


@contextmanager
def _manual(connection: Connection) -> Iterator[Any]:
    """Let the driver begin a transaction in the block, which is rolled back."""
    driver = driver_of(connection)
    begins_none, driver.autocommit = driver.autocommit, False
    try:
        yield driver
    finally:
        if driver.closed:
            connection.invalidate()
        else:
            driver.rollback()
            driver.autocommit = begins_none


def _session(connection: Any) -> int:
    """Return the number of the server's session that runs a statement of a connection."""
    return int(connection.execute("SELECT pg_backend_pid()").fetchone()[0])


def _check_transactions(connection: Any, url: URL) -> None:
    def use() -> None:
        if _session(connection) != _session(connection):
            raise _Missing("two statements of one transaction ran in two sessions")

    _used(_TRANSACTIONS, use, url, _POOLER)


def _check_locks(first: Any, second: Any, url: URL) -> None:
    keys = _new_keys()

    def use() -> None:
        _take("pg_advisory_xact_lock_shared", first, keys)
        if _take("pg_try_advisory_xact_lock", second, keys):
            raise _Missing("a second connection took a lock that another one held")
        if not _take("pg_try_advisory_xact_lock_shared", second, keys):
            raise _Missing("two connections could not share a lock")
        _check_listed(second, keys, 2)
        second.rollback()
        first.rollback()
        first.execute("SAVEPOINT probe")
        _take("pg_advisory_xact_lock", first, keys)
        first.execute("ROLLBACK TO SAVEPOINT probe")
        if not _take("pg_try_advisory_xact_lock", second, keys):
            raise _Missing("the end of a transaction, or of a part of it, did not release its lock")

    try:
        _used(_LOCKS, use, url)
    finally:
        first.rollback()
        second.rollback()


def _check_listed_lock(connection: Any, url: URL) -> None:
    keys = _new_keys()

    def use() -> None:
        _take("pg_advisory_xact_lock_shared", connection, keys)
        _check_listed(connection, keys, 1)

    _used(_LOCKS, use, url)


def _new_keys() -> tuple[int, int]:
    return secrets.randbits(31), secrets.randbits(31)


def _take(function: str, connection: Any, keys: tuple[int, int]) -> Any:
    return connection.execute(f"SELECT {function}(%s, %s)", keys).fetchone()[0]


def _check_listed(connection: Any, keys: tuple[int, int], n: int) -> None:
    listed = connection.execute(
        "SELECT count(DISTINCT virtualtransaction) FROM pg_locks WHERE locktype = 'advisory' "
        "AND mode = 'ShareLock' AND granted AND (classid, objid) = (%s, %s)",
        keys,
    ).fetchone()
    if listed != (n,):
        raise _Missing(f"pg_locks lists {listed[0]} of the {n} connections that hold a lock")


def _check_schema_features(connection: Any, url: URL) -> None:
    name = f"sqlbuffer_probe_{secrets.token_hex(8)}"
    try:
        for feature, use in _SCHEMA_FEATURES:
            _used(feature, partial(use, connection, name), url)
    finally:
        connection.rollback()
    try:
        _used(_UNDONE, lambda: _check_undone(connection, name), url)
    finally:
        connection.rollback()


def _used(feature: str, use: Callable[[], None], url: URL, remedy: str = _ENGINES) -> None:
    """Use a feature, and raise an error that names it if that does not work."""
    try:
        use()
    except _Missing as missing:
        reason = str(missing)
    except psycopg.Error as error:
        state = error.sqlstate or ""
        # 42501: the role has no right, which another error tells. 08P01: a pooler refuses it.
        if not state.startswith(("0A", "42", "08P01")) or state == "42501":
            raise
        reason = str(error).strip().splitlines()[0]
    else:
        return
    raise UnsupportedDatabaseError(
        f"{shown_url(url)}: the server lacks {feature}, which sqlbuffer needs: {reason}; {remedy}"
    )


def _use_transaction_ids(connection: Any, name: str) -> None:
    (is_right,) = connection.execute(
        "SELECT pg_current_xact_id() >= pg_snapshot_xmin(pg_current_snapshot()) "
        "AND NOT pg_visible_in_snapshot(pg_current_xact_id(), pg_current_snapshot())"
    ).fetchone()
    if not is_right:
        raise _Missing("the own transaction id was below the snapshot")


def _use_sequences(connection: Any, name: str) -> None:
    connection.execute(f"CREATE SEQUENCE {name}_seq")

    def following() -> int:
        return int(connection.execute(f"SELECT nextval('{name}_seq')").fetchone()[0])

    numbers = [following(), following()]
    connection.execute("SAVEPOINT probe")
    numbers.append(following())
    connection.execute("ROLLBACK TO SAVEPOINT probe")
    numbers.append(following())
    last = f"SELECT pg_sequence_last_value('{name}_seq'::regclass)"
    numbers.append(int(connection.execute(last).fetchone()[0]))
    if numbers != [1, 2, 3, 4, 4]:
        raise _Missing(f"it gave {', '.join(map(str, numbers))} for 1, 2, 3, 4, 4")


def _use_statement_triggers(connection: Any, name: str) -> None:
    for statement in (
        f"CREATE TABLE {name} (n bigint)",
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"PERFORM set_config('sqlbuffer.probe', (SELECT count(*) FROM added)::text, true); "
        f"RETURN NULL; END $$",
        f"CREATE TRIGGER {name} AFTER INSERT ON {name} REFERENCING NEW TABLE AS added "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {name}()",
        f"INSERT INTO {name} VALUES (1), (2)",
    ):
        connection.execute(statement)
    (seen,) = connection.execute("SELECT current_setting('sqlbuffer.probe', true)").fetchone()
    if seen != "2":
        raise _Missing(f"the trigger saw {seen or 0} of 2 rows")


def _use_view_triggers(connection: Any, name: str) -> None:
    for statement in (
        f"CREATE VIEW {name}_view AS SELECT n FROM {name}",
        f"CREATE FUNCTION {name}_view() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"INSERT INTO {name} VALUES (NEW.n + 10); RETURN NEW; END $$",
        f"CREATE TRIGGER {name} INSTEAD OF INSERT ON {name}_view "
        f"FOR EACH ROW EXECUTE FUNCTION {name}_view()",
        f"INSERT INTO {name}_view VALUES (3)",
    ):
        connection.execute(statement)
    (n,) = connection.execute(f"SELECT max(n) FROM {name}").fetchone()
    if n != 13:
        raise _Missing("the trigger did not run")


def _use_skip_locked(connection: Any, name: str) -> None:
    connection.execute(f"SELECT n FROM {name} FOR UPDATE SKIP LOCKED").fetchall()


def _use_statistics(connection: Any, name: str) -> None:
    connection.execute("SELECT pg_stat_force_next_flush()")


def _check_undone(connection: Any, name: str) -> None:
    (is_there,) = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone()
    if is_there:
        for what in (
            f"VIEW IF EXISTS {name}_view", f"TABLE IF EXISTS {name}",
            f"SEQUENCE IF EXISTS {name}_seq", f"FUNCTION IF EXISTS {name}()",
            f"FUNCTION IF EXISTS {name}_view()",
        ):  # fmt: skip
            connection.execute(f"DROP {what}")
        connection.commit()
        raise _Missing("a table stayed after it")


_SCHEMA_FEATURES: tuple[tuple[str, Callable[[Any, str], None]], ...] = (
    ("transaction ids of 64 bits and snapshots", _use_transaction_ids),
    ("sequences that a rollback does not set back", _use_sequences),
    ("triggers for statements, with their new rows", _use_statement_triggers),
    ("triggers in place of an insert into a view", _use_view_triggers),
    ("SKIP LOCKED", _use_skip_locked),
    ("statistics that a session reports at once", _use_statistics),
)
_UNDONE = "DDL that a rollback undoes"
FEATURES = (_TRANSACTIONS, _LOCKS, *(name for name, _ in _SCHEMA_FEATURES), _UNDONE)
