"""The choice of the rows or groups that a consumer may claim.

A claim gives the rows of a group a `group_seq`. It names the group while a lease holds it and after
it was acknowledged: rows that arrive then form another group. A group that was given back, or whose
lease ran out, is open again: it takes rows that arrive later.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from sqlalchemy import (
    BigInteger,
    Connection,
    Double,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    case,
    cast,
    delete,
    false,
    func,
    literal,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.tree import EVERYTHING, Node, check
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility
from sqlbuffer.storage.episodes import episode_states, episodes
from sqlbuffer.storage.labels.reading import resolve_labels, value_of
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.rollout_stats import (
    LARGEST_OF_GROUP,
    UNKNOWN_BOUND,
    group_changes,
    queue_groups,
    rollout_stats,
)
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.rows.statements import remembered
from sqlbuffer.storage.schema.expressions import (
    KeyList,
    SeqList,
    age_s,
    is_number_of,
    is_one_of,
    is_past,
    unindexed,
)
from sqlbuffer.storage.schema.metadata import KEY

Order = Literal["random", "fifo", "freshest", "stalest", "spread", "least_used"]
GroupBy = Literal["task_id", "group_id", "episode_id"]
OnPartial = Literal["use", "drop"]
OnLate = Literal["keep", "drop"]
OnFlat = Literal["keep", "drop"]
Incomplete = Literal["exclude", "include"]

ORDERS: dict[str, tuple[Any, ...]] = {
    "fifo": (queue_items.c.seq,),
    "freshest": (queue_items.c.freshness.desc(), queue_items.c.seq.desc()),
    "stalest": (queue_items.c.freshness, queue_items.c.seq),
    "least_used": (queue_items.c.n_uses, queue_items.c.seq),
}
GROUPS: dict[str, ColumnElement[Any]] = {
    "task_id": queue_items.c.task_id,
    "group_id": queue_items.c.group_id,
    "episode_id": queue_items.c.episode_id,
}
# Names of parameters: they differ from those of columns, which an update uses itself.
BUFFER, LOW, HIGH, SEQS, COUNT = "p_buffer_id", "p_low", "p_high", "p_seqs", "p_count"
MIN_SPREAD = "p_min_spread"
LARGEST = 2**63 - 1

in_buffer: Any = queue_items.c.buffer_id == bindparam(BUFFER, type_=Integer())
in_seqs: Any = in_buffer & is_number_of(queue_items.c.seq, bindparam(SEQS, type_=SeqList()))


def _is_in_window(seq: Any) -> Any:
    low, high = (bindparam(name, type_=BigInteger()) for name in (LOW, HIGH))
    return (seq > low) & (seq <= high)


# Rows of the queue that are in the window, also used up ones that have not left yet.
in_window = in_buffer & _is_in_window(queue_items.c.seq)


def _is_in_queue(seq: Any) -> Any:
    return in_buffer & _is_in_window(seq) & ~queue_items.c.used_up


# Rows of the queue that the buffer holds. If an index other than that of their numbers must find
# them, the bounds must not attract either planner.
in_queue = _is_in_queue(queue_items.c.seq)
in_queue_unindexed = _is_in_queue(unindexed(queue_items.c.seq))
# The same by key, written so that the index of freshness does not match.
in_queue_by_key = (
    in_buffer
    & _is_in_window(unindexed(queue_items.c.seq))
    & (cast(queue_items.c.used_up, Integer) == 0)
)
# Rows of a consumer that died are free when its lease has run out.
is_free: Any = or_(queue_items.c.leased_until.is_(None), is_past(queue_items.c.leased_until))


def _closed_group_of(items: Any) -> Any:
    """Return the number of a group that takes no more rows: it is leased, or was used."""
    is_closed = (items.c.n_uses > 0) | ~is_past(items.c.leased_until)
    return case((is_closed, items.c.group_seq))


closed_group = _closed_group_of(queue_items)


@dataclass(frozen=True)
class ClaimRequest:
    """The request for a batch.

    Attributes:
        n: Number of rows, or of groups.
        lease_s: Duration of the lease in seconds.
        order: Order of the rows.
        node: Condition that rows must match; of a group, at least one row.
        group_by: Column that rows of a group share; None if each row is separate.
        min_group_size: Smallest number of rollouts in a complete group.
        group_size: Number of rollouts to claim of each group; None for all of them.
        group_timeout_s: Seconds to wait for a group after its newest row; None for no limit.
        drops: Delete groups that are incomplete by then.
        drops_late: Delete rollouts that arrive after their group was acknowledged.
        includes_incomplete: Aborted and abandoned rollouts belong to their groups.
        every: Condition that one row of each rollout must match.
        needs_rewards: Each rollout must have a reward, of its own or of a step.
        min_spread: Groups whose spread of rewards is not greater are skipped; None for none.
        drops_flat: Delete the groups that are skipped for their spread.
        is_reused: Rows may be used more than once.
        steps: How the steps of the buffer are stored.
        consumer: Name of who leases them, if it has one.
    """

    n: int
    lease_s: float
    order: Order = "random"
    node: Node = EVERYTHING
    group_by: GroupBy | None = None
    min_group_size: int = 1
    group_size: int | None = None
    group_timeout_s: float | None = None
    drops: bool = False
    drops_late: bool = False
    includes_incomplete: bool = False
    every: Node = EVERYTHING
    needs_rewards: bool = False
    min_spread: float | None = None
    drops_flat: bool = False
    is_reused: bool = False
    steps: StepLayout = ROWS
    consumer: str | None = field(default=None, compare=False)

    @property
    def drops_any(self) -> bool:
        """Some groups are deleted in place of being claimed."""
        return self.drops or self.drops_late

    @property
    def row_order(self) -> tuple[Any, ...]:
        """What rows are ordered by, and groups by their first rows."""
        if self.order == "fifo" and self.group_by is not None and self.is_reused:
            return ORDERS["least_used"]  # used groups wait behind unused ones
        if self.order == "least_used" and not self.is_reused:
            return ORDERS["fifo"]  # no row that waits was used
        return ORDERS[self.order]

    @property
    def needs_spread(self) -> bool:
        """The spreads of groups decide whether or when they are claimed."""
        return self.min_spread is not None or self.order == "spread"


class Scope(NamedTuple):
    """The queue of a buffer at one moment.

    Attributes:
        buffer_id: The buffer.
        low: Rows up to this number have left.
        high: The newest row; None for any row that exists.
        limits: Limits that exclude rows.
        first: The first row of the queue, if it is known.
    """

    buffer_id: int
    low: int
    high: int | None = None
    limits: Eligibility = NO_LIMITS
    first: int | None = None

    def parameters(self, **more: Any) -> Mapping[str, Any]:
        """Return the values for the parameters of statements, with further ones."""
        high = LARGEST if self.high is None else self.high
        return {BUFFER: self.buffer_id, LOW: self.low, HIGH: high, **more}


def allowed(limits: Eligibility) -> ColumnElement[bool]:
    """Return the expression for a row that is free, and that no limit excludes."""
    return and_(is_free, limits.hold(queue_items)) if limits else is_free


def matches(node: Node, steps: StepLayout) -> ColumnElement[bool]:
    """Return the expression for a row of the queue whose step matches a condition."""
    table = steps.of(None)
    row = steps.is_numbered(table.c, queue_items.c.buffer_id, queue_items.c.seq)
    # Labels are always resolved: rows may get late values during the wait.
    matching = select(1).where(row, compile_condition(resolve_labels(node, has_labels=True), table))
    # PostgreSQL would make a join of it, over all rows of the buffer.
    return matching.correlate(queue_items).offset(0).exists()


def claimable(
    limits: Eligibility, node: Node, steps: StepLayout, within: Any = in_queue
) -> ColumnElement[bool]:
    """Return the expression for a row that may be claimed alone.

    Args:
        limits: Limits that exclude rows.
        node: Condition of the request.
        steps: How the steps are stored.
        within: `in_queue` or `in_queue_unindexed`.
    """
    condition: ColumnElement[bool] = within & allowed(limits)
    return condition if node == EVERYTHING else condition & matches(node, steps)


# In a window this narrow all rows are put into a random order: about a millisecond.
SMALL_SPAN = 1_024
ROW_PROBE_ROUNDS = 4
# Below this share of hits, one scan over the queue is cheaper than the probes.
LOWEST_HIT_RATE = 1 / 32

_LOWEST = select(func.min(queue_items.c.seq)).where(in_buffer)


def choose_rows(connection: Connection, scope: Scope, request: ClaimRequest) -> list[int]:
    """Return up to n rows that may be claimed, in the requested order."""
    probed = _probed(connection, scope, request) if request.order == "random" else None
    if probed is not None:
        return probed
    statement = _first_rows(scope.limits, request)
    return _scalars(connection, statement, scope.parameters(**{COUNT: request.n}))


def lowest(connection: Connection, scope: Scope) -> int:
    """Return the number below the first row of the queue, or the lower end of the window."""
    first = scope.first
    if first is None:
        first = connection.execute(_LOWEST, scope.parameters()).scalar_one()
    return scope.low if first is None else max(scope.low, int(first) - 1)


def _probed(connection: Connection, scope: Scope, request: ClaimRequest) -> list[int] | None:
    """Return n rows by rejection, uniform over those that may be claimed.

    Return None if too few numbers of the window are such rows.
    """
    assert scope.high is not None
    n, low = request.n, lowest(connection, scope)
    span = scope.high - low
    if span <= max(SMALL_SPAN, 4 * n):
        return None
    statement = _among(scope.limits, request.node, request.steps)
    rng = np.random.default_rng()
    drawn: set[int] = set()
    rows: list[int] = []
    size = n
    for _ in range(ROW_PROBE_ROUNDS):
        numbers = (low + 1 + (rng.random(size) * span).astype(np.int64)).tolist()
        untried = [seq for seq in dict.fromkeys(numbers) if seq not in drawn]
        drawn.update(untried)
        hits = set(_scalars(connection, statement, scope.parameters(**{SEQS: untried})))
        rows += [seq for seq in untried if seq in hits]
        if len(rows) >= n:
            return rows[:n]
        hit_rate = max(len(rows) / len(drawn), LOWEST_HIT_RATE)
        size = math.ceil(1.2 * (n - len(rows)) / hit_rate) + 4
    return None


@remembered
def _first_rows(limits: Eligibility, request: ClaimRequest) -> Select[Any]:
    is_random = request.order == "random"
    by = (func.random(),) if is_random else request.row_order
    count = bindparam(COUNT, type_=BigInteger())
    within = in_queue if is_random or by == ORDERS["fifo"] else in_queue_unindexed
    can_claim = claimable(limits, request.node, request.steps, within)
    rows = select(queue_items.c.seq).where(can_claim)
    return rows.order_by(*by).limit(count).with_for_update(skip_locked=True)


@remembered
def _among(limits: Eligibility, node: Node, steps: StepLayout) -> Select[Any]:
    rows = select(queue_items.c.seq).where(claimable(limits, node, steps, in_queue_by_key), in_seqs)
    return rows.with_for_update(skip_locked=True)


def _scalars(
    connection: Connection, statement: Select[Any], parameters: Mapping[str, Any]
) -> list[int]:
    return list(connection.execute(statement, parameters).scalars())


# Not the generator that the user may have seeded.
_RANDOM = random.SystemRandom()

KEYS = "p_keys"
Key = tuple[Any, int | None]  # a task or an episode, and the group's number

# Number of rows that are read to find the first groups; each further read takes this many times
# more.
FIRST_ROWS, GROWTH = 1_024, 8
# Numbers are drawn for the first rows of random groups; if that finds too few, all groups are read.
PROBES, GROUP_PROBE_ROUNDS = 512, 6
# Groups that may have a large enough spread are put in order if there are no more than this.
FEW_KEYS = 512
# Keys of random groups are drawn from all of them if there are no more than this.
MANY_KEYS = 1_024
# Number of groups that are read first. PostgreSQL without statistics reads the whole queue for more
# than about 128 of them.
FIRST_KEYS = 32


# 1 for an open episode that is not abandoned.
_IS_OPEN: Any = (
    select(case((episode_states.c.status == "open", 1), else_=0))
    .where(episode_states.c.id == episodes.c.id)
    .correlate(episodes)
    .scalar_subquery()
)
# Whether an episode was aborted or abandoned, and whether a row of the queue is of such a one.
_IS_INCOMPLETE: Any = (episodes.c.status == "aborted") | (
    (episodes.c.status == "open") & (_IS_OPEN == 0)
)
is_of_incomplete = (
    select(1)
    .where(episodes.c.id == queue_items.c.episode_id, _IS_INCOMPLETE)
    .correlate(queue_items)
    .exists()
)


# What a group is locked for: a claim, or because it is dropped.
Kind = Literal["claimable", "late", "flat"]


class LeaseGroup(NamedTuple):
    """The rows of a group in the queue."""

    key: Any
    group_seq: int | None
    first_seq: int
    n_rows: int
    size: int
    n_leased: int
    is_claimable: bool
    is_late: bool
    is_flat: bool
    spread: float | None
    bound: float | None

    @property
    def name(self) -> Key:
        """The key that identifies it."""
        return self.key, self.group_seq

    def is_of(self, kind: Kind) -> bool:
        """Return True if the group may be claimed, or dropped for that reason."""
        if kind == "claimable":
            return self.is_claimable
        return (self.is_late if kind == "late" else self.is_flat) and not self.n_leased


@remembered
def groups(limits: Eligibility, request: ClaimRequest, *, named: bool) -> Select[Any]:
    """Select the groups of a buffer in the columns of `LeaseGroup`.

    They are those of all tasks or episodes, or the named ones.
    """
    group = _summed(limits, request, named=named).subquery("groups").c
    may_go, late, flat = _may_go(group, request)
    return select(
        group.key, group.group_seq, group.first_seq, group.n_rows, group.size, group.n_leased,
        case((may_go, 1), else_=0).label("claimable"), case((late, 1), else_=0).label("late"),
        case((flat, 1), else_=0).label("flat"), group.spread, group.bound,
    )  # fmt: skip


def states_of_groups(limits: Eligibility, request: ClaimRequest) -> Select[Any]:
    """Select the key, the size and the state of each group: `free`, or the first reason why it
    cannot be claimed; and the figures that describe it.
    """
    group = _summed(limits, request, named=False).subquery("groups").c
    may_go, _, flat = _may_go(group, request)
    is_small: Any = (group.size < request.min_group_size) & literal(
        request.group_by != "episode_id"
    )
    tests = {
        "free": may_go,
        "flat": flat,
        "late": group.is_after == 1,
        "leased": group.n_leased > 0,
        "unmatched": group.matches == 0,
        "in quarantine": group.n_in_quarantine > 0,
        "stale": group.n_stale > 0,
        "of another session": group.n_of_other_sessions > 0,
        "few": group.n_good < (request.group_size or 0),
        "open": group.n_open > 0,
        "unjudged": group.n_unjudged > 0,
        "partly unmatched": group.every == 0,
        "small": is_small,
    }
    state = case(*((test, name) for name, test in tests.items()), else_="cut")
    return select(
        group.key, group.size, state.label("state"), group.n_open, group.n_unjudged,
        group.held_until, group.oldest, group.n_in_quarantine, group.n_good, group.spread,
    ).order_by(group.first_seq)  # fmt: skip


def _may_go(group: Any, request: ClaimRequest) -> tuple[Any, Any, Any]:
    """Return the expressions for a group that may be claimed, for one that is late, and for one
    that could be claimed if its rewards differed more.
    """
    may_go, late = _may_go_with_any_spread(group, request)
    if request.min_spread is None:
        return may_go, late, literal(False)
    threshold: Any = bindparam(MIN_SPREAD, request.min_spread, type_=Double())
    return may_go & (group.spread > threshold), late, may_go & (group.spread <= threshold)


def _may_go_with_any_spread(group: Any, request: ClaimRequest) -> tuple[Any, Any]:
    is_whole: Any = (group.n_open == 0) & (group.n_clipped == 0)
    if request.group_by != "episode_id":
        # A group that was claimed once is closed: later steps of an episode form another group.
        is_closed = (group.n_open == 0) | group.group_seq.is_not(None)
        is_whole = is_closed & (group.size >= request.min_group_size) & (group.n_evicted == 0)
    is_good = (group.every == 1) & (group.n_unjudged == 0)
    late: Any = literal(False)
    is_partial: Any = literal(False)
    if request.group_timeout_s is not None:
        is_old = age_s(group.newest) > request.group_timeout_s
        # Verdicts that never come make a group late too; it is not handed out without them.
        is_late = ~(is_whole & is_good) if request.drops else ~is_whole & is_good
        if request.group_size is not None:
            is_late = group.n_good < request.group_size
        late = is_partial = and_(is_late, is_old, group.matches == 1, group.n_in_quarantine == 0)
    if request.drops_late:
        late |= (group.is_after == 1) & (group.n_open == 0) & (group.n_leased == 0)
        is_whole &= group.is_after == 0
        is_partial &= group.is_after == 0
    may_go = is_whole & is_good
    if not request.drops and request.group_timeout_s is not None:
        may_go |= is_partial
    if request.group_size is not None:
        # Its other rollouts may be open, unjudged or stale: they are not taken.
        has_any = literal(False) if request.drops else (group.n_good > 0) & is_partial
        enough = (group.n_good >= request.group_size) | has_any
        if request.drops_late:
            enough &= group.is_after == 0
        return and_(group.good_matches == 1, enough), late
    return and_(group.n_ineligible == 0, group.matches == 1, may_go), late


def _summed(limits: Eligibility, request: ClaimRequest, *, named: bool) -> Select[Any]:
    """Select the sums over each group."""
    parts = _parts(limits, request, named=named).subquery("parts")
    spread: Any = cast(null(), Double())
    bound: Any = spread
    if request.needs_spread:
        parts = _with_rewards(parts, request).subquery("rewarded_parts")
        spread, bound = _spread(parts.c, request), func.max(parts.c.bound)
    part = parts.c
    n_open = func.sum(case((episodes.c.status == "open", _IS_OPEN), else_=0))
    rollouts = func.sum(case((part.episode_id.is_(None), part.n), else_=1))
    has_lost_steps = episodes.c.first_seq <= bindparam(LOW, type_=BigInteger())
    sums = select(
        part.key, part.group_seq, func.min(part.first_seq).label("first_seq"),
        func.sum(part.n).label("n_rows"), (rollouts - n_open).label("size"),
        n_open.label("n_open"), func.sum(part.n_leased).label("n_leased"),
        func.sum(part.n_ineligible).label("n_ineligible"),
        func.sum(part.n_in_quarantine).label("n_in_quarantine"),
        func.sum(part.n_stale).label("n_stale"),
        func.sum(part.n_of_other_sessions).label("n_of_other_sessions"),
        func.max(part.newest).label("newest"),
        func.sum(case((part.n < episodes.c.length, 1), else_=0)).label("n_clipped"),
        func.sum(case((has_lost_steps, 1), else_=0)).label("n_evicted"),
        func.max(part.matches).label("matches"), func.min(part.every).label("every"),
        func.sum(_is_unjudged(parts, request)).label("n_unjudged"),
        func.sum(case((_is_good(parts, request), 1), else_=0)).label("n_good"),
        func.max(case((_is_good(parts, request), part.matches), else_=0)).label("good_matches"),
        func.max(part.held_until).label("held_until"), func.min(part.oldest).label("oldest"),
        _is_after(part, func.min(part.oldest_at), request).label("is_after"),
        spread.label("spread"), bound.label("bound"),
    )  # fmt: skip
    sums = sums.select_from(parts.outerjoin(episodes, episodes.c.id == part.episode_id))
    if not request.includes_incomplete:
        sums = sums.where(~func.coalesce(_IS_INCOMPLETE, false()))
    return sums.group_by(part.key, part.group_seq)


def _parts(limits: Eligibility, request: ClaimRequest, *, named: bool) -> Select[Any]:
    """Select the parts of groups: one for each episode, and one for all rows without an episode, or
    for each of them where rollouts are chosen.
    """
    key, group_seq = _key(request), closed_group.label("group_seq")
    match = _match(request.node, request)
    rewarded: Any = literal(1, BigInteger())
    if request.needs_rewards:
        is_of_episode = queue_items.c.episode_id.is_not(None)
        rewarded = case((is_of_episode, 1), else_=_match(_REWARDED, request))
    rewards: list[Any] = []
    if request.needs_spread:
        reward = _reward_of_row(request)
        rewards = [
            func.min(reward).label("row_low"), func.max(reward).label("row_high"),
            func.count(reward).label("n_rewards"),
        ]  # fmt: skip
    is_quarantined = excluded(Eligibility(quarantine=limits.quarantine))
    is_stale = excluded(limits.of_versions)
    is_foreign = excluded(Eligibility(session=limits.session))
    statement = select(
        key.label("key"), group_seq, queue_items.c.episode_id,
        func.min(queue_items.c.seq).label("first_seq"), func.count().label("n"),
        func.sum(case((allowed(limits), 0), else_=1)).label("n_ineligible"),
        func.sum(case((is_free, 0), else_=1)).label("n_leased"),
        func.sum(is_quarantined).label("n_in_quarantine"), func.sum(is_stale).label("n_stale"),
        func.sum(is_foreign).label("n_of_other_sessions"),
        func.max(queue_items.c.inserted_at).label("newest"),
        func.min(queue_items.c.inserted_at).label("oldest_at"),
        func.max(case((~is_free, queue_items.c.leased_until))).label("held_until"),
        func.min(case((is_stale == 1, queue_items.c.freshness))).label("oldest"),
        func.max(match).label("matches"),
        # Each row without an episode is a rollout.
        case(
            (queue_items.c.episode_id.is_(None), func.min(_match(request.every, request))),
            else_=func.max(_match(request.every, request)),
        ).label("every"),
        func.min(rewarded).label("rewarded"), *rewards,
    )  # fmt: skip
    statement = statement.where(*((in_queue_by_key, _is_named(request)) if named else (in_queue,)))
    statement = statement.where(key.is_not(None))
    by_row = [] if request.group_size is None else [_ROW_ALONE]
    return statement.group_by(key, closed_group, queue_items.c.episode_id, *by_row)


# The number of a row without an episode, which is a rollout.
_ROW_ALONE: Any = case((queue_items.c.episode_id.is_(None), queue_items.c.seq))
# A row with a reward, also a late one.
_REWARDED = resolve_labels(check({"field": "reward", "op": "ne", "value": None}), has_labels=True)


def _match(node: Node, request: ClaimRequest) -> Any:
    """Return 1 for a row of the queue that matches a condition, else 0."""
    if node == EVERYTHING:
        return literal(1, BigInteger())
    return case((matches(node, request.steps), 1), else_=0)


def _finite(reward: Any) -> Any:
    """Return a reward that counts for the spread of a group; null for others, as in group_stats."""
    return case((func.abs(reward) < LARGEST_OF_GROUP, reward))


def _reward_of_row(request: ClaimRequest) -> Any:
    """Return the reward of a row of the queue that is a rollout, also a late one."""
    steps = request.steps.of(None)
    reward = (
        select(value_of("reward_t", steps))
        .where(request.steps.is_numbered(steps.c, queue_items.c.buffer_id, queue_items.c.seq))
        .correlate(queue_items)
        .scalar_subquery()
    )
    return case((queue_items.c.episode_id.is_(None), _finite(reward)))


def _with_rewards(parts: Any, request: ClaimRequest) -> Select[Any]:
    """Select parts with their smallest and largest reward, null where one has none; and, where
    rollouts are chosen, the place of each among those that may be claimed.
    """
    part = parts.c
    total = (
        select(rollout_stats.c["return"])
        .where(
            rollout_stats.c.buffer_id == bindparam(BUFFER, type_=Integer()),
            rollout_stats.c.task_id == episodes.c.task_id,
            rollout_stats.c.episode_id == part.episode_id,
        )
        .correlate(episodes, parts)
        .scalar_subquery()
    )
    of_episode = _finite(func.coalesce(episodes.c.reward, total))
    is_alone = part.episode_id.is_(None)
    has_all = part.n_rewards == part.n
    judged: Any = [
        case((is_alone, case((has_all, value))), else_=of_episode).label(name)
        for name, value in (("low", part.row_low), ("high", part.row_high))
    ]
    joined = parts.outerjoin(episodes, episodes.c.id == part.episode_id)
    is_incomplete = func.coalesce(_IS_INCOMPLETE, false()).label("is_incomplete")
    every = select(*part, *judged, is_incomplete).select_from(joined).subquery("every").c
    low, high = (
        function(value).over(partition_by=every.key)
        for function, value in ((func.min, every.low), (func.max, every.high))
    )
    statement = select(*every, func.coalesce(high - low, 0.0).label("bound"))
    rewarded: Any = statement.subquery("judged")
    if request.group_size is None:
        return select(*rewarded.c)
    is_good = case((_is_good(rewarded, request), 1), else_=0)
    column = rewarded.c
    place = func.row_number().over(
        partition_by=(column.key, column.group_seq, is_good),
        order_by=(column.matches.desc(), column.first_seq),
    )
    return select(*column, case((is_good == 1, place)).label("place")).select_from(
        rewarded.outerjoin(episodes, episodes.c.id == column.episode_id)
    )


def _spread(part: Any, request: ClaimRequest) -> Any:
    """Return the largest minus the smallest reward of the rollouts of a group that would be
    claimed; null if one of them has none.
    """
    low, high, is_counted = part.low, part.high, literal(True)
    if request.group_size is not None:
        is_counted = part.place <= request.group_size
        low, high = (case((is_counted, value)) for value in (low, high))
    n_without = func.sum(case((is_counted & part.low.is_(None), 1), else_=0))
    return case((n_without == 0, func.max(high) - func.min(low)))


def _is_unjudged(parts: Any, request: ClaimRequest) -> Any:
    """Return 1 for a rollout without a reward that the request needs, else 0."""
    if not request.needs_rewards:
        return literal(0, BigInteger())
    part = parts.c
    if request.min_spread is not None:
        return case((part.low.is_(None), 1), else_=0)
    of_steps = select(1).where(
        rollout_stats.c.buffer_id == bindparam(BUFFER, type_=Integer()),
        rollout_stats.c.task_id == episodes.c.task_id,
        rollout_stats.c.episode_id == part.episode_id,
        rollout_stats.c["return"].is_not(None),
    )
    is_judged = episodes.c.reward.is_not(None) | of_steps.correlate(episodes, parts).exists()
    return case((part.episode_id.is_(None), 1 - part.rewarded), (is_judged, 0), else_=1)


def _is_after(part: Any, oldest_at: Any, request: ClaimRequest) -> Any:
    """Return 1 for unclaimed rollouts that all arrived after others were acknowledged."""
    if not request.drops_late:
        return literal(0, BigInteger())
    used, sums = episodes.alias("used").c, rollout_stats.alias("sums").c
    is_of_group = sums.task_id == part.key
    if request.group_by == "group_id":
        is_of_group = sums.group_id == part.key
    used_at = (
        select(func.max(used.used_at))
        .where(
            sums.buffer_id == bindparam(BUFFER, type_=Integer()),
            is_of_group,
            used.id == sums.episode_id,
            used.used_at.is_not(None),
        )
        .correlate(part.key.table)
        .scalar_subquery()
    )
    was_claimed = part.group_seq.is_not(None)
    return case((was_claimed, 0), (oldest_at > used_at, 1), else_=0)


def _is_good(parts: Any, request: ClaimRequest) -> Any:
    """Return the expression for a rollout that may be claimed."""
    part = parts.c
    is_cut = episodes.c.first_seq <= bindparam(LOW, type_=BigInteger())
    has_ended: Any = episodes.c.status != "open"
    if request.includes_incomplete:
        has_ended |= _IS_OPEN == 0
    # Both are unknown of an open episode.
    has_all = (part.n >= func.coalesce(episodes.c.length, 0)) & ~func.coalesce(is_cut, false())
    is_whole = has_ended & has_all
    is_allowed = (part.n_ineligible == 0) & (part.every == 1)
    return is_allowed & (_is_unjudged(parts, request) == 0) & (part.episode_id.is_(None) | is_whole)


@remembered
def good_rollouts(limits: Eligibility, request: ClaimRequest) -> Select[Any]:
    """Select the rollouts of named groups that may be claimed, in the order in which they are: the
    group, the number of the episode and the first row.
    """
    parts = _parts(limits, request, named=True).subquery("parts")
    if request.needs_spread:
        parts = _with_rewards(parts, request).subquery("rewarded_parts")
    part = parts.c
    rollouts = select(part.key, part.group_seq, part.episode_id, part.first_seq).select_from(
        parts.outerjoin(episodes, episodes.c.id == part.episode_id)
    )
    if not request.includes_incomplete:
        rollouts = rollouts.where(~func.coalesce(_IS_INCOMPLETE, false()))
    # One that the condition names is among them.
    return rollouts.where(_is_good(parts, request)).order_by(part.matches.desc(), part.first_seq)


def excluded(limits: Eligibility) -> Any:
    """Return 1 for a row of the queue that limits exclude, else 0."""
    return case((limits.is_ineligible(queue_items), 1), else_=0) if limits else literal(0)


def _key(request: ClaimRequest) -> ColumnElement[Any]:
    return GROUPS[request.group_by or "task_id"]


def _bound(request: ClaimRequest) -> ColumnElement[float]:
    """Return the column with the largest spread that groups of a key can have."""
    by_task = request.group_by == "task_id"
    return queue_groups.c.task_bound if by_task else queue_groups.c.group_bound


_OF_BUFFER: Any = queue_groups.c.buffer_id == bindparam(BUFFER, type_=Integer())
_CHANGED = select(group_changes.c.group_id).where(
    group_changes.c.buffer_id == bindparam(BUFFER, type_=Integer())
)


def _is_above(request: ClaimRequest) -> Any:
    # Without a threshold also groups whose spread is 0 or unknown, and flat ones to drop them.
    least = request.min_spread
    if least is None or request.drops_flat:
        least = -0.5
    return _bound(request) > literal(least, Double())


@remembered
def _spreads_above(request: ClaimRequest, *, named: bool) -> Select[Any]:
    """Select keys that may have such a spread, with what is known of them; largest first."""
    columns = queue_groups.c.key, _bound(request).label("bound"), queue_groups.c.version
    statement = select(*columns).where(_OF_BUFFER)
    if named:
        is_one = is_one_of(queue_groups.c.key, bindparam(KEYS, type_=KeyList()))
        return statement.where(is_one, _is_above(request))
    by = (_bound(request).desc(), queue_groups.c.key.desc())
    count = bindparam(COUNT, type_=BigInteger())
    return statement.where(_is_above(request)).order_by(*by).limit(count)


def _is_named(request: ClaimRequest) -> ColumnElement[bool]:
    if request.group_by != "episode_id":
        return is_one_of(_key(request), bindparam(KEYS, type_=KeyList()))
    return is_number_of(_key(request), bindparam(KEYS, type_=SeqList()))


_FIRSTS = select(queue_items.c.seq).where(in_seqs).with_for_update(skip_locked=True)


@remembered
def _rows_of(request: ClaimRequest) -> Select[Any]:
    """Select the rows of named groups, locked in the order of their numbers."""
    rows = select(_key(request), closed_group, queue_items.c.seq, queue_items.c.episode_id).where(
        in_queue_by_key, _is_named(request)
    )
    if not request.includes_incomplete:
        rows = rows.where(~is_of_incomplete)
    return rows.order_by(unindexed(queue_items.c.seq)).with_for_update(skip_locked=True)


@remembered
def _share_episodes(request: ClaimRequest) -> Select[Any]:
    """Select the episodes of named groups, which no writer changes until the claim has ended."""
    of_groups = select(queue_items.c.episode_id).where(in_queue_by_key, _is_named(request))
    shared = select(episodes.c.id).where(episodes.c.id.in_(of_groups))
    return shared.order_by(episodes.c.id).with_for_update(read=True)


@remembered
def _first_groups(limits: Eligibility, request: ClaimRequest, *, named: bool) -> Select[Any]:
    """Select the groups of the first rows in an order, their number of these rows, and the age and
    the uses of the first of them.
    """
    key, order = _key(request), request.row_order
    within: Any = in_queue if order == ORDERS["fifo"] else in_queue_unindexed
    if named:
        within = in_queue_by_key & _is_named(request)
        if order == ORDERS["fifo"]:
            order = (unindexed(queue_items.c.seq),)  # their keys find the rows
    place = func.row_number().over(order_by=order).label("place")
    rows = select(
        key.label("key"), closed_group.label("group_seq"), queue_items.c.freshness,
        queue_items.c.n_uses, place,
    )  # fmt: skip
    rows = rows.where(within, allowed(limits), key.is_not(None)).order_by(*order)
    first = rows.limit(bindparam(COUNT, type_=BigInteger())).subquery().c
    freshness = (func.max if request.order == "freshest" else func.min)(first.freshness)
    statement = select(first.key, first.group_seq, func.count(), freshness, func.min(first.n_uses))
    return statement.group_by(first.key, first.group_seq).order_by(func.min(first.place))


@remembered
def _first_rows_among(limits: Eligibility, request: ClaimRequest) -> Select[Any]:
    """Select the rows among some numbers that are the first of their group."""
    earlier: Any = queue_items.alias("earlier")
    key = _key(request)
    has_earlier = (
        select(1)
        .where(
            earlier.c.buffer_id == queue_items.c.buffer_id,
            earlier.c[key.key] == key,
            unindexed(earlier.c.seq) > bindparam(LOW, type_=BigInteger()),
            unindexed(earlier.c.seq) < queue_items.c.seq,
            _closed_group_of(earlier).is_not_distinct_from(closed_group),
            cast(earlier.c.used_up, Integer) == 0,
        )
        .correlate(queue_items)
        .offset(0)
        .exists()
    )
    return select(queue_items.c.seq, key, closed_group).where(
        in_queue_by_key, allowed(limits), key.is_not(None), in_seqs, ~has_earlier
    )


def _slices(items: Sequence[Any], n: int) -> Iterator[list[Any]]:
    """Yield the items in slices: the first is for n groups, and each further one is larger."""
    size, start = max(FIRST_KEYS, 2 * n), 0
    while start < len(items):
        yield list(items[start : start + size])
        start, size = start + size, 2 * size


_OF_KEY: Any = (
    _OF_BUFFER
    & (queue_groups.c.key == bindparam("p_key", type_=KEY))
    & (queue_groups.c.version == bindparam("p_version", type_=BigInteger()))
)
# A writer that changes one of them now will change its version.
_FREE_SPREADS = (
    select(queue_groups.c.key)
    .where(_OF_BUFFER, is_one_of(queue_groups.c.key, bindparam(KEYS, type_=KeyList())))
    .with_for_update(skip_locked=True)
)


def _waits(column: Any, *tests: Any) -> Any:
    """Return the condition that rows of a key are in the queue."""
    waits = select(1).where(
        queue_items.c.buffer_id == queue_groups.c.buffer_id, column == queue_groups.c.key, *tests
    )
    return waits.correlate(queue_groups).exists()


_FORGET_KEY = delete(queue_groups).where(
    _OF_KEY, ~_waits(queue_items.c.task_id), ~_waits(queue_items.c.group_id)
)


@remembered
def _keep_bound(request: ClaimRequest, *, is_gone: bool = False) -> Update:
    statement = update(queue_groups).where(_OF_KEY)
    if is_gone:
        is_unused = cast(queue_items.c.used_up, Integer) == 0
        statement = statement.where(~_waits(_key(request), is_unused))
    return statement.values({_bound(request).key: bindparam("p_bound", type_=Double())})


class _UsedLast:
    """Puts used groups behind the unused ones of the same age, in the order of their uses."""

    def __init__(self, request: ClaimRequest) -> None:
        self._is_on = request.is_reused and request.order in ("freshest", "stalest")
        self._used: list[tuple[int, int, Key]] = []  # freshness, uses, group

    def ordered(self, rows: Sequence[Any], *, is_end: bool) -> list[Key]:
        """Return the next groups of those that follow in the order of their first rows."""
        if not self._is_on:
            return [(key, group_seq) for key, group_seq, *_ in rows]
        names: list[Key] = []
        for key, group_seq, _, freshness, n_uses in rows:
            if self._used and self._used[0][0] != freshness:
                names += self._rest()
            if n_uses:
                self._used.append((freshness, n_uses, (key, group_seq)))
            else:
                names.append((key, group_seq))
        return names + self._rest() if is_end else names

    def _rest(self) -> list[Key]:
        used, self._used = sorted(self._used, key=lambda group: group[1]), []
        return [name for *_, name in used]


class GroupChoice:
    """The groups that one attempt chooses.

    Args:
        connection: The claim's transaction.
        scope: The queue.
        request: The request.

    Attributes:
        late: Groups that it found which must be dropped.
        flat: Groups that it skipped because their rewards differ too little.
    """

    def __init__(self, connection: Connection, scope: Scope, request: ClaimRequest) -> None:
        self._connection, self._scope, self._request = connection, scope, request
        self.late: list[LeaseGroup] = []
        self.flat: dict[Key, LeaseGroup] = {}
        # Keys with their bounds and versions before their groups were read.
        self._known: dict[str, tuple[float, int]] = {}
        self._keys_read: set[str] = set()
        self._groups_read: dict[Key, LeaseGroup] = {}

    def choose(self) -> list[list[int]]:
        """Return the rows of up to n groups, locked, in the requested order."""
        taken: dict[Key, list[int]] = {}
        for candidates in self._candidates():
            for group in candidates:
                if self._request.drops_any and group.is_of("late"):
                    self.late.append(group)
                elif group.is_flat:
                    self.flat[group.name] = group
            free = [g for g in candidates if g.is_claimable and g.name not in taken]
            while free and len(taken) < self._request.n:
                missing = self._request.n - len(taken)
                taken |= self.lock(free[:missing])
                free = free[missing:]
            if len(taken) == self._request.n:
                break
        return list(taken.values())

    def lock(self, chosen: Sequence[LeaseGroup], kind: Kind = "claimable") -> dict[Key, list[int]]:
        """Return the rows of the groups that could be locked whole, in their order.

        A transaction that has locked the first row of a group continues: otherwise two that each
        lock a part of it would both give it up. New rows may be committed between two statements,
        so the locked rows are compared with the existing ones afterwards.
        """
        firsts = self._scope.parameters(**{SEQS: [group.first_seq for group in chosen]})
        won = set(self._connection.execute(_FIRSTS, firsts).scalars())
        names = [group.name for group in chosen if group.first_seq in won]
        if not names:
            return {}
        keys = list(dict.fromkeys(key for key, _ in names))
        parameters = self._scope.parameters(**{KEYS: keys})
        # First: a writer that changes one of their episodes has ended by then, or sees the lease.
        # Steps that come and go between the next statements could make up for each other.
        self._connection.execute(_share_episodes(self._request), parameters)
        rows = self._connection.execute(_rows_of(self._request), parameters)
        locked: dict[Key, list[tuple[int, int | None]]] = {name: [] for name in names}
        for name_of_row, group_seq, seq, episode_id in rows:
            if (name_of_row, group_seq) in locked:
                locked[name_of_row, group_seq].append((seq, episode_id))
        groups_by_name = {group.name: group for group in self._read(keys)}
        whole = {
            name: rows_of_group
            for name, rows_of_group in locked.items()
            if (group := groups_by_name.get(name)) is not None
            and group.n_rows == len(rows_of_group)
            and group.is_of(kind)
        }
        if self._request.group_size is not None and kind != "late":
            whole = self._chosen_rollouts(whole, parameters)
        return {name: [seq for seq, _ in rows_of_group] for name, rows_of_group in whole.items()}

    def _chosen_rollouts(
        self, rows_by_group: Mapping[Key, list[tuple[int, int | None]]], parameters: Any
    ) -> dict[Key, list[tuple[int, int | None]]]:
        """Return the rows of the oldest rollouts of each group, as many as were asked for."""
        assert self._request.group_size is not None
        statement = good_rollouts(self._scope.limits, self._request)
        chosen: dict[Key, set[tuple[int | None, int | None]]] = {}
        for key, group_seq, episode_id, first_seq in self._connection.execute(
            statement, parameters
        ):
            rollouts = chosen.setdefault((key, group_seq), set())
            if len(rollouts) < self._request.group_size:
                rollouts.add((episode_id, first_seq if episode_id is None else None))
        return {
            name: [
                (seq, episode_id)
                for seq, episode_id in rows
                if (episode_id, seq if episode_id is None else None) in chosen.get(name, ())
            ]
            for name, rows in rows_by_group.items()
        }

    def _read(self, keys: Sequence[Any] | None = None) -> list[LeaseGroup]:
        parameters = {} if keys is None else {KEYS: keys}
        statement = groups(self._scope.limits, self._request, named=keys is not None)
        rows = self._connection.execute(statement, self._scope.parameters(**parameters))
        read = [_group(row) for row in rows]
        if self._request.needs_spread:
            self._keys_read.update(keys or ())
            self._groups_read.update((group.name, group) for group in read)
        return read

    def may_suffice(self) -> bool:
        """Return True if an attempt may find enough groups, or may skip or delete some for good.

        It locks nothing.
        """
        n_claimable = 0
        for some in _slices(self._keys_above(), self._request.n):
            for group in self._read(some):
                n_claimable += group.is_claimable
                bound, version = self._known[group.key]
                is_new = group.is_flat and bound == UNKNOWN_BOUND and version >= 0
                drops_late = self._request.drops_any and group.is_of("late")
                drops_flat = self._request.drops_flat and group.is_of("flat")
                if n_claimable == self._request.n or is_new or drops_late or drops_flat:
                    return True
        return False

    def _candidates(self) -> Iterator[list[LeaseGroup]]:
        """Yield groups in the requested order, until there are no more."""
        if self._request.order == "spread":
            yield from self._largest_spreads()
        elif self._request.order != "random":
            yield from self._in_order()
        elif self._request.min_spread is not None:
            yield from self._random_spreads()
        else:
            probed = self._probed()
            if probed is not None:
                yield probed
            else:
                every = self._read()
                _RANDOM.shuffle(every)
                yield every

    def _in_order(self) -> Iterator[list[LeaseGroup]]:
        """Yield groups in the order of their first rows, reading more and more rows."""
        keys: list[str] | None = None
        if self._request.min_spread is not None:
            keys = self._keys_above(FEW_KEYS + 1)
            if not keys:
                return
            if len(keys) > FEW_KEYS:
                keys = None
        seen: set[Key] = set()
        waiting = _UsedLast(self._request)
        limit, named = FIRST_ROWS, {}
        while True:
            if keys is not None:
                limit, named = LARGEST, {KEYS: keys}
            statement = _first_groups(self._scope.limits, self._request, named=bool(named))
            parameters = self._scope.parameters(**{COUNT: limit}, **named)
            rows = self._connection.execute(statement, parameters).all()
            is_end = sum(row[2] for row in rows) < limit
            unseen = [row for row in rows if (row[0], row[1]) not in seen]
            seen.update((row[0], row[1]) for row in unseen)
            yield from self._read_in_order(waiting.ordered(unseen, is_end=is_end))
            if is_end:
                return
            if self._request.min_spread is not None and limit > FIRST_ROWS:
                keys, seen = self._keys_above(), set()  # few of the first groups have a spread
                waiting = _UsedLast(self._request)
            limit *= GROWTH

    def _read_in_order(self, names: Sequence[Key]) -> Iterator[list[LeaseGroup]]:
        """Yield some groups, without those whose spread is known to be too small."""
        if self._request.min_spread is not None:
            keys = list(dict.fromkeys(key for key, _ in names))
            candidates = self._kept_above(keys)
            names = [name for name in names if name[0] in candidates]
        for some in _slices(names, self._request.n):
            read = {g.name: g for g in self._read(list(dict.fromkeys(key for key, _ in some)))}
            yield [read[name] for name in some if name in read]

    def _random_spreads(self) -> Iterator[list[LeaseGroup]]:
        """Yield groups whose spread may be large enough, uniformly."""
        keys = self._keys_above(MANY_KEYS + 1)
        if len(keys) > MANY_KEYS:
            probed = self._probed()
            if probed is not None:
                yield probed
                return
            keys = self._keys_above()
        _RANDOM.shuffle(keys)
        for some in _slices(keys, self._request.n):
            read = self._read(some)
            _RANDOM.shuffle(read)
            yield read

    def _largest_spreads(self) -> Iterator[list[LeaseGroup]]:
        """Yield groups in the order of their spreads, those without one last."""
        held: list[tuple[tuple[float, int], LeaseGroup]] = []
        for some in self._keys_by_bound():
            # All later groups have smaller spreads than the bound of the last key.
            bound = self._known[some[-1]][0]
            for group in self._read(some):
                spread = -1.0 if group.spread is None else group.spread
                held.append(((-spread, group.first_seq), group))
            held.sort(key=lambda one: one[0])
            n_ready = sum(-place[0] > bound for place, _ in held)
            yield [group for _, group in held[:n_ready]]
            del held[:n_ready]
        yield [group for _, group in held]

    def _keys_by_bound(self) -> Iterator[list[str]]:
        """Yield the keys of groups that may have a large enough spread, largest bounds first."""
        limit, seen = max(FIRST_KEYS, 2 * self._request.n), set[str]()
        while True:
            keys = self._keys_above(limit)
            unseen = [key for key in keys if key not in seen]
            seen.update(unseen)
            if unseen:
                yield unseen
            if len(keys) < limit:
                return
            limit *= GROWTH

    def _keys_above(self, limit: int = LARGEST) -> list[str]:
        """Return the keys of groups that may have a large enough spread, largest bounds first."""
        changed = self._changed()
        known = self._look_up({COUNT: limit}, named=False)
        for key in changed:
            self._known.setdefault(key, (UNKNOWN_BOUND, -1))
        return list(dict.fromkeys([*changed, *known]))

    def _kept_above(self, keys: Sequence[str]) -> set[str]:
        """Return those of some keys whose groups may have a large enough spread."""
        changed = self._changed()
        return {*self._look_up({KEYS: keys}, named=True), *changed}

    def _changed(self) -> list[str]:
        """Return the keys with changes that another transaction will apply."""
        changed = self._connection.execute(_CHANGED.distinct(), self._scope.parameters())
        return list(changed.scalars())

    def _look_up(self, values: Mapping[str, Any], *, named: bool) -> list[str]:
        statement = _spreads_above(self._request, named=named)
        rows = self._connection.execute(statement, self._scope.parameters(**values)).all()
        for key, bound, version in rows:
            # The first version counts: that of the time before its groups were read.
            self._known.setdefault(key, (bound, version))
        return [row.key for row in rows]

    def settle(self) -> None:
        """Keep what was found of the spreads of groups: the next claim does not read them again."""
        found: dict[str, float] = {}
        changes: list[dict[str, Any]] = []
        for group in self._groups_read.values():
            found[group.key] = max(found.get(group.key, 0.0), group.bound or 0.0)
        for key, (bound, version) in self._known.items():
            if version >= 0 and key in self._keys_read and found.get(key, -1.0) != bound:
                changes.append(
                    {"p_key": key, "p_bound": found.get(key, -1.0), "p_version": version}
                )
        if not changes:
            return
        buffer = {BUFFER: self._scope.buffer_id}
        keys = [change["p_key"] for change in changes]
        free = set(self._connection.execute(_FREE_SPREADS, {**buffer, KEYS: keys}).scalars())
        kept = [{**buffer, **c} for c in changes if c["p_key"] in free and c["p_bound"] >= 0]
        gone = [{**buffer, **c} for c in changes if c["p_key"] in free and c["p_bound"] < 0]
        if kept:
            self._connection.execute(_keep_bound(self._request), kept)
        if gone:
            self._connection.execute(_FORGET_KEY, gone)
            self._connection.execute(_keep_bound(self._request, is_gone=True), gone)

    def _probed(self) -> list[LeaseGroup] | None:
        """Return n groups that may be claimed, drawn uniformly; None if too few are found.

        A drawn number counts if it is the first row of its group.
        """
        scope, n = self._scope, self._request.n
        assert scope.high is not None
        low = lowest(self._connection, scope)
        span = scope.high - low
        if span <= 2 * PROBES:
            return None
        rng = np.random.default_rng()
        drawn: set[int] = set()
        chosen: list[LeaseGroup] = []
        for _ in range(GROUP_PROBE_ROUNDS):
            numbers = (low + 1 + (rng.random(PROBES) * span).astype(np.int64)).tolist()
            untried = [seq for seq in dict.fromkeys(numbers) if seq not in drawn]
            drawn.update(untried)
            firsts = {name: seq for seq, name in self._first_rows(untried)}
            if self._request.min_spread is not None:
                above = self._kept_above([key for key, _ in firsts])
                firsts = {name: seq for name, seq in firsts.items() if name[0] in above}
            place = {seq: i for i, seq in enumerate(untried)}
            names = sorted(firsts, key=lambda name: place[firsts[name]])
            for some in _slices(names, n):
                keys = list(dict.fromkeys(key for key, _ in some))
                read = {g.name: g for g in self._read(keys)}
                groups_read = (read[name] for name in some if name in read)
                chosen += [g for g in groups_read if g.is_claimable or g.is_late or g.is_flat]
                if sum(group.is_claimable for group in chosen) >= n:
                    return chosen
        return None

    def _first_rows(self, seqs: Sequence[int]) -> Iterator[tuple[int, Key]]:
        statement = _first_rows_among(self._scope.limits, self._request)
        parameters = self._scope.parameters(**{SEQS: seqs})
        for seq, key, group_seq in self._connection.execute(statement, parameters):
            yield seq, (key, group_seq)


def _group(row: Any) -> LeaseGroup:
    *numbers, claimable, late, flat, spread, bound = row
    key, group_seq, first_seq, n_rows, size, n_leased = numbers
    return LeaseGroup(
        key, group_seq, int(first_seq), int(n_rows), int(size), int(n_leased), claimable == 1,
        late == 1, flat == 1, spread, bound,
    )  # fmt: skip
