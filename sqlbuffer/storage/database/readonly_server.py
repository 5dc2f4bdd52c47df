"""Read-only connections to PostgreSQL, and the statements of users that may run on them.

A transaction is read-only, and has the rights of the role sqlbuffer_analyst if that exists. This
does not stop functions with effects outside of the transaction: advisory locks, signals to other
sessions, files of the server, settings. They are all declared VOLATILE. So each name in a statement
is looked up in the server's catalog, and names of volatile functions are refused, except those that
only read. Quotes, comments and schemas around a name make no difference to that.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimestampLoader, TimestamptzLoader
from sqlalchemy import Engine, event
from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.database.engine import engine_for, postgresql_engine
from sqlbuffer.storage.database.statement_process import MAX_GROWTH_BYTES, Stream
from sqlbuffer.storage.database.statement_worker import memory_peak_bytes
from sqlbuffer.storage.database.transactions import (
    BEGIN,
    Begin,
    driver_of,
    invalidated_when_lost,
    postgresql_statement,
)


class Token(NamedTuple):
    """A word or a sign of a statement of PostgreSQL.

    Attributes:
        kind: `name`, `quoted` (a quoted name), `string`, `number` or `sign`.
        text: A name in the server's form; otherwise the text as written.
        start: Position of its first character.
    """

    kind: str
    text: str
    start: int


_LEXED = re.compile(
    r"""(?P<space>[ \t\n\r\f\v]+|--[^\n\r]*)
    |(?P<comment>/\*)
    |(?P<unicode>[uU]&["'])
    |(?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    |(?P<string>'[^']*')
    |(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<name>[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*)
    |(?P<number>\$?[0-9]+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_QUERIES = {"(", "select", "table", "values", "with"}
_EXPLAIN_OPTIONS = {"analyse", "analyze", "verbose"}
_CONTINUED = re.compile(r"(?:[ \t\n\r\f\v]|--[^\n\r]*)*'")


def tokens(statement: str) -> list[Token]:
    """Return the words of a statement as PostgreSQL reads them, without comments.

    Raises:
        StorageReadOnlyError: A name with escapes, which may be any name.
    """
    words, position = [], 0
    while position < len(statement):
        match = _LEXED.match(statement, position)
        assert match is not None
        kind, text, end = match.lastgroup or "", match[0], match.end()
        if kind == "unicode":
            raise StorageReadOnlyError(
                f"{text[:2]} at character {position + 1} may hide a name; this connection is "
                "read-only and takes names and texts without escapes"
            )
        if kind == "comment":
            end = _after_comment(statement, end)
        elif kind == "escaped":
            # A second part, on another line, has escapes too.
            if _CONTINUED.match(statement, end):
                raise StorageReadOnlyError(
                    f"the text at character {position + 1} continues after its end; this "
                    "connection is read-only and takes each text in one piece"
                )
            words.append(Token("string", text, position))
        elif kind == "dollar":
            end = statement.find(text, end)
            end = len(statement) if end < 0 else end + len(text)
            words.append(Token("string", statement[position:end], position))
        elif kind == "quoted":
            words.append(Token(kind, text[1:-1].replace('""', '"'), position))
        elif kind == "name":
            words.append(Token(kind, re.sub("[A-Z]+", lambda m: m[0].lower(), text), position))
        elif kind != "space":
            words.append(Token(kind, text, position))
        position = end
    return words


def is_show(words: Sequence[Token]) -> bool:
    """Return True if a statement shows settings."""
    rest = words[:-1] if words and words[-1].text == ";" else words
    return (
        len(rest) > 1
        and (rest[0].kind, rest[0].text) == ("name", "show")
        and all(word.kind in ("name", "quoted") or word.text == "." for word in rest)
    )


def explained(statement: str, words: Sequence[Token]) -> str | None:
    """Return the statement that an EXPLAIN is for; None if it is not an EXPLAIN."""
    if not words or (words[0].kind, words[0].text) != ("name", "explain"):
        return None
    rest = words[1:]
    if len(rest) > 1 and rest[0].text == "(" and rest[1].text not in _QUERIES:
        ends = [number for number, word in enumerate(rest) if word.text == ")"]
        rest = rest[ends[0] + 1 :] if ends else []
    else:
        while rest and rest[0].kind == "name" and rest[0].text in _EXPLAIN_OPTIONS:
            rest = rest[1:]
    return statement[rest[0].start :] if rest else ""


def _after_comment(statement: str, position: int) -> int:
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(statement, position):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(statement)


ANALYST = "sqlbuffer_analyst"
FETCH_ROWS = 1_000
# If the server does not end a statement, the connection is dropped after this much longer.
_GRACE_S = 2.0

# Volatile functions of PostgreSQL that only read. (A sleep ends at the time limit.)
_HARMLESS = [
    "array_sample", "array_shuffle", "bernoulli", "clock_timestamp", "current_query",
    "gen_random_uuid", "pg_blocking_pids", "pg_current_wal_flush_lsn",
    "pg_current_wal_insert_lsn", "pg_current_wal_lsn", "pg_database_size", "pg_indexes_size",
    "pg_is_in_recovery", "pg_last_wal_receive_lsn", "pg_last_wal_replay_lsn",
    "pg_last_xact_replay_timestamp", "pg_lock_status", "pg_partition_ancestors",
    "pg_partition_tree", "pg_relation_size", "pg_sleep", "pg_sleep_for", "pg_sleep_until",
    "pg_table_size", "pg_tablespace_size", "pg_total_relation_size", "pg_xact_commit_timestamp",
    "random", "random_normal", "system", "timeofday", "uuidv4", "uuidv7",
]  # fmt: skip
# Not volatile, but they run a text as SQL (of the extension tablefunc).
_RUN_SQL = ["connectby", "crosstab", "crosstab2", "crosstab3", "crosstab4", "crosstabn"]
# `(1).name` calls a function as well as `name(1)`.
_REFUSED_NAMES = """
SELECT DISTINCT p.proname FROM pg_catalog.pg_proc p
WHERE p.proname = ANY(%(names)s) AND p.proname <> ALL(%(harmless)s)
  AND (p.provolatile = 'v' OR p.proname = ANY(%(run_sql)s))
  AND (p.pronamespace = 'pg_catalog'::regnamespace OR p.proname = ANY(%(called)s))
ORDER BY p.proname
"""


class GuardedServerConnection(psycopg.Connection[Any]):
    """A connection to a server whose results are limited in time and memory here as well."""

    ends_at: float | None = None
    passed: str | None = None
    most_bytes = sys.maxsize
    role_settings = ""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Run a step of the protocol; see `psycopg.Connection.wait`."""
        return super().wait(self._limited(gen), *args, **options)

    def unlimit(self) -> None:
        """Remove the limits."""
        self.ends_at, self.most_bytes = None, sys.maxsize

    def _limited(self, steps: Any) -> Any:
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted
                self._look()
                wanted = steps.send(ready)
        except StopIteration as end:
            return end.value

    def _look(self) -> None:
        if memory_peak_bytes() > self.most_bytes:
            self.passed = "memory"
        elif self.ends_at is not None and time.monotonic() > self.ends_at + _GRACE_S:
            self.passed = "time"
        else:
            return
        # The rest of the result would still arrive here, so the connection is dropped.
        self.unlimit()
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=1.0)
        self.pgconn.finish()
        raise psycopg.OperationalError("the connection was closed at a limit")


def role_settings(driver: Any) -> str:
    """Return the SQL that gives a transaction the rights of an analyst, if that role exists.

    Args:
        driver: The connection. Its user has the role, and the role may read this database.
    """
    has_set = driver.info.server_version >= 160_000
    # Roles belong to the server: in this database the role may have no rights. Names without a
    # schema mean the same to both roles.
    row = (
        psycopg.Cursor(driver)
        .execute(
            """SELECT string_agg(pg_catalog.quote_ident(s), ', ')
        FROM unnest(current_schemas(false)) s
        WHERE EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = %(role)s
            AND pg_has_role(current_user, r.oid, %(right)s)
            AND has_table_privilege(r.oid, to_regclass('v_buffers'), 'SELECT'))""",
            {"role": ANALYST, "right": "SET" if has_set else "MEMBER"},
        )
        .fetchone()
    )
    path = row[0] if row else None
    # `tokens` knows this form of texts only.
    form = "SET LOCAL standard_conforming_strings = on"
    return f"{form}; SET LOCAL search_path = {path}; SET LOCAL ROLE {ANALYST}" if path else form


def begin_reading(driver: Any, begin: Begin, time_s: float | None) -> None:
    """Begin a transaction of a guarded connection.

    Args:
        driver: The connection.
        begin: Options of the transaction; it always sees one state of the database.
        time_s: Time limit in seconds; None for no limit on time and memory.
    """
    driver.passed = None
    if time_s is not None:
        driver.ends_at = time.monotonic() + time_s
        driver.most_bytes = memory_peak_bytes() + MAX_GROWTH_BYTES
    as_asked = begin._replace(snapshot=True, patient=time_s is None, durability=None, query=None)
    commands = [
        postgresql_statement(as_asked, read_only=True),
        # Readers leave the processors to training.
        "SET LOCAL max_parallel_workers_per_gather = 0",
    ]
    if time_s is not None:
        commands.append(f"SET LOCAL statement_timeout = {max(1, round(time_s * 1000))}")
    commands.append(driver.role_settings)
    psycopg.Cursor(driver).execute("; ".join(commands))


@contextmanager
def answering(
    driver: Any, statement: str, parameters: Mapping[str, Any] | None
) -> Iterator["psycopg.Cursor[Any]"]:
    """Yield the cursor of a user's statement, in a read-only transaction.

    Raises:
        StorageReadOnlyError: The statement does more than read.
    """
    words = tokens(statement)
    _refuse_names(driver, words)
    try:
        with ExitStack() as stack:
            yield _cursor_of(stack, driver, statement, words, parameters)
    except psycopg.errors.ReadOnlySqlTransaction as error:
        # It locks rows, so it is not because of a standby.
        reason = str(error).splitlines()[0]
        raise StorageReadOnlyError(
            f"{reason}: this connection is read-only; write a SELECT that locks no rows"
        ) from error


def _cursor_of(
    stack: ExitStack,
    driver: Any,
    statement: str,
    words: Sequence[Token],
    parameters: Mapping[str, Any] | None,
) -> "psycopg.Cursor[Any]":
    if is_show(words):
        return stack.enter_context(_sent(driver, statement))
    question = explained(statement, words)
    try:
        cursor = stack.enter_context(_declared(driver, question or statement, parameters))
    except (psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        if parameters is None:
            _parse(driver, statement)
        raise StorageReadOnlyError(
            "the statement is refused: this connection is read-only; write a SELECT"
        ) from None
    if question is not None:
        cursor.close()
        return stack.enter_context(_sent(driver, statement))
    return cursor


def _refuse_names(driver: Any, words: Sequence[Token]) -> None:
    names = {word.text for word in words if word.kind in ("name", "quoted")}
    called = {
        word.text
        for before, word, after in zip([None, *words], words, [*words[1:], None], strict=False)
        if (before is not None and before.text == ".") or (after is not None and after.text == "(")
    }
    refused = (
        psycopg.Cursor(driver)
        .execute(
            _REFUSED_NAMES,
            {
                "names": sorted(names),
                "called": sorted(called & names),
                "harmless": _HARMLESS,
                "run_sql": _RUN_SQL,
            },
        )
        .fetchall()
    )
    if refused:
        raise StorageReadOnlyError(
            f"{refused[0][0]} is refused: this connection is read-only, and a function that is "
            "VOLATILE may change something; leave it out (or declare your own function STABLE)"
        )


@contextmanager
def _declared(
    driver: Any, statement: str, parameters: Mapping[str, Any] | None
) -> Iterator["psycopg.Cursor[Any]"]:
    """Yield a cursor that stays on the server. It accepts one statement, which must be a query."""
    with psycopg.ServerCursor(driver, "sqlbuffer") as cursor:
        cursor.itersize = FETCH_ROWS
        for type_, loader in _LENIENT_LOADERS.items():
            cursor.adapters.register_loader(type_, loader)
        cursor.execute(statement, parameters)
        yield cursor


@contextmanager
def _sent(driver: Any, statement: str) -> Iterator["psycopg.Cursor[Any]"]:
    """Yield a cursor that has received the whole result."""
    with psycopg.Cursor(driver) as cursor:
        # With binary results the server refuses a second statement.
        cursor.execute(statement, binary=True)
        yield cursor


def _parse(driver: Any, statement: str) -> None:
    """Make the server check a statement without running it."""
    psycopg.Cursor(driver).execute("ROLLBACK; BEGIN READ ONLY")
    result = driver.pgconn.prepare(b"", statement.encode())
    if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)


def _lenient(loader: type[Loader]) -> type[Loader]:
    """Return a loader that loads dates Python cannot hold (infinity, the year 55000) as text."""

    class Lenient(loader):  # type: ignore[valid-type,misc]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return Lenient


_LENIENT_LOADERS = {
    "date": _lenient(DateLoader),
    "timestamp": _lenient(TimestampLoader),
    "timestamptz": _lenient(TimestamptzLoader),
}


@contextmanager
def stream_server(
    url: URL, statement: str, parameters: Mapping[str, Any] | None
) -> Iterator[Stream]:
    """Run a statement and yield its rows as they are read; see `readonly.stream`."""
    if parameters:
        statement = re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.replace("%", "%%"))
    with _reading(url) as driver, answering(driver, statement, parameters) as cursor:
        described = cursor.description
        if described is None:
            yield Stream([], iter(()))
        else:
            yield Stream([column.name for column in described], iter(cursor))


@contextmanager
def _reading(url: URL) -> Iterator[Any]:
    """Yield the driver's connection in a transaction that cannot write."""
    options: Any = {"postgresql_readonly": True, BEGIN: Begin(patient=True)}
    with (
        engine_for(url).connect().execution_options(**options) as connection,
        connection.begin(),
        invalidated_when_lost(connection),
    ):
        driver = driver_of(connection)
        # Between two fetches a person may read a page.
        settings = ["SET LOCAL idle_in_transaction_session_timeout = 0", role_settings(driver)]
        psycopg.Cursor(driver).execute("; ".join(settings))
        yield driver


def guarded_server(url: URL, **sizes: Any) -> Engine:
    """Return an engine with its own pool, of connections that only read; see `guarded_engine`."""
    engine = postgresql_engine(url, **sizes)
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "connect", lambda driver, _record: _note_role(driver))
    event.listen(engine, "checkin", lambda driver, _record: _unlimit(driver))
    return engine


def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> GuardedServerConnection:
    return GuardedServerConnection.connect(*arguments, **options)


def _note_role(driver: GuardedServerConnection) -> None:
    driver.role_settings = role_settings(driver)


def _unlimit(driver: GuardedServerConnection | None) -> None:
    if driver is not None:
        driver.unlimit()
