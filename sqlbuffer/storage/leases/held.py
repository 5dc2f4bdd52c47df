"""Batches that are out: claimed in one transaction, and acknowledged, renewed or given back by the
lease's id.

Who comes too late is told by the row of the lease, by the database's clock: a lease that has run
out is lost, whether somebody else has claimed its rows since or not.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Integer,
    bindparam,
    delete,
    func,
    insert,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import LeaseLostError
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.steps.ids import uuid7
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.windows import SampledWindow, windows
from sqlbuffer.storage.database.errors import Deadlock, translated
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.eligibility.eligible_rows import is_in_quarantine
from sqlbuffer.storage.leases.claim_request import (
    BUFFER,
    COUNT,
    SEQS,
    ClaimRequest,
    Scope,
    in_buffer,
    in_seqs,
    is_free,
)
from sqlbuffer.storage.leases.groups import GroupChoice, LeaseGroup
from sqlbuffer.storage.leases.keeping import LeaseKeeping
from sqlbuffer.storage.leases.row_choice import choose_rows
from sqlbuffer.storage.leases.tables import leases
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.payload_parts import is_in_parts
from sqlbuffer.storage.rows.removal import remove_counted, remove_rows
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.rows.statements import ROW_COLUMNS
from sqlbuffer.storage.rows.stored_rows import Row, task_order
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema import functions as fn
from sqlbuffer.storage.schema.column_types import KeyList
from sqlbuffer.storage.schema.metadata import KEY
from sqlbuffer.storage.use_counts.sample_log import Note, forget, log_batch

# How long the rows of leases that nobody ended are kept.
KEPT_S = 3_600.0
SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 10_000
# A lease that began later than this many seconds from now was taken before the clock was put back.
# Smaller corrections of the clock end no lease.
CLOCK_CORRECTION_S = 60.0
SECONDS_BETWEEN_CLOCK_CHECKS = 1.0
FEWEST_DONE, MOST_DONE = 32, 1_000

LEASE, LEASES, SECONDS, GROUP = "p_lease_id", "p_lease_ids", "p_seconds", "p_group_seq"

# One for all: it keeps its statement.
_WHOLE_ROWS = RowSelection(ROW_COLUMNS)
_OF_BUFFER = leases.c.buffer_id == bindparam(BUFFER, type_=Integer())
_LEASE = _OF_BUFFER & (leases.c.id == bindparam(LEASE, type_=KEY))
_RUNS = ~fn.is_past(leases.c.leased_until)
_UNTIL = fn.in_seconds(bindparam(SECONDS, type_=Double()))
_OWN_ROWS = in_seqs & (items.c.lease_id == bindparam(LEASE, type_=KEY))
# Of its rows, each of which takes the time for itself: so a lease does not outlive one of them.
_UNTIL_OF_ROWS = (
    select(func.coalesce(func.min(items.c.leased_until), _UNTIL)).where(_OWN_ROWS).scalar_subquery()
)
_FREE_AGAIN = {"lease_id": null(), "leased_until": null()}
_USES = items.c.n_uses + 1

_IS_CLAIMED = select(leases.c.acknowledged).where(_LEASE)
_NEW_IN_GROUP = select(func.min(items.c.seq)).where(in_seqs, items.c.group_seq.is_(None))
_TAKE_ROWS = (
    update(items).where(in_seqs).values(lease_id=bindparam(LEASE, type_=KEY), leased_until=_UNTIL)
)
_TAKE_GROUPS = _TAKE_ROWS.values(
    group_seq=func.coalesce(items.c.group_seq, bindparam(GROUP, type_=BigInteger()))
)
_ADD_LEASE = insert(leases).values(
    buffer_id=bindparam(BUFFER, type_=Integer()),
    id=bindparam(LEASE, type_=KEY),
    n_rows=bindparam(COUNT, type_=BigInteger()),
    leased_until=_UNTIL_OF_ROWS,
)
_MARK = update(leases).where(_LEASE, ~leases.c.acknowledged, _RUNS)
_LOW = select(windows.c.low_seq).where(windows.c.buffer_id == bindparam(BUFFER, type_=Integer()))
# With the number up to which rows have left, which would be one more round trip.
_ACKNOWLEDGE = _MARK.values(acknowledged=True, leased_until=fn.in_seconds(0.0)).returning(
    _LOW.scalar_subquery()
)
_PROLONG = _MARK.values(leased_until=_UNTIL_OF_ROWS, claimed_at=fn.in_seconds(0.0))
_PROLONG_ROWS = update(items).where(_OWN_ROWS).values(leased_until=_UNTIL)
# In the order in which whoever deletes rows locks them.
_HOLD = select(items.c.seq).where(_OWN_ROWS).order_by(items.c.seq).with_for_update(key_share=True)
_COUNT = update(items).where(_OWN_ROWS).values(n_uses=_USES, **_FREE_AGAIN)
_COUNT_TO = _COUNT.values(used_up=bindparam(COUNT, type_=Integer()) <= _USES)
_RELEASE = update(items).where(_OWN_ROWS).values(**_FREE_AGAIN)
_END_FUTURE = (
    update(leases)
    .where(_OF_BUFFER, ~leases.c.acknowledged, leases.c.claimed_at > _UNTIL)
    .values(claimed_at=fn.in_seconds(0.0), leased_until=fn.in_seconds(0.0))
    .returning(leases.c.id)
)
_RELEASE_OF_LEASES = (
    update(items)
    .where(in_buffer, fn.is_one_of(items.c.lease_id, bindparam(LEASES, type_=KeyList())))
    .values(**_FREE_AGAIN)
)
_FORGET = delete(leases).where(_LEASE)
_FORGET_SOME = delete(leases).where(
    _OF_BUFFER, fn.is_one_of(leases.c.id, bindparam(LEASES, type_=KeyList()))
)
_FORGET_OLD = delete(leases).where(_OF_BUFFER, leases.c.leased_until < fn.seconds_ago(KEPT_S))
_UNHELD = (
    select(items.c.seq)
    .where(in_seqs, is_free)
    .order_by(items.c.seq)
    .with_for_update(skip_locked=True)
)
_USED_UP = (
    select(items.c.seq)
    .where(in_buffer, items.c.used_up, ~is_in_quarantine(items.c.buffer_id, items.c.seq))
    .order_by(items.c.seq)
    .limit(bindparam(COUNT, type_=BigInteger()))
)
_BUFFER = select(buffers.c.id).where(buffers.c.id == bindparam(BUFFER, type_=Integer()))


@dataclass
class HeldRows:
    """A batch that is out.

    Attributes:
        lease_id: Its lease.
        groups: The rows of each group, in their order; each row by itself without groups.
        deadline: When the lease runs out at the earliest, by this process's monotonic clock.
        number: The number that the batch is noted under.
    """

    lease_id: str
    groups: list[list[Row]]
    deadline: float
    number: int | None = None

    @property
    def seqs(self) -> list[int]:
        """The numbers of its rows."""
        return [row[0] for group in self.groups for row in group]


class Claim:
    """One call's claim, which may take several attempts.

    Args:
        store: The buffer.
        wanted: What is asked for.

    Attributes:
        scope: The queue at the last attempt.
    """

    def __init__(self, store: LeaseKeeping, wanted: ClaimRequest) -> None:
        self._store, self._wanted, self._lease_id = store, wanted, uuid7()
        self._chosen: list[list[int]] = []
        self.scope: Scope | None = None

    def attempt(self) -> HeldRows | None:
        """Return the batch, or None where there is too little.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        held, late = self._store.survive(self._attempt)
        self._store.remove_expired_if_due()
        if late:
            drop(self._store, self._wanted, late)
        return held

    def _attempt(self) -> tuple[HeldRows | None, list[LeaseGroup]]:
        store = self._store
        deadline = time.monotonic() + self._wanted.lease_s
        try:
            is_random = self._wanted.order == "random"
            with translated(store.url), store.claiming(with_first=is_random) as connection:
                found, first = answer(connection), None
                if is_random and found:
                    *window, first = found[0]
                    found = [window]
                now = store.window_answered(found)
                if self._chosen and self._is_claimed(connection):
                    # A connection was lost behind its commit.
                    return self._held(connection, now, deadline), []
                _end_future_leases(connection, store)
                late = self._choose(connection, now, first)
                if not self._chosen:
                    return None, late
                self._take(connection)
                held = self._held(connection, now, deadline)
                if store.info.track_samples:
                    note = Note(f"lease ({self._wanted.order})")
                    held.number = log_batch(connection, store, held.seqs, now.clock, note)
        except IntegrityError as error:
            # An attempt of ours whose server process ended only now: look again.
            raise Deadlock(f"{error.orig}; try again") from error
        return held, late

    def _is_claimed(self, connection: Connection) -> bool:
        values = {BUFFER: self._store.info.id, LEASE: self._lease_id}
        return connection.execute(_IS_CLAIMED, values).first() is not None

    def _choose(
        self, connection: Connection, now: SampledWindow, first: int | None
    ) -> list[LeaseGroup]:
        store, wanted = self._store, self._wanted
        limits = store.restrictions.for_leases(connection, now, store.epoch)
        self.scope = scope = Scope(store.info.id, now.low, now.high, limits, first)
        late: list[LeaseGroup] = []
        if wanted.group_by is None:
            chosen = [[seq] for seq in choose_rows(connection, scope, wanted)]
        else:
            choice = GroupChoice(connection, scope, wanted)
            chosen, late = choice.choose(), choice.late
        self._chosen = chosen if len(chosen) == wanted.n else []
        return late

    def _take(self, connection: Connection) -> None:
        seqs = [seq for group in self._chosen for seq in group]
        values = {
            BUFFER: self._store.info.id, SEQS: seqs, LEASE: self._lease_id, COUNT: len(seqs),
            SECONDS: self._wanted.lease_s,
        }  # fmt: skip
        if self._wanted.group_by is None:
            connection.execute(_TAKE_ROWS, values)
        else:
            # A number that no other claim gives: of a row that is in a group for the first time.
            new = connection.execute(_NEW_IN_GROUP, values).scalar_one()
            connection.execute(_TAKE_GROUPS, {**values, GROUP: new})
        connection.execute(_ADD_LEASE, values)
        _clean(connection, self._store)

    def _held(self, connection: Connection, now: SampledWindow, deadline: float) -> HeldRows:
        seqs = [seq for group in self._chosen for seq in group]
        candidates = Candidates(
            connection, self._store.info.id, 0, now.high, EVERYTHING, _WHOLE_ROWS
        )
        candidates.has_labels = bool(now.has_labels)
        found = {row[0]: row for row in candidates.rows(seqs)}
        groups = [[found[seq] for seq in group if seq in found] for group in self._chosen]
        for group in groups:
            group.sort(key=task_order)
        return HeldRows(self._lease_id, groups, deadline)


