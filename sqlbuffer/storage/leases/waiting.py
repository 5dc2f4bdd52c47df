"""Wait until there are enough rows to claim."""

import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, Select, bindparam, case, func, literal, select

from sqlbuffer.config import SamplingConfig
from sqlbuffer.errors import FlowControlError, InsufficientDataError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.catalog import why_empty
from sqlbuffer.storage.buffers.window import SampledWindow, select_sampled_window
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.leases.choosing import (
    COUNT,
    ClaimRequest,
    Scope,
    claimable,
    groups,
    in_window,
    is_free,
    matches,
    states_of_groups,
)
from sqlbuffer.storage.leases.leases import Claim, HeldRows, LeaseKeeping
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.rows.statements import remembered
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
    window = select_sampled_window(buffer_id, evict_by, wanted.steps.of(buffer_id)).subquery("w").c
    enough = literal(False) if limits is None else _is_enough(limits, wanted)
    return select(enough, *window)


def _is_enough(limits: Eligibility, wanted: ClaimRequest) -> Any:
    if wanted.group_by is None:
        count = bindparam(COUNT, type_=BigInteger())
        can_claim = claimable(limits, wanted.node, wanted.steps)
        some = select(literal(1)).select_from(items).where(can_claim)
        found = select(func.count()).select_from(some.limit(count).subquery())
        return found.scalar_subquery() >= count
    own = groups(limits, wanted, named=False).subquery("g").c
    is_late = case((own.n_held == 0, own.late), else_=0)
    droppable = func.sum(is_late) > 0 if wanted.drops else literal(False)
    is_enough = (func.sum(own.claimable) >= wanted.n) | droppable
    return select(func.coalesce(is_enough, False)).scalar_subquery()


def missing(leases: LeaseKeeping, wanted: ClaimRequest, timeout_s: float) -> str:
    """Return a message for people that names what is missing."""
    info = leases.buffer.info
    with translated(leases.buffer.url), reading(leases.buffer.engine) as connection:
        window = select_sampled_window(info.id, info.config.retention.evict_by, steps_of(info))
        now = SampledWindow(*connection.execute(window).one())
        limits = leases.restrictions.limits_of_leases(now)
        scope = Scope(info.id, now.low, None, limits)
        rows = _rows_by_state(connection, scope, wanted)
        if not rows:
            found = f"the buffer {why_empty(connection, info.id)}"
        elif wanted.group_by is None:
            found = _of_rows(rows, info.config.sampling)
        else:
            found = _of_groups(connection, scope, wanted, rows, info.config.sampling)
    asked = "rows" if wanted.group_by is None else f"groups by {wanted.group_by}"
    return (
        f"buffer {info.name!r}: asked for {wanted.n} {asked}, and within {timeout_s:g} s there "
        f"were too few: {found}; wait longer (timeout_s), ask for fewer, or see v_queue and "
        f"v_leases"
    )


def _rows_by_state(connection: Connection, scope: Scope, wanted: ClaimRequest) -> Mapping[str, int]:
    """Return the number of rows of the queue by what they are, or by why they cannot be claimed.

    If there are several reasons, a row counts under the first.
    """
    limits = scope.limits
    tests: dict[str, Any] = {"leased": ~is_free, "used up": items.c.used_up}
    if wanted.group_by == "episode_id":
        tests["in no episode"] = items.c.episode_id.is_(None)
    if wanted.node != EVERYTHING and wanted.group_by is None:
        tests["unmatched"] = ~matches(wanted.node, wanted.steps)
    for name, limit in (
        ("in quarantine", Eligibility(quarantine=limits.quarantine)),
        ("stale", Eligibility(oldest_version=limits.oldest_version)),
        ("of another session", Eligibility(session=limits.session)),
    ):
        if limit:
            tests[name] = limit.is_ineligible(items)
    state = case(*((test, name) for name, test in tests.items()), else_="free")
    states = select(state.label("state")).where(in_window).subquery("states").c
    counted: Any = select(states.state, func.count()).group_by(states.state)
    return {name: int(n) for name, n in connection.execute(counted, scope.parameters())}


def _of_rows(rows: Mapping[str, int], settings: SamplingConfig) -> str:
    words = {
        "leased": "leased by others",
        "unmatched": "that do not match the condition",
        **_limit_words(settings),
    }
    parts = [f"{rows.get('free', 0)} rows may be claimed"]
    return ", ".join([*parts, *(f"{rows[name]} {words[name]}" for name in words if name in rows)])


def _limit_words(settings: SamplingConfig) -> dict[str, str]:
    return {
        "used up": f"used up (max_use {settings.max_use})",
        "in quarantine": "in quarantine",
        "stale": f"more than {settings.max_staleness} behind the clock (max_staleness)",
        "of another session": "of another session (current_session_only)",
    }


def _of_groups(
    connection: Connection,
    scope: Scope,
    wanted: ClaimRequest,
    rows: Mapping[str, int],
    settings: SamplingConfig,
) -> str:
    groups_by_state: dict[str, list[Any]] = defaultdict(list)
    for group in connection.execute(states_of_groups(scope.limits, wanted), scope.parameters()):
        groups_by_state[group.state].append(group)
    is_episode = wanted.group_by == "episode_id"
    words = {
        "leased": "leased by others",
        "unmatched": "without a row that matches the condition",
        **{name: f"with rows {text}" for name, text in _limit_words(settings).items()},
        "open": "open" if is_episode else "with an open episode",
        "small": f"of fewer than {wanted.min_group_size} rollouts",
        "cut": "with steps that were evicted",
    }
    parts = [f"{len(groups_by_state['free'])} groups may be claimed"]
    for state, text in words.items():
        if found := groups_by_state[state]:
            parts.append(f"{len(found)} {text}{_sizes(connection, found, is_episode)}")
    if len(parts) == 1:
        of_rows = {"in no episode": "in no episode", **_limit_words(settings)}
        parts += [f"{rows[name]} rows {text}" for name, text in of_rows.items() if name in rows]
    return ", ".join(parts)


def _sizes(connection: Connection, found: Sequence[Any], is_episode: bool) -> str:
    """Return the first groups with their numbers of rollouts."""
    shown: dict[Any, int] = {group.key: group.size for group in found[:SHOWN]}
    names: dict[Any, str] = {}
    if is_episode:
        known: Any = select(episodes.c.id, episodes.c.key).where(episodes.c.id.in_(shown))
        names = dict(connection.execute(known).all())
    sizes = [f"{names.get(key, key)!r}: {size}" for key, size in shown.items()]
    return f" ({', '.join([*sizes, '...'] if len(found) > SHOWN else sizes)})"
