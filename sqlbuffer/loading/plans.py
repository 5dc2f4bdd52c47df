"""The batches of an iteration over a loader: random draws without end, or passes."""

import base64
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from typing import Any, Protocol, Self
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import Form, put_rewards
from sqlbuffer.batches.hindsight import Rng
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.loading.shortage import Shortage, check_sufficient, shortage
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.samplers import RandomSampler, Sampler, generator_of, own_copy, restart
from sqlbuffer.steps import Batch
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.form_reader import FormReader, Items
from sqlbuffer.storage.store import BufferStore

Agree = Callable[[str, Callable[[], Any]], Any]


_LOADED = uuid4().hex


def this_process() -> str:
    """Return a random id of this process; a forked child has another one."""
    return f"{_LOADED}-{os.getpid()}"


def alone(_name: str, make: Callable[[], Any]) -> Any:
    """Return the value; used where no other worker has to agree."""
    return make()


@dataclass(frozen=True)
class LoaderRun:
    """One iteration over a loader, in this process alone or in one of several workers.

    Attributes:
        seed: Seed of the loader.
        number: Number of the iteration, from 0.
        worker: Number of the worker.
        n_workers: Number of workers; 0: the process itself iterates.
        rank: Number of the rank, if several ranks divide the loader's batches.
        world: Number of ranks; 0: they do not.
        process: Random id of the process that made the loader.
        agree: `agree(name, make)` returns the JSON value that all workers share: the result of
            `make` in the worker that calls it first.
    """

    seed: int
    number: int = 0
    worker: int = 0
    n_workers: int = 0
    rank: int = 0
    world: int = 0
    process: str = ""
    agree: Agree = alone

    @property
    def path(self) -> tuple[int, ...]:
        """Key of this iteration's random numbers, different for each iteration, worker and rank."""
        of_rank = (self.rank, self.world) if self.world else ()
        return self.number, self.n_workers, self.worker, *of_rank


