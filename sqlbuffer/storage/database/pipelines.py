"""Statements for PostgreSQL that are sent together, with their values in binary form.

A server answers them together as well: a whole transaction then takes one round trip. psycopg's own
pipeline needs five times as long for it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Engine

from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import (
    Begin,
    begin_commands,
    check_not_working,
    driver_of,
    invalidated_when_lost,
)

if TYPE_CHECKING:
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult


class Statement(NamedTuple):
    """A statement with its values in the forms of the server.

    Attributes:
        text: Its text, with `$1` and so on.
        values: The values.
        binary: Which of them are in binary form; the others are text.
    """

    text: str
    values: Sequence[bytes | None] = ()
    binary: Sequence[bool] = ()


Rows = list[tuple[bytes | None, ...]]


def run_statement(connection: Connection, statement: Statement) -> Rows:
    """Run one statement in the transaction of a connection; return its rows as text."""
    (rows,) = _answers(driver_of(connection), [statement])
    return rows


def run_transaction(
    engine: Engine, make: Callable[[Connection], Statement], durability: str | None = None
) -> Rows:
    """Run one statement in a transaction of its own, in one round trip; return its rows as text.

    Args:
        engine: The engine.
        make: Function that returns the statement, for a connection that has no transaction.
        durability: See `Begin`.
    """
    check_not_working(engine)
    begin = map(Statement, begin_commands(Begin(writes=True, durability=durability)))
    with engine.connect() as connection, invalidated_when_lost(connection):
        statements = [*begin, make(connection), Statement("COMMIT")]
        return _answers(driver_of(connection), statements)[-2]


def _answers(driver: "psycopg.Connection[Any]", statements: Sequence[Statement]) -> list[Rows]:
    """Return the rows of each statement; none runs after one that failed."""
    pgconn = driver.pgconn
    with driver.lock:
        pgconn.enter_pipeline_mode()
        try:
            for text, values, binary in statements:
                pgconn.send_query_params(text.encode(), values, param_formats=binary or None)
            pgconn.pipeline_sync()
            results = driver.wait(_results(pgconn, driver.info.encoding))
        finally:
            # After an interrupt there may be answers left: then the connection is dropped.
            with suppress(psycopg.Error):
                pgconn.exit_pipeline_mode()
    return [
        [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
        for result in results
    ]


def _results(pgconn: "PGconn", encoding: str) -> "PQGen[list[PGresult]]":
    """Send what is to be sent, and return the result of each statement."""
    statuses = psycopg.pq.ExecStatus
    failed = (statuses.FATAL_ERROR, statuses.PIPELINE_ABORTED)
    while pgconn.flush():
        ready = yield psycopg.waiting.Wait.RW
        if ready & psycopg.waiting.Ready.R:  # the server does not read on while it cannot answer
            pgconn.consume_input()
    results: list[PGresult] = []
    try:
        while (result := (yield from _next_result(pgconn))) is not None:
            results.append(result)
    except psycopg.OperationalError:
        if all(one.status not in failed for one in results):
            raise  # the server has not said why it closes the connection
    for result in results:
        if result.status in failed:
            raise psycopg.errors.error_from_result(result, encoding)
    return results


def _next_result(pgconn: "PGconn") -> "PQGen[PGresult | None]":
    """Return the result of the next statement, or None after the last one."""
    while True:
        while pgconn.is_busy():
            yield psycopg.waiting.Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None:
            return None if result.status == psycopg.pq.ExecStatus.PIPELINE_SYNC else result
        if pgconn.status == psycopg.pq.ConnStatus.BAD:  # else the end of an answer
            raise psycopg.OperationalError("the connection is lost")
