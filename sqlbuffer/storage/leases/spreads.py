"""Bounds on the spreads of the groups in the queue.

Triggers note in `queue_groups` which groups and tasks have changed. A claim that needs spreads
reads those once, and keeps what it found: a group that was skipped costs the next claim nothing.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, text

from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.schema.expressions import SeqList

_KEYS = """
INSERT INTO queue_groups (buffer_id, key, version)
SELECT DISTINCT :buffer_id, k.key, {version} FROM (
    SELECT q.task_id AS key FROM queue_items q WHERE q.buffer_id = :buffer_id AND q.seq {is_one}
    UNION SELECT q.group_id FROM queue_items q WHERE q.buffer_id = :buffer_id AND q.seq {is_one}
) k
WHERE true ORDER BY 2
ON CONFLICT (buffer_id, key) DO UPDATE
SET task_bound = 1e308, group_bound = 1e308, version = excluded.version
"""
_SQLITE = _KEYS.format(version="0", is_one="IN (SELECT value FROM json_each(:seqs))")
_POSTGRESQL = _KEYS.format(
    version="pg_current_xact_id()::text::bigint", is_one="= ANY (CAST(:seqs AS bigint[]))"
)


def _again(statement: str, connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    again = text(statement).bindparams(bindparam("seqs", list(seqs), SeqList()))
    connection.execute(again, {"buffer_id": buffer_id})


def _sqlite_compare_again(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    _again(_SQLITE, connection, buffer_id, seqs)


def _postgresql_compare_again(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    _again(_POSTGRESQL, connection, buffer_id, seqs)


# Notes that rows wait again: the rewards of their groups and tasks are to be compared.
compare_again = by_database(sqlite=_sqlite_compare_again, postgresql=_postgresql_compare_again)
