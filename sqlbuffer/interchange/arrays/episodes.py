"""Whole episodes of flat arrays."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.interchange.arrays.naming import (
    ENDED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    ArrayPlan,
    flags_of,
    rewards_of,
)
from sqlbuffer.interchange.arrays.sources import Arrays, Columns, pieces_of
from sqlbuffer.spaces import NEXT

Tail = Literal["open", "cut", "drop"]
TAILS = ("open", "cut", "drop")
# A longer episode is stored in parts.
PART_BYTES = 64 * 2**20


@dataclass(frozen=True)
class EpisodePart:
    """An episode, or a part of one that memory is not to hold as a whole.

    Attributes:
        first: Number of its first row in the source.
        columns: Fields, reward and flags of its steps.
        final: The observation after the last step; None if it is unknown, or it is not the end.
        is_begin: Whether it has the first step of the episode.
        is_end: Whether it has the last step.
        is_open: Whether it is a tail without an end.
    """

    first: int
    columns: Arrays
    final: Arrays | None
    is_begin: bool = True
    is_end: bool = True
    is_open: bool = False

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return len(self.columns[REWARD])

    @property
    def stop(self) -> int:
        """Number of the row after it in the source."""
        return self.first + self.n_steps


class _Rows(NamedTuple):
    """Rows with their ends.

    Attributes:
        first: Number of the first one.
        columns: Fields, reward and flags.
        ends: Whether an episode ends after a row.
        is_linked: Whether the observation after a row is that of the next row; None if the
            observations after rows are unknown.
        following: The observations after the rows, by field.
        is_last: Whether no other row follows them.
    """

    first: int
    columns: Arrays
    ends: NDArray[np.bool_]
    is_linked: NDArray[np.bool_] | None
    following: Arrays
    is_last: bool


@dataclass
class Findings:
    """What a look at the arrays has found.

    Attributes:
        n_rows: Number of rows.
        gap: The first row within an episode whose next observation is not that of the next row;
            None if there is none.
        n_ends: Number of ends that another row follows.
        n_linked_ends: Number of those whose next observation is that of the next row.
    """

    n_rows: int = 0
    gap: int | None = None
    n_ends: int = 0
    n_linked_ends: int = 0

    @property
    def is_shifted(self) -> bool:
        """Whether the next observations are the observations, moved by a row: after an end they are
        those of the next episode, and say nothing of this one.
        """
        return 0 < self.n_ends == self.n_linked_ends

    def add(self, rows: _Rows) -> None:
        """Look at rows."""
        self.n_rows = rows.first + len(rows.ends)
        if rows.is_linked is None:
            return
        gaps = np.flatnonzero(~rows.is_linked & ~rows.ends)
        if self.gap is None and len(gaps):
            self.gap = rows.first + int(gaps[0])
        n_followed = len(rows.ends) - rows.is_last
        ends = rows.ends[:n_followed]
        self.n_ends += int(ends.sum())
        self.n_linked_ends += int((ends & rows.is_linked[:n_followed]).sum())


def rows_of(
    chunks: Iterator[Columns], plan: ArrayPlan, check: Callable[[Columns], None] = lambda _: None
) -> Iterator[_Rows]:
    """Yield rows with their ends; the last row of a piece waits for the next one.

    Args:
        chunks: The arrays, one chunk after another.
        plan: What they mean.
        check: Raises if a chunk has other arrays than the first one.
    """
    first, waiting = 0, None
    for piece in _pieces(chunks, plan, check):
        columns = _checked(piece, plan, first)
        first += len(columns[REWARD])
        if waiting is not None:
            yield _with_ends(waiting, plan, columns)
        waiting = (first - len(columns[REWARD]), columns)
    if waiting is not None:
        yield _with_ends(waiting, plan, None)


def _pieces(
    chunks: Iterator[Columns], plan: ArrayPlan, check: Callable[[Columns], None]
) -> Iterator[Arrays]:
    for columns in chunks:
        check(columns)
        for piece in pieces_of(columns, [*plan.names.values()]):
            if len(piece[plan.names[REWARD]]):
                yield piece


def _checked(piece: Arrays, plan: ArrayPlan, first: int) -> Arrays:
    fields = {name: piece[plan.names[name]] for name in plan.specs}
    return {**fields, REWARD: rewards_of(piece, plan, first), **flags_of(piece, plan, first)}


def _with_ends(waiting: tuple[int, Arrays], plan: ArrayPlan, after: Arrays | None) -> _Rows:
    first, columns = waiting
    following = {}
    if plan.has_next:
        following = {name: columns.pop(NEXT + name) for name in plan.observations}
    n = len(columns[REWARD])
    terminated = columns.setdefault(TERMINATED, np.zeros(n, bool))
    ended = columns.pop(ENDED, None)
    has_ends = ended is not None or TRUNCATED in columns
    truncated = columns.get(TRUNCATED, np.zeros(n, bool))
    if ended is not None:
        truncated = truncated | (ended & ~terminated)
    is_linked = None
    if following:
        is_linked = np.ones(n, bool)
        for name, values in following.items():
            is_linked[:-1] &= _equal(values[:-1], columns[name][1:])
            if after is not None:
                is_linked[-1:] &= _equal(values[-1:], after[name][:1])
        if not has_ends:
            truncated = ~is_linked & ~terminated
    columns[TRUNCATED] = truncated
    ends = terminated | truncated
    return _Rows(first, columns, ends, is_linked, following, after is None)


def _equal(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each row whether it is the same; NaN is equal to NaN."""
    same = one == other
    if one.dtype.kind in "fc" and not same.all():
        same |= (one != one) & (other != other)
    return np.asarray(same.all(tuple(range(1, same.ndim))), np.bool_)


