"""The batches of an iteration over a loader: random draws without end, or passes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.loading.iteration import LoaderRun
from sqlbuffer.loading.order import Order, PassOrder, Place
from sqlbuffer.loading.source import SourceWindow
from sqlbuffer.loading.sufficient_data import Shortage, check_sufficient
from sqlbuffer.samplers import RandomSampler, Sampler
from sqlbuffer.samplers.seeding import generator_of, own_copy
from sqlbuffer.steps.batches import Batch

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

    def next(self, order: PassOrder, at: Place, n: int) -> tuple[Batch | None, Place]:
        """Return the next n things of a pass, and the place behind them."""

    def n_made(self) -> int:
        """Return how many things can be made at this moment."""

    def shortage(self, sampler: Sampler | None = None) -> Shortage:
        """Return why too few rows are drawn."""


def is_count(value: object) -> bool:
    """Return True if a value is an integer from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def own_sampler(given: Sampler | None, replace: bool, seed: int) -> Sampler:
    """Return the sampler of an iteration."""
    return RandomSampler(replace=replace, seed=seed) if given is None else own_copy(given)


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
        sampler = own_sampler(self.sampler, self.replace, run.seed)
        for number in count(progress.get("batch", 0)):
            batch = self.source.draw(sampler, self.batch_size, (*run.path, number))
            check_sufficient(
                batch.n_rows, self.batch_size, True, lambda: self.source.shortage(sampler)
            )
            sampler.handed_out()
            yield batch, {"batch": number + 1}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        return {"batch": 0}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of draws."""
        return not progress or (set(progress) == {"batch"} and is_count(progress["batch"]))

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
        n = self.source.n_made()
        return self.epochs * (n // self.batch_size if self.drop_last else -(-n // self.batch_size))

    def _one(
        self, run: LoaderRun, number: int, progress: Progress
    ) -> Iterator[tuple[Batch, Progress]]:
        order = self._order(run, number, progress)
        at = Place(progress.get("place", 0))
        while True:
            batch, at = self.source.next(order, at, self.batch_size)
            if batch is None or (self.drop_last and batch.n_rows < self.batch_size):
                return
            yield batch, {"pass": number, "low": order.low, "high": order.high, "place": at.place}

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