def _clean(connection: Connection, store: LeaseKeeping) -> None:
    """Delete the rows of leases that this process has ended, and sometimes of all long gone."""
    ledger, buffer = store.ledger, {BUFFER: store.info.id}
    done = ledger.done[:MOST_DONE]
    if len(done) >= FEWEST_DONE:
        connection.execute(_FORGET_SOME, {**buffer, LEASES: done})
        ledger.done = [lease_id for lease_id in ledger.done if lease_id not in done]
    if time.monotonic() - ledger.cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        ledger.cleaned_at = time.monotonic()
        connection.execute(_FORGET_OLD, buffer)


def _end_future_leases(connection: Connection, store: LeaseKeeping) -> None:
    """End leases that began in the future: the clock was put back since, and they would hold their
    rows for longer than they were taken for.
    """
    ledger = store.ledger
    if time.monotonic() - ledger.clock_checked_at < SECONDS_BETWEEN_CLOCK_CHECKS:
        return
    ledger.clock_checked_at = time.monotonic()
    values = {BUFFER: store.info.id, SECONDS: CLOCK_CORRECTION_S}
    ended = list(connection.execute(_END_FUTURE, values).scalars())
    if ended:
        connection.execute(_RELEASE_OF_LEASES, {**values, LEASES: ended})


