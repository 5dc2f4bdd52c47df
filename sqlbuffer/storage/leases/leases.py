"""Rows that are leased for a time: waited for, claimed, acknowledged or given back.

The row of the lease and the database's clock decide if a consumer is too late: a lease that has run
out is lost, even if no other consumer has claimed its rows since.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Integer,
    Select,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import FlowControlError, InsufficientDataError, LeaseLostError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.buffers.window import (
    SampledWindow,
    clean_after_write,
    select_sampled_window,
    windows,
)
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import Deadlock, translated
from sqlbuffer.storage.database.transactions import answer, reading, snapshot
from sqlbuffer.storage.dialects import by_database, claiming
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility
from sqlbuffer.storage.episodes import EpisodeFacts, EpisodeKey, episodes, facts_of
from sqlbuffer.storage.leases.choosing import (
    BUFFER,
    COUNT,
    SEQS,
    ClaimRequest,
    GroupBy,
    GroupChoice,
    Key,
    Scope,
    choose_rows,
    claimable,
    groups,
    in_buffer,
    in_seqs,
    is_free,
    is_of_incomplete,
)
from sqlbuffer.storage.leases.retirement import drop, retire
from sqlbuffer.storage.leases.shortage import missing
from sqlbuffer.storage.leases.tables import KEPT_UNTIL, checkpoints, leases, queue_items
from sqlbuffer.storage.rows.layouts import Row, episodes_of, layout_of, steps_of, task_order
from sqlbuffer.storage.rows.payload_parts import is_in_parts
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.rows.statements import remembered
from sqlbuffer.storage.sample_log import LogEntry
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.expressions import (
    IntegerList,
    KeyList,
    SeqList,
    age_s,
    in_seconds,
    is_number_of,
    is_one_of,
    is_past,
    listed,
    seconds_ago,
)
from sqlbuffer.storage.schema.metadata import KEY
from sqlbuffer.storage.use_counts import SamplingSession, SamplingSessions
from sqlbuffer.waits import begin_wait

# Seconds for which rows of leases without an end are kept.
KEPT_S = 3_600.0
SECONDS_BETWEEN_CLEANINGS = 60.0
# A lease that began later than this many seconds from now was taken before the clock was put back.
# Smaller corrections of the clock end no lease.
CLOCK_CORRECTION_S = 60.0
SECONDS_BETWEEN_CLOCK_CHECKS = 1.0
FEWEST_DONE, MOST_DONE = 32, 1_000

LEASE, LEASES, SECONDS, GROUP = "p_lease_id", "p_lease_ids", "p_seconds", "p_group_seq"
CONSUMER = "p_consumer"

# Not the generator that the user may have seeded.
_RANDOM = random.SystemRandom()

# Pause between two looks: 4 looks a second. If a look takes long, the pause is this many times as
# long.
PAUSE_S, PAUSE_PER_LOOK = 0.25, 10
# If several processes claim at the same moment, each waits for a random time.
CONTENDED_ROUNDS, CONTENDED_PAUSE_S = 3, 0.02

_OF_BUFFER = leases.c.buffer_id == bindparam(BUFFER, type_=Integer())
OF_LEASE = _OF_BUFFER & (leases.c.id == bindparam(LEASE, type_=KEY))
RUNS = ~is_past(leases.c.leased_until)
UNTIL = in_seconds(bindparam(SECONDS, type_=Double()))
# Without kept ones, which a second call for the same lease must not change.
OWN_ROWS = (
    in_seqs
    & (queue_items.c.lease_id == bindparam(LEASE, type_=KEY))
    & (queue_items.c.leased_until < KEPT_UNTIL)
)
# The minimum over its rows, each of which reads the clock itself: so a lease does not outlive one
# of its rows.
UNTIL_OF_ROWS = (
    select(func.coalesce(func.min(queue_items.c.leased_until), UNTIL))
    .where(OWN_ROWS)
    .scalar_subquery()
)
FREE_AGAIN = {"lease_id": null(), "leased_until": null()}

IS_CLAIMED = select(leases.c.acknowledged).where(OF_LEASE)
_NEW_IN_GROUP = select(func.min(queue_items.c.seq)).where(
    in_seqs, (queue_items.c.n_uses == 0) | queue_items.c.group_seq.is_(None)
)
_TAKE_ROWS = (
    update(queue_items)
    .where(in_seqs)
    .values(lease_id=bindparam(LEASE, type_=KEY), leased_until=UNTIL)
)
_TAKE_GROUPS = _TAKE_ROWS.values(
    group_seq=case(
        (
            queue_items.c.n_uses > 0,
            func.coalesce(queue_items.c.group_seq, bindparam(GROUP, type_=BigInteger())),
        ),
        else_=bindparam(GROUP, type_=BigInteger()),
    )
)
_ADD_LEASE = insert(leases).values(
    buffer_id=bindparam(BUFFER, type_=Integer()),
    id=bindparam(LEASE, type_=KEY),
    leased_until=UNTIL_OF_ROWS,
)
_LIVE = (
    select(
        *(leases.c[name] for name in ("id", "consumer", "seqs", "sizes", "group_by", "batch_id")),
        (-age_s(leases.c.leased_until)).label("left_s"),
        (age_s(leases.c.claimed_at) - age_s(leases.c.leased_until)).label("lease_s"),
    )
    .where(_OF_BUFFER, ~leases.c.acknowledged, RUNS)
    .order_by(leases.c.claimed_at, leases.c.id)
)
_END_FUTURE = (
    update(leases)
    .where(_OF_BUFFER, ~leases.c.acknowledged, leases.c.claimed_at > UNTIL)
    .values(claimed_at=in_seconds(0.0), leased_until=in_seconds(0.0))
    .returning(leases.c.id)
)
_RELEASE_OF_LEASES = (
    update(queue_items)
    .where(in_buffer, is_one_of(queue_items.c.lease_id, bindparam(LEASES, type_=KeyList())))
    .values(**FREE_AGAIN)
)
_FORGET_SOME = delete(leases).where(
    _OF_BUFFER, is_one_of(leases.c.id, bindparam(LEASES, type_=KeyList()))
)
_FORGET_OLD = delete(leases).where(_OF_BUFFER, leases.c.leased_until < seconds_ago(KEPT_S))

_USES = queue_items.c.n_uses + 1
_MARK = update(leases).where(OF_LEASE, ~leases.c.acknowledged, RUNS)
_LOW = select(windows.c.low_seq).where(windows.c.buffer_id == bindparam(BUFFER, type_=Integer()))
# Also returns the number up to which rows have left, which would need one more round trip.
_ACKNOWLEDGE = _MARK.values(acknowledged=True, leased_until=in_seconds(0.0)).returning(
    _LOW.scalar_subquery()
)
_KEEP = _MARK.values(acknowledged=True, leased_until=KEPT_UNTIL).returning(_LOW.scalar_subquery())
_NOTE_EPISODES = (
    update(leases).where(OF_LEASE).values(episodes=bindparam("p_noted", type_=IntegerList()))
)
_PROLONG = _MARK.values(leased_until=UNTIL_OF_ROWS, claimed_at=in_seconds(0.0))
_PROLONG_ROWS = update(queue_items).where(OWN_ROWS).values(leased_until=UNTIL)
# In the order in which transactions that delete rows lock them.
_HOLD = (
    select(queue_items.c.episode_id)
    .where(OWN_ROWS)
    .order_by(queue_items.c.seq)
    .with_for_update(key_share=True)
)
_EPISODES = "p_episodes"
_OF_EPISODES = is_number_of(episodes.c.id, bindparam(_EPISODES, type_=SeqList()))
_LOCK_EPISODES = (
    select(episodes.c.id)
    .where(_OF_EPISODES, ~episodes.c.was_used)
    .order_by(episodes.c.id)
    .with_for_update(key_share=True)
)
_NOTE_USE = (
    update(episodes)
    .where(_OF_EPISODES, ~episodes.c.was_used)
    .values(was_used=True, used_at=in_seconds(0.0))
)
_own = queue_items.alias("own").c
# By the column that groups go by.
_FAILED_SIBLINGS = {
    name: select(queue_items.c.episode_id)
    .distinct()
    .where(
        in_buffer,
        queue_items.c[name].in_(
            select(_own[name]).where(
                _own.buffer_id == bindparam(BUFFER, type_=Integer()),
                is_number_of(_own.seq, bindparam(SEQS, type_=SeqList())),
            )
        ),
        ~queue_items.c.used_up,
        is_free,
        is_of_incomplete,
    )
    for name in ("task_id", "group_id")
}
_USE_UP = (
    update(queue_items)
    .where(in_buffer, is_number_of(queue_items.c.episode_id, bindparam(_EPISODES, type_=SeqList())))
    .values(used_up=True)
)
_COUNT = update(queue_items).where(OWN_ROWS).values(n_uses=_USES, **FREE_AGAIN)
_COUNT_TO = _COUNT.values(used_up=bindparam(COUNT, type_=Integer()) <= _USES)
# Kept rows are not handed out, as if they were used up; those that are leave when they are free.
_COUNT_AND_KEEP = (
    update(queue_items).where(OWN_ROWS).values(n_uses=_USES, used_up=True, leased_until=KEPT_UNTIL)
)
# Checkpoints of a consumer lock its marks: they wait for acknowledgements that are under way.
_SHARE_MARKS = (
    select(checkpoints.c.number)
    .where(
        checkpoints.c.buffer_id == bindparam(BUFFER, type_=Integer()),
        checkpoints.c.consumer == bindparam(CONSUMER, type_=KEY),
    )
    .order_by(checkpoints.c.number.desc())
    .limit(1)
    .with_for_update(read=True)
)
_RELEASE = update(queue_items).where(OWN_ROWS).values(**FREE_AGAIN)
_FORGET = delete(leases).where(OF_LEASE, ~leases.c.acknowledged)
_UNLEASED = (
    select(queue_items.c.seq)
    .where(in_seqs, is_free)
    .order_by(queue_items.c.seq)
    .with_for_update(skip_locked=True)
)
_evict_chunks = by_database(sqlite=sqlite.evict_chunks, postgresql=postgresql.evict_chunks)


@dataclass
class Ledger:
    """The leases that one process has ended, so that a later call can delete their rows."""

    done: list[str] = field(default_factory=list)
    cleaned_at: float = 0.0
    clock_checked_at: float = -math.inf


class LeaseKeeping:
    """Leases the rows of a buffer.

    Args:
        source: Opens the rows of the buffer.
        sessions: Waits for the rate limiter, and counts and logs the claimed rows.
        remove_expired: Function that removes rows that may never be sampled again, if it is time.

    Attributes:
        ledger: Leases that this process has ended.
        reading: Reads rows, without their parts.
    """

    def __init__(
        self,
        source: CandidateSource,
        sessions: SamplingSessions,
        remove_expired: Callable[[], None],
    ) -> None:
        self.buffer, self.restrictions = source.buffer, source.restrictions
        self.source, self.sessions = source, sessions
        self.reading = replace(source.whole_rows.reading, complete=None)
        self.remove_expired = remove_expired
        self.ledger = Ledger()

    @cached_property
    def _window_and_first(self) -> str:
        info = self.buffer.info
        first = select(func.min(queue_items.c.seq)).where(queue_items.c.buffer_id == info.id)
        window = select_sampled_window(info.id, info.config.retention.evict_by, steps_of(info))
        return self.buffer.text_of(window.add_columns(first.scalar_subquery()))

    @contextmanager
    def claiming(self, *, with_first: bool = False) -> Iterator[Connection]:
        """Begin a transaction that claims rows and first reads the window.

        With `with_first` it also reads the first row of the queue. It does not wait for the disk:
        if a server crash loses a claim, its rows are free, and its acknowledgement is refused.
        """
        query = self._window_and_first if with_first else self.source.window_query
        with claiming(self.buffer.engine, "relaxed", query) as connection:
            yield connection


@dataclass
class LeasedRows:
    """A batch on lease.

    Attributes:
        lease_id: Its lease.
        seqs: The numbers of its rows, group by group.
        sizes: Number of rows of each group; None if each row is separate.
        deadline: Earliest time at which the lease runs out, by this process's monotonic clock.
        number: Number of the batch in the sample log.
        group_by: Column that rows of a group share; None if each row is separate.
        consumer: Who leased it, if a name was given.
        lease_s: How long it lasts from its claim or its last renewal, in seconds.
        groups: The rows of each group, in their order; without groups, each row alone. Empty
            until `read_rows` has read those of a lease of another process.
        episodes: What is known of the episodes of groups, as they were when the rows were read.
        n_skipped: Number of groups that its claim skipped because of their spread.
    """

    lease_id: str
    seqs: list[int]
    sizes: list[int] | None
    deadline: float
    number: int | None = None
    group_by: GroupBy | None = None
    consumer: str | None = None
    lease_s: float = 0.0
    groups: list[list[Row]] = field(default_factory=list)
    episodes: Mapping[EpisodeKey, EpisodeFacts] = field(default_factory=dict)
    n_skipped: int = 0

    def divided(self) -> list[list[int]]:
        """Return the numbers of the rows of each group; without groups, of each row alone."""
        seqs = iter(self.seqs)
        sizes = [1] * len(self.seqs) if self.sizes is None else self.sizes
        return [list(islice(seqs, n)) for n in sizes]


class Claim:
    """One call's claim, which may take several attempts.

    Args:
        keeping: Leases the rows of the buffer.
        request: The request.

    Attributes:
        scope: The queue at the last attempt.
    """

    def __init__(self, keeping: LeaseKeeping, request: ClaimRequest) -> None:
        self._keeping, self._request, self._lease_id = keeping, request, uuid7()
        self._chosen: list[list[int]] = []
        self._skipped: set[Key] = set()
        self.scope: Scope | None = None

    def attempt(self, session: SamplingSession) -> LeasedRows | None:
        """Return the batch; None if there are too few rows.

        Args:
            session: Logs the batch.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        leased, choice = self._keeping.buffer.with_retries(partial(self._attempt, session))
        self._keeping.remove_expired()
        if choice is not None:
            self._skipped.update(choice.flat)
            if choice.late:
                drop(self._keeping.source, self._request, choice.late, "late")
            if choice.flat and self._request.drops_flat:
                flat = list(choice.flat.values())
                drop(self._keeping.source, self._request, flat, "flat")
        if leased is not None:
            leased.n_skipped = len(self._skipped)
        return leased

    def _attempt(self, session: SamplingSession) -> tuple[LeasedRows | None, GroupChoice | None]:
        keeping = self._keeping
        deadline = time.monotonic() + self._request.lease_s
        try:
            is_random = self._request.order == "random"
            with (
                translated(keeping.buffer.url),
                keeping.claiming(with_first=is_random) as connection,
            ):
                window_rows, first = answer(connection), None
                if is_random and window_rows:
                    *columns, first = window_rows[0]
                    window_rows = [columns]
                window = keeping.source.window_answered(window_rows)
                if self._chosen and self._is_claimed(connection):
                    # A connection was lost after its commit.
                    return self._leased(connection, window, deadline), None
                _end_future_leases(connection, keeping)
                choice = self._choose(connection, window, first)
                if not self._chosen:
                    return None, choice
                self._take(connection)
                leased = self._leased(connection, window, deadline)
                note = LogEntry(f"lease ({self._request.order})", consumer=leased.consumer)
                session.log(connection, leased.seqs, window.clock, note)
                leased.number = session.batch_id
                self._add(connection, leased)
                if choice is not None and self._request.needs_spread:
                    choice.settle()  # the last statement: writers wait for these rows
        except IntegrityError as error:
            # The server process of an earlier attempt ended only now: try again.
            raise Deadlock(f"{error.orig}; try again") from error
        return leased, choice

    def _is_claimed(self, connection: Connection) -> bool:
        values = {BUFFER: self._keeping.buffer.info.id, LEASE: self._lease_id}
        return connection.execute(IS_CLAIMED, values).first() is not None

    def _choose(
        self, connection: Connection, window: SampledWindow, first: int | None
    ) -> GroupChoice | None:
        keeping, request = self._keeping, self._request
        limits = keeping.restrictions.for_leases(
            connection, window, server_epoch(keeping.buffer.engine)
        )
        self.scope = scope = Scope(keeping.buffer.info.id, window.low, window.high, limits, first)
        choice: GroupChoice | None = None
        if request.group_by is None:
            chosen = [[seq] for seq in choose_rows(connection, scope, request)]
        else:
            choice = GroupChoice(connection, scope, request)
            chosen = choice.choose()
            if request.needs_spread and len(chosen) < request.n:
                choice.settle()
        self._chosen = chosen if len(chosen) == request.n else []
        return choice

    def _take(self, connection: Connection) -> None:
        values = {
            BUFFER: self._keeping.buffer.info.id, LEASE: self._lease_id,
            SEQS: [seq for group in self._chosen for seq in group],
            SECONDS: self._request.lease_s,
        }  # fmt: skip
        if self._request.group_by is None:
            connection.execute(_TAKE_ROWS, values)
        else:
            # A number that no other claim gives: that of a row whose group is new.
            new = connection.execute(_NEW_IN_GROUP, values).scalar_one()
            connection.execute(_TAKE_GROUPS, {**values, GROUP: new})

    def _add(self, connection: Connection, leased: LeasedRows) -> None:
        values = {
            **_values(self._keeping, leased), SECONDS: self._request.lease_s,
            "n_rows": len(leased.seqs), "seqs": leased.seqs, "sizes": leased.sizes,
            "batch_id": leased.number, "group_by": leased.group_by, "consumer": leased.consumer,
        }  # fmt: skip
        connection.execute(_ADD_LEASE, values)
        _clean(connection, self._keeping)

    def _leased(self, connection: Connection, window: SampledWindow, deadline: float) -> LeasedRows:
        groups = _rows_of_groups(connection, self._keeping, window, self._chosen)
        request = self._request
        return LeasedRows(
            self._lease_id, [row[0] for group in groups for row in group],
            None if request.group_by is None else [len(group) for group in groups],
            deadline, group_by=request.group_by, consumer=request.consumer,
            lease_s=request.lease_s, groups=groups,
        )  # fmt: skip


