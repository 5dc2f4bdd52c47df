"""Count the rows of a buffer exactly, without scanning it."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    bindparam,
    column,
    func,
    literal,
    select,
    union_all,
)

from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.buffers.tables import experiences, row_blocks
from sqlbuffer.storage.schema.parameters import SeqList, numbers_in

BLOCK = 4096

# Arguments: a buffer, a first number and an end.
CountRows = Callable[[int, Any, Any], Any]


class LiveCount:
    """Remembers how many rows each block of 4,096 numbers holds, once no writer can add to it.

    The table `row_blocks` holds the counts of most blocks, for all processes. Only the block that
    the window's lower end cuts and the newest rows are counted each time. After a delete inside the
    window, or a crash of the server, this process counts its remembered blocks again.

    Args:
        n_rows: Function that returns the expression for the number of rows from one number up to
            another, exclusive.
    """

    def __init__(self, n_rows: CountRows | None = None) -> None:
        self._n_rows = _n_rows if n_rows is None else n_rows
        self._mutex = ForkLock()
        self._state: tuple[int, ...] = ()
        self._blocks: dict[int, int] = {}

    def count(
        self,
        connection: Connection,
        buffer_id: int,
        low: int,
        high: int,
        settled: int,
        state: tuple[int, ...],
    ) -> int:
        """Return the number of rows with low < seq <= high.

        Args:
            connection: Where to count.
            buffer_id: The buffer.
            low: Lower end of the window.
            high: Upper end of the window.
            settled: Number up to which no row can appear any more.
            state: State of the buffer, read before the rows are counted. While it is the same,
                blocks lose rows only at the window's lower end.
        """
        first_whole = low // BLOCK + 1
        end_whole = max(first_whole, (settled + 1) // BLOCK)
        with self._mutex:
            if state != self._state:
                self._state, self._blocks = state, {}
            known = {
                block: n for block, n in self._blocks.items() if first_whole <= block < end_whole
            }
        counted = self._count_unknown(
            connection, buffer_id, low, high, first_whole, end_whole, known
        )
        with self._mutex:
            if state == self._state:
                whole = range(first_whole, end_whole)
                self._blocks = {
                    **known,
                    **{block: counted.get(block, 0) for block in whole if block not in known},
                }
        return sum(known.values()) + sum(counted.values())

    def _count_unknown(
        self,
        connection: Connection,
        buffer_id: int,
        low: int,
        high: int,
        first_whole: int,
        end_whole: int,
        known: dict[int, int],
    ) -> dict[int, int]:
        """Count the cut block at the lower end, and all blocks from the first unknown one on.

        A block is unknown if neither this process nor the table has its count. Counts from the
        table are added to `known`.
        """
        end = max(end_whole, (high + 1) // BLOCK)
        start = _first_unknown(known, first_whole, end)
        if start < end:
            # Blocks above `end_whole` too: the process that counted them knew that they were
            # complete.
            known.update(connection.execute(_stored(buffer_id, start, end)).all())
            start = _first_unknown(known, start, end)
        for block in [block for block in known if block >= start]:
            del known[block]
        cut = select(
            literal(first_whole - 1), self._n_rows(buffer_id, low + 1, first_whole * BLOCK)
        )
        newest = self._counted(buffer_id, range(start, high // BLOCK + 1))
        return dict(connection.execute(union_all(cut, newest)).all())

    def _counted(self, buffer_id: int, blocks: range) -> Select[int, int]:
        """Select (block, rows) of blocks, range by range: grouping takes three times as long."""
        given = bindparam(None, list(blocks), SeqList(), unique=True)
        block = numbers_in(given).table_valued(column("value", BigInteger)).c.value
        return select(block, self._n_rows(buffer_id, block * BLOCK, (block + 1) * BLOCK))


def _first_unknown(known: dict[int, int], start: int, end: int) -> int:
    return next((block for block in range(start, end) if block not in known), end)


def _stored(buffer_id: int, start: int, end: int) -> Select[int, int]:
    """Select (block, rows) of the counted blocks from `start` up to `end`, exclusive."""
    own = row_blocks.c
    return select(own.block, own.n_rows).where(
        own.buffer_id == buffer_id, own.block >= start, own.block < end
    )


def _n_rows(buffer_id: int, start: Any, end: Any) -> Any:
    """Return the number of rows with start <= seq < end."""
    own = experiences.c
    inside = (own.buffer_id == buffer_id, own.seq >= start, own.seq < end)
    return select(func.count()).select_from(experiences).where(*inside).scalar_subquery()
