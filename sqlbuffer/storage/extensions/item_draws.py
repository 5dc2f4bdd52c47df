"""Arguments and results of calls on a ring of priorities."""

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
    """The result of a push.

    Attributes:
        numbers: The number of each item that stays, counted over all pushes from 0 on.
        places: Their places in the ring.
        default: Priority of the items pushed without one.
        left: The items that left.
        refused: Reason why nothing was pushed; None if the items were pushed.
    """

    numbers: range = range(0)
    places: Sequence[int] = ()
    default: float = 1.0
    left: Left = NONE_LEFT
    refused: str | None = None


@dataclass(frozen=True)
class WantedItems:
    """Arguments of a draw.

    Attributes:
        size: Number of items.
        beta: Exponent of the importance weights, if the ring stores none.
        beta_step: Increase of the exponent after the draw.
        least_held: Smallest number of items that the ring must hold.
        which: Range of the items by age; None for all.
        max_use: Number of uses after which items leave; None if none leave.
        oldest_version: Items of an older version leave first; None if none leave.
        keeps_used: Used-up items stay, and are never drawn again.
        tracks: Return the rows of the items that leave.
        seed: Seed of the draw.
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
        """Return why a ring of that many items is too small; None if it is not."""
        if n_held >= self.least_held:
            return None
        return f"it holds {n_held} items of {self.least_held:g} needed"


# Reason why no item is drawn.
ALL_USED_UP = "no item can be drawn: all are used up"


def no_items_of(n_held: int) -> str:
    """Return the reason why no item is drawn from a range without items."""
    return f"it has none of {n_held} items"


class NewPriority(NamedTuple):
    """An update of the priority of an item.

    Attributes:
        place: Its place in the ring.
        priority: Its new priority; the last one if several were given.
        largest: The largest of the given ones.
    """

    place: int | None
    priority: float
    largest: float


@dataclass(frozen=True)
class Sampled:
    """The result of a draw.

    Attributes:
        rows: The rows, in the order of the draw.
        counts: The ring's counters.
        priorities: Priority of each row.
        weights: Their importance weights, as numpy's float64.
        uses: Number of uses of each row, this one included.
        beta: The exponent after the draw.
        n_removed: Number of items that left.
        left: Their rows, if they are tracked.
        refused: Reason why no item was drawn; None if items were drawn.
        is_empty_range: It was refused because the given range has no items.
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
    """All items of a ring.

    Attributes:
        contents: Its rows and counters.
        priorities: Priority of each row.
        uses: Number of uses of each row.
    """

    contents: Contents
    priorities: Sequence[float]
    uses: Sequence[int]


def use_of_each(
    seqs: Sequence[int], counted: Mapping[int, int], total: Mapping[int, int]
) -> list[int]:
    """Return the uses of each row of a batch at its draw, this one included."""
    now = {seq: total[seq] - n for seq, n in counted.items()}
    found = []
    for seq in seqs:
        now[seq] += 1
        found.append(now[seq])
    return found
