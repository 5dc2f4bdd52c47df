"""Delete many rows in statements of a limited size."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Connection, bindparam, func, select, update

from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import Batch
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import postgresql, sqlite, statements


class SeqRuns:
    """Numbers, as the first and last of each run: few runs for millions of rows.

    Args:
        found: The runs, in order.
    """

    def __init__(self, found: Sequence[Any] = ()) -> None:
        self._firsts = [first for first, _ in found]
        self._lasts = [last for _, last in found]

    def __contains__(self, seq: int) -> bool:
        place = bisect_right(self._firsts, seq) - 1
        return place >= 0 and seq <= self._lasts[place]


def part_of(batch: Batch, index: Sequence[int]) -> Batch:
    """Return the rows of a batch at some places."""
    if len(index) == batch.n_rows and list(index) == list(range(batch.n_rows)):
        return batch
    places = np.asarray(index, np.int64)
    return Batch(_at(batch, places), _at(batch.info, places))


def _at(arrays: Any, places: NDArray[np.int64]) -> dict[str, Any]:
    return {name: None if array is None else array[places] for name, array in arrays.items()}


def one_of(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches, one after the other."""
    first = batches[0]
    return Batch(
        {name: stacked([batch[name] for batch in batches]) for name in first},
        {name: stacked([batch.info[name] for batch in batches]) for name in first.info},
    )


def stacked(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along the first axis; None if one is None.

    Arrays that are shorter in other dimensions are padded with zeros.
    """
    if any(array is None for array in arrays):
        return None
    shape = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
    padded = [
        array
        if array.shape[1:] == shape
        else np.pad(
            array,
            [(0, 0), *((0, n - own) for n, own in zip(shape, array.shape[1:], strict=True))],
        )
        for array in arrays
    ]
    return np.concatenate(padded)


ROWS_AT_ONCE = 10_000

_SEQ = bindparam("seq", type_=BigInteger())
_LAST_CHUNK = select(func.max(chunks.c.first_seq)).where(
    chunks.c.buffer_id == bindparam("of_buffer"),
    chunks.c.first_seq.between(_SEQ - MOST_STEPS + 1, _SEQ),
)

remove_rows = by_database(sqlite=sqlite.remove_rows, postgresql=postgresql.remove_rows)
remove_episodes = by_database(sqlite=sqlite.remove_episodes, postgresql=postgresql.remove_episodes)


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
    given = {"of_buffer": buffer_id, "seq": seqs[-1]}
    first = connection.execute(_LAST_CHUNK, given).scalar()
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
    return n_removed
