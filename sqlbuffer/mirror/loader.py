"""A loader of a mirror."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from warnings import warn

import numpy as np

from sqlbuffer.batches.forms import Form, TrajectoryForm, put_rewards
from sqlbuffer.batches.hindsight import Rng
from sqlbuffer.batches.step_table import NONE, Flags
from sqlbuffer.loading.loader import Loader, Output, passes_of
from sqlbuffer.loading.modes import LoaderOptions
from sqlbuffer.loading.plans import (
    BatchPlan,
    Draws,
    Intervals,
    LoaderRun,
    Numbers,
    PassOrder,
    Place,
    Progress,
    SourceWindow,
    is_count,
    next_keys,
)
from sqlbuffer.loading.shortage import Shortage
from sqlbuffer.mirror.conditions import check_in_memory
from sqlbuffer.mirror.draws import MemoryBatches, MemoryDraws
from sqlbuffer.mirror.memory.records import SEQ
from sqlbuffer.mirror.settings import MirrorSettings
from sqlbuffer.query.tree import EVERYTHING, Group, Node, check
from sqlbuffer.samplers import Sampler, restart
from sqlbuffer.steps import Batch
from sqlbuffer.storage.store import BufferStore


class MirrorSource:
    """A mirror, a condition on its steps, and the form in which they are read; see `BatchSource`.

    Args:
        store: The buffer.
        draws: Draws from it.
        form: Form of the batches.
        node: Condition that first steps must match.

    Attributes:
        head: The newest step of the buffer when the last batch was drawn.
    """

    def __init__(
        self,
        store: BufferStore,
        draws: MemoryDraws,
        form: Form,
        node: Node,
    ) -> None:
        self._store, self._draws, self.head = store, draws, 0
        self._form, self._node = form, node

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "a loader that reads from a mirror belongs to one process and cannot be pickled: "
            "iterate in this process (num_workers=0) with prefetch=..., or let each worker open "
            "buffer.mirror(shared=True)"
        )

    def draw(self, sampler: Sampler, n: int, path: Sequence[int] | None = None) -> Batch:
        """Return n things drawn by a sampler; see `BatchSource.draw`."""
        if path is not None:
            restart(sampler, path)
        batch, self.head = self._draws.sampled(self._form, n, sampler, self._node)
        return batch

    def shortage(self, sampler: Sampler | None = None) -> Shortage:
        """Return why too few rows are drawn."""
        return self._draws.shortage(self._node, sampler, self._form)

    def window(self) -> SourceWindow:
        """Return the window now, with its keys where they are known to be few."""
        self._store.own_writes.store()
        is_few = isinstance(self._form, TrajectoryForm) or self._node != EVERYTHING
        is_few = is_few or self._draws.selects

        def window_of(maker: MemoryBatches, matching: Flags | None) -> SourceWindow:
            low, high = maker.memory.low, maker.memory.high
            return SourceWindow(low, max(low, high), _keys(maker, matching) if is_few else None)

        return self._draws.read(self._form, self._node, window_of)

    def n_possible(self) -> int:
        """Return how many things can be made at this moment."""
        return len(self.possible_keys())

    def possible_keys(self) -> Intervals:
        """Return the keys of all things that can be made at this moment."""
        self._store.own_writes.store()

        def keys_of(maker: MemoryBatches, matching: Flags | None) -> Intervals:
            slots = np.flatnonzero(maker.keys(matching))
            slots = slots[maker.accepted(slots, matching)]
            return Intervals(np.sort(maker.memory.records[SEQ][slots]))

        return self._draws.read(self._form, self._node, keys_of)

    def numbers(self) -> Intervals:
        """Return the keys of all items that exist now, which are those that can be made."""
        return self.possible_keys()

    def catch_up(self, seq: int) -> None:
        """Read the buffer, unless the mirror knows a step."""
        self._draws.catch_up(seq)

    def next(self, order: PassOrder, place: Place, n: int, rng: Rng) -> tuple[Batch | None, Place]:
        """Return the next n things of a pass, fewer at its end and None after it; and the place
        behind them. `rng` returns the generator that chooses goals in hindsight.
        """

        def next_of(
            maker: MemoryBatches, matching: Flags | None
        ) -> tuple[Batch | None, Place, int | None]:
            return *_next(maker, matching, order, place, n, rng), maker.memory.clock

        batch, behind, clock = self._draws.read(self._form, self._node, next_of)
        if batch is not None:
            put_rewards(self._form, batch)
            self._draws.accounts.log_pass(batch, clock)
        return batch, behind


def _keys(maker: MemoryBatches, matching: Flags | None) -> Numbers:
    """Return the numbers of all keys, ascending."""
    seqs: Numbers = np.sort(maker.memory.records[SEQ][np.flatnonzero(maker.keys(matching))])
    return seqs


def _next(
    maker: MemoryBatches,
    matching: Flags | None,
    order: PassOrder,
    place: Place,
    n: int,
    rng: Rng,
) -> tuple[Batch | None, Place]:
    blocks = maker.memory.blocks

    def usable(numbers: Numbers) -> Numbers:
        slots = blocks.slots_of(numbers)
        hits = np.flatnonzero(slots != NONE)
        return hits[maker.accepted(slots[hits], matching)]

    keys, place = next_keys(
        order, place, n, maker.memory.low, lambda: _keys(maker, matching), usable
    )
    return (maker.read(blocks.slots_of(keys), rng) if keys.size else None), place


def open_mirror_loader(
    store: BufferStore,
    settings: MirrorSettings,
    draws: MemoryDraws,
    options: LoaderOptions,
    output: Output,
    prefetch: Any,
) -> Loader[Any]:
    """Return a loader of a mirror; see `ReplayBuffer.loader`.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        draws: Draws from it.
        options: The options of the loader.
        output: Form of its batches.
        prefetch: Number of batches that a thread makes ahead.
    """
    form, n = options.form(settings.fields), int(options.batch_size)
    node = check(options.condition, store.info.config.fields.comparable)
    check_in_memory(node, settings.fields.specs)
    source = MirrorSource(store, draws, form, node)
    whole = node if settings.node == EVERYTHING else Group("all", (settings.node, node))
    identity = {"buffer": store.info.name, **options.identity(whole)}
    plan: BatchPlan
    if options.is_drawn:
        drawn = Draws(source, n, options.sampler, bool(options.replace))
        plan = MirrorDrawsPlan(drawn, lambda: source.head, store.info.name)
        identity["mirror"] = True
    else:
        plan = passes_of(store, source, options, identity)
    return Loader(
        plan, identity, seed=options.seed, output=output, prefetch=prefetch, rank=options.rank
    )


@dataclass(frozen=True)
class MirrorDrawsPlan:
    """Batches drawn from a mirror without end; see `Draws`.

    Their progress says which state of the buffer they were drawn from.

    Attributes:
        draws: The draws.
        head: Returns the newest step of the buffer when the last batch was drawn.
        name: The buffer's name.
    """

    draws: Draws
    head: Callable[[], int]
    name: str

    def batches(self, run: LoaderRun, progress: Progress) -> Iterator[tuple[Batch, Progress]]:
        """Yield the batches.

        Warns:
            UserWarning: The newest step is not the one at which the state was taken.
        """
        before = progress.get("head")
        begun = {name: value for name, value in progress.items() if name != "head"}
        for batch, behind in self.draws.batches(run, begun):
            head = self.head()
            if before is not None and head != before:
                warn(
                    f"the loader stopped when the newest step of buffer {self.name!r} was "
                    f"{before}, and now it is {head}: these batches are drawn from what the buffer "
                    f"has now, and are not those that would have come then",
                    stacklevel=2,
                )
            before = None
            yield batch, {**behind, "head": head}

    def begin(self, run: LoaderRun) -> Progress:
        """Return the progress before the first batch."""
        return {}

    def knows(self, progress: Progress) -> bool:
        """Return True if a value is the progress of draws from a mirror."""
        others = {name: value for name, value in progress.items() if name != "head"}
        return not progress or (
            is_count(progress.get("head")) and bool(others) and self.draws.knows(others)
        )

    def n_batches(self) -> int | None:
        """Return None: draws have no end."""
        return None