class EpisodeSplitter:
    """Makes episodes of rows.

    Args:
        plan: What the arrays mean.
        store_next: Keep the observations after steps as fields.
        is_shifted: See `Findings`.
        tail: What to do with steps at the end whose episode has not ended.
        after: The observation after the last row, if it is not among the arrays.
        source: Name of the arrays, for messages.
    """

    def __init__(
        self, plan: ArrayPlan, tail: Tail, after: Mapping[str, Any] | None, source: str,
        *, store_next: bool, is_shifted: bool,
    ) -> None:  # fmt: skip
        self._plan, self._store_next, self._is_shifted = plan, store_next, is_shifted
        self._tail, self._after, self._source = tail, after, source
        row_bytes = sum(
            dtype.itemsize * int(np.prod(shape, dtype=int)) for dtype, shape in plan.specs.values()
        )
        self._most = max(1, PART_BYTES // max(row_bytes, 1))
        self._held: list[Arrays] = []
        self._n_held = self._first = 0
        self._has_begun = False

    def parts(self, all_rows: Iterator[_Rows]) -> Iterator[EpisodePart]:
        """Yield episodes, those that are too long in parts.

        Raises:
            FieldError: A next observation within an episode is not that of the next row, and next
                observations are not stored.
        """
        last: Arrays | None = None
        for rows in all_rows:
            self._check_links(rows)
            columns = rows.columns
            if self._store_next:
                after = {NEXT + name: values for name, values in rows.following.items()}
                columns = {**columns, **after}
            start = 0
            for stop in (np.flatnonzero(rows.ends) + 1).tolist():
                yield from self._add(columns, start, stop, rows.first)
                yield self._part(self._final(rows, stop - 1))
                start = stop
            yield from self._add(columns, start, len(rows.ends), rows.first)
            last = self._final(rows, len(rows.ends) - 1)
        yield from self._rest(last)

    def _check_links(self, rows: _Rows) -> None:
        if rows.is_linked is None or self._store_next:
            return
        gaps = np.flatnonzero(~rows.is_linked & ~rows.ends)
        if len(gaps):
            name = self._plan.names[NEXT + self._plan.observations[0]]
            raise FieldError(
                f"{self._source}, row {rows.first + int(gaps[0]):,}: {name!r} is not the "
                f"observation of the next row, and no episode ends there; store next observations "
                f"too with store_next=True (--store-next), in a buffer that has fields for them"
            )

    def _final(self, rows: _Rows, i: int) -> Arrays | None:
        if not rows.following or self._is_shifted or self._store_next:
            return None
        return {name: values[i] for name, values in rows.following.items()}

    def _add(self, columns: Arrays, start: int, stop: int, first: int) -> Iterator[EpisodePart]:
        """Hold rows of the current episode; yield parts of it that are long enough."""
        while start < stop:
            if self._n_held == self._most:
                yield self._part(None, is_end=False)
            if not self._n_held:
                self._first = first + start
            end = min(stop, start + self._most - self._n_held)
            self._held.append({name: values[start:end] for name, values in columns.items()})
            self._n_held += end - start
            start = end

    def _part(
        self, final: Arrays | None, *, is_end: bool = True, is_open: bool = False
    ) -> EpisodePart:
        held = self._held
        columns = held[0] if len(held) == 1 else {
            name: np.concatenate([rows[name] for rows in held]) for name in held[0]
        }  # fmt: skip
        part = EpisodePart(self._first, columns, final, not self._has_begun, is_end, is_open)
        self._has_begun, self._held, self._n_held = not is_end, [], 0
        return part

    def _rest(self, last: Arrays | None) -> Iterator[EpisodePart]:
        """Yield the steps at the end that have no end."""
        if not self._n_held:
            return
        after = last if self._after is None else dict(self._after)
        if self._tail == "cut":
            part = self._part(after)
            part.columns[TRUNCATED] = np.array(part.columns[TRUNCATED])
            part.columns[TRUNCATED][-1] = True
            yield part
        else:
            yield self._part(None, is_open=True)
