"""The episodes of a buffer as candidates: the keys are the seq of their first steps."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Integer, Select, bindparam, column, func, literal, select, true

from sqlbuffer.checks import checked_count, checked_flag
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility import Eligibility
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.row_selection import BUFFER_ID, LOW
from sqlbuffer.storage.rows.statements import remembered
from sqlbuffer.storage.sampling.candidates import Candidates, check_pick
from sqlbuffer.storage.sampling.slice_table import SliceReading
from sqlbuffer.storage.schema.parameters import SeqList, n_seqs, numbers_in, seq_at, seqs_of

# If a window has at most this many numbers, ranking the keys of its episodes costs less than a
# second probe.
FEW_KEYS_SPAN = 32_768
# For longer episodes than this, fewer numbers are keys than a sampler probes for.
LONG_EPISODE = 32
FEW_EPISODES = 16
MOST_PICKED = 65_536
MOST_SEQ = 2**63 - 1
NUMBERS, ELIGIBLE_LOW = "numbers", "eligible_low"
Picked = dict[int, tuple[int, int]]
FRACTION_BITS = 40  # multiplied by the number of episodes, it stays below 2**63


class EpisodePopulation(Candidates):
    """The episodes of a buffer whose first step matches a condition.

    It has the methods of `Candidates`.

    Args:
        rows: The rows of the buffer.
        reading: Columns to read of a first step.
        include_partial: Include episodes that are open or have lost steps; their key is the seq of
            the first step that they still have.
    """

    def __init__(self, rows: Candidates, reading: SliceReading, include_partial: bool) -> None:
        super().__init__(
            rows.connection,
            rows.buffer_id,
            rows.window_low,
            rows.high,
            rows.node,
            reading,
            rows.limits,
            # The first remaining step of a partial episode may be ineligible although a later one
            # is eligible.
            0 if include_partial else rows.low,
            rows.steps,
        )
        self._partial = include_partial
        self._picked: set[int] = set()
        self._priorities = rows._priorities
        self.has_labels, self.has_deleted = rows.has_labels, rows.has_deleted
        self.may_replace = rows.may_replace

    @cached_property
    def picks_first(self) -> bool:
        """True if `pick` costs less than `probe`, because few of the numbers are keys."""
        if self.span <= FEW_KEYS_SPAN:
            return True
        given = {BUFFER_ID: self.buffer_id, LOW: self.window_low}
        ((first, last, n),) = fetch(self.connection, _newest_ends(), given)
        return bool(n > 1 and last - first > LONG_EPISODE * (n - 1))

    @property
    def is_filtered(self) -> bool:
        """True if episodes may not match."""
        return self.has_condition

    @property
    def picks_keys(self) -> bool:
        """True if `keys` finds few keys, because there are fewer episodes than rows."""
        return True

    def select(self) -> Select[Any]:
        """Return a SQLAlchemy select of the keys, named `seq`."""
        return select(self._keys.c.key.label("seq"))

    @property
    def _keys(self) -> Any:
        own = (literal(n, BigInteger()) for n in (self.buffer_id, self.window_low, self.low))
        return _EpisodeKeys(self._partial, self.node, self.limits, self.steps, *own).table

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each episode in ascending order; reads all keys."""
        self.has_read_keys = True
        keys = self._keys
        found = self.connection.execute(select(keys.c.key).order_by(keys.c.key)).scalars()
        return np.fromiter(found, np.int64)

    def pick(self, rng: np.random.Generator, n: int, *, replace: bool) -> list[int] | None:
        """Return n keys, uniform over all; None if there may be fewer different ones.

        It ranks the keys with integers, so that both databases pick the same.
        """
        check_pick(rng, n, replace)
        if n > MOST_PICKED:
            return None
        numbers = (rng.random(n if replace else _overdrawn(n)) * 2.0**FRACTION_BITS).astype(
            np.int64
        )
        found = self._pick(_ranked, n, {NUMBERS: numbers.tolist()})
        if not found:
            return []
        (_, total), *_ = found.values()
        key_of = {rank: key for key, (rank, _) in found.items()}
        ranks = (numbers * total >> FRACTION_BITS).tolist()
        keys = [key_of[rank] for rank in ranks if rank in key_of]
        if replace:
            return keys
        distinct = list(dict.fromkeys(keys))
        return distinct if len(distinct) == n else None

    def random(self, n: int) -> list[int]:
        """Return up to n keys in uniform random order; reads all keys."""
        n = checked_count(n, "n")
        rng = np.random.default_rng()
        found = self.pick(rng, n, replace=False)
        if found is not None:
            return found
        keys = self.keys()
        chosen: list[int] = rng.choice(keys, min(n, keys.size), replace=False).tolist()
        return chosen

    def newest(self, n: int) -> list[int]:
        """Return up to n keys, newest first."""
        return sorted(self._pick(_newest, checked_count(n, "n")), reverse=True)

    def oldest(self, n: int) -> list[int]:
        """Return up to n keys, oldest first."""
        return sorted(self._pick(_oldest, checked_count(n, "n")))

    def page(self, offset: int, limit: int, *, newest: bool = False) -> list[int]:
        """Return up to `limit` keys, oldest first, after the first `offset`; reads all keys."""
        offset, limit = checked_count(offset, "offset"), checked_count(limit, "limit")
        keys = self.keys()[::-1] if checked_flag(newest, "newest") else self.keys()
        found: list[int] = keys[offset : offset + limit].tolist()
        return found

    def _pick(
        self,
        picks: Callable[[Any, int], Select[Any]],
        n: int,
        numbers: Mapping[str, Any] | None = None,
    ) -> Picked:
        """Return {key: (rank, n)} of the picked episodes.

        Args:
            picks: Function that returns the select of (key, rank, n), from a table of keys and `n`.
            n: Number of episodes to pick.
            numbers: Parameters of that select.
        """
        parameters = {BUFFER_ID: self.buffer_id, LOW: self.window_low, **(numbers or {})}
        parameters |= {ELIGIBLE_LOW: self.low}
        # Values of a condition or of limits are in the statement, so it is not kept.
        make = _picking if self.has_condition else _kept_picking
        statement = make(self.node, self.limits, self._partial, picks, n, self.steps)
        rows = fetch(self.connection, statement, parameters)
        picked = {key: (rank, n) for key, rank, n in rows}
        self._picked.update(picked)
        return picked

    @property
    def n_probed(self) -> int:
        """Number of keys that were looked up or picked."""
        return len(self._probed | self._picked)