def _rows_of_groups(
    connection: Connection,
    keeping: LeaseKeeping,
    window: SampledWindow,
    groups: Sequence[Sequence[int]],
) -> list[list[Row]]:
    """Return the rows of groups of numbers, each group in its order, without their parts."""
    buffer = keeping.buffer
    candidates = Candidates(
        connection, buffer.info.id, 0, window.high, EVERYTHING, keeping.reading,
        steps=layout_of(buffer.info),
    )  # fmt: skip
    candidates.has_labels, candidates.has_deleted = (
        bool(window.has_labels),
        bool(window.has_deleted),
    )
    rows = {row[0]: row for row in candidates.rows([seq for group in groups for seq in group])}
    return [sorted((rows[seq] for seq in group if seq in rows), key=task_order) for group in groups]


def live_leases(keeping: LeaseKeeping, consumer: str | None) -> list[LeasedRows]:
    """Return the leases that run, oldest first, without their rows: those of a consumer or all."""

    def look(connection: Connection) -> list[LeasedRows]:
        now = time.monotonic()
        statement = _LIVE if consumer is None else _LIVE.where(leases.c.consumer == consumer)
        rows = connection.execute(statement, {BUFFER: keeping.buffer.info.id})
        return [
            LeasedRows(
                row.id, list(listed(row.seqs)), row.sizes and list(listed(row.sizes)),
                now + row.left_s, row.batch_id, row.group_by, row.consumer, row.lease_s,
            )
            for row in rows
        ]  # fmt: skip

    return keeping.buffer.read(look)


