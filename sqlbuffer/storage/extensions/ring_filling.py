"""Fill a ring of priorities with given items, for example from a saved state."""

from collections.abc import Sequence

from sqlalchemy import (
    Connection,
)

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.extensions.credit_ledger import CreditLedger
from sqlbuffer.storage.extensions.item_ids import number_of
from sqlbuffer.storage.extensions.item_removal import remove_items
from sqlbuffer.storage.extensions.prioritized_ring import PriorityRing
from sqlbuffer.storage.extensions.ring_buffer import (
    RingCounts,
)
from sqlbuffer.storage.rows.payload_parts import prepared
from sqlbuffer.storage.use_counts import add_uses
from sqlbuffer.storage.writing.row_writer import Insert
from sqlbuffer.storage.writing.write_batch import WriteBatch


def hold_items(
    ring: PriorityRing,
    records: Sequence[Record],
    n_uses: Sequence[int],
    counts: RingCounts,
    ledger: CreditLedger,
) -> None:
    """Replace the items of a ring by these, in one transaction.

    Args:
        ring: The ring.
        records: The items, with their ids and priorities, in the order of their numbers.
        n_uses: Number of uses of each item.
        counts: The counters.
        ledger: The ring's further values.
    """
    by_number = {number_of(record.id): i for i, record in enumerate(records)}
    # If items are missing, their numbers stay unused, or the existing items would stay too long.
    first = max(counts.push_count - ring.size, 0)
    if records:
        first = max(first, min(by_number))
    numbers = range(first, counts.push_count) if records else range(0)
    laid = [
        records[by_number[n]] if n in by_number else records[0]._replace(id=f"-_{n}")
        for n in numbers
    ]

    batch = WriteBatch(prepared(laid, ring.store.layout))

    def work(connection: Connection, insert: Insert) -> None:
        ring.lock(connection)
        ring.remove(connection)
        ring.set_ledger(connection, counts, ledger)
        if not records:
            return
        stored = insert(batch, guarded=False).seqs.tolist()
        seqs = {record.id: seq for record, seq in zip(laid, stored, strict=True)}
        gaps = sorted(seqs[f"-_{n}"] for n in numbers if n not in by_number)
        if gaps:
            remove_items(connection, ring.store, ring.item_count, gaps, "n_expired")
        used = {seqs[r.id]: n for r, n in zip(records, n_uses, strict=True) if n}
        add_uses(connection, ring.store.info.id, used)

    ring.store.writer.store_within(batch, work)
