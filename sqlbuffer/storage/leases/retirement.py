"""Rows that leave the queue: used up, or of groups that were not complete in time, or flat."""

from collections.abc import Sequence

from sqlalchemy import BigInteger, Connection, Integer, bindparam, select

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.dialects import at_once
from sqlbuffer.storage.eligibility import is_in_quarantine
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.leases.choosing import (
    BUFFER,
    COUNT,
    ClaimRequest,
    GroupChoice,
    Kind,
    LeaseGroup,
    Scope,
    in_buffer,
)
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.rows.removal import remove_counted
from sqlbuffer.storage.sampling.candidate_source import CandidateSource

REMOVED_AT_ONCE = 10_000
_USED_UP = (
    select(queue_items.c.seq)
    .where(
        in_buffer,
        queue_items.c.used_up,
        queue_items.c.leased_until.is_(None),  # others are kept for a checkpoint
        ~is_in_quarantine(queue_items.c.buffer_id, queue_items.c.seq),
    )
    .order_by(queue_items.c.seq)
    .limit(bindparam(COUNT, type_=BigInteger()))
)
_BUFFER = select(buffers.c.id).where(buffers.c.id == bindparam(BUFFER, type_=Integer()))


def retire(buffer: OpenBuffer, *, kept: bool = False) -> int:
    """Remove rows that reached `max_use`, except those in quarantine; return how many.

    It runs in a separate transaction, in one process at a time for all: acknowledgements would
    queue on the row of the buffer, which counts the rows that left. The process that holds the lock
    of a row removes it later.

    Args:
        buffer: The buffer.
        kept: Also remove rows that the buffer keeps (`keep_expired`).
    """
    n_retired = 0
    if buffer.info.config.retention.keep_expired and not kept:
        return n_retired
    while buffer.with_retries(lambda: _is_any_used_up(buffer)):
        n_now = buffer.write(lambda connection: _retire(connection, buffer), "relaxed")
        if not n_now:
            break
        n_retired += n_now
    return n_retired


def _is_any_used_up(buffer: OpenBuffer) -> bool:
    values = {BUFFER: buffer.info.id, COUNT: 1}
    with translated(buffer.url), at_once(buffer.engine) as connection:
        return connection.execute(_USED_UP, values).first() is not None


def _retire(connection: Connection, buffer: OpenBuffer) -> int:
    """Remove some rows; return how many.

    Return 0 if other processes are doing it, or while steps are held for a copy.
    """
    values = {BUFFER: buffer.info.id, COUNT: REMOVED_AT_ONCE}
    alone = _BUFFER.with_for_update(key_share=True, skip_locked=True)
    if connection.execute(alone, values).first() is None:
        return 0
    if held_low(connection, buffer.info.id) is not None:
        return 0
    seqs = connection.execute(_USED_UP.with_for_update(skip_locked=True), values).scalars()
    return remove_counted(connection, buffer, list(seqs), "n_used_up")


# The column of `buffers` that counts the rows of dropped groups.
_COUNTERS: dict[Kind, str] = {"late": "n_partial", "flat": "n_flat"}


def drop(
    source: CandidateSource, request: ClaimRequest, dropped: Sequence[LeaseGroup], kind: Kind
) -> None:
    """Delete groups that were not complete in time, or whose rewards differ too little."""
    buffer = source.buffer

    def work(connection: Connection) -> None:
        # First, like every transaction that deletes rows.
        connection.execute(_BUFFER.with_for_update(key_share=True), {BUFFER: buffer.info.id})
        window = source.sampled_window(connection)
        scope = Scope(
            buffer.info.id, window.low, None, source.restrictions.limits_of_leases(window)
        )
        locked = GroupChoice(connection, scope, request).lock(dropped, kind)
        seqs = sorted(seq for seqs in locked.values() for seq in seqs)
        remove_counted(connection, buffer, seqs, _COUNTERS[kind])

    buffer.write(work)