def read_rows(keeping: LeaseKeeping, leased: LeasedRows) -> None:
    """Read the rows of a lease, without those that were deleted meanwhile."""

    def read() -> list[list[Row]]:
        with translated(keeping.buffer.url), snapshot(keeping.buffer.engine) as connection:
            window = keeping.source.sampled_window(connection)
            return _rows_of_groups(connection, keeping, window, leased.divided())

    leased.groups = keeping.buffer.with_retries(read)
    complete(keeping, leased)


def _clean(connection: Connection, keeping: LeaseKeeping) -> None:
    """Delete the rows of leases that this process has ended, and sometimes of all old ones."""
    ledger, buffer = keeping.ledger, {BUFFER: keeping.buffer.info.id}
    done = ledger.done[:MOST_DONE]
    if len(done) >= FEWEST_DONE:
        connection.execute(_FORGET_SOME, {**buffer, LEASES: done})
        ledger.done = [lease_id for lease_id in ledger.done if lease_id not in done]
    if time.monotonic() - ledger.cleaned_at > SECONDS_BETWEEN_CLEANINGS:
        ledger.cleaned_at = time.monotonic()
        connection.execute(_FORGET_OLD, buffer)


def _end_future_leases(connection: Connection, keeping: LeaseKeeping) -> None:
    """End leases that began in the future.

    The clock was put back since, and they would hold their rows for too long.
    """
    ledger = keeping.ledger
    if time.monotonic() - ledger.clock_checked_at < SECONDS_BETWEEN_CLOCK_CHECKS:
        return
    ledger.clock_checked_at = time.monotonic()
    values = {BUFFER: keeping.buffer.info.id, SECONDS: CLOCK_CORRECTION_S}
    ended = list(connection.execute(_END_FUTURE, values).scalars())
    if ended:
        connection.execute(_RELEASE_OF_LEASES, {**values, LEASES: ended})