class Intervals:
    """Ascending numbers as the stretches without a hole that they are: as small as there are few
    holes, however many numbers.

    Args:
        numbers: They, ascending, each once; or `(first, last)` of one stretch.

    Example:
        >>> numbers = Intervals(np.array([3, 4, 5, 9]))
        >>> len(numbers), numbers[np.array([0, 3])].tolist()
        (4, [3, 9])
    """

    def __init__(self, numbers: NDArray[np.int64] | tuple[int, int]) -> None:
        if isinstance(numbers, tuple):
            first, last = numbers
            self._firsts = np.array([first], np.int64)
            self._ends = np.array([max(last - first + 1, 0)], np.int64)
            return
        begins = np.flatnonzero(np.diff(numbers, prepend=np.int64(-2)) != 1)
        self._firsts = numbers[begins]
        # How many numbers there are up to the end of each stretch.
        ends = [numbers.size] if numbers.size else []
        self._ends = np.append(begins[1:], ends).astype(np.int64)

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the numbers of a text that `to_text` made.

        Raises:
            ValueError: It is another text.
        """
        try:
            bounds = np.frombuffer(zlib.decompress(base64.b85decode(text)), "<i8").reshape(2, -1)
        except (ValueError, zlib.error):
            raise ValueError(f"these are no intervals: {text!r:.80}") from None
        intervals = cls((1, 0))
        intervals._firsts, intervals._ends = np.cumsum(bounds, axis=1)
        return intervals

    def to_text(self) -> str:
        """Return the numbers as a short text."""
        bounds = np.diff([self._firsts, self._ends], axis=1, prepend=0).astype("<i8")
        return base64.b85encode(zlib.compress(bounds.tobytes(), 1)).decode()

    @property
    def last(self) -> int:
        """The largest number; 0 if there is none."""
        if not len(self):
            return 0
        return int(self[np.array([len(self) - 1])][0])

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._ends.size else 0

    def __getitem__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        stretch = np.searchsorted(self._ends, places, side="right")
        before = np.concatenate([[0], self._ends[:-1]])[stretch]
        numbers: NDArray[np.int64] = self._firsts[stretch] + places - before
        return numbers


Numbers = NDArray[np.int64]

SLICE = 4096
MOST_AT_ONCE = 65_536
# One scan over the keys is cheaper than asking for numbers of which fewer are there.
LOWEST_SHARE = 1 / 16
FIRST_LOOKED_AT = 4_096


class Order:
    """The numbers low < seq <= high, each once, in ascending or shuffled order. With n workers,
    each has every n-th number.

    Numbers that are known to be unused are skipped; the order of the others does not change.

    Args:
        low: Lower end of the range, excluded.
        high: Upper end of the range, included.
        rng: Generator that shuffles, the same one in each worker. None: ascending order.
        worker: Number of the worker, from 0.
        n_workers: Number of workers.

    Example:
        >>> Order(10, 16, None, worker=1, n_workers=2).after(0, 10, 0)[0].tolist()
        [12, 14, 16]
    """

    def __init__(
        self,
        low: int,
        high: int,
        rng: np.random.Generator | None,
        worker: int = 0,
        n_workers: int = 1,
    ) -> None:
        self.low, self.high, self._worker, self._step = low, high, worker, n_workers
        self._span = max(high - low, 0)
        self._n_places = len(range(worker, self._span, n_workers))
        self._shuffled: NDArray[np.unsignedinteger] | None = None
        if rng is not None:
            offsets = np.arange(self._span, dtype=np.min_scalar_type(max(self._span - 1, 0)))
            rng.shuffle(offsets)
            # A slice alone would keep all of them in memory.
            self._shuffled = offsets if n_workers == 1 else offsets[worker::n_workers].copy()
        self._kept: Numbers | None = None

    @property
    def is_restricted(self) -> bool:
        """Whether the existing numbers are known."""
        return self._kept is not None

    def restrict(self, keys: Numbers) -> None:
        """Pass over all numbers but these."""
        offsets = keys[(keys > self.low) & (keys <= self.high)] - self.low - 1
        if self._shuffled is None:
            worker_offsets = np.sort(offsets[offsets % self._step == self._worker])
            self._kept = (worker_offsets - self._worker) // self._step
            return
        is_kept = np.zeros(self._span, bool)
        is_kept[offsets] = True
        self._kept = np.flatnonzero(is_kept[self._shuffled]).astype(np.int64)

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places.

        Args:
            place: Where to begin; 0 is the start.
            n: Largest number; fewer only at the end.
            above: Pass over numbers up to this one, which have left the window.
        """
        parts: list[tuple[Numbers, Numbers]] = []
        missing, size = n, max(n, SLICE)
        while missing > 0:
            places = self._places(place, size)
            if not places.size:
                break
            place, size = int(places[-1]) + 1, 2 * size
            numbers = self._numbers(places)
            if above > self.low:
                live = numbers > above
                numbers, places = numbers[live], places[live]
            parts.append((numbers[:missing], places[:missing]))
            missing -= min(missing, numbers.size)
        if not parts:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return np.concatenate([f[0] for f in parts]), np.concatenate([f[1] for f in parts])

    def _places(self, place: int, n: int) -> Numbers:
        if self._kept is not None:
            first = int(np.searchsorted(self._kept, place))
            return self._kept[first : first + n]
        return np.arange(place, min(place + n, self._n_places), dtype=np.int64)

    def _numbers(self, places: Numbers) -> Numbers:
        if self._shuffled is None:
            return self.low + 1 + self._worker + places * self._step
        return self.low + 1 + self._shuffled[places].astype(np.int64)


class PassOrder(Protocol):
    """In which order a pass visits rows; see `Order`."""

    @property
    def is_restricted(self) -> bool:
        """Whether the existing numbers are known."""

    def restrict(self, keys: Numbers) -> None:
        """Pass over all numbers but these."""

    def after(self, place: int, n: int, above: int) -> tuple[Numbers, Numbers]:
        """Return the next numbers from a place on, and their places."""


@dataclass(frozen=True)
class Place:
    """Position of a pass.

    Attributes:
        place: Place in its order after the last row that was handed out.
        asked: Number of `seq` values that were looked up so far.
        found: Number of rows that were found.
    """

    place: int = 0
    asked: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """The share of numbers that are there, as far as is known."""
        return max(self.found, 1) / self.asked if self.asked else 1.0


