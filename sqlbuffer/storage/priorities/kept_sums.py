"""Keep the sums of blocks while a few of their rows are deleted."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, insert, select

from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.priorities.blocks import Blocks
from sqlbuffer.storage.priorities.keeping import update_priorities
from sqlbuffer.storage.priorities.tables import priority_blocks
from sqlbuffer.storage.schema.parameters import SeqList, is_number_of

Sums = list[dict[str, Any]]

_SUMS = select(priority_blocks).where(
    priority_blocks.c.buffer_id == bindparam("buffer", type_=Integer()),
    is_number_of(priority_blocks.c.block, bindparam("blocks", type_=SeqList())),
)


def weightless_sums(
    connection: Connection, info: BufferInfo, seqs: Sequence[int], origin: str
) -> Sums:
    """Subtract the weights of rows that are about to be deleted from the sums of their blocks.

    Return these sums: the deletion discards them, and `add_sums` stores them again. Otherwise each
    draw would read as many blocks as rows were deleted.
    """
    if not info.config.priorities.enabled or info.has_chunks or not seqs:
        return []
    size = info.block_size
    blocks = Blocks(info.id, size, info.config.priorities.alpha)
    update_priorities(connection, blocks, seqs, [0.0] * len(seqs), origin)
    leaving = Counter(seq // size for seq in seqs)
    found = connection.execute(_SUMS, {"buffer": info.id, "blocks": sorted(leaving)}).mappings()
    return [{**row, "n_rows": row["n_rows"] - leaving[row["block"]]} for row in found]


def add_sums(connection: Connection, sums: Sums, n_removed: int, n_given: int) -> None:
    """Store the sums of `weightless_sums` again, after the rows were deleted.

    Args:
        connection: The transaction.
        sums: The sums.
        n_removed: Number of rows that were deleted.
        n_given: Number of rows that were subtracted; if some did not exist, no sum is stored.
    """
    if sums and n_removed == n_given:
        connection.execute(insert(priority_blocks), sums)
