"""Remove items of a ring of priorities."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    insert,
    select,
)

from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.extensions.item_count import ItemCount
from sqlbuffer.storage.priorities.tables import priority_blocks
from sqlbuffer.storage.priorities.updates import update_priorities
from sqlbuffer.storage.rows.removal import remove_counted
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.number_keys import has_number
from sqlbuffer.storage.store import BufferStore

_SUMS = select(priority_blocks).where(
    priority_blocks.c.buffer_id == bindparam("buffer", type_=Integer()),
    is_number_of(priority_blocks.c.block, bindparam("blocks", type_=SeqList())),
)
_THERE = select(experiences.c.seq).where(
    has_number(
        experiences.c.seq,
        bindparam("buffer", type_=Integer()),
        bindparam("seqs", type_=SeqList()),
    )
)


def remove_items(
    connection: Connection, store: BufferStore, count: ItemCount, seqs: Sequence[int], cause: str
) -> None:
    """Remove items that a ring holds, and count them.

    Their weight is subtracted from the sums of their blocks, so these stay valid. Otherwise each
    sample would read as many blocks as items leave.

    Args:
        connection: The transaction, which holds the lock of the ring.
        store: The buffer.
        count: Counter of the ring's items.
        seqs: The items.
        cause: The column of `buffers` that counts them.
    """
    before = _deletions(connection, store)
    blocks = store.priorities.blocks
    update_priorities(connection, blocks, seqs, [0.0] * len(seqs), store.origin)
    sums = _sums(connection, store, seqs)
    remove_counted(connection, store, seqs, cause)
    if sums:
        connection.execute(insert(priority_blocks), sums)
    count.removed(before, _deletions(connection, store), seqs)


def items_there(connection: Connection, store: BufferStore, seqs: list[int]) -> list[int]:
    """Return the items that have not left."""
    if not seqs:
        return []
    parameters = {"buffer": store.info.id, "seqs": seqs}
    return sorted(connection.execute(_THERE, parameters).scalars())


def _sums(connection: Connection, store: BufferStore, seqs: Sequence[int]) -> list[dict[str, Any]]:
    """Return the stored values of the blocks of leaving items, without these items."""
    size = store.info.block_size
    leaving = Counter(seq // size for seq in seqs)
    parameters = {"buffer": store.info.id, "blocks": sorted(leaving)}
    found = connection.execute(_SUMS, parameters).mappings()
    return [{**row, "n_rows": row["n_rows"] - leaving[row["block"]]} for row in found]


def _deletions(connection: Connection, store: BufferStore) -> int:
    found = select(buffers.c.deletions).where(buffers.c.id == store.info.id)
    return int(connection.execute(found).scalar_one())