def claimed(
    keeping: LeaseKeeping, request: ClaimRequest, timeout_s: float, cancelled: threading.Event
) -> LeasedRows:
    """Return a batch, after a wait if there are too few rows.

    Args:
        keeping: Leases the rows of the buffer.
        request: The request.
        timeout_s: Maximum wait in seconds; 0 for no wait.
        cancelled: Event that ends the wait.

    Raises:
        InsufficientDataError: There were too few rows all that time; the message names what is
            missing.
        FlowControlError: The rate limiter did not allow the batch in that time.
    """
    deadline = time.monotonic() + timeout_s
    claim, look = Claim(keeping, request), Look(keeping, request)
    reason = ""
    rounds = 0
    while True:
        leased, reason = _attempt(keeping, claim, request, max(0.0, deadline - time.monotonic()))
        if leased is not None:
            return leased
        rounds += 1
        if rounds % (1 + CONTENDED_ROUNDS) and look.said_enough:
            pause_s = _RANDOM.uniform(0, CONTENDED_PAUSE_S)
            _sleep(cancelled, min(pause_s, deadline - time.monotonic()))
            continue
        if not look.wait(deadline, cancelled, claim.scope):
            raise InsufficientDataError(reason or missing(keeping.source, request, timeout_s))


def _attempt(
    keeping: LeaseKeeping, claim: Claim, request: ClaimRequest, wait_s: float
) -> tuple[LeasedRows | None, str]:
    """Try once; return the batch, or None and the reason if it is known."""
    try:
        with keeping.sessions.open(request.n, wait_s) as session:
            leased = claim.attempt(session)
            session.n_rows = 0 if leased is None else len(leased.seqs)
    except FlowControlError:
        raise
    except InsufficientDataError as error:
        return None, str(error)
    return leased, ""


