"""Finds the settled rows of a buffer on PostgreSQL, and counts them block by block."""

import time
from collections.abc import Sequence
from functools import partial

import psycopg
from sqlalchemy import Connection, Engine

from sqlbuffer.storage.database.engine import begin_epoch, server_epoch
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.vacuum import cleaner_for
from sqlbuffer.storage.dialects.connections import at_once
from sqlbuffer.storage.watermarks import Watermark

# A transaction that reserves numbers of a buffer holds (this, buffer id) as a shared advisory lock
# until it ends. `sqlbuffer_reserve_v1` takes it: the number is written there too.
WRITERS_LOCK = 1_397_836_866
# Two statements in one message, so that a number reserved after the first one is not seen. The lock
# is taken for this message alone, in 0.03 ms. A standby knows no locks of its primary.
_LOOK = (
    "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM sqlbuffer_seq_{0}; "
    "SELECT CASE WHEN NOT pg_is_in_recovery() "
    f"THEN pg_try_advisory_xact_lock({WRITERS_LOCK}, {{0}}) END"
)
# Readers hold the lock in another mode, only for the moment of the read. With 5,000 locks of others
# it takes 7 ms.
_WRITERS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock' "
    f"AND granted AND classid = {WRITERS_LOCK} AND objid = {{}} AND objsubid = 2 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_PUT_DOCUMENTS = (
    "INSERT INTO documents (buffer_id, key, version, value) "
    "SELECT %s, d.key, 1, d.json::jsonb FROM unnest(%s::text[], %s::text[]) AS d(key, json) "
    "ON CONFLICT (buffer_id, key) DO UPDATE SET version = documents.version + 1, "
    "value = excluded.value, changed_at = excluded.changed_at"
)
SETTLING_PAUSE_S = 0.001


def settled_seq(engine: Engine, watermark: Watermark, wait_s: float = 0.0) -> int | None:
    """Return a seq up to which no row can appear any more.

    A writer locks the buffer before it reserves numbers, until its transaction ends; see
    `WRITERS_LOCK`. So the numbers up to `last_value` belong to transactions that have ended, or
    that hold the lock when it is read afterwards. Reading in the other order would miss a writer
    that starts between the two reads. A caller that reads rows by the result opens its snapshot
    afterwards.

    Args:
        engine: The engine.
        watermark: Known state of the buffer, updated by this call.
        wait_s: Seconds to wait for the current writers, so that all existing rows are settled.
    """
    deadline = time.monotonic() + wait_s
    known = watermark
    with known.mutex, at_once(engine) as connection:
        last_value, is_free = _look(connection, known.buffer_id)
        known.begin(server_epoch(engine))
        if is_free is None:
            return known.on_standby.look(driver_of(connection), known.buffer_id)
        if last_value < max(known.settled, known.pending):
            # No connection reported this crash; perhaps there is a pooler in between.
            begin_epoch(engine)
            known.begin(server_epoch(engine))
        if is_free:
            known.note(last_value, frozenset())
        while known.settled < last_value:
            found = driver_of(connection).execute(_WRITERS.format(known.buffer_id))
            known.note(last_value, frozenset(name for (name,) in found))
            if known.settled >= last_value or time.monotonic() >= deadline:
                break
            time.sleep(SETTLING_PAUSE_S)
        return known.settled


def _look(connection: Connection, buffer_id: int) -> tuple[int, bool | None]:
    """Return the last number of a buffer, and True if no writer held its lock after that.

    The second value is None on a standby.
    """
    # Several statements in one message need a cursor with the text protocol.
    cursor = psycopg.Cursor(driver_of(connection)).execute(_LOOK.format(buffer_id))
    ((last_value,),) = cursor.fetchall()
    cursor.nextset()
    ((is_free,),) = cursor.fetchall()
    return last_value, is_free


def clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Clean up after eviction, and count full blocks of rows, from time to time.

    Args:
        engine: The engine.
        n_rows: Number of rows that were written.
        n_bytes: Size of their parts in bytes.
        inserted_into: Watermark of the buffer that rows were inserted into.
    """
    cleaner = cleaner_for(engine)
    if inserted_into is not None:
        count = partial(_count_full_blocks, engine, inserted_into)
        cleaner.inserted(inserted_into.buffer_id, count)
    cleaner.wrote(engine, n_rows, n_bytes)


def _count_full_blocks(
    engine: Engine, watermark: Watermark, connection: Connection, buffer_id: int
) -> None:
    """Count the rows of the blocks that can get no more rows, a few blocks in a transaction."""
    try:
        end = settled_seq(engine, watermark)
    except psycopg.errors.UndefinedTable:  # the buffer was dropped
        return
    # Apply the changes that concurrent writers have left: only one writer at a time changes groups.
    connection.exec_driver_sql("SELECT sqlbuffer_fold_groups_v1(%s::integer)", (buffer_id,))
    statement = "SELECT sqlbuffer_count_rows_v1(%s::integer, %s::bigint)"
    while connection.exec_driver_sql(statement, (buffer_id, end)).scalar_one():
        pass


def note_write(engine: Engine, buffer_id: int, write_id: str, keep_s: float) -> str | None:
    """Return the query that stores the id of a write; see `Begin.query`.

    The query returns false if the write was applied before.
    """
    return f"SELECT sqlbuffer_note_write_v1({buffer_id:d}, '{write_id}', {keep_s:f})"


def lock_as_writer(connection: Connection, buffer_id: int) -> None:
    """Lock the row of a buffer until the transaction ends, with the rights of any writer."""
    driver_of(connection).execute("SELECT sqlbuffer_lock_v1(%s::integer)", (buffer_id,))


def put_documents(
    connection: Connection, buffer_id: int, documents: Sequence[tuple[str, str]]
) -> None:
    """Write documents, given by key and JSON."""
    keys, values = [key for key, _ in documents], [json for _, json in documents]
    driver_of(connection).execute(_PUT_DOCUMENTS, (buffer_id, keys, values))
