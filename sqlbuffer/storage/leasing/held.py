"""Batches that are out: claimed in one transaction, and acknowledged, renewed or given back by the
lease's id.

Who comes too late is told by the row of the lease, by the database's clock: a lease that has run
out is lost, whether somebody else has claimed its rows since or not.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Select, case, delete, insert, null, select, update
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import LeaseLostError
from sqlbuffer.ids import uuid7
from sqlbuffer.query import EVERYTHING
from sqlbuffer.storage import functions as fn
from sqlbuffer.storage.claims import Note, forget, note_rows
from sqlbuffer.storage.errors import Deadlock, translated
from sqlbuffer.storage.insertion import Row
from sqlbuffer.storage.leasing.groups import Group, GroupChoice
from sqlbuffer.storage.leasing.rows import choose_rows, one_of
from sqlbuffer.storage.leasing.wanted import Scope, Wanted, is_free
from sqlbuffer.storage.models import buffers, leases
from sqlbuffer.storage.models import queue_items as items
from sqlbuffer.storage.population import Population
from sqlbuffer.storage.restrictions import SampledWindow
from sqlbuffer.storage.row_reading import task_order
from sqlbuffer.storage.transactions import answer

if TYPE_CHECKING:
    from sqlbuffer.storage.store import BufferStore

# How long the rows of leases that nobody ended are kept.
KEPT_S = 3_600.0
SECONDS_BETWEEN_CLEANINGS = 60.0
REMOVED_AT_ONCE = 10_000


@dataclass
class Held:
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

    def __init__(self, store: "BufferStore", wanted: Wanted) -> None:
        self._store, self._wanted, self._lease_id = store, wanted, uuid7()
        self._chosen: list[list[int]] = []
        self.scope: Scope | None = None

    def attempt(self) -> Held | None:
        """Return the batch, or None where there is too little.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        held, late = self._store.survive(self._attempt)
        if late:
            drop(self._store, self._wanted, late)
        return held

    def _attempt(self) -> tuple[Held | None, list[Group]]:
        store = self._store
        deadline = time.monotonic() + self._wanted.lease_s
        try:
            with translated(store.url), store.claiming() as connection:
                now = store.window_answered(answer(connection))
                if self._chosen and self._is_claimed(connection):
                    # A connection was lost behind its commit.
                    return self._held(connection, now, deadline), []
                late = self._choose(connection, now)
                if not self._chosen:
                    return None, late
                self._take(connection)
                held = self._held(connection, now, deadline)
                if store.info.track_samples:
                    note = Note(f"lease ({self._wanted.order})")
                    held.number = note_rows(connection, store, held.seqs, now.clock, note)
        except IntegrityError as error:
            # An attempt of ours whose server process ended only now: look again.
            raise Deadlock(f"{error.orig}; try again") from error
        return held, late

    def _is_claimed(self, connection: Connection) -> bool:
        return connection.execute(select(leases.c.id).where(self._own)).first() is not None

    @property
    def _own(self) -> Any:
        return (leases.c.buffer_id == self._store.info.id) & (leases.c.id == self._lease_id)

    def _choose(self, connection: Connection, now: SampledWindow) -> list[Group]:
        store, wanted = self._store, self._wanted
        limits = store.restrictions.for_leases(connection, now, store.epoch)
        self.scope = scope = Scope(store.info.id, now.low, now.high, limits, wanted.node)
        late: list[Group] = []
        if wanted.group_by is None:
            chosen = [[seq] for seq in choose_rows(connection, scope, wanted)]
        else:
            choice = GroupChoice(connection, scope, wanted)
            chosen, late = choice.choose(), choice.late
        self._chosen = chosen if len(chosen) == wanted.n else []
        return late

    def _take(self, connection: Connection) -> None:
        store, seqs = self._store, [seq for group in self._chosen for seq in group]
        until = fn.in_seconds(self._wanted.lease_s)
        values = {"lease_id": self._lease_id, "leased_until": until}
        own = (items.c.buffer_id == store.info.id) & one_of(seqs)
        if self._wanted.group_by is not None:
            # A number that no other claim gives: that of a row that is in a group for the first
            # time.
            fresh = (
                select(items.c.seq).where(own, items.c.group_seq.is_(None)).order_by(items.c.seq)
            )
            number = connection.execute(fresh.limit(1)).scalar_one_or_none()
            values["group_seq"] = case(
                (items.c.group_seq.is_(None), number), else_=items.c.group_seq
            )
        connection.execute(update(items).where(own).values(values))
        row = {"buffer_id": store.info.id, "id": self._lease_id, "n_rows": len(seqs)}
        connection.execute(insert(leases).values(**row, leased_until=until))
        _clean(connection, store)

    def _held(self, connection: Connection, now: SampledWindow, deadline: float) -> Held:
        seqs = [seq for group in self._chosen for seq in group]
        reading = Population(connection, self._store.info.id, 0, now.high, EVERYTHING)
        found = {row[0]: row for row in reading.rows(seqs)}
        groups = [[found[seq] for seq in group if seq in found] for group in self._chosen]
        for group in groups:
            group.sort(key=task_order)
        return Held(self._lease_id, groups, deadline)