def next_keys(
    order: PassOrder,
    place: Place,
    n: int,
    low: int,
    keys: Callable[[], Numbers],
    usable: Callable[[Numbers], Numbers],
) -> tuple[Numbers, Place]:
    """Return the keys of the next n items of a pass, fewer at its end; and the place behind them.

    Args:
        order: The order of the pass.
        place: Where it is.
        n: Number of items.
        low: Numbers up to this one have left the window.
        keys: Returns the number of each row that may be a key. It is called if most numbers are
            unused.
        usable: Returns the indexes of those numbers of which an item can be made, in ascending
            order.
    """
    parts: list[Numbers] = [np.empty(0, np.int64)]
    missing = n
    while missing > 0:
        if (
            not order.is_restricted
            and place.asked >= FIRST_LOOKED_AT
            and place.share < LOWEST_SHARE
        ):
            order.restrict(keys())
            place = Place(place.place)
        n_numbers = min(math.ceil(missing / place.share), MOST_AT_ONCE)
        numbers, places = order.after(place.place, n_numbers, low)
        if not numbers.size:
            break
        hits = usable(numbers)
        parts.append(numbers[hits[:missing]])
        # What lies beyond the end of this batch is tested again for the next one.
        last = hits[missing - 1] if hits.size >= missing else -1
        place = Place(int(places[last]) + 1, place.asked + numbers.size, place.found + hits.size)
        missing -= min(missing, hits.size)
    return np.concatenate(parts), place


@dataclass(frozen=True)
class SourceWindow:
    """The range of seq that a buffer has, and which of its numbers are keys; None: any may be."""

    low: int
    high: int
    keys: Numbers | None


@dataclass(frozen=True)
class BatchSource:
    """A buffer, a condition on its rows, and the form in which they are read.

    Attributes:
        store: The buffer.
        node: Condition that rows must match.
        form: Form of the batches.
    """

    store: BufferStore
    node: Node
    form: Form

    @cached_property
    def reader(self) -> FormReader:
        """Makes the batches."""
        return self.store.draws.reader_of(self.form)

    def draw(self, sampler: Sampler, n: int, path: Sequence[int] | None = None) -> Batch:
        """Return up to n items that a sampler draws.

        Args:
            sampler: The sampler.
            n: Number of items.
            path: Key of its random numbers in addition to its seed; None: it continues where it is.
        """
        begin = None if path is None else partial(restart, sampler, path)
        return self.store.draws.sample_batch(self.node, self.form, sampler, n, begin)

    def read(self, keys: Sequence[int] | Numbers) -> Batch:
        """Return the things of the given keys that are there and can be made, in their order."""

        def read(candidates: Candidates) -> tuple[Batch, int | None]:
            return self.reader.read(candidates, keys), candidates.clock

        batch, clock = self.store.draws.draw(self.node, read, self.reader.columns)
        put_rewards(self.form, batch)
        return self.store.draws.logged_batch(batch, clock, "Dataset")

    def shortage(self, sampler: Sampler | None = None) -> Shortage:
        """Return why too few rows are drawn."""
        return shortage(self.store, self.node, sampler, self.form)

    def give_back(self, batch: Batch) -> None:
        """Undo the uses of a batch that was drawn and is not handed out."""
        self.store.draws.return_batch(batch)

    def window(self) -> SourceWindow:
        """Return the window now, with its keys where they are known to be few."""
        return self.store.draws.draw(self.node, self._window, self.reader.columns)

    def _window(self, candidates: Candidates) -> SourceWindow:
        keys = self.reader.keys(candidates)
        if keys is None and self.node != EVERYTHING:
            keys = candidates.keys()
        return SourceWindow(candidates.low, candidates.high, keys)

    def numbers(self) -> Intervals:
        """Return the keys of all items that exist now; it reads none if there is no hole."""
        n_rows = self.store.rows.count(self.node)

        def numbers(candidates: Candidates) -> Intervals:
            keys = self._window(candidates).keys
            if keys is None and (candidates.span != n_rows or candidates.limits):
                keys = candidates.keys()
            return Intervals((candidates.low + 1, candidates.high) if keys is None else keys)

        return self.store.draws.draw(self.node, numbers, self.reader.columns)

    def n_possible(self) -> int:
        """Return how many things can be made at this moment of the keys; except for steps, this
        reads the steps.
        """
        return len(self.possible_keys())

    def possible_keys(self) -> Intervals:
        """Return the keys of all things that can be made at this moment; see `n_possible`."""
        numbers, size = self.numbers(), self.reader.tested_at_once
        if self.reader.is_of_steps:
            return numbers
        drawn: list[Numbers] = []
        for first in range(0, len(numbers), size):
            places = np.arange(first, min(first + size, len(numbers)))

            def test(candidates: Candidates, keys: Numbers = numbers[places]) -> Numbers:
                return self.reader.made(candidates, keys)

            drawn.append(self.store.draws.draw(self.node, test, self.reader.columns))
        return Intervals(np.concatenate([np.empty(0, np.int64), *drawn]))

    def catch_up(self, seq: int) -> None:
        """Wait until rows up to a number are there, where a standby is read."""
        self.store.own_writes.wait_for(seq)

    def next(self, order: PassOrder, place: Place, n: int, rng: Rng) -> tuple[Batch | None, Place]:
        """Return the next n things of a pass, fewer at its end and None after it; and the place
        behind them. `rng` returns the generator that chooses goals in hindsight.
        """

        def read(candidates: Candidates) -> tuple[Batch | None, Place, int | None]:
            return *self._next(candidates, order, place, n, rng), candidates.clock

        batch, behind, clock = self.store.draws.draw(self.node, read, self.reader.columns)
        if batch is not None:
            put_rewards(self.form, batch)
            batch = self.store.draws.logged_batch(batch, clock, "pass")
        return batch, behind

    def _next(
        self, candidates: Candidates, order: PassOrder, place: Place, n: int, rng: Rng
    ) -> tuple[Batch | None, Place]:
        tested: list[Items] = []

        def usable(numbers: Numbers) -> Numbers:
            tested[:] = [self.reader.items(candidates, numbers)]
            return np.flatnonzero(np.isin(numbers, tested[0].numbers))

        keys, place = next_keys(order, place, n, candidates.low, candidates.keys, usable)
        if not keys.size:
            return None, place
        if np.array_equal(tested[0].numbers[: keys.size], keys):
            return tested[0].batch(keys.size, rng), place
        # The candidates remember what they have read.
        return self.reader.read(candidates, keys, rng), place