class _EpisodeKeys:
    """The keys of the episodes that may be read.

    Args:
        include_partial: See `EpisodePopulation`.
        node: Condition on their first steps.
        limits: Limits on their first steps.
        steps: How their steps are stored.
        buffer_id: The buffer, an expression.
        low: The lower end of the window.
        eligible_low: Number up to which no step is eligible.
    """

    def __init__(
        self,
        include_partial: bool,
        node: Node,
        limits: Eligibility,
        steps: StepLayout,
        buffer_id: Any,
        low: Any,
        eligible_low: Any,
    ) -> None:
        self._partial, self._node, self._limits = include_partial, node, limits
        self._steps = steps
        self._buffer_id, self._low, self._eligible_low = buffer_id, low, eligible_low

    @property
    def table(self) -> Any:
        """The table of the keys, with the column `key`."""
        first: Any = episodes.c.first_seq
        if self._partial:
            first = self._steps.first_left(self._buffer_id, episodes.c.id, self._low)
        keys = select(first.label("key")).where(
            episodes.c.buffer_id == self._buffer_id, *self._eligible()
        )
        if self._partial:
            # The offset keeps SQLite from searching for a step again at each use of the key.
            left = keys.offset(0).subquery("left")
            keys = select(left.c.key).where(left.c.key.is_not(None))
        found = keys.subquery("keys")
        if self._node == EVERYTHING and not self._limits:
            return found
        return self._matching_keys(found)

    def _eligible(self) -> list[Any]:
        own = episodes.c
        # Bounded on both sides: otherwise PostgreSQL without statistics expects a third of the
        # table. The last step may have been deleted, so it cannot be a bound.
        has_steps = (own.last_seq > self._low) & (own.last_seq < MOST_SEQ)
        if self._partial:
            return [own.status != "aborted", has_steps | own.last_seq.is_(None)]
        return [own.status == "complete", has_steps, own.first_seq > self._eligible_low]

    def _matching_keys(self, keys: Any) -> Any:
        """Return the keys whose row matches; each is looked up separately.

        An episode whose first row meets the limits may have a later one that does not: this is
        found when it is read.
        """
        first = self._steps.of(None).alias("first_step")
        matches = select(1).where(
            self._steps.is_numbered(first.c, self._buffer_id, keys.c.key),
            compile_condition(self._node, first),
        )
        if self._limits:
            matches = matches.where(self._limits.hold(first))
        return select(keys.c.key).where(matches.offset(0).exists()).subquery("matching")


