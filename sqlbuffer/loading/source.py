"""Reads the batches of a loader from one buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from sqlbuffer.batches.forms import Form
from sqlbuffer.loading.intervals import Intervals
from sqlbuffer.loading.order import Numbers, PassOrder, Place, next_keys
from sqlbuffer.loading.sufficient_data import Shortage, shortage
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.samplers import Sampler
from sqlbuffer.samplers.seeding import restart
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.form_reader import FormReader, Items
from sqlbuffer.storage.store import BufferStore


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
            found = self._window(candidates).keys
            if found is None and (candidates.span != n_rows or candidates.limits):
                found = candidates.keys()
            return Intervals((candidates.low + 1, candidates.high) if found is None else found)

        return self.store.draws.draw(self.node, numbers, self.reader.columns)

    def n_made(self) -> int:
        """Return how many things can be made at this moment of the keys; except for steps, this
        reads the steps.
        """
        return len(self.made())

    def made(self) -> Intervals:
        """Return the keys of all things that can be made at this moment; see `n_made`."""
        numbers, size = self.numbers(), self.reader.tested_at_once
        if self.reader.is_of_steps:
            return numbers
        found: list[Numbers] = []
        for first in range(0, len(numbers), size):
            places = np.arange(first, min(first + size, len(numbers)))

            def test(candidates: Candidates, keys: Numbers = numbers[places]) -> Numbers:
                return self.reader.made(candidates, keys)

            found.append(self.store.draws.draw(self.node, test, self.reader.columns))
        return Intervals(np.concatenate([np.empty(0, np.int64), *found]))

    def catch_up(self, seq: int) -> None:
        """Wait until rows up to a number are there, where a standby is read."""
        self.store.own_writes.wait_for(seq)

    def next(self, order: PassOrder, at: Place, n: int) -> tuple[Batch | None, Place]:
        """Return the next n things of a pass, fewer at its end and None after it; and the place
        behind them.
        """

        def read(candidates: Candidates) -> tuple[Batch | None, Place, int | None]:
            return *self._next(candidates, order, at, n), candidates.clock

        batch, behind, clock = self.store.draws.draw(self.node, read, self.reader.columns)
        if batch is not None:
            batch = self.store.draws.logged_batch(batch, clock, "pass")
        return batch, behind

    def _next(
        self, candidates: Candidates, order: PassOrder, at: Place, n: int
    ) -> tuple[Batch | None, Place]:
        tested: list[Items] = []

        def made(numbers: Numbers) -> Numbers:
            tested[:] = [self.reader.items(candidates, numbers)]
            return np.flatnonzero(np.isin(numbers, tested[0].numbers))

        keys, at = next_keys(order, at, n, candidates.low, candidates.keys, made)
        if not keys.size:
            return None, at
        if np.array_equal(tested[0].numbers[: keys.size], keys):
            return tested[0].batch(keys.size), at
        return self.reader.read(candidates, keys), at  # the candidates remember what they have read
