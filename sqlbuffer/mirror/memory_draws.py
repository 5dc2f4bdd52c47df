"""Draw batches of any kind from the memory of a mirror."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import check_batch_size
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.fields.declarations import BUILT_IN
from sqlbuffer.loading.sufficient_data import check_sufficient, undrawn
from sqlbuffer.mirror.choosing.choosers import chooser_of
from sqlbuffer.mirror.choosing.chosen import Chooser
from sqlbuffer.mirror.draw_accounts import DrawAccounts
from sqlbuffer.mirror.making.step_batches import StepBatches, StepForm
from sqlbuffer.mirror.making.trajectory_batches import TrajectoryBatches
from sqlbuffer.mirror.making.transition_batches import TransitionBatches
from sqlbuffer.mirror.making.window_batches import WindowBatches
from sqlbuffer.mirror.matching_steps import MatchingSteps
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.refreshing import Refreshing
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.query.condition_tree import EVERYTHING, Group, Node
from sqlbuffer.samplers import PrioritizedSampler, Sampler
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.readers.base import BatchReader
from sqlbuffer.storage.sampling.readers.checks import checked_step_names
from sqlbuffer.storage.sampling.readers.trajectory_form import TrajectoryForm
from sqlbuffer.storage.sampling.readers.transition_form import TransitionForm
from sqlbuffer.storage.sampling.readers.window_form import WindowForm
from sqlbuffer.storage.store import BufferStore

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Form = StepForm | TransitionForm | WindowForm | TrajectoryForm
T = TypeVar("T")

# What was found out for other forms is forgotten.
MOST_FORMS = 8


class BatchMaker(Protocol):
    """Makes batches of one kind of thing of the steps in memory; see `PlannedBatches`."""

    @property
    def memory(self) -> StepMemory:
        """The steps."""

    def draw(self, chooser: Chooser, n: int, wanted: Flags | None = None) -> Batch:
        """Return n things; fewer if there are too few."""

    def keys(self, wanted: Flags | None = None) -> Flags:
        """Return which slots have a key that may be drawn."""

    def accepted(self, slots: Integers, wanted: Flags | None = None) -> Flags:
        """Return of which slots something can be made that may be drawn."""

    def read(self, slots: Integers) -> Batch:
        """Return what is made of accepted slots."""


class MemoryDraws:
    """Draws from a mirror.

    Args:
        store: The buffer.
        settings: What the mirror was opened with.
        refreshing: Keeps its steps in memory.

    Attributes:
        accounts: Counts and logs what is drawn.
    """

    def __init__(
        self,
        store: BufferStore,
        settings: MirrorSettings,
        refreshing: Refreshing | SharedFollowing,
    ) -> None:
        self._store, self._settings, self._refreshing = store, settings, refreshing
        self._rng, self._matching = np.random.default_rng(), MatchingSteps()
        self.accounts = DrawAccounts(store, settings.refresh_s)
        self._makers: dict[Form, BatchMaker] = {}
        self._forms: dict[tuple[Any, ...], TransitionForm] = {}
        self._every_name = [*settings.fields.specs, *BUILT_IN]

    @property
    def selects(self) -> bool:
        """Whether the mirror has only the steps that match a condition."""
        return self._settings.selects

    def n_steps(self) -> int:
        """Return how many steps the mirror has; those that match, where it selects some."""
        if self._settings.selects:
            return self._refreshing.read(lambda memory: memory.n_wanted)
        return self._refreshing.n_live

    def sample(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
        reader: Callable[[], BatchReader],
    ) -> Batch:
        """Return n things that a sampler draws; see `sampled`."""
        batch, _ = self.sampled(form, n, sampler, node, reader)
        if sampler is not None and batch.n_rows:
            sampler.handed_out()  # loaders tell it themselves
        return batch

    def sampled(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
        reader: Callable[[], BatchReader],
    ) -> tuple[Batch, int]:
        """Return n things that a sampler draws, and the newest step of the buffer then.

        Args:
            form: What they are made of.
            n: How many.
            sampler: Draws them; None: uniform with replacement.
            node: Which first steps.
            reader: Returns what would read them from the buffer, for a message.

        Raises:
            InsufficientDataError: There are fewer.
            FlowControlError: The rate limiter did not let them out in time.
        """
        has_condition = node != EVERYTHING or self.selects
        chooser = chooser_of(sampler, self._rng, has_condition=has_condition)
        check_batch_size(n)
        if isinstance(sampler, PrioritizedSampler) and self._store.info.config.priorities.enabled:
            self._refreshing.check_prioritized(sampler.normalize)
        self._store.own_writes.store_before_draw(int(n), self.n_steps)

        # In quotes: Python evaluates annotations of a nested function in each call.
        def drawn(maker: BatchMaker, wanted: "Flags | None") -> "tuple[Batch, int, int | None]":
            memory = maker.memory
            return maker.draw(chooser, int(n), wanted), memory.high, memory.clock

        with self.accounts.drawing(int(n), sampler) as note:
            batch, head, clock = self.read(form, node, drawn)
            check_sufficient(batch.n_rows, n, True, lambda: self.undrawn(node, sampler, reader()))
            note(batch, clock)
        return batch, head

    def undrawn(self, node: Node, sampler: Sampler | None, reader: BatchReader) -> str:
        """Return which rows are not drawn though they match, as the end of a message."""
        return undrawn(self._store, Group("all", (self._settings.node, node)), sampler, reader)

    def step_names(self, fields: Sequence[str] | None) -> list[str]:
        """Return which fields batches of steps have; all where nothing is said.

        Raises:
            FieldError: An unknown one.
        """
        if fields is None:
            return self._every_name
        own, built_in = checked_step_names(self._settings.fields, fields, "steps")
        return [*own, *built_in]

    def transition_form(
        self,
        n_step: int,
        gamma: float,
        fields: Sequence[str] | None,
        stack: Mapping[str, int] | None,
        terminal_field: str | None,
        sequence_fields: Sequence[str] = (),
    ) -> TransitionForm:
        """Return the form of transitions: the same one for the same arguments.

        Raises:
            FieldError: See `TransitionForm.of`.
        """
        key = None
        with suppress(TypeError, AttributeError):  # what is wrong with them is found out below
            frames = None if stack is None else frozenset(stack.items())
            names = fields if fields is None or isinstance(fields, str) else tuple(fields)
            key = (n_step, gamma, names, frames, terminal_field, tuple(sequence_fields))
            if key in self._forms:
                return self._forms[key]
        form = TransitionForm.of(
            self._settings.fields, n_step, gamma, names=fields, stack=stack,
            terminal_field=terminal_field, sequence_fields=sequence_fields,
        )  # fmt: skip
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        if key is not None:
            self._forms[key] = form
        return form

    def read(self, form: Form, node: Node, made: Callable[[BatchMaker, Flags | None], T]) -> T:
        """Return what is made of the steps as they are now.

        Args:
            form: What the maker makes.
            node: Which first steps.
            made: Called with the maker, and with the slots whose steps match; None: any may.
        """
        self._refreshing.prepare()

        def of_memory(memory: StepMemory) -> T:
            self._check_size(memory)
            wanted = None if node is EVERYTHING else self._matching.of(memory, node)
            return made(self._maker(memory, form), wanted)

        return self._refreshing.read(of_memory)

    def _maker(self, memory: StepMemory, form: Form) -> BatchMaker:
        """Return what makes batches of a form; it remembers what earlier draws found out."""
        if isinstance(form, StepForm):
            return StepBatches(memory, form)
        known = self._makers.get(form)
        if known is None or known.memory is not memory:
            if len(self._makers) >= MOST_FORMS:
                self._makers.clear()
            known = self._makers[form] = _maker_of(memory, form, self._store)
        return known

    def _check_size(self, memory: StepMemory) -> None:
        needed, name = self._store.info.config.sampling.min_size, self._store.info.name
        n = memory.n_live
        if n < needed and self._settings.selects:
            n = self._store.rows.count_stored(EVERYTHING)  # it does not have all steps
        if n < needed:
            raise InsufficientDataError(
                f"buffer {name!r} holds {n} rows, and is sampled from {needed} on "
                f"(min_size); wait for more data"
            )


def _maker_of(memory: StepMemory, form: Any, store: BufferStore) -> BatchMaker:
    if isinstance(form, WindowForm):
        return WindowBatches(memory, form)
    if isinstance(form, TrajectoryForm):
        return TrajectoryBatches(memory, form, store.observation_layout)
    return TransitionBatches(memory, form, store.observation_layout)