def complete(store: LeaseKeeping, held: HeldRows) -> None:
    """Read what the rows of a batch have in parts.

    Behind the claim, in which others wait on SQLite; rows that were deleted since are left out.
    """
    if not any(is_in_parts(row) for group in held.groups for row in group):
        return

    def read() -> list[list[Row]]:
        with translated(store.url), store.dialect.snapshot(store.engine) as connection:
            return [store.whole_rows.held(connection, group) for group in held.groups]

    held.groups = store.survive(read)


def renew(store: LeaseKeeping, held: HeldRows, lease_s: float) -> None:
    """Have a lease run out so many seconds from now.

    Raises:
        LeaseLostError: It has run out.
    """
    deadline = time.monotonic() + lease_s

    def work(connection: Connection) -> None:
        values = {**_values(store, held), SECONDS: lease_s}
        connection.execute(_HOLD, values)
        connection.execute(_PROLONG_ROWS, values)  # first, as at an acknowledgement
        if not connection.execute(_PROLONG, values).rowcount:
            raise _lost(store, held, "renewed")

    store.write(work)
    held.deadline = deadline


def acknowledge(store: LeaseKeeping, held: HeldRows) -> None:
    """Count a use of each row of a batch, and retire those that were used as often as they may be.

    Rows that were deleted meanwhile are not counted.

    Raises:
        LeaseLostError: The lease has run out; nothing is counted.
    """
    max_use = store.info.max_use

    def work(connection: Connection) -> None:
        values = {**_values(store, held), COUNT: max_use}
        # The rows first: once they are locked nobody takes them, so those that are missing while
        # the lease still runs were deleted.
        connection.execute(_HOLD, values)
        connection.execute(_COUNT if max_use is None else _COUNT_TO, values)
        low = connection.execute(_ACKNOWLEDGE, values).scalar_one_or_none()
        if low is None:
            if connection.execute(_IS_CLAIMED, values).scalar():
                return  # by an attempt whose connection was lost
            raise _lost(store, held, "acknowledged")
        _evict(connection, store, held.seqs, low)

    store.write(work)
    store.ledger.done.append(held.lease_id)
    clean_after_write(store.engine, len(held.seqs))
    if max_use is not None:
        retire(store)