def _sleep(cancelled: threading.Event, pause_s: float) -> None:
    begin_wait()
    if cancelled.wait(max(0.0, pause_s)):
        raise InsufficientDataError("the wait was cancelled")


class Look:
    """Checks from time to time if there may be enough rows, with one statement that locks nothing.

    Args:
        keeping: Leases the rows of the buffer.
        request: The request.

    Attributes:
        said_enough: Result of the last look.
    """

    def __init__(self, keeping: LeaseKeeping, request: ClaimRequest) -> None:
        self._keeping, self._request = keeping, request
        self._limits: Eligibility | None = None
        self._low = 0
        self._next = time.monotonic() + PAUSE_S
        self.said_enough = False

    def wait(self, deadline: float, cancelled: threading.Event, scope: Scope | None = None) -> bool:
        """Wait until there may be enough rows; return False at the deadline.

        Args:
            deadline: Deadline on the monotonic clock.
            cancelled: Event that ends the wait.
            scope: The queue at the last look.
        """
        if scope is not None:
            self._low, self._limits = scope.low, scope.limits
        while True:
            now = time.monotonic()
            if now >= deadline:
                return False
            _sleep(cancelled, min(self._next, deadline) - now)
            began = time.monotonic()
            self.said_enough = self._keeping.buffer.with_retries(self._look)
            took_s = time.monotonic() - began
            self._next = began + max(PAUSE_S, PAUSE_PER_LOOK * took_s)
            if self.said_enough:
                return True

    def _look(self) -> bool:
        keeping = self._keeping
        with translated(keeping.buffer.url), reading(keeping.buffer.engine) as connection:
            while True:
                row = connection.execute(*self._statement()).one_or_none()
                window = keeping.source.window_answered([] if row is None else [row[1:]])
                self._low = window.low
                if self._limits == (limits := keeping.restrictions.limits_of_leases(window)):
                    is_large = window.span >= keeping.buffer.info.config.sampling.min_size
                    if self._request.min_spread is None:
                        return bool(row and row[0] and is_large)
                    scope = Scope(keeping.buffer.info.id, self._low, None, limits)
                    return is_large and GroupChoice(connection, scope, self._request).may_suffice()
                # This is the first look, or the clock has moved: the last count was under other
                # limits.
                self._limits = limits

    def _statement(self) -> tuple[Select[Any], Mapping[str, Any]]:
        info = self._keeping.buffer.info
        scope = Scope(info.id, self._low, None, self._limits or NO_LIMITS)
        statement = _look(info.id, info.config.retention.evict_by, self._limits, self._request)
        return statement, scope.parameters(**{COUNT: self._request.n})


