"""Delete many rows in statements of a limited size."""

import json
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, func, select, update

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.eviction_counts import count_evictions
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.chunks.sqlite import remove_steps
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

ROWS_AT_ONCE = 10_000

_SEQ = bindparam("seq", type_=BigInteger())
_LAST_CHUNK = select(func.max(chunks.c.first_seq)).where(
    chunks.c.buffer_id == bindparam("of_buffer"),
    chunks.c.first_seq.between(_SEQ - MAX_CHUNK_STEPS + 1, _SEQ),
)

# The triggers of deleted rows log only the deletions that the library does not log itself.
_BEGIN_DELETING = (
    "UPDATE buffers SET is_deleting = 1 WHERE id = ? RETURNING has_chunks, has_followers, "
    "(SELECT low_seq FROM v_windows WHERE buffer_id = buffers.id)"
)
_END_DELETING = "UPDATE buffers SET is_deleting = 0 WHERE id = ?"
_REMOVE_EPISODES = (
    "SELECT id, task_id, status, n_steps "
    "FROM sqlbuffer_remove_episodes_v1(%s::integer, %s::text[], %s::text[], %s::uuid)"
)


def sqlite_remove_rows(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    origin: str | None = None,
    *,
    evicted: bool = False,
) -> int:
    """Delete rows or steps, and log those inside the window; return how many existed.

    Triggers clean the narrow tables.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows.
        origin: The opener that deletes them.
        evicted: They leave because the buffer is full, which is logged for followers alone.
    """
    if not seqs:
        return 0
    row = connection.exec_driver_sql(_BEGIN_DELETING, (buffer_id,)).one_or_none()
    # A buffer that is being dropped has no row any more.
    has_chunks, has_followers, low = (False, False, 0) if row is None else row
    if has_chunks:
        n_removed = remove_steps(connection, buffer_id, seqs)
    else:
        n_removed = connection.exec_driver_sql(
            "DELETE FROM experiences "
            f"WHERE key IN (SELECT ? << {NUMBER_BITS} | value FROM json_each(?))",
            (buffer_id, json.dumps(list(seqs))),
        ).rowcount
    connection.exec_driver_sql(_END_DELETING, (buffer_id,))
    if row is not None and (has_followers or not evicted):
        inside = [seq for seq in seqs if seq > low]
        log_change(connection, buffer_id, "deleted", inside, origin)
    return n_removed


def _postgresql_remove_rows(
    connection: Connection, buffer_id: int, seqs: Sequence[int], origin: str | None = None
) -> int:
    """Delete rows, with their rows in narrow tables; return how many existed.

    Deletions inside the window are logged.
    """
    statement = "SELECT sqlbuffer_remove_v1(%s::integer, %s::bigint[], false, %s::uuid)"
    ((n_removed,),) = driver_of(connection).execute(statement, (buffer_id, list(seqs), origin))
    return int(n_removed)


class RemovedEpisode(NamedTuple):
    """An episode whose steps were deleted.

    Attributes:
        id: Its number.
        task_id: Its task.
        status: Its status.
        n_steps: Number of its steps, with those that were deleted from their chunks before.
    """

    id: int
    task_id: str
    status: str
    n_steps: int


def _sqlite_remove_episodes(
    connection: Connection, buffer_id: int, keys: Sequence[tuple[str, str]], origin: str
) -> list[RemovedEpisode]:
    """Delete the chunks of episodes, and count their steps. A trigger cleans the narrow tables.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        keys: The id and the task of each.
        origin: The opener that deletes them.
    """
    driver = driver_of(connection)
    select = (
        "SELECT id, task_id, status FROM episodes WHERE buffer_id = ? AND key = ? AND task_id = ?"
    )
    remove = "DELETE FROM chunks WHERE buffer_id = ? AND episode_id = ? RETURNING n_steps"
    forget = "DELETE FROM rollout_stats WHERE buffer_id = ? AND task_id = ? AND episode_id = ?"
    rows = [row for key in keys for row in driver.execute(select, (buffer_id, *key)).fetchall()]
    removed = []
    for id_, task, status in rows:
        sizes = driver.execute(remove, (buffer_id, id_)).fetchall()
        driver.execute(forget, (buffer_id, task, id_))
        removed.append(RemovedEpisode(id_, task, status, sum(n for (n,) in sizes)))
    n_steps = sum(episode.n_steps for episode in removed)
    count_evictions(connection, buffer_id, origin, "deleted", n_steps)
    return removed


def _postgresql_remove_episodes(
    connection: Connection, buffer_id: int, keys: Sequence[tuple[str, str]], origin: str
) -> list[RemovedEpisode]:
    """Delete the chunks of episodes, with the rows of their steps in other tables."""
    parameters = (buffer_id, [key for key, _ in keys], [task for _, task in keys], origin)
    removed = driver_of(connection).execute(_REMOVE_EPISODES, parameters)
    return [RemovedEpisode(*row) for row in removed]


remove_rows = by_database(sqlite=sqlite_remove_rows, postgresql=_postgresql_remove_rows)
remove_episodes = by_database(
    sqlite=_sqlite_remove_episodes, postgresql=_postgresql_remove_episodes
)


def remove_where(
    connection: Connection,
    buffer_id: int,
    *conditions: Any,
    steps: Any = experiences,
    node: Node = EVERYTHING,
    origin: str | None = None,
) -> int:
    """Delete the rows of a buffer that match, with their rows in the narrow tables.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        conditions: Conditions that rows must match; none for all rows.
        steps: The table of steps that they are over.
        node: The condition among them that decides on the order; see `statements.in_order`.
        origin: The opener that deletes them; see `OpenBuffer.origin`.

    Returns:
        Number of rows that existed.
    """
    removed = 0
    matching = (
        select(steps.c.seq)
        .where(steps.c.buffer_id == buffer_id, *conditions)
        .order_by(*statements.in_order(node, steps))
        .limit(ROWS_AT_ONCE)
    )
    while seqs := list(connection.execute(matching).scalars()):
        is_last = len(seqs) < ROWS_AT_ONCE
        if not is_last:
            seqs = _whole_chunks(connection, buffer_id, seqs)
        removed += remove_rows(connection, buffer_id, seqs, origin)
        if is_last:
            break
    return removed


def _whole_chunks(connection: Connection, buffer_id: int, seqs: list[int]) -> list[int]:
    """Leave out the last chunk.

    A chunk that is deleted in two parts is noted step by step, which takes space on a disk that may
    be full.
    """
    parameters = {"of_buffer": buffer_id, "seq": seqs[-1]}
    first = connection.execute(_LAST_CHUNK, parameters).scalar()
    return seqs[: bisect_left(seqs, first)] if first is not None and first > seqs[0] else seqs


def remove_counted(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int], cause: str
) -> int:
    """Delete rows by key, and count them in the buffer's column for the cause.

    Returns:
        Number of rows that existed.
    """
    if not seqs:
        return 0
    buffer.note_deletion(connection)
    n_removed = remove_rows(connection, buffer.info.id, seqs, buffer.origin)
    counted = {cause: buffers.c[cause] + n_removed}
    connection.execute(update(buffers).where(buffers.c.id == buffer.info.id).values(counted))
    reason = cause.removeprefix("n_")
    count_evictions(connection, buffer.info.id, buffer.origin, reason, n_removed)
    return n_removed
