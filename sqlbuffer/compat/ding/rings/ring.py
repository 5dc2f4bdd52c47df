"""The interface of the rings that hold a buffer's items."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from sqlbuffer.compat.ding.contents.advanced_state import AdvancedState
from sqlbuffer.storage.extensions.item_draws import NewPriority, Pushed, WantedItems
from sqlbuffer.storage.extensions.ring_buffer import Left, RingCounts

# Returns the ages of the items to draw, 0 the oldest; from the number of items, and of those that
# were pushed.
Choice = Callable[[int, int], Sequence[int]]


class RingContents(NamedTuple):
    """The items of a ring, the oldest first, and its counters at that moment."""

    items: list[Any]
    counts: RingCounts


class Ring(Protocol):
    """The items of one buffer, the oldest first.

    Items that go in and come out are copies: a change of one does not change the ring. Calls
    come from any thread, and each is done as a whole.
    """

    @property
    def shown_url(self) -> str | None:
        """The URL of its database, without a password; None: it has none."""

    def counts(self) -> RingCounts:
        """Return its counters."""

    def count(self) -> int:
        """Return the number of items."""

    def push(
        self, items: Sequence[Any], n_pushed: int, envstep: Any, *, track: bool = False
    ) -> Left:
        """Put items at the end, all or none; the oldest leave.

        Args:
            items: The items that are kept: no more than it holds.
            n_pushed: Number of pushed items.
            envstep: The collector's step.
            track: Return the items that leave.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """

    def uniform(self, size: int, *, replace: bool, seed: int) -> list[Any]:
        """Return items drawn uniformly, in random order; fewer than `size` if it holds too few."""

    def draw(self, choose: Choice) -> list[Any]:
        """Return the items that are chosen, in that order."""

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters, of one moment.

        Args:
            encoded: Return each item as JSON and the bytes of its arrays.
        """

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items.

        Args:
            track: Return them.
        """

    def replace(self, items: Sequence[Any], counts: RingCounts) -> None:
        """Hold these items instead of those that there are."""

    def close(self) -> None:
        """Free its memory in this process."""


class NewItems(NamedTuple):
    """Items that are pushed to a prioritized ring.

    Attributes:
        items: The items, without the keys that a sample adds.
        priorities: The priority of each; None: the largest that was set.
        versions: The iteration at which each was collected; None: unknown.
    """

    items: Sequence[Any]
    priorities: Sequence[float | None]
    versions: Sequence[int | None]


@dataclass(frozen=True)
class SampledItems:
    """The result of a draw by priority.

    Attributes:
        items: The items, in the order of the draw.
        ids: Their ids.
        places: Their places in the ring.
        versions: The iteration at which each was collected; None: unknown.
        priorities: Their priorities.
        weights: Their importance weights, as numpy's float64.
        uses: Number of uses of each, with this draw.
        beta: The exponent after the draw.
        n_removed: Number of items that left.
        left: These items, if they are tracked.
        refused: Why nothing was drawn; None: it was.
        is_empty_range: It was refused because the wanted range has no items.
    """

    items: Sequence[Any] = ()
    ids: Sequence[str] = ()
    places: Sequence[int] = ()
    versions: Sequence[int | None] = ()
    priorities: Sequence[float] = ()
    weights: Sequence[Any] = ()
    uses: Sequence[int] = ()
    beta: float | None = None
    n_removed: int = 0
    left: Sequence[Any] = ()
    refused: str | None = None
    is_empty_range: bool = False


class PrioritizedRing(Ring, Protocol):
    """A ring of items with priorities and counts of uses.

    `clear` keeps `push_count`, so ids continue; new items then begin at the first place, with the
    priority 1.
    """

    def beta(self) -> float | None:
        """Return the exponent of the importance weights; None: none was set, and nothing drawn."""

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights."""

    def push_items(
        self, new: NewItems, n_pushed: int, envstep: Any, name: str, *, track: bool = False
    ) -> Pushed:
        """Put items at the end, all or none, unless the rate limit refuses them; the oldest leave.

        Args:
            new: Items to keep, not more than the ring holds.
            n_pushed: Number of pushed items.
            envstep: The collector's step.
            name: Start of their ids.
            track: Return the items that leave.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """

    def sample(self, wanted: WantedItems) -> SampledItems:
        """Draw items by priority, one from each of equal parts of all weights. Count their uses,
        and remove those that are too old or used up.
        """

    def update(self, given: Mapping[str, NewPriority], max_use: float | None = None) -> int:
        """Set the priorities of items that are still where they were; return how many there were.

        Args:
            given: Their new priorities by their ids.
            max_use: Items with that many uses keep theirs; None: all may be set.
        """

    def held(self, *, encoded: bool = False) -> AdvancedState:
        """Return all that it holds, of one moment.

        Args:
            encoded: Return each item as JSON and the bytes of its arrays.
        """

    def hold(self, state: AdvancedState, versions: Sequence[int | None]) -> None:
        """Replace the contents.

        Args:
            state: Its items, the oldest first, and counters.
            versions: The iteration at which each item was collected; None: unknown.
        """
