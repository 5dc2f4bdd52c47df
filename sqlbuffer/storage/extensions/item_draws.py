"""What is asked of a ring of priorities, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlbuffer.storage.extensions.ring_buffer import (
    NONE_LEFT,
    Contents,
    Left,
    RingCounts,
)
from sqlbuffer.storage.rows.stored_rows import Row


@dataclass(frozen=True)
class Pushed:
    """What became of a push.

    Attributes:
        numbers: The number of each item that stays, counted over all pushes from 0 on.
        places: Their places in the ring.
        default: The priority of those that came without one.
        left: The items that left.
        refused: Why nothing was pushed; None: it was.
    """

    numbers: range = range(0)
    places: Sequence[int] = ()
    default: float = 1.0
    left: Left = NONE_LEFT
    refused: str | None = None


@dataclass(frozen=True)
class WantedItems:
    """What a draw asks for.

    Attributes:
        size: How many items.
        beta: Exponent of the importance weights where the ring keeps none.
        beta_step: What is added to it behind the draw.
        least_held: So many items there must be.
        which: Which of the items by age; None: all.
        max_use: Items leave after that many uses; None: none does.
        oldest_version: Items of an older version leave first; None: none does.
        keeps_used: Items that were used up stay, and are never drawn again.
        tracks: The rows of those that leave are wanted.
        seed: What decides the draw.
    """

    size: int
    beta: float
    beta_step: float = 0.0
    least_held: float = 0.0
    which: slice | None = None
    max_use: float | None = None
    oldest_version: int | None = None
    keeps_used: bool = False
    tracks: bool = False
    seed: int = 0

    def refused_at(self, n_held: int) -> str | None:
        """Return why a ring of that many items is too small for it; None: it is not."""
        if n_held >= self.least_held:
            return None
        return f"it holds {n_held} items of {self.least_held:g} needed"


# Why nothing is drawn.
ALL_USED_UP = "no item can be drawn: all are used up"


def no_items_of(n_held: int) -> str:
    """Return why nothing is drawn from a range without items."""
    return f"it has none of {n_held} items"


class NewPriority(NamedTuple):
    """What an update says of an item.

    Attributes:
        place: Its place in the ring.
        priority: Its new priority; the last one, where there are several.
        largest: The largest of them.
    """

    place: int | None
    priority: float
    largest: float


@dataclass(frozen=True)
class Sampled:
    """What a draw found.

    Attributes:
        rows: The rows, in the order of the draw.
        counts: The ring's counters.
        priorities: Of each row.
        weights: Their importance weights, as numpy's float64.
        uses: How often each was used, itself included.
        beta: The exponent behind the draw.
        n_removed: How many items left.
        left: Their rows, where they are tracked.
        refused: Why nothing was drawn; None: it was.
        is_empty_range: It was refused since the range that was asked for has no items.
    """

    rows: Sequence[Row] = ()
    counts: RingCounts = field(default_factory=RingCounts)
    priorities: Sequence[float] = ()
    weights: Sequence[Any] = ()
    uses: Sequence[int] = ()
    beta: float | None = None
    n_removed: int = 0
    left: Sequence[Row] = ()
    refused: str | None = None
    is_empty_range: bool = False


@dataclass(frozen=True)
class HeldItems:
    """All that a ring holds.

    Attributes:
        contents: Its rows and counters.
        priorities: Of each row.
        uses: How often each was used.
    """

    contents: Contents
    priorities: Sequence[float]
    uses: Sequence[int]


def use_of_each(
    seqs: Sequence[int], counted: Mapping[int, int], total: Mapping[int, int]
) -> list[int]:
    """Return how often each row of a batch had been used when it was drawn, itself included."""
    now = {seq: total[seq] - n for seq, n in counted.items()}
    found = []
    for seq in seqs:
        now[seq] += 1
        found.append(now[seq])
    return found