@remembered
def _look(
    buffer_id: int, evict_by: str, limits: Eligibility | None, request: ClaimRequest
) -> Select[Any]:
    """Select True if there may be enough rows under these limits, and the window.

    Without limits, select the window alone.
    """
    window = select_sampled_window(buffer_id, evict_by, request.steps.of(buffer_id)).subquery("w").c
    by_sql = limits is not None and request.min_spread is None
    enough = _is_enough(limits or NO_LIMITS, request) if by_sql else literal(False)
    return select(enough, *window)


def _is_enough(limits: Eligibility, request: ClaimRequest) -> Any:
    if request.group_by is None:
        count = bindparam(COUNT, type_=BigInteger())
        can_claim = claimable(limits, request.node, request.steps)
        some = select(literal(1)).select_from(queue_items).where(can_claim)
        n_rows = select(func.count()).select_from(some.limit(count).subquery())
        return n_rows.scalar_subquery() >= count
    group = groups(limits, request, named=False).subquery("g").c
    is_late = case((group.n_leased == 0, group.late), else_=0)
    droppable = func.sum(is_late) > 0 if request.drops_any else literal(False)
    is_enough = (func.sum(group.claimable) >= request.n) | droppable
    return select(func.coalesce(is_enough, False)).scalar_subquery()