Progress = dict[str, Any]


class BatchPlan(Protocol):
    """Makes the batches of an iteration."""

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield each batch, and the progress of the iteration after it.

        Args:
            run: The iteration.
            progress: Progress that was yielded with the last batch that counts; `{}` from the
                start.
        """

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch, so that an iteration can begin again there.

        It names the rows of the first pass, if there are passes.
        """

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is a progress that `batches` yields."""

    def n_batches(self) -> int | None:
        """Return the number of batches for the rows stored now; None: no end."""


class DrawnSource(Protocol):
    """Draws batches."""

    def draw(self, sampler: Sampler, n: int, path: Sequence[int] | None = None) -> Batch:
        """Return up to n things drawn by a sampler; see `BatchSource.draw`."""

    def shortage(self, sampler: Sampler | None = None) -> Shortage:
        """Return why too few rows are drawn."""


class PassSource(Protocol):
    """Reads things in the order of a pass; see `BatchSource`."""

    def window(self) -> SourceWindow:
        """Return the window now, with its keys where they are known to be few."""

    def next(self, order: PassOrder, place: Place, n: int, rng: Rng) -> tuple[Batch | None, Place]:
        """Return the next n things of a pass, and the place behind them."""

    def n_possible(self) -> int:
        """Return how many things can be made at this moment."""

    def shortage(self, sampler: Sampler | None = None) -> Shortage:
        """Return why too few rows are drawn."""


def is_count(value: object) -> bool:
    """Return True if a value is an integer from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def own_sampler(
    sampler: Sampler | None, replace: bool, seed: int, progress: Progress | None = None
) -> Sampler:
    """Return the sampler of an iteration.

    Raises:
        ArgumentError: The progress is of another sampler or seed.
    """
    if sampler is None:
        return RandomSampler(replace=replace, seed=seed)
    sampler = own_copy(sampler)
    if progress:
        sampler.load_state_dict(progress["sampler"])
    return sampler


def sampler_progress(given: Sampler | None, sampler: Sampler) -> Progress:
    """Return the part of a progress that tells where the sampler of an iteration is; nothing where
    the loader has no sampler: the seed of the loader is enough.
    """
    return {} if given is None else {"sampler": sampler.state_dict()}