def give_back(store: LeaseKeeping, held: HeldRows) -> None:
    """Have others claim the rows of a batch at once; what is lost already stays as it is."""

    def work(connection: Connection) -> None:
        values = _values(store, held)
        connection.execute(_HOLD, values)
        connection.execute(_RELEASE, values)
        connection.execute(_FORGET, values)
        _evict(connection, store, held.seqs, store.lower_end(connection))

    store.write(work, "relaxed")
    store.pacer.give_back(len(held.seqs))
    if held.number is not None:
        forget(store, held.number)


def _values(store: LeaseKeeping, held: HeldRows) -> dict[str, Any]:
    return {BUFFER: store.info.id, LEASE: held.lease_id, SEQS: held.seqs}


def _lost(store: LeaseKeeping, held: HeldRows, what: str) -> LeaseLostError:
    return LeaseLostError(
        f"buffer {store.info.name!r}: lease {held.lease_id} ran out before it was {what}: its "
        f"{len(held.seqs)} rows are others' to claim, and this use is not counted; lease for "
        f"longer (lease_s), or call batch.renew() in time"
    )


def _evict(connection: Connection, store: LeaseKeeping, seqs: Sequence[int], low: int) -> None:
    """Delete rows that left the window while they were held."""
    gone = [seq for seq in seqs if seq <= low]
    if gone:
        found = connection.execute(_UNHELD, {BUFFER: store.info.id, SEQS: gone}).scalars()
        remove_rows(connection, store.info.id, list(found))


def retire(store: LeaseKeeping, *, kept: bool = False) -> int:
    """Take rows out that were used as often as they may be, but those in quarantine; return how
    many.

    In a transaction of its own, which one process at a time does for all: acknowledgements would
    queue on the row of the buffer, which counts what has left. What it finds locked, whoever holds
    the lock looks for once more.

    Args:
        store: The buffer.
        kept: Those too that the buffer keeps (`keep_expired`).
    """
    n_retired = 0
    if store.info.keep_expired and not kept:
        return n_retired
    while store.survive(lambda: _is_any_used_up(store)):
        n_now = store.write(lambda connection: _retire(connection, store), "relaxed")
        if not n_now:
            break
        n_retired += n_now
    return n_retired


def _is_any_used_up(store: LeaseKeeping) -> bool:
    values = {BUFFER: store.info.id, COUNT: 1}
    with translated(store.url), store.dialect.at_once(store.engine) as connection:
        return connection.execute(_USED_UP, values).first() is not None


def _retire(connection: Connection, store: LeaseKeeping) -> int:
    """Take some out; return how many, 0 where others are at it: they do it."""
    values = {BUFFER: store.info.id, COUNT: REMOVED_AT_ONCE}
    alone = _BUFFER.with_for_update(key_share=True, skip_locked=True)
    if connection.execute(alone, values).first() is None:
        return 0
    found = connection.execute(_USED_UP.with_for_update(skip_locked=True), values).scalars()
    return remove_counted(connection, store, list(found), "n_used_up")


def drop(store: LeaseKeeping, wanted: ClaimRequest, late: Sequence[LeaseGroup]) -> None:
    """Delete groups that have not become whole in time."""

    def work(connection: Connection) -> None:
        # First, as whoever deletes rows does.
        connection.execute(_BUFFER.with_for_update(key_share=True), {BUFFER: store.info.id})
        now = store.sampled_window(connection)
        scope = Scope(store.info.id, now.low, None, store.restrictions.limits_of_leases(now))
        locked = GroupChoice(connection, scope, wanted).lock(late, late=True)
        remove_counted(
            connection, store, sorted(seq for seqs in locked.values() for seq in seqs), "n_partial"
        )

    store.write(work)
