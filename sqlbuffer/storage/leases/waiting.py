"""Wait until there are enough rows to claim."""

import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, case, func, literal, select

from sqlbuffer.errors import FlowControlError, InsufficientDataError
from sqlbuffer.storage.buffers.buffer_window import SampledWindow, select_sampled_window
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.eligibility.eligible_rows import NO_LIMITS, Eligibility
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.leases.claim_request import COUNT, ClaimRequest, Scope, claimable, is_free
from sqlbuffer.storage.leases.claim_request import held as held_by_buffer
from sqlbuffer.storage.leases.groups import groups
from sqlbuffer.storage.leases.held import Claim, HeldRows
from sqlbuffer.storage.leases.keeping import LeaseKeeping
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.waits import begin_wait

# Not the generator that the user may have seeded.
_RANDOM = random.SystemRandom()

# Pause between two looks: 4 looks a second. If a look takes long, the pause is this many times as
# long.
PAUSE_S, PAUSE_PER_LOOK = 0.25, 10
# Maximum number of groups that an error names.
SHOWN = 5
# If several processes claim at the same moment, each waits for a random time.
CONTENDED_ROUNDS, CONTENDED_PAUSE_S = 3, 0.02


def claimed(
    leases: LeaseKeeping, wanted: ClaimRequest, timeout_s: float, cancelled: threading.Event
) -> HeldRows:
    """Return a batch, after a wait if there are too few rows.

    Args:
        leases: Leases the rows of the buffer.
        wanted: The request.
        timeout_s: Maximum wait in seconds; 0 for no wait.
        cancelled: Event that ends the wait.

    Raises:
        InsufficientDataError: There were too few rows all that time; the message names what is
            missing.
        FlowControlError: The rate limiter did not allow the batch in that time.
    """
    deadline = time.monotonic() + timeout_s
    claim, look = Claim(leases, wanted), Look(leases, wanted)
    reason = ""
    rounds = 0
    while True:
        held, reason = _attempt(leases, claim, wanted, max(0.0, deadline - time.monotonic()))
        if held is not None:
            return held
        rounds += 1
        if rounds % (1 + CONTENDED_ROUNDS) and look.said_enough:
            pause_s = _RANDOM.uniform(0, CONTENDED_PAUSE_S)
            _sleep(cancelled, min(pause_s, deadline - time.monotonic()))
            continue
        if not look.wait(deadline, cancelled, claim.scope):
            raise InsufficientDataError(reason or missing(leases, wanted, timeout_s))


def _attempt(
    leases: LeaseKeeping, claim: Claim, wanted: ClaimRequest, wait_s: float
) -> tuple[HeldRows | None, str]:
    """Try once; return the batch, or None and the reason if it is known."""
    try:
        with leases.sessions.open(wanted.n, wait_s) as session:
            held = claim.attempt(session)
            session.n_rows = 0 if held is None else len(held.seqs)
    except FlowControlError:
        raise
    except InsufficientDataError as error:
        return None, str(error)
    return held, ""


def _sleep(cancelled: threading.Event, pause_s: float) -> None:
    begin_wait()
    if cancelled.wait(max(0.0, pause_s)):
        raise InsufficientDataError("the wait was cancelled")


class Look:
    """Checks from time to time if there may be enough rows, with one statement that locks nothing.

    Args:
        leases: Leases the rows of the buffer.
        wanted: The request.

    Attributes:
        said_enough: Result of the last look.
    """

    def __init__(self, leases: LeaseKeeping, wanted: ClaimRequest) -> None:
        self._leases, self._wanted = leases, wanted
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
            self.said_enough = self._leases.buffer.with_retries(self._look)
            took_s = time.monotonic() - began
            self._next = began + max(PAUSE_S, PAUSE_PER_LOOK * took_s)
            if self.said_enough:
                return True

    def _look(self) -> bool:
        leases = self._leases
        with translated(leases.buffer.url), reading(leases.buffer.engine) as connection:
            while True:
                row = connection.execute(*self._statement()).one_or_none()
                now = leases.source.window_answered([] if row is None else [row[1:]])
                self._low = now.low
                if self._limits == (limits := leases.restrictions.limits_of_leases(now)):
                    return bool(
                        row and row[0] and now.span >= leases.buffer.info.config.sampling.min_size
                    )
                # This is the first look, or the clock has moved: the last count was under other
                # limits.
                self._limits = limits

    def _statement(self) -> tuple[Select[Any], Mapping[str, Any]]:
        info = self._leases.buffer.info
        scope = Scope(info.id, self._low, None, self._limits or NO_LIMITS)
        statement = _look(info.id, info.config.retention.evict_by, self._limits, self._wanted)
        return statement, scope.parameters(**{COUNT: self._wanted.n})


