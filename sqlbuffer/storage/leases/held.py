"""Claim a batch of rows for a consumer, in one transaction.

The row of the lease and the database's clock decide if a consumer is too late: a lease that has run
out is lost, even if no other consumer has claimed its rows since.
"""

import time
from dataclasses import dataclass
from functools import partial

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

from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.buffers.buffer_window import SampledWindow
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import Deadlock, translated
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.leases.claim_request import (
    BUFFER,
    COUNT,
    SEQS,
    ClaimRequest,
    Scope,
    in_buffer,
    in_seqs,
)
from sqlbuffer.storage.leases.groups import GroupChoice, LeaseGroup
from sqlbuffer.storage.leases.keeping import LeaseKeeping
from sqlbuffer.storage.leases.retirement import drop
from sqlbuffer.storage.leases.row_choice import choose_rows
from sqlbuffer.storage.leases.tables import leases
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.rows.stored_rows import Row, task_order
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.column_types import KeyList
from sqlbuffer.storage.schema.list_parameters import is_one_of
from sqlbuffer.storage.schema.metadata import KEY
from sqlbuffer.storage.schema.server_clock import in_seconds, is_past, seconds_ago
from sqlbuffer.storage.use_counts.sample_log import LogEntry
from sqlbuffer.storage.use_counts.sampling_session import SamplingSession

# Seconds for which rows of leases without an end are kept.
KEPT_S = 3_600.0
SECONDS_BETWEEN_CLEANINGS = 60.0
# A lease that began later than this many seconds from now was taken before the clock was put back.
# Smaller corrections of the clock end no lease.
CLOCK_CORRECTION_S = 60.0
SECONDS_BETWEEN_CLOCK_CHECKS = 1.0
FEWEST_DONE, MOST_DONE = 32, 1_000

LEASE, LEASES, SECONDS, GROUP = "p_lease_id", "p_lease_ids", "p_seconds", "p_group_seq"

_OF_BUFFER = leases.c.buffer_id == bindparam(BUFFER, type_=Integer())
OF_LEASE = _OF_BUFFER & (leases.c.id == bindparam(LEASE, type_=KEY))
RUNS = ~is_past(leases.c.leased_until)
UNTIL = in_seconds(bindparam(SECONDS, type_=Double()))
OWN_ROWS = in_seqs & (items.c.lease_id == bindparam(LEASE, type_=KEY))
# The minimum over its rows, each of which reads the clock itself: so a lease does not outlive one
# of its rows.
UNTIL_OF_ROWS = (
    select(func.coalesce(func.min(items.c.leased_until), UNTIL)).where(OWN_ROWS).scalar_subquery()
)
FREE_AGAIN = {"lease_id": null(), "leased_until": null()}

IS_CLAIMED = select(leases.c.acknowledged).where(OF_LEASE)
_NEW_IN_GROUP = select(func.min(items.c.seq)).where(in_seqs, items.c.group_seq.is_(None))
_TAKE_ROWS = (
    update(items).where(in_seqs).values(lease_id=bindparam(LEASE, type_=KEY), leased_until=UNTIL)
)
_TAKE_GROUPS = _TAKE_ROWS.values(
    group_seq=func.coalesce(items.c.group_seq, bindparam(GROUP, type_=BigInteger()))
)
_ADD_LEASE = insert(leases).values(
    buffer_id=bindparam(BUFFER, type_=Integer()),
    id=bindparam(LEASE, type_=KEY),
    n_rows=bindparam(COUNT, type_=BigInteger()),
    leased_until=UNTIL_OF_ROWS,
)
_END_FUTURE = (
    update(leases)
    .where(_OF_BUFFER, ~leases.c.acknowledged, leases.c.claimed_at > UNTIL)
    .values(claimed_at=in_seconds(0.0), leased_until=in_seconds(0.0))
    .returning(leases.c.id)
)
_RELEASE_OF_LEASES = (
    update(items)
    .where(in_buffer, is_one_of(items.c.lease_id, bindparam(LEASES, type_=KeyList())))
    .values(**FREE_AGAIN)
)
_FORGET_SOME = delete(leases).where(
    _OF_BUFFER, is_one_of(leases.c.id, bindparam(LEASES, type_=KeyList()))
)
_FORGET_OLD = delete(leases).where(_OF_BUFFER, leases.c.leased_until < seconds_ago(KEPT_S))