def _picking(
    node: Node,
    limits: Eligibility,
    include_partial: bool,
    picks: Callable[[Any, int], Select[Any]],
    n: int,
    steps: StepLayout,
) -> Any:
    """Return the select of the picked keys."""
    return picks(_EpisodeKeys(include_partial, node, limits, steps, *_OWN).table, n)


_kept_picking = remembered(_picking)


_OWN = (
    bindparam(BUFFER_ID, type_=Integer()),
    bindparam(LOW, type_=BigInteger()),
    bindparam(ELIGIBLE_LOW, type_=BigInteger()),
)


def _ranked(keys: Any, n: int) -> Select[Any]:
    """Select (key, rank, n) of the keys whose ranks come first in the given numbers."""
    given = numbers_in(bindparam(NUMBERS, type_=SeqList())).table_valued(
        column("value", BigInteger()), column("place", BigInteger())
    )
    # A window function would take four times as long. The offsets keep the order and the list.
    in_order = select(keys.c.key).order_by(keys.c.key).offset(0).scalar_subquery()
    seqs = select(seqs_of(in_order).label("seqs")).offset(0).subquery("in_order").c.seqs
    listed = select(seqs, n_seqs(seqs).label("n")).cte("listed")
    rank = (given.c.value * listed.c.n).op(">>")(literal(FRACTION_BITS, Integer()))
    first_met = (
        select(rank.label("rank"))
        .join_from(given, listed, listed.c.n > 0)
        .group_by(rank)
        .order_by(func.min(given.c.place))
        .limit(n)
        .subquery("first_met")
    )
    key = seq_at(listed.c.seqs, first_met.c.rank).label("key")
    return select(key, first_met.c.rank, listed.c.n).join_from(first_met, listed, true())


def _newest(keys: Any, n: int) -> Select[Any]:
    return _unranked(keys).order_by(keys.c.key.desc()).limit(n)


def _oldest(keys: Any, n: int) -> Select[Any]:
    return _unranked(keys).order_by(keys.c.key).limit(n)


def _unranked(keys: Any) -> Select[Any]:
    none = literal(0, BigInteger())
    return select(keys.c.key, none.label("rank"), none.label("n"))


@remembered
def _newest_ends() -> Any:
    """Select the first and the last end of a few episodes, and the number of these."""
    own = episodes.c
    newest = (
        select(own.last_seq)
        .where(
            own.buffer_id == bindparam(BUFFER_ID, type_=Integer()),
            own.last_seq > bindparam(LOW, type_=BigInteger()),
        )
        .order_by(own.last_seq.desc())
        .limit(FEW_EPISODES)
        .subquery("newest")
        .c.last_seq
    )
    return select(func.min(newest), func.max(newest), func.count(newest))


def _overdrawn(n: int) -> int:
    """Return the number of fractions that almost always give at least n different keys.

    The chance to miss one of n keys in 8 n + 64 draws is below n exp(-8 - 64 / n).
    """
    return 8 * n + 64