@remembered
def _look(
    buffer_id: int, evict_by: str, limits: Eligibility | None, wanted: ClaimRequest
) -> Select[Any]:
    """Select True if there may be enough rows under these limits, and the window.

    Without limits, select the window alone.
    """
    window = select_sampled_window(buffer_id, evict_by).subquery("w").c
    enough = literal(False) if limits is None else _is_enough(limits, wanted)
    return select(enough, *window)


def _is_enough(limits: Eligibility, wanted: ClaimRequest) -> Any:
    if wanted.group_by is None:
        count = bindparam(COUNT, type_=BigInteger())
        some = select(literal(1)).select_from(items).where(claimable(limits, wanted.node))
        found = select(func.count()).select_from(some.limit(count).subquery())
        return found.scalar_subquery() >= count
    own = groups(limits, wanted, named=False).subquery("g").c
    is_late = case((own.n_held == 0, own.late), else_=0)
    droppable = func.sum(is_late) > 0 if wanted.drops else literal(False)
    is_enough = (func.sum(own.claimable) >= wanted.n) | droppable
    return select(func.coalesce(is_enough, False)).scalar_subquery()


def missing(leases: LeaseKeeping, wanted: ClaimRequest, timeout_s: float) -> str:
    """Return a message for people that names what is missing."""
    with translated(leases.buffer.url), reading(leases.buffer.engine) as connection:
        window = select_sampled_window(
            leases.buffer.info.id, leases.buffer.info.config.retention.evict_by
        )
        now = SampledWindow(*connection.execute(window).one())
        limits = leases.restrictions.limits_of_leases(now)
        scope = Scope(leases.buffer.info.id, now.low, None, limits)
        if wanted.group_by is None:
            counts = select(
                func.count(),
                func.sum(case((claimable(limits, wanted.node), 1), else_=0)),
                func.sum(case((is_free, 0), else_=1)),
            ).where(held_by_buffer)
            row = connection.execute(counts, scope.parameters()).one()
            rows, free, leased = (int(n or 0) for n in row)
            found = f"{free} rows may be claimed, {leased} are leased by others"
            found += f", and {rows - free - leased} are excluded or do not match{_bars(limits)}"
        else:
            every = groups(limits, wanted, named=False)
            rows_of = [*connection.execute(every, scope.parameters())]
            found = _of_groups(rows_of, wanted, _names(connection, rows_of, wanted), limits)
    asked = "rows" if wanted.group_by is None else f"groups by {wanted.group_by}"
    return (
        f"buffer {leases.buffer.info.name!r}: asked for {wanted.n} {asked}, and within "
        f"{timeout_s:g} s there were too few: {found}; wait longer (timeout_s), ask for fewer, or "
        f"see v_queue and v_leases"
    )


def _of_groups(
    found: list[Any], wanted: ClaimRequest, names: Mapping[Any, str], limits: Eligibility
) -> str:
    ready = sum(row.claimable for row in found)
    leased = sum(row.n_held > 0 for row in found)
    partial = _partial(found)
    wants = ""
    if wanted.group_by == "task_id":
        wants = f" of {wanted.min_group_size} rollouts, have one that is open"
    text = (
        f"{ready} groups may be claimed, {leased} are leased by others, {len(partial)} are not "
        f"complete{wants}, do not match or are excluded"
    )
    sizes = [f"{names.get(row.key, row.key)!r}: {row.size}" for row in partial[:SHOWN]]
    if len(partial) > SHOWN:
        sizes.append("...")
    return f"{text}{_bars(limits)}" + (f" ({', '.join(sizes)})" if sizes else "")


def _partial(found: list[Any]) -> list[Any]:
    return [row for row in found if not row.claimable and not row.n_held]


def _names(connection: Connection, found: list[Any], wanted: ClaimRequest) -> Mapping[Any, str]:
    """Return the users' names of the episodes that are shown."""
    if wanted.group_by != "episode_id":
        return {}
    ids = [row.key for row in _partial(found)[:SHOWN]]
    known = connection.execute(select(episodes.c.id, episodes.c.key).where(episodes.c.id.in_(ids)))
    return {row.id: row.key for row in known}


def _bars(limits: Eligibility) -> str:
    """Return the limits that exclude rows now, as text; empty if there are none."""
    kinds = []
    if limits.oldest_version is not None:
        kinds.append(f"of a version below {limits.oldest_version} (max_staleness)")
    if limits.session is not None:
        kinds.append("of another session (current_session_only)")
    if limits.quarantine:
        kinds.append("in quarantine")
    return f" (excluded: rows {' or '.join(kinds)})" if kinds else ""
