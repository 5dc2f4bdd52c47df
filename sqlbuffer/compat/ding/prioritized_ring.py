"""A ring of items that are drawn by priority: its rules, and its items in memory.

The rules are the same for a private ring and for a shared one. What differs is where items,
priorities and uses are (`Cells`): in the memory of this process, or in a database.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.ding.items import CopiedItems, copied_items
from sqlbuffer.compat.ding.rings import Counters, Left, PrivateRing, values_of
from sqlbuffer.rate_limits import RatioWindow
from sqlbuffer.weighted_sampling import (
    Weights,
    draw_stratified,
    importance_weights,
    key_of,
    strata_of_all,
    streams,
    subkey,
    uniforms,
    weights_of,
)

T = TypeVar("T")
Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
# Added to the priorities that are set, so that none is 0.
EPS = 1e-5
# The version of an item whose iteration is unknown: it never gets too old.
NEVER_OLD = 2**62
# Cells in a block. Smaller than in a database, since all sums are at hand: two parts of a batch
# seldom share a block.
BLOCK = 64
# Reason why no item is drawn.
ALL_USED_UP = "no item can be drawn: all are used up"


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


class Pushed(NamedTuple):
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
    left: Left = Left()
    refused: str | None = None


class WantedItems(NamedTuple):
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
        tracks: Return the items that leave.
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

    @property
    def key(self) -> int:
        """The seed of the random numbers of the draw."""
        return key_of(np.random.default_rng(self.seed))


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


class Drawn(NamedTuple):
    """Items that were drawn, before their uses are counted.

    Attributes:
        keys: The keys of the items by which `Cells` knows them, in the order of the draw.
        items: The items.
        ids: Their ids.
        versions: The iteration at which each was collected; None: unknown.
        priorities: Their priorities.
        least: The least positive priority of the ring.
        n_stale: Number of items that left because they were too old.
        left: These items, if they are tracked.
        refused: Why nothing was drawn; None: it was.
        is_empty_range: It was refused because the wanted range has no items.
    """

    keys: Sequence[int] = ()
    items: Sequence[Any] = ()
    ids: Sequence[str] = ()
    versions: Sequence[int | None] = ()
    priorities: Reals = np.empty(0)
    least: float = np.inf
    n_stale: int = 0
    left: Sequence[Any] = ()
    refused: str | None = None
    is_empty_range: bool = False


class SampledItems(NamedTuple):
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


class HeldItems(NamedTuple):
    """All that a prioritized ring holds.

    Attributes:
        items: The items, the oldest first.
        ids: Their ids.
        priorities: Their priorities.
        uses: Number of uses of each item.
        counters: The counters.
    """

    items: Sequence[Any]
    ids: Sequence[str]
    priorities: Sequence[float]
    uses: Sequence[int]
    counters: Counters


class Cells(Protocol):
    """The items, priorities, uses and counters of a ring, while no other call changes them.

    Items have keys: integers in the order of the pushes. `state` is read and set.
    """

    state: Counters

    @property
    def n(self) -> int:
        """Number of items."""

    def add(
        self,
        prepared: Any,
        numbers: range,
        name: str,
        priorities: Sequence[float],
        *,
        track: bool,
    ) -> Left:
        """Put prepared items at the end; return the items that leave.

        Args:
            prepared: The result of `CellsPlace.prepared`.
            numbers: Their numbers over all pushes.
            name: Start of their ids.
            priorities: Their priorities.
            track: Return the items that leave.
        """

    def draw_by_weight(self, wanted: WantedItems, refused: Callable[[int], str | None]) -> Drawn:
        """Remove the items that are too old, and draw others by weight unless that is refused.

        Args:
            wanted: What to draw.
            refused: Returns why nothing may be drawn from a ring of n items, or None.
        """

    def remove(self, keys: Sequence[int], *, track: bool) -> list[Any]:
        """Remove items; return them where they are tracked."""

    def add_uses(self, keys: Sequence[int]) -> list[int]:
        """Count a use of each item; return how often each was used, with this use."""

    def uses_of(self, keys: Sequence[int]) -> list[int]:
        """Return how often items were used."""

    def set_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities of items."""

    def find(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the keys of the items that are held, by id.

        Args:
            numbers: The numbers in the ids.
        """

    def take_all(self, *, track: bool) -> Left:
        """Remove all items."""

    def hold(self, prepared: Any, held: HeldItems) -> None:
        """Put prepared items into an empty ring, with their ids, priorities and uses."""


class CellsPlace(Protocol):
    """Where cells are: in the memory of this process, or in a database."""

    size: int

    @property
    def shown_url(self) -> str | None:
        """The URL of its database, without a password; None: it has none."""

    def counters(self) -> Counters:
        """Return its counters."""

    def count(self) -> int:
        """Return the number of items."""

    def prepared(self, new: NewItems, envstep: Any) -> Any:
        """Return copies of items, in the form in which they are held.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """

    def change(self, work: Callable[[Any], T], *, is_relaxed: bool = False) -> T:
        """Return the result of `work`, which gets the cells and may be called again.

        Args:
            work: What to do, as a whole or not at all.
            is_relaxed: It may be lost when the server of a database dies.
        """

    def held(self, *, encoded: bool) -> HeldItems:
        """Return all items, of one moment."""

    def close(self) -> None:
        """Free its memory in this process."""


class PrioritizedRing:
    """The items of one buffer, with priorities and counts of uses.

    `clear` keeps `push_count`, so ids continue; new items then begin at the first place, with the
    priority 1.

    Args:
        place: Where the items are.
        alpha: Exponent of the priorities.
        limit: Limit that keeps pushes and draws in proportion; None: no limit.
    """

    def __init__(self, place: CellsPlace, alpha: float, limit: RatioWindow | None = None) -> None:
        self.place, self._alpha, self._limit = place, alpha, limit
        self.size = place.size

    @property
    def shown_url(self) -> str | None:
        """The URL of its database, without a password; None: it has none."""
        return self.place.shown_url

    def counters(self) -> Counters:
        """Return its counters."""
        return self.place.counters()

    def count(self) -> int:
        """Return the number of items."""
        return self.place.count()

    def close(self) -> None:
        """Free its memory in this process."""
        self.place.close()

    def beta(self) -> float | None:
        """Return the exponent of the importance weights; None: none was set, and nothing drawn."""
        return self.counters().beta

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights, for every process."""

        def work(cells: Cells) -> None:
            cells.state = cells.state._replace(beta=beta)

        self.place.change(work)

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
        prepared = self.place.prepared(new, envstep)

        def work(cells: Cells) -> Pushed:
            counters = cells.state
            if self._limit is not None:
                counters = counters.decayed(self._limit, time.time())
                refused = self._limit.refused_insert(counters.flow, n_pushed)
                if refused is not None:
                    return Pushed(refused=refused)
                counters = counters._replace(pushed=counters.pushed + n_pushed)
            counters = cells.state = counters.after_push(n_pushed, self.size)
            numbers = range(counters.push_count - len(new.items), counters.push_count)
            default = counters.max_priority
            priorities = [default if priority is None else priority for priority in new.priorities]
            left = cells.add(prepared, numbers, name, priorities, track=track)
            places = [counters.place_of(number, self.size) for number in numbers]
            return Pushed(numbers, places, default, left)

        return self.place.change(work)

    def sample(self, wanted: WantedItems) -> SampledItems:
        """Draw items by priority, one from each of equal parts of all weights. Count their uses,
        and remove those that are too old or used up.
        """

        def work(cells: Cells) -> SampledItems:
            drawn = cells.draw_by_weight(wanted, lambda n: self._refused(cells, wanted, n))
            if drawn.refused is None and len(drawn.keys) < wanted.size:
                drawn = drawn._replace(refused=ALL_USED_UP)
            if drawn.refused is not None:
                return SampledItems(
                    n_removed=drawn.n_stale,
                    left=drawn.left,
                    refused=drawn.refused,
                    is_empty_range=drawn.is_empty_range,
                )
            return self._sampled(cells, wanted, drawn)

        return self.place.change(work, is_relaxed=True)

    def _refused(self, cells: Cells, wanted: WantedItems, n: int) -> str | None:
        """Return why nothing may be drawn from a ring of n items; None if it may."""
        if n < wanted.least_held:
            return f"it holds {n} items of {wanted.least_held:g} needed"
        if self._limit is None:
            return None
        counters = cells.state.decayed(self._limit, time.time())
        return self._limit.refused_sample(counters.flow, wanted.size)

    def _sampled(self, cells: Cells, wanted: WantedItems, drawn: Drawn) -> SampledItems:
        """Count the uses of drawn items; remove used-up items, or do not draw them any more."""
        counters = cells.state
        beta = wanted.beta if counters.beta is None else counters.beta
        weights = importance_weights(drawn.priorities, self._alpha, beta, drawn.least)
        uses, max_use = cells.add_uses(drawn.keys), wanted.max_use
        used_up: list[int] = []
        if max_use is not None:
            used = zip(drawn.keys, uses, strict=True)
            used_up = sorted({key for key, n in used if n >= max_use})
        left: list[Any] = []
        if used_up and wanted.keeps_used:
            cells.set_priorities(used_up, [0.0] * len(used_up))
        elif used_up:
            left = cells.remove(used_up, track=wanted.tracks)
        new = counters._replace(beta=min(1.0, beta + wanted.beta_step))
        if self._limit is not None:
            new = new.decayed(self._limit, time.time())
            new = new._replace(sampled=new.sampled + wanted.size)
        cells.state = new
        return SampledItems(
            items=drawn.items,
            ids=drawn.ids,
            places=[counters.place_of(number_of(id_), self.size) for id_ in drawn.ids],
            versions=drawn.versions,
            priorities=drawn.priorities.tolist(),
            weights=list(weights),
            uses=uses,
            beta=new.beta,
            n_removed=drawn.n_stale + (0 if wanted.keeps_used else len(used_up)),
            left=[*drawn.left, *left],
        )

    def update(self, priorities: Mapping[str, NewPriority], max_use: float | None = None) -> int:
        """Set the priorities of items that are still where they were; return how many there were.

        Args:
            priorities: Their new priorities by their ids.
            max_use: Items with that many uses keep theirs; None: all may be set.
        """

        def work(cells: Cells) -> int:
            counters = cells.state
            place_of_0 = counters.place_of(0, self.size)
            numbers = {
                id_: number
                for (id_, new), number in zip(
                    priorities.items(), map(number_of, priorities), strict=True
                )
                if new.place == (place_of_0 + number) % self.size
            }
            by_key = {key: priorities[id_] for id_, key in cells.find(numbers).items()}
            if max_use is not None and by_key:
                used = dict(zip(by_key, cells.uses_of(list(by_key)), strict=True))
                by_key = {key: new for key, new in by_key.items() if used[key] < max_use}
            if not by_key:
                return 0
            keys = sorted(by_key)
            cells.set_priorities(keys, [by_key[key].priority + EPS for key in keys])
            largest = max(new.largest for new in by_key.values())
            if largest > counters.max_priority:
                cells.state = counters._replace(max_priority=largest)
            return len(keys)

        return self.place.change(work, is_relaxed=True)

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items; the numbering continues.

        Args:
            track: Return them.
        """

        def work(cells: Cells) -> Left:
            left = cells.take_all(track=track)
            cells.state = cells.state._replace(tail=0, max_priority=1.0)
            return left

        return self.place.change(work)

    def held(self, *, encoded: bool = False) -> HeldItems:
        """Return all that it holds, of one moment.

        Args:
            encoded: Return each item as JSON and the bytes of its arrays.
        """
        return self.place.held(encoded=encoded)

    def hold(self, held: HeldItems, versions: Sequence[int | None]) -> None:
        """Replace the contents.

        Args:
            held: The items, the oldest first, and the counters.
            versions: The iteration at which each item was collected; None: unknown.
        """
        prepared = self.place.prepared(NewItems(held.items, held.priorities, versions), 0)

        def work(cells: Cells) -> None:
            cells.take_all(track=False)
            cells.state = held.counters
            cells.hold(prepared, held)

        self.place.change(work)


def no_items_of(n_held: int) -> str:
    """Return the reason why no item is drawn from a range without items."""
    return f"it has none of {n_held} items"


def number_of(id_: str) -> int:
    """Return the number in an id."""
    number = id_.rpartition("_")[2]
    return int(number) if number.isdecimal() and number.isascii() else -1


class PrivateCells(PrivateRing):
    """The items of one buffer with their priorities and uses, in the memory of this process.

    An item's key is its number over all pushes.

    Args:
        size: Largest number of items.
        alpha: Exponent of the priorities.
    """

    def __init__(self, size: int, alpha: float) -> None:
        # One block more than the window: its two ends are never in the same one.
        n_blocks = -(-size // BLOCK) + 1
        super().__init__(size, n_blocks * BLOCK)
        self._end = 0  # the number after the last
        self._weights = CellWeights(n_blocks, alpha)
        self._ids = np.full(self.n_cells, None, object)
        self._is_held = np.zeros(self.n_cells, bool)
        self._uses = np.zeros(self.n_cells, np.int64)
        self._versions = np.full(self.n_cells, NEVER_OLD, np.int64)

    def prepared(self, new: NewItems, envstep: Any) -> tuple[CopiedItems, Sequence[int | None]]:
        """Return copies of items, and their versions."""
        return copied_items(new.items), new.versions

    def change(self, work: Callable[[Any], T], *, is_relaxed: bool = False) -> T:
        """Return the result of `work`, while no other thread changes the ring."""
        with self._mutex:
            return work(self)

    @property
    def n(self) -> int:
        """Number of items."""
        return self._n

    @property
    def state(self) -> Counters:
        """The counters."""
        return self._counters

    @state.setter
    def state(self, state: Counters) -> None:
        self._counters = state

    def add(
        self,
        prepared: tuple[CopiedItems, Sequence[int | None]],
        numbers: range,
        name: str,
        priorities: Sequence[float],
        *,
        track: bool,
    ) -> Left:
        """Put copies of items at the end; see `Cells.add`."""
        copies, versions = prepared
        end = max(self._low, min(self._counters.push_count - self.size, numbers.start, self._end))
        left = self._held(self._low, end)
        self._empty(self._low, end)
        self._n -= len(left)
        self._low = max(self._low, self._counters.push_count - self.size)
        self._write(numbers.start, copies, len(numbers))
        self._end = numbers.stop
        ids = [f"{name}_{number}" for number in numbers]
        self._describe(np.array(numbers, np.int64), ids, priorities, versions)
        return Left(len(left), values_of(left) if track else ())

    def _describe(
        self,
        numbers: Integers,
        ids: Sequence[str],
        priorities: Sequence[float],
        versions: Sequence[int | None],
    ) -> None:
        """Store the ids, priorities and versions of added items."""
        cells = numbers % self.n_cells
        self._weights.set(cells, np.array(priorities, np.float64))
        self._ids[cells], self._is_held[cells] = ids, True
        self._versions[cells] = [NEVER_OLD if version is None else version for version in versions]

    def _empty(self, first: int, last: int) -> None:
        super()._empty(first, last)
        for part in self._parts(first, last):
            self._forget(np.arange(part.start, part.stop))

    def _forget(self, cells: Integers) -> None:
        self._weights.set(cells, 0.0)
        self._ids[cells], self._is_held[cells] = None, False
        self._uses[cells], self._versions[cells] = 0, NEVER_OLD

    def draw_by_weight(self, wanted: WantedItems, refused: Callable[[int], str | None]) -> Drawn:
        """Remove the items that are too old, and draw others; see `Cells.draw_by_weight`."""
        stale = self._stale(wanted.oldest_version)
        gone = Drawn(n_stale=len(stale), left=self.remove(stale, track=wanted.tracks))
        if (reason := refused(self._n)) is not None:
            return gone._replace(refused=reason)
        among = None
        if wanted.which is not None:
            among = np.sort(self._numbers()[wanted.which])
            if not among.size:
                return gone._replace(refused=no_items_of(self._n), is_empty_range=True)
        numbers = self._weights.draw(
            wanted.key, self._low, self._counters.push_count, wanted.size, among
        )
        if len(numbers) < wanted.size:
            return gone
        cells = numbers % self.n_cells
        return gone._replace(
            keys=numbers.tolist(),
            items=values_of(map(self._cell, numbers.tolist())),
            ids=self._ids[cells].tolist(),
            versions=[None if v == NEVER_OLD else v for v in self._versions[cells].tolist()],
            priorities=self._weights.priorities[cells],
            least=self._weights.least(),
        )

    def _stale(self, oldest_version: int | None) -> list[int]:
        """Return the numbers of the items that are too old."""
        if oldest_version is None:
            return []
        cells, newest = np.flatnonzero(self._versions < oldest_version), self._end - 1
        stale: list[int] = np.sort(newest - (newest - cells) % self.n_cells).tolist()
        return stale

    def _numbers(self) -> Integers:
        """Return the numbers of all items, in order."""
        numbers = np.arange(self._low, self._end)
        held: Integers = numbers[self._is_held[numbers % self.n_cells]]
        return held

    def remove(self, keys: Sequence[int], *, track: bool) -> list[Any]:
        """Remove items; return them where they are tracked."""
        left = values_of(map(self._cell, keys)) if track else []
        cells = np.array(keys, np.int64) % self.n_cells
        for cell in cells.tolist():
            self._copies[cell] = None
        self._n -= cells.size
        self._forget(cells)
        return left

    def add_uses(self, keys: Sequence[int]) -> list[int]:
        """Count a use of each item; return how often each was used, with this use."""
        cells = np.array(keys, np.int64) % self.n_cells
        if len(set(keys)) == len(keys):
            self._uses[cells] += 1
            uses: list[int] = self._uses[cells].tolist()
            return uses
        uses = []
        for cell in cells.tolist():
            self._uses[cell] += 1
            uses.append(int(self._uses[cell]))
        return uses

    def uses_of(self, keys: Sequence[int]) -> list[int]:
        """Return how often items were used."""
        uses: list[int] = self._uses[np.array(keys, np.int64) % self.n_cells].tolist()
        return uses

    def set_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities of items."""
        self._weights.set(np.array(keys) % self.n_cells, np.array(priorities, np.float64))

    def find(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the items that are held, by id."""
        return {id_: n for id_, n in numbers.items() if self._ids[n % self.n_cells] == id_}

    def take_all(self, *, track: bool) -> Left:
        """Remove all items."""
        left = self._held(self._low, self._end)
        self._empty(self._low, self._end)
        self._low, self._n = self._end, 0
        return Left(len(left), values_of(left) if track else ())

    def hold(self, prepared: tuple[CopiedItems, Sequence[int | None]], held: HeldItems) -> None:
        """Put copies of items into the empty ring; see `Cells.hold`."""
        (copies, versions), end = prepared, self._counters.push_count
        self._low, self._end = max(end - self.size, 0), end
        numbers = np.array([number_of(id_) for id_ in held.ids], np.int64)
        for i, number in enumerate(numbers.tolist()):
            self._write(number, copies, 1, i)
        self._describe(numbers, held.ids, held.priorities, versions)
        self._uses[numbers % self.n_cells] = held.uses

    def held(self, *, encoded: bool) -> HeldItems:
        """Return copies of all items, of one moment."""
        with self._mutex:
            cells = self._held(self._low, self._end)
            places = self._numbers() % self.n_cells
            return HeldItems(
                values_of(cells, encoded=encoded),
                self._ids[places].tolist(),
                self._weights.priorities[places].tolist(),
                self._uses[places].tolist(),
                self._counters,
            )


class CellWeights:
    """The priority of each cell, 0 where it is empty; its weight is priority ^ alpha.

    Cells are added up by blocks, as the rows of a database are: a draw reads all sums, and the
    weights of few blocks. Sums are made when they are needed, of the blocks that have changed.

    Args:
        n_blocks: Number of blocks of cells.
        alpha: The exponent.
    """

    def __init__(self, n_blocks: int, alpha: float) -> None:
        self._alpha = alpha
        self.priorities = np.zeros(n_blocks * BLOCK)
        self._weights = np.zeros(n_blocks * BLOCK)
        self._sums, self._bounds = np.zeros(n_blocks), np.zeros(n_blocks)
        self._leasts = np.full(n_blocks, np.inf)
        self._has_changed = np.zeros(n_blocks, bool)

    def set(self, cells: Integers, priorities: Reals | float) -> None:
        """Set the priorities of cells."""
        self.priorities[cells] = priorities
        self._weights[cells] = weights_of(self.priorities[cells], self._alpha)
        self._has_changed[cells // BLOCK] = True

    def least(self) -> float:
        """Return the least positive priority; infinity if there is none."""
        self._add_up()
        return float(self._leasts.min())

    def draw(self, key: int, low: int, end: int, n: int, among: Integers | None = None) -> Integers:
        """Draw one number from each of n equal parts of the sum of all weights, in order; no number
        if all weights are 0.

        Args:
            key: Seed of the draw.
            low: The first number; the cell of number i is i modulo the number of cells.
            end: The number after the last.
            n: Number of draws.
            among: The numbers that may be drawn, in order; None: all.
        """
        blocks = np.arange(low // BLOCK, (end - 1) // BLOCK + 1 if end > low else 0)
        indices = blocks % self._sums.size
        if among is not None:
            return self._drawn_among(key, blocks, n, among)
        self._add_up()
        sums, bounds = self._sums[indices], self._bounds[indices]
        places = _places(key, sums, n)
        if places is not None:
            return blocks[places] * BLOCK + self._slots(key, indices[places], n)
        weights = Weights(BLOCK, blocks, sums, bounds, _Cells(self._weights))
        return _drawn(key, weights, np.arange(low, end), n)

    def _drawn_among(self, key: int, blocks: Integers, n: int, among: Integers) -> Integers:
        weights = np.zeros_like(self._weights)
        cells = among % weights.size
        weights[cells] = self._weights[cells]
        by_block = weights.reshape(-1, BLOCK)[blocks % self._sums.size]
        sums, bounds = by_block.sum(axis=1), by_block.max(axis=1, initial=0.0)
        return _drawn(key, Weights(BLOCK, blocks, sums, bounds, _Cells(weights)), among, n)

    def _slots(self, key: int, blocks: Integers, n: int) -> Integers:
        """Return a place in each of n blocks, drawn by weight."""
        rows = self._weights.reshape(-1, BLOCK)[blocks]
        ends = np.cumsum(rows, axis=1)
        points = uniforms(streams(subkey(key, 1), np.arange(n))) * ends[:, -1]
        last = BLOCK - 1 - np.argmax(rows[:, ::-1] > 0, axis=1)
        slots: Integers = np.minimum((ends <= points[:, None]).sum(axis=1), last)
        return slots

    def _add_up(self) -> None:
        changed = np.flatnonzero(self._has_changed)
        if not changed.size:
            return
        weights, priorities = (
            values.reshape(-1, BLOCK)[changed] for values in (self._weights, self.priorities)
        )
        self._sums[changed], self._bounds[changed] = weights.sum(axis=1), weights.max(axis=1)
        self._leasts[changed] = priorities.min(axis=1, initial=np.inf, where=priorities > 0)
        self._has_changed[changed] = False


class _Cells:
    """Reads the weights of numbers from cells.

    Args:
        weights: The weight of each cell.
    """

    def __init__(self, weights: Reals) -> None:
        self._weights = weights

    def rows_of(self, blocks: Integers) -> tuple[Integers, Reals]:
        """Return the numbers and weights of some blocks."""
        numbers = (blocks[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        return numbers, self.weights_of(numbers)

    def weights_of(self, seqs: Integers) -> Reals:
        """Return the weights of numbers."""
        weights: Reals = self._weights[seqs % self._weights.size]
        return weights


def _places(key: int, sums: Reals, n: int) -> Integers | None:
    """Return the place of the block of each of n equal parts; None if parts share a block."""
    ends = np.cumsum(sums)
    if n > ends.size or ends[-1] <= 0:
        return None
    strata = np.arange(n)
    points = (strata + uniforms(streams(key, strata))) / n * ends[-1]
    places = np.searchsorted(ends, points, side="right")
    is_alone = places[-1] < ends.size and bool((places[1:] > places[:-1]).all())
    return places if is_alone else None


def _drawn(key: int, weights: Weights, numbers: Integers, n: int) -> Integers:
    """Return one number from each of n equal parts, where parts share blocks."""
    drawn = draw_stratified(key, weights, n)
    if drawn.is_complete:
        return drawn.seqs
    return strata_of_all(key, numbers, weights.of(numbers), n)