def _clean(connection: Connection, store: "BufferStore") -> None:
    """Delete the rows of leases that this process has ended, and sometimes of all long gone."""
    ledger, own = store.ledger, leases.c.buffer_id == store.info.id
    done = ledger.done[:1_000]
    if done:
        connection.execute(delete(leases).where(own, leases.c.id.in_(done)))
        ledger.done = [lease_id for lease_id in ledger.done if lease_id not in done]
    if time.monotonic() - ledger.cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        ledger.cleaned_at = time.monotonic()
        old = leases.c.leased_until < fn.seconds_ago(KEPT_S)
        connection.execute(delete(leases).where(own, old))


def renew(store: "BufferStore", held: Held, lease_s: float) -> None:
    """Have a lease run out so many seconds from now.

    Raises:
        LeaseLostError: It has run out.
    """
    deadline = time.monotonic() + lease_s

    def work(connection: Connection) -> None:
        until = fn.in_seconds(lease_s)
        own = _own(store, held)
        alive = own & ~leases.c.acknowledged & ~fn.is_past(leases.c.leased_until)
        if not connection.execute(update(leases).where(alive).values(leased_until=until)).rowcount:
            raise _lost(store, held, "renewed")
        mine = _mine(store, held)
        n = connection.execute(update(items).where(mine).values(leased_until=until)).rowcount
        _check_rows(connection, store, held, n, "renewed")

    store.write(work)
    held.deadline = deadline


def acknowledge(store: "BufferStore", held: Held) -> None:
    """Count a use of each row of a batch, and retire those that were used as often as they may be.

    Rows that were deleted meanwhile are not counted.

    Raises:
        LeaseLostError: The lease has run out; nothing is counted.
    """
    max_use = store.info.max_use

    def work(connection: Connection) -> bool:
        own = _own(store, held)
        alive = own & ~leases.c.acknowledged & ~fn.is_past(leases.c.leased_until)
        if not connection.execute(update(leases).where(alive).values(acknowledged=True)).rowcount:
            found = connection.execute(select(leases.c.acknowledged).where(own)).scalar()
            if not found:
                raise _lost(store, held, "acknowledged")
            return True  # by an attempt whose connection was lost
        n_uses = items.c.n_uses + 1
        values = {"n_uses": n_uses, "lease_id": null(), "leased_until": null()}
        if max_use is not None:
            values["used_up"] = n_uses >= max_use
        n = connection.execute(update(items).where(_mine(store, held)).values(values)).rowcount
        _check_rows(connection, store, held, n, "acknowledged")
        _evict(connection, store, held.seqs)
        return False

    store.write(work)
    store.ledger.done.append(held.lease_id)
    store.dialect.wrote(store.engine, len(held.seqs))
    if max_use is not None:
        retire(store)