def complete(keeping: LeaseKeeping, leased: LeasedRows) -> None:
    """Read the parts of the rows of a batch, and what is known of the episodes of groups.

    This runs after the claim, during which others wait on SQLite; rows deleted since are left out.
    """
    rows = [row for group in leased.groups for row in group]
    in_parts = any(map(is_in_parts, rows))
    if not in_parts and leased.sizes is None:
        return

    def read() -> None:
        with translated(keeping.buffer.url), snapshot(keeping.buffer.engine) as connection:
            if in_parts:
                held = keeping.source.whole_rows.held
                leased.groups = [held(connection, group) for group in leased.groups]
            if leased.sizes is not None:
                leased.episodes = facts_of(connection, keeping.buffer.info.id, episodes_of(rows))

    keeping.buffer.with_retries(read)


def renew(keeping: LeaseKeeping, leased: LeasedRows, lease_s: float) -> None:
    """Set a lease to run out in `lease_s` seconds.

    Raises:
        LeaseLostError: The lease has run out.
    """
    deadline = time.monotonic() + lease_s

    def work(connection: Connection) -> None:
        values = {**_values(keeping, leased), SECONDS: lease_s}
        connection.execute(_HOLD, values)
        connection.execute(_PROLONG_ROWS, values)  # first, as in an acknowledgement
        if not connection.execute(_PROLONG, values).rowcount:
            raise _lost(connection, keeping, leased, "renewed")

    keeping.buffer.write(work)
    leased.deadline = deadline


def acknowledge(keeping: LeaseKeeping, leased: LeasedRows) -> None:
    """Count a use of each row of a batch, and retire rows that reached `max_use`.

    Rows that were deleted during the lease are not counted.

    Raises:
        LeaseLostError: The lease has run out; no use is counted.
    """
    max_use = keeping.buffer.info.config.sampling.max_use

    def work(connection: Connection) -> bool:
        values = {**_values(keeping, leased), COUNT: max_use}
        is_kept = leased.consumer is not None and _has_marks(connection, keeping, leased.consumer)
        # The rows first: locked rows cannot be claimed. So rows that are missing while the lease
        # still runs were deleted.
        of_rows = set(connection.execute(_HOLD, values).scalars()) - {None}
        if is_kept:
            connection.execute(_COUNT_AND_KEEP, values)
        else:
            connection.execute(_COUNT if max_use is None else _COUNT_TO, values)
        low = connection.execute(_KEEP if is_kept else _ACKNOWLEDGE, values).scalar_one_or_none()
        if low is None:
            if connection.execute(IS_CLAIMED, values).scalar():
                return is_kept  # another call has acknowledged it
            raise _lost(connection, keeping, leased, "acknowledged")
        noted = note_use(connection, of_rows)
        if leased.group_by in _FAILED_SIBLINGS:
            retires = max_use is not None and not is_kept
            noted += close_groups(connection, leased.group_by, values, retires=retires)
        if is_kept:
            connection.execute(_NOTE_EPISODES, {**values, "p_noted": noted})
        else:
            evict(connection, keeping, leased.seqs, low)
        return is_kept

    is_kept = keeping.buffer.write(work)
    if leased.consumer is None:
        # One with a consumer stays for a while: another process may acknowledge it too.
        keeping.ledger.done.append(leased.lease_id)
    clean_after_write(keeping.buffer.engine, len(leased.seqs))
    if max_use is not None and not is_kept:
        retire(keeping.buffer)