def knows_sampler(sampler: Sampler | None, progress: Progress) -> bool:
    """Return True if a progress has the state of a sampler if there is one, which takes it over.

    Raises:
        ArgumentError: The state is of another sampler or seed.
    """
    if (sampler is None) != ("sampler" not in progress):
        return False
    own_sampler(sampler, False, 0, progress)
    return True


@dataclass(frozen=True)
class Draws:
    """Batches drawn by a sampler, without end; each depends on its number and the seed alone.

    Attributes:
        source: Where from.
        batch_size: Number of rows in a batch.
        sampler: It; None: uniform.
        replace: With replacement, without a sampler.
    """

    source: DrawnSource
    batch_size: int
    sampler: Sampler | None = None
    replace: bool = False

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches."""
        sampler = own_sampler(self.sampler, self.replace, run.seed, progress)
        for number in count(progress.get("batch", 0)):
            batch = self.source.draw(sampler, self.batch_size, (*run.path, number))
            check_sufficient(
                batch.n_rows, self.batch_size, True, lambda: self.source.shortage(sampler)
            )
            sampler.handed_out()
            yield batch, {"batch": number + 1, **sampler_progress(self.sampler, sampler)}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        sampler = own_sampler(self.sampler, self.replace, run.seed)
        return {"batch": 0, **sampler_progress(self.sampler, sampler)}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of draws."""
        return not progress or (
            set(progress) - {"sampler"} == {"batch"}
            and is_count(progress["batch"])
            and knows_sampler(self.sampler, progress)
        )

    def n_batches(self) -> int | None:
        """Return None: draws have no end."""
        return None


@dataclass(frozen=True)
class Passes:
    """Each thing that a buffer holds at the start of a pass, once.

    Attributes:
        source: Where they are.
        batch_size: Number of rows in a batch.
        epochs: Number of passes; None: without end.
        shuffle: In random order, another one in each pass.
        drop_last: Leave out a last batch that is smaller.
    """

    source: PassSource
    batch_size: int
    epochs: int | None
    shuffle: bool
    drop_last: bool

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches."""
        numbers = count() if self.epochs is None else range(self.epochs)
        for number in numbers:
            if number < progress.get("pass", 0):
                continue
            is_empty = "place" not in progress
            for batch, behind in self._one(run, number, progress):
                is_empty = False
                yield batch, behind
            if is_empty and self.epochs is None:  # or it would look forever
                of = self.source.shortage()
                raise InsufficientDataError(
                    f"a pass has no batch of {self.batch_size}{of.reason}; wait for more data or "
                    f"lower the batch size{of.causes}"
                )
            progress = {}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        order = self._order(run, 0, {})
        return {"pass": 0, "low": order.low, "high": order.high, "place": 0}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of passes."""
        names = {"pass", "low", "high", "place"}
        return not progress or (set(progress) == names and all(map(is_count, progress.values())))

    def n_batches(self) -> int | None:
        """Return the number of batches for the rows stored now; None: no end."""
        if self.epochs is None:
            return None
        n = self.source.n_possible()
        return self.epochs * (n // self.batch_size if self.drop_last else -(-n // self.batch_size))

    def _one(
        self, run: LoaderRun, number: int, progress: Progress
    ) -> Iterator[tuple[Batch, Progress]]:
        order = self._order(run, number, progress)
        place = Place(progress.get("place", 0))
        while True:
            path = (run.number, number, run.worker, max(run.n_workers, 1), place.place)
            rng = partial(generator_of, run.seed, *path)
            batch, place = self.source.next(order, place, self.batch_size, rng)
            if batch is None or (self.drop_last and batch.n_rows < self.batch_size):
                return
            progress = {"pass": number, "low": order.low, "high": order.high, "place": place.place}
            yield batch, progress

    def _order(self, run: LoaderRun, number: int, progress: Progress) -> Order:
        window = self.source.window()

        def bounds() -> list[int]:
            return [progress.get("low", window.low), progress.get("high", window.high)]

        low, high = run.agree(f"range-{run.number}-{number}", bounds)
        rng = generator_of(run.seed, run.number, number) if self.shuffle else None
        order = Order(low, high, rng, run.worker, max(run.n_workers, 1))
        if window.keys is not None:
            order.restrict(window.keys)
        return order