def give_back(store: "BufferStore", held: Held) -> None:
    """Have others claim the rows of a batch at once; what is lost already stays as it is."""

    def work(connection: Connection) -> None:
        values = {"lease_id": null(), "leased_until": null()}
        connection.execute(update(items).where(_mine(store, held)).values(values))
        connection.execute(delete(leases).where(_own(store, held)))
        _evict(connection, store, held.seqs)

    store.write(work)
    store.pacer.give_back(len(held.seqs))
    if held.number is not None:
        forget(store, held.number)


def _own(store: "BufferStore", held: Held) -> Any:
    return (leases.c.buffer_id == store.info.id) & (leases.c.id == held.lease_id)


def _mine(store: "BufferStore", held: Held) -> Any:
    own = (items.c.buffer_id == store.info.id) & one_of(held.seqs)
    return own & (items.c.lease_id == held.lease_id)


def _lost(store: "BufferStore", held: Held, what: str) -> LeaseLostError:
    return LeaseLostError(
        f"buffer {store.info.name!r}: lease {held.lease_id} ran out before it was {what}: its "
        f"{len(held.seqs)} rows are others' to claim, and this use is not counted; lease for "
        f"longer (lease_s), or call batch.renew() in time"
    )


def _check_rows(
    connection: Connection, store: "BufferStore", held: Held, n_rows: int, what: str
) -> None:
    """Raise where rows of the lease are missing because it ran out in this very moment; those that
    are missing while it runs were deleted.
    """
    if n_rows == len(held.seqs):
        return
    runs = select(leases.c.id).where(_own(store, held), ~fn.is_past(leases.c.leased_until))
    if connection.execute(runs).first() is None:
        raise _lost(store, held, what)


def _evict(connection: Connection, store: "BufferStore", seqs: Sequence[int]) -> None:
    """Delete rows that left the window while they were held."""
    low = store.lower_end(connection)
    gone = [seq for seq in seqs if seq <= low]
    if gone:
        free = (items.c.buffer_id == store.info.id) & one_of(gone) & is_free()
        locked = select(items.c.seq).where(free).order_by(items.c.seq)
        found = connection.execute(locked.with_for_update(skip_locked=True)).scalars()
        store.dialect.remove(connection, store.info.id, list(found))


def retire(store: "BufferStore") -> None:
    """Take rows out that were used as often as they may be.

    In a transaction of its own, which one process at a time does for all: acknowledgements would
    queue on the row of the buffer, which counts what has left. What it finds locked, whoever holds
    the lock looks for once more.
    """
    while store.write(lambda connection: _retire(connection, store), "relaxed"):
        pass


def _retire(connection: Connection, store: "BufferStore") -> bool:
    """Take some out; return whether there may be more."""
    used_up = select(items.c.seq).where(items.c.buffer_id == store.info.id, items.c.used_up)
    used_up = used_up.order_by(items.c.seq).limit(REMOVED_AT_ONCE)
    if connection.execute(used_up.limit(1)).first() is None:
        return False
    own = _buffer_row(store).with_for_update(key_share=True, skip_locked=True)
    if connection.execute(own).first() is None:
        return False
    found = connection.execute(used_up.with_for_update(skip_locked=True)).scalars()
    seqs = list(found)
    if store.info.keep_expired:
        connection.execute(delete(items).where(items.c.buffer_id == store.info.id, one_of(seqs)))
    else:
        store.remove_counted(connection, seqs, "n_used_up")
    return bool(seqs)


def _buffer_row(store: "BufferStore") -> Select[Any]:
    return select(buffers.c.id).where(buffers.c.id == store.info.id)


def drop(store: "BufferStore", wanted: Wanted, late: Sequence[Group]) -> None:
    """Delete groups that have not become whole in time."""

    def work(connection: Connection) -> None:
        # First, as whoever deletes rows does.
        connection.execute(_buffer_row(store).with_for_update(key_share=True))
        scope = Scope(store.info.id, store.lower_end(connection), None)
        locked = GroupChoice(connection, scope, wanted).lock(late, late=True)
        store.remove_counted(
            connection, sorted(seq for seqs in locked.values() for seq in seqs), "n_partial"
        )

    store.write(work)
