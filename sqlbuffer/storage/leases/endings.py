"""The end of a lease: acknowledged, renewed or given back."""

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    delete,
    select,
    update,
)

from sqlbuffer.errors import LeaseLostError
from sqlbuffer.storage.buffers.buffer_window import windows
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.leases.claim_request import (
    BUFFER,
    COUNT,
    SEQS,
    in_seqs,
    is_free,
)
from sqlbuffer.storage.leases.held import (
    FREE_AGAIN,
    IS_CLAIMED,
    LEASE,
    OF_LEASE,
    OWN_ROWS,
    RUNS,
    SECONDS,
    UNTIL,
    UNTIL_OF_ROWS,
    HeldRows,
)
from sqlbuffer.storage.leases.keeping import LeaseKeeping
from sqlbuffer.storage.leases.retirement import retire
from sqlbuffer.storage.leases.tables import leases
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.payload_parts import is_in_parts
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.schema.server_clock import in_seconds

_USES = items.c.n_uses + 1
_MARK = update(leases).where(OF_LEASE, ~leases.c.acknowledged, RUNS)
_LOW = select(windows.c.low_seq).where(windows.c.buffer_id == bindparam(BUFFER, type_=Integer()))
# Also returns the number up to which rows have left, which would need one more round trip.
_ACKNOWLEDGE = _MARK.values(acknowledged=True, leased_until=in_seconds(0.0)).returning(
    _LOW.scalar_subquery()
)
_PROLONG = _MARK.values(leased_until=UNTIL_OF_ROWS, claimed_at=in_seconds(0.0))
_PROLONG_ROWS = update(items).where(OWN_ROWS).values(leased_until=UNTIL)
# In the order in which transactions that delete rows lock them.
_evict_chunks = by_database(sqlite=sqlite.evict_chunks, postgresql=postgresql.evict_chunks)

_HOLD = select(items.c.seq).where(OWN_ROWS).order_by(items.c.seq).with_for_update(key_share=True)
_COUNT = update(items).where(OWN_ROWS).values(n_uses=_USES, **FREE_AGAIN)
_COUNT_TO = _COUNT.values(used_up=bindparam(COUNT, type_=Integer()) <= _USES)
_RELEASE = update(items).where(OWN_ROWS).values(**FREE_AGAIN)
_FORGET = delete(leases).where(OF_LEASE)
_UNHELD = (
    select(items.c.seq)
    .where(in_seqs, is_free)
    .order_by(items.c.seq)
    .with_for_update(skip_locked=True)
)


def complete(leases: LeaseKeeping, held: HeldRows) -> None:
    """Read the parts of the rows of a batch.

    This runs after the claim, during which others wait on SQLite; rows deleted since are left out.
    """
    if not any(is_in_parts(row) for group in held.groups for row in group):
        return

    def read() -> list[list[Row]]:
        with translated(leases.buffer.url), snapshot(leases.buffer.engine) as connection:
            return [leases.source.whole_rows.held(connection, group) for group in held.groups]

    held.groups = leases.buffer.with_retries(read)


def renew(leases: LeaseKeeping, held: HeldRows, lease_s: float) -> None:
    """Set a lease to run out in `lease_s` seconds.

    Raises:
        LeaseLostError: The lease has run out.
    """
    deadline = time.monotonic() + lease_s

    def work(connection: Connection) -> None:
        values = {**_values(leases, held), SECONDS: lease_s}
        connection.execute(_HOLD, values)
        connection.execute(_PROLONG_ROWS, values)  # first, as in an acknowledgement
        if not connection.execute(_PROLONG, values).rowcount:
            raise _lost(leases, held, "renewed")

    leases.buffer.write(work)
    held.deadline = deadline


def acknowledge(leases: LeaseKeeping, held: HeldRows) -> None:
    """Count a use of each row of a batch, and retire rows that reached `max_use`.

    Rows that were deleted during the lease are not counted.

    Raises:
        LeaseLostError: The lease has run out; no use is counted.
    """
    max_use = leases.buffer.info.config.sampling.max_use

    def work(connection: Connection) -> None:
        values = {**_values(leases, held), COUNT: max_use}
        # The rows first: locked rows cannot be claimed. So rows that are missing while the lease
        # still runs were deleted.
        connection.execute(_HOLD, values)
        connection.execute(_COUNT if max_use is None else _COUNT_TO, values)
        low = connection.execute(_ACKNOWLEDGE, values).scalar_one_or_none()
        if low is None:
            if connection.execute(IS_CLAIMED, values).scalar():
                return  # by an attempt whose connection was lost
            raise _lost(leases, held, "acknowledged")
        _evict(connection, leases, held.seqs, low)

    leases.buffer.write(work)
    leases.ledger.done.append(held.lease_id)
    clean_after_write(leases.buffer.engine, len(held.seqs))
    if max_use is not None:
        retire(leases.buffer)


def give_back(leases: LeaseKeeping, held: HeldRows) -> None:
    """Make the rows of a batch free immediately; rows that are lost already do not change."""

    def work(connection: Connection) -> None:
        values = _values(leases, held)
        connection.execute(_HOLD, values)
        connection.execute(_RELEASE, values)
        connection.execute(_FORGET, values)
        _evict(connection, leases, held.seqs, leases.buffer.window_in(connection).low)

    leases.buffer.write(work, "relaxed")
    leases.sessions.undo(len(held.seqs), held.number)


def _values(leases: LeaseKeeping, held: HeldRows) -> dict[str, Any]:
    return {BUFFER: leases.buffer.info.id, LEASE: held.lease_id, SEQS: held.seqs}


def _lost(leases: LeaseKeeping, held: HeldRows, what: str) -> LeaseLostError:
    return LeaseLostError(
        f"buffer {leases.buffer.info.name!r}: lease {held.lease_id} ran out before it was {what}: "
        f"others can claim its {len(held.seqs)} rows, and this use is not counted; lease for "
        f"longer (lease_s), or call batch.renew() in time"
    )


def _evict(connection: Connection, leases: LeaseKeeping, seqs: Sequence[int], low: int) -> None:
    """Delete rows that left the window while they were held."""
    gone = [seq for seq in seqs if seq <= low]
    if gone and leases.buffer.info.has_chunks:
        _evict_chunks(connection, leases.buffer.info.id)
    elif gone:
        found = connection.execute(_UNHELD, {BUFFER: leases.buffer.info.id, SEQS: gone}).scalars()
        remove_rows(connection, leases.buffer.info.id, list(found), leases.buffer.origin)
