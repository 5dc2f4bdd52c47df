"""What a sampler sees of the episodes of a buffer: the keys are the seq of their first steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import BigInteger, Integer, Select, bindparam, column, func, literal, select, true

from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.first_step_left import first_step_left
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.row_selection import BUFFER_ID, LOW, PICK, PLACE, RowSelection, T
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import numbers_in
from sqlbuffer.storage.schema.number_keys import is_numbered
from sqlbuffer.storage.schema.planner import unindexed

# Where a window has no more numbers than this, ranking the keys of its episodes costs less than a
# second probe.
FEW_KEYS_SPAN = 32_768
MOST_PICKED = 65_536
MOST_SEQ = 2**63 - 1
NUMBERS = "numbers"
Picked = dict[int, tuple[int, int]]
FRACTION_BITS = 40  # times the number of episodes, it stays below 2**63


class EpisodePopulation(Candidates):
    """The episodes of a buffer whose first step matches a condition.

    It offers what `Candidates` does. What is chosen here is read in the statement that chooses
    it, except by `keys` and `select`.

    Args:
        rows: The rows of the buffer.
        reading: What is read of a first step.
        include_partial: Those too that are open or have lost steps; their key is the seq of the
            first step that they have.
    """

    def __init__(self, rows: Candidates, reading: RowSelection, include_partial: bool) -> None:
        super().__init__(
            rows.connection,
            rows.buffer_id,
            rows.window_low,
            rows.high,
            rows.node,
            reading,
            rows.limits,
            # The first step left of a partial one may be ineligible where a later one is not.
            0 if include_partial else rows.low,
        )
        self._partial = include_partial
        self.picks_first = self.span <= FEW_KEYS_SPAN
        self._priorities = rows._priorities
        self.has_labels, self.chunks = rows.has_labels, rows.chunks
        self.reads_bytes = rows.reads_bytes

    @property
    def is_filtered(self) -> bool:
        """Whether episodes may not match."""
        return self.has_condition

    @property
    def picks_keys(self) -> bool:
        """Whether `keys` finds few: there are fewer episodes than rows."""
        return True

    def select(self) -> Select[Any]:
        """Return a SQLAlchemy select of the keys, named `seq`."""
        return select(self._keys.c.key.label("seq"))

    @property
    def _keys(self) -> Any:
        first = self._first_left() if self._partial else episodes.c.first_seq
        keys = select(first.label("key")).where(
            episodes.c.buffer_id == literal(self.buffer_id), *self._eligible()
        )
        if self._partial:
            # The offset, or SQLite looks for a step again wherever the key is named.
            left = keys.offset(0).subquery("left")
            keys = select(left.c.key).where(left.c.key.is_not(None))
        found = keys.subquery("keys")
        if self.node == EVERYTHING and not self.limits:
            return found
        return self._matching_keys(found)

    def _eligible(self) -> list[Any]:
        own = episodes.c
        # Bounded on both sides, or PostgreSQL without statistics expects a third of the table. The
        # last step may have been deleted, so it is no bound.
        has_steps = (own.last_seq > self.window_low) & (own.last_seq < MOST_SEQ)
        if self._partial:
            return [own.status != "aborted", has_steps | own.last_seq.is_(None)]
        return [own.status == "complete", has_steps, own.first_seq > self.low]

    def _first_left(self) -> Any:
        if self.chunks is not None:
            return first_step_left(literal(self.buffer_id), episodes.c.id, self.window_low)
        step = experiences.alias("step")
        return (
            select(step.c.seq)
            .where(
                step.c.buffer_id == literal(self.buffer_id),
                step.c.episode_id == episodes.c.id,
                unindexed(step.c.seq) > self.window_low,
            )
            .order_by(step.c.t)
            .limit(1)
            .scalar_subquery()
        )

    def _matching_keys(self, keys: Any) -> Any:
        """Return those of the keys whose row matches; each is looked up by itself.

        An episode whose first row is in the limits may have a later one that is not: reading tells.
        """
        first = experiences.alias("first_step")
        matches = select(1).where(
            is_numbered(first.c.seq, literal(self.buffer_id), keys.c.key),
            compile_condition(self.node, first),
        )
        if self.limits:
            matches = matches.where(self.limits.hold(first))
        return select(keys.c.key).where(matches.offset(0).exists()).subquery("matching")

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each episode in ascending order; reads all keys."""
        self.has_read_keys = True
        keys = self._keys
        found = self.connection.execute(select(keys.c.key).order_by(keys.c.key)).scalars()
        return np.fromiter(found, np.int64)

    def pick(self, rng: np.random.Generator, n: int, *, replace: bool) -> list[int] | None:
        """Return n keys, uniform over all, or None where there may be fewer different ones.

        One statement ranks the keys and reads what is picked. In integers, so that both databases
        pick the same.
        """
        if n > MOST_PICKED:
            return None
        numbers = (rng.random(n if replace else _overdrawn(n)) * 2.0**FRACTION_BITS).astype(
            np.int64
        )
        found = self._pick(self._ranked(n), {NUMBERS: numbers.tolist()})
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

    def _ranked(self, n: int) -> Select[Any]:
        """Select (key, rank, n) of the keys whose ranks are first met in the numbers given."""
        keys = self._keys
        given = numbers_in(bindparam(NUMBERS, type_=SeqList())).table_valued(
            column("value", BigInteger()), column("place", BigInteger())
        )
        total = select(func.count().label("n")).select_from(keys).subquery("total")
        rank = (given.c.value * total.c.n).op(">>")(literal(FRACTION_BITS, Integer()))
        first_met = (
            select(rank.label("rank"), total.c.n)
            .join_from(given, total, true())
            .group_by(rank, total.c.n)
            .order_by(func.min(given.c.place))
            .limit(n)
            .subquery("first_met")
        )
        number = func.row_number().over(order_by=keys.c.key) - 1
        ranked = select(keys.c.key, number.label("rank")).subquery("ranked")
        return select(ranked.c.key, ranked.c.rank, first_met.c.n).join(
            first_met, first_met.c.rank == ranked.c.rank
        )

    def random(self, n: int) -> list[int]:
        """Return up to n keys in uniform random order; reads all keys."""
        rng = np.random.default_rng()
        found = self.pick(rng, n, replace=False)
        if found is not None:
            return found
        keys = self.keys()
        chosen: list[int] = rng.choice(keys, min(n, keys.size), replace=False).tolist()
        return chosen

    def newest(self, n: int) -> list[int]:
        """Return up to n keys, newest first."""
        return sorted(self._pick(self._at_one_end(n, newest=True)), reverse=True)

    def oldest(self, n: int) -> list[int]:
        """Return up to n keys, oldest first."""
        return sorted(self._pick(self._at_one_end(n)))

    def _at_one_end(self, n: int, *, newest: bool = False) -> Select[Any]:
        key = self._keys.c.key
        none = literal(0, BigInteger())
        picks = select(key, none.label("rank"), none.label("n"))
        return picks.order_by(key.desc() if newest else key).limit(n)

    def _pick(self, picks: Select[Any], numbers: Mapping[str, Any] | None = None) -> Picked:
        """Return {key: (rank, n)} of what is picked, and read it."""
        parameters = {BUFFER_ID: self.buffer_id, LOW: self.window_low, **(numbers or {})}
        parameters |= self.limits.parameters
        statement = self._selection.picked(
            self.node, picks, self.limits, has_labels=self.has_labels,
            has_chunks=self.chunks is not None,
        )  # fmt: skip
        found = self._fetched(statement, parameters)
        self._sort(found)
        picked = {row[0]: (row[PLACE], row[T]) for row in found if row[-1] == PICK}
        self._probed.update(picked)
        return picked


def _overdrawn(n: int) -> int:
    """Return how many fractions give n different keys of n or more but once in a great while: the
    chance to miss one of n keys in 8 n + 64 draws is below n exp(-8 - 64 / n).
    """
    return 8 * n + 64