def _has_marks(connection: Connection, keeping: LeaseKeeping, consumer: str) -> bool:
    values = {BUFFER: keeping.buffer.info.id, CONSUMER: consumer}
    # A mark that this waits for may be deleted while a newer one is made.
    return any(connection.execute(_SHARE_MARKS, values).first() is not None for _ in range(2))


def note_use(connection: Connection, episode_ids: Iterable[int]) -> list[int]:
    """Note that episodes were used: nothing continues them. Return those that were not before."""
    numbers = {_EPISODES: sorted(episode_ids)}
    unused: list[int] = []
    if numbers[_EPISODES]:
        unused += connection.execute(_LOCK_EPISODES, numbers).scalars()
    if unused:
        connection.execute(_NOTE_USE, numbers)
    return unused


def close_groups(
    connection: Connection, group_by: str, values: Mapping[str, Any], *, retires: bool
) -> list[int]:
    """Note of aborted and abandoned siblings of acknowledged rollouts that nothing continues them.

    With `retires` their rows leave the queue. Return those that were not noted before.
    """
    failed = sorted(connection.execute(_FAILED_SIBLINGS[group_by], values).scalars())
    noted = note_use(connection, failed)
    if failed and retires:
        connection.execute(_USE_UP, {**values, _EPISODES: failed})
    return noted


def give_back(keeping: LeaseKeeping, leased: LeasedRows) -> None:
    """Make the rows of a batch free immediately; rows that are lost already do not change.

    Raises:
        LeaseLostError: The batch was acknowledged.
    """

    def work(connection: Connection) -> bool:
        values = _values(keeping, leased)
        connection.execute(_HOLD, values)
        connection.execute(_RELEASE, values)
        is_given_back = bool(connection.execute(_FORGET, values).rowcount)
        if not is_given_back and connection.execute(IS_CLAIMED, values).scalar():
            raise LeaseLostError(
                f"buffer {keeping.buffer.info.name!r}: lease {leased.lease_id} was acknowledged, "
                f"so its rows are not given back; restore() goes back to a checkpoint"
            )
        evict(connection, keeping, leased.seqs, keeping.buffer.window_in(connection).low)
        return is_given_back

    if keeping.buffer.write(work, "relaxed"):
        keeping.sessions.undo(len(leased.seqs), leased.number)


def _values(keeping: LeaseKeeping, leased: LeasedRows) -> dict[str, Any]:
    return {BUFFER: keeping.buffer.info.id, LEASE: leased.lease_id, SEQS: leased.seqs}


def _lost(
    connection: Connection, keeping: LeaseKeeping, leased: LeasedRows, call: str
) -> LeaseLostError:
    if connection.execute(IS_CLAIMED, _values(keeping, leased)).first() is None:
        return LeaseLostError(
            f"buffer {keeping.buffer.info.name!r}: lease {leased.lease_id} has ended before it was "
            f"{call}: it was given back, its consumer went back to a checkpoint, or it ran out "
            f"long ago; this use is not counted"
        )
    return LeaseLostError(
        f"buffer {keeping.buffer.info.name!r}: lease {leased.lease_id} ran out before it was "
        f"{call}: others can claim its {len(leased.seqs)} rows, and this use is not counted; lease "
        f"for longer (lease_s), or call batch.renew() in time"
    )


def evict(connection: Connection, keeping: LeaseKeeping, seqs: Sequence[int], low: int) -> None:
    """Delete rows that left the window while they were leased."""
    gone = [seq for seq in seqs if seq <= low]
    if gone and keeping.buffer.info.has_chunks:
        _evict_chunks(connection, keeping.buffer.info.id)
    elif gone:
        unleased = connection.execute(
            _UNLEASED, {BUFFER: keeping.buffer.info.id, SEQS: gone}
        ).scalars()
        remove_rows(connection, keeping.buffer.info.id, list(unleased), keeping.buffer.origin)
