"""Count and log batches as they are drawn.

If rows have a limit of uses, a batch is drawn in two transactions: one chooses and reads, the other
counts. Rows that another learner took in between are dropped, and others are drawn. So no row is
used more often than its limit, and no process waits while a batch is chosen. If a learner dies
after the second transaction, its rows count as used.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.holds.hold import held_low
from sqlbuffer.storage.use_counts.sample_log import LogEntry, log_batch
from sqlbuffer.storage.use_counts.use_counting import UseCounting
from sqlbuffer.storage.use_counts.uses import claim_uses, clean_uses, is_cleaning_due, return_uses

MAX_ROUNDS = 20
SECONDS_BETWEEN_CLEANINGS = 60.0
# If too few rows are left, another learner may have given back rows that this process has passed.
# Not before this time: otherwise a process that waits for data would read all rows each time.
LOW_DOUBTED_AFTER_S = 1.0

T = TypeVar("T")
Unit = Sequence[int]


@dataclass(frozen=True)
class Found(Generic[T]):
    """The result of a draw.

    Attributes:
        content: The drawn items.
        units: The rows that each item uses.
        clock: The buffer's clock at the draw.
        window_low: Lower end of the window at the draw.
        probabilities: Probability of each row, if the sampler gives it.
    """

    content: T
    units: Sequence[Unit]
    clock: int | None
    window_low: int
    probabilities: Sequence[float] | None = None


@dataclass(frozen=True)
class ClaimKind(Generic[T]):
    """Functions that count, split and join items of a kind.

    Attributes:
        units: Returns the rows that each item uses.
        take: Returns the items at some places.
        join: Makes one result of several parts.
        probabilities: Returns the probability of each row, if the sampler gives it.
    """

    units: Callable[[T], Sequence[Unit]]
    take: Callable[[T, Sequence[int]], T]
    join: Callable[[Sequence[T]], T]
    probabilities: Callable[[T], Sequence[float] | None]


@dataclass
class _Kept(Generic[T]):
    parts: list[T]
    units: list[Unit]
    probabilities: list[float] | None

    def add(self, found: Found[T], index: Sequence[int], kind: ClaimKind[T]) -> None:
        self.parts.append(kind.take(found.content, index))
        self.units += [found.units[i] for i in index]
        if found.probabilities is None or self.probabilities is None:
            self.probabilities = None
        else:
            self.probabilities += [found.probabilities[i] for i in index]


def claimed(
    uses: UseCounting,
    draw: Callable[[int, bool], Found[T]],
    n: int,
    kind: ClaimKind[T],
    note: LogEntry,
    *,
    least: int = 0,
    adds_up: bool = False,
) -> tuple[T, int | None]:
    """Return up to n items whose rows are below their limit of uses, and their log number.

    Their uses are counted.

    Args:
        uses: Counts the uses.
        draw: Function called with the number of missing items, and True for the first draw.
        n: Number of items.
        kind: Kind of the items.
        note: Entry of the log.
        least: Smallest number of items that is counted and logged.
        adds_up: An item drawn twice is used twice, so each round may draw any item. Otherwise each
            round draws all items again, without those kept before.

    Raises:
        StorageReadOnlyError: The database or the role may not write.
    """
    kept: _Kept[T] = _Kept([], [], [])
    for n_round in range(MAX_ROUNDS):
        missing = n - len(kept.units)
        asked = missing if adds_up else n
        found = draw(asked, n_round == 0)
        if len(found.units) < asked and uses.restrictions.eligible_low.forget(LOW_DOUBTED_AFTER_S):
            found = draw(asked, n_round == 0)
        had = set() if adds_up else set(map(tuple, kept.units))
        index = [i for i, unit in enumerate(found.units) if tuple(unit) not in had][:missing]
        if not index or len(kept.units) + len(index) < least:
            break
        n_won, number = _claim(uses, found, index, kept, kind, note)
        if n_won == len(index):
            _clean(uses, found)
            return _joined(kept, kind), number
    else:
        index = []
    return _fewer(uses, found, index, kept, kind, note, least)


def _fewer(
    uses: UseCounting,
    found: Found[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    note: LogEntry,
    least: int,
) -> tuple[T, int | None]:
    """Return the items if too few are left; below `least` they are not counted."""
    if len(kept.units) < least:
        give_back(uses, kept.units)
        kept.add(found, index, kind)
        return _joined(kept, kind), None
    if not kept.parts:
        return kind.take(found.content, []), None
    number = None
    if uses.buffer.info.config.sampling.track_samples:
        number = uses.write(lambda connection: _log(connection, uses, found, kept, note))
    return _joined(kept, kind), number


def _claim(
    uses: UseCounting,
    found: Found[T],
    index: Sequence[int],
    kept: _Kept[T],
    kind: ClaimKind[T],
    note: LogEntry,
) -> tuple[int, int | None]:
    """Count the uses of items and keep those below the limit; log the batch if it is complete.

    Returns:
        The number of items that may be used, and the number of the batch.
    """
    wanted = [found.units[i] for i in index]

    def work(connection: Connection) -> tuple[_Kept[T], int, int | None]:
        won = _count(connection, uses, wanted)
        places = [i for i, is_won in zip(index, won, strict=True) if is_won]
        now: _Kept[T] = _Kept([], [], [])
        now.add(found, places, kind)
        number = None
        if len(places) == len(index) and uses.buffer.info.config.sampling.track_samples:
            number = _log(connection, uses, found, _both(kept, now), note)
        return now, len(places), number

    now, n_won, number = uses.write(work)
    clean_after_write(uses.buffer.engine, len(wanted))
    both = _both(kept, now)
    kept.parts, kept.units, kept.probabilities = both.parts, both.units, both.probabilities
    return n_won, number


def _both(one: _Kept[T], other: _Kept[T]) -> _Kept[T]:
    probabilities = None
    if one.probabilities is not None and other.probabilities is not None:
        probabilities = [*one.probabilities, *other.probabilities]
    return _Kept([*one.parts, *other.parts], [*one.units, *other.units], probabilities)


def _joined(kept: _Kept[T], kind: ClaimKind[T]) -> T:
    return kept.parts[0] if len(kept.parts) == 1 else kind.join(kept.parts)


def _count(connection: Connection, uses: UseCounting, units: Sequence[Unit]) -> list[bool]:
    """Count a use of each row of the units, and return which units could be used whole."""
    if uses.buffer.info.config.sampling.max_use is None:
        return [True] * len(units)
    taken = _take(
        connection,
        uses,
        [seq for unit in units for seq in unit],
        uses.buffer.info.config.sampling.max_use,
    )
    won: list[bool] = []
    back: list[int] = []
    for unit in units:
        own = [seq for seq in unit if taken.get(seq)]
        for seq in own:
            taken[seq] -= 1
        won.append(len(own) == len(unit))
        if not won[-1]:
            back += own
    if back:
        return_uses(connection, uses.buffer.info.id, back)
    return won


def _take(
    connection: Connection, uses: UseCounting, seqs: Sequence[int], max_use: int
) -> dict[int, int]:
    """Count a use for each occurrence of a row; return {row: number of allowed occurrences}."""
    # In ascending order: otherwise two learners could wait for each other. Rows that occur twice
    # are counted again when the first use is held.
    left = sorted(set(seqs))
    counts = Counter(seqs) if len(left) < len(seqs) else None
    taken: dict[int, int] = {}
    n = 0
    while left:
        n += 1
        got = claim_uses(connection, uses.buffer.info.id, left, max_use)
        taken.update(dict.fromkeys(got, n))
        left = [] if counts is None else [seq for seq in left if seq in got and counts[seq] > n]
    return taken


def give_back(uses: UseCounting, units: Sequence[Unit]) -> None:
    """Undo the uses of items that were not returned."""
    left = Counter(seq for unit in units for seq in unit)
    if not left or uses.buffer.info.config.sampling.max_use is None:
        return

    def work(connection: Connection) -> None:
        again = left
        while again:
            return_uses(connection, uses.buffer.info.id, sorted(again))
            again = Counter({seq: n - 1 for seq, n in again.items() if n > 1})

    uses.write(work)
    uses.restrictions.eligible_low.forget()


def _log(
    connection: Connection,
    uses: UseCounting,
    found: Found[Any],
    kept: _Kept[Any],
    note: LogEntry,
) -> int:
    """Log a batch, and return its number."""
    seqs = [seq for unit in kept.units for seq in unit]
    probabilities = kept.probabilities if len(kept.probabilities or ()) == len(seqs) else None
    return log_batch(connection, uses, seqs, found.clock, note, probabilities)


def _clean(uses: UseCounting, found: Found[Any]) -> None:
    """Delete the use counts of rows that have left the window, which eviction leaves behind."""
    keep, low = uses.housekeeping, found.window_low
    if uses.buffer.info.config.sampling.max_use is None or not is_cleaning_due(
        keep.cleaned_to, low
    ):
        return

    def work(connection: Connection) -> int:
        held = held_low(connection, uses.buffer.info.id)
        end = low if held is None else min(low, held)
        return clean_uses(connection, uses.buffer.info.id, min(keep.cleaned_to, end), end)

    keep.cleaned_to = uses.write(work)