@dataclass
class HeldRows:
    """A batch on lease.

    Attributes:
        lease_id: Its lease.
        groups: The rows of each group, in their order; without groups, each row alone.
        deadline: Earliest time at which the lease runs out, by this process's monotonic clock.
        number: Number of the batch in the sample log.
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
        leases: Leases the rows of the buffer.
        wanted: The request.

    Attributes:
        scope: The queue at the last attempt.
    """

    def __init__(self, leases: LeaseKeeping, wanted: ClaimRequest) -> None:
        self._leases, self._wanted, self._lease_id = leases, wanted, uuid7()
        self._chosen: list[list[int]] = []
        self.scope: Scope | None = None

    def attempt(self, session: SamplingSession) -> HeldRows | None:
        """Return the batch; None if there are too few rows.

        Args:
            session: Logs the batch.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        held, late = self._leases.buffer.with_retries(partial(self._attempt, session))
        self._leases.remove_expired()
        if late:
            drop(self._leases, self._wanted, late)
        return held

    def _attempt(self, session: SamplingSession) -> tuple[HeldRows | None, list[LeaseGroup]]:
        leases = self._leases
        deadline = time.monotonic() + self._wanted.lease_s
        try:
            is_random = self._wanted.order == "random"
            with translated(leases.buffer.url), leases.claiming(with_first=is_random) as connection:
                found, first = answer(connection), None
                if is_random and found:
                    *window, first = found[0]
                    found = [window]
                now = leases.source.window_answered(found)
                if self._chosen and self._is_claimed(connection):
                    # A connection was lost after its commit.
                    return self._held(connection, now, deadline), []
                _end_future_leases(connection, leases)
                late = self._choose(connection, now, first)
                if not self._chosen:
                    return None, late
                self._take(connection)
                held = self._held(connection, now, deadline)
                note = LogEntry(f"lease ({self._wanted.order})")
                session.log(connection, held.seqs, now.clock, note)
                held.number = session.batch_id
        except IntegrityError as error:
            # The server process of an earlier attempt ended only now: try again.
            raise Deadlock(f"{error.orig}; try again") from error
        return held, late

    def _is_claimed(self, connection: Connection) -> bool:
        values = {BUFFER: self._leases.buffer.info.id, LEASE: self._lease_id}
        return connection.execute(IS_CLAIMED, values).first() is not None

    def _choose(
        self, connection: Connection, now: SampledWindow, first: int | None
    ) -> list[LeaseGroup]:
        leases, wanted = self._leases, self._wanted
        limits = leases.restrictions.for_leases(connection, now, server_epoch(leases.buffer.engine))
        self.scope = scope = Scope(leases.buffer.info.id, now.low, now.high, limits, first)
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
            BUFFER: self._leases.buffer.info.id, SEQS: seqs, LEASE: self._lease_id,
            COUNT: len(seqs), SECONDS: self._wanted.lease_s,
        }  # fmt: skip
        if self._wanted.group_by is None:
            connection.execute(_TAKE_ROWS, values)
        else:
            # A number that no other claim gives: that of a row whose group is new.
            new = connection.execute(_NEW_IN_GROUP, values).scalar_one()
            connection.execute(_TAKE_GROUPS, {**values, GROUP: new})
        connection.execute(_ADD_LEASE, values)
        _clean(connection, self._leases)

    def _held(self, connection: Connection, now: SampledWindow, deadline: float) -> HeldRows:
        seqs = [seq for group in self._chosen for seq in group]
        found = self._read(connection, now, seqs)
        groups = [[found[seq] for seq in group if seq in found] for group in self._chosen]
        for group in groups:
            group.sort(key=task_order)
        return HeldRows(self._lease_id, groups, deadline)

    def _read(self, connection: Connection, now: SampledWindow, seqs: list[int]) -> dict[int, Row]:
        buffer, columns = self._leases.buffer, self._leases.reading
        candidates = Candidates(
            connection, buffer.info.id, 0, now.high, EVERYTHING, columns,
            steps=layout_of(buffer.info),
        )  # fmt: skip
        candidates.has_labels, candidates.has_deleted = bool(now.has_labels), bool(now.has_deleted)
        return {row[0]: row for row in candidates.rows(seqs)}


def _clean(connection: Connection, leases: LeaseKeeping) -> None:
    """Delete the rows of leases that this process has ended, and sometimes of all old ones."""
    ledger, buffer = leases.ledger, {BUFFER: leases.buffer.info.id}
    done = ledger.done[:MOST_DONE]
    if len(done) >= FEWEST_DONE:
        connection.execute(_FORGET_SOME, {**buffer, LEASES: done})
        ledger.done = [lease_id for lease_id in ledger.done if lease_id not in done]
    if time.monotonic() - ledger.cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        ledger.cleaned_at = time.monotonic()
        connection.execute(_FORGET_OLD, buffer)


def _end_future_leases(connection: Connection, leases: LeaseKeeping) -> None:
    """End leases that began in the future.

    The clock was put back since, and they would hold their rows for too long.
    """
    ledger = leases.ledger
    if time.monotonic() - ledger.clock_checked_at < SECONDS_BETWEEN_CLOCK_CHECKS:
        return
    ledger.clock_checked_at = time.monotonic()
    values = {BUFFER: leases.buffer.info.id, SECONDS: CLOCK_CORRECTION_S}
    ended = list(connection.execute(_END_FUTURE, values).scalars())
    if ended:
        connection.execute(_RELEASE_OF_LEASES, {**values, LEASES: ended})
