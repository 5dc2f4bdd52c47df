"""Draw batches of any kind from the memory of a mirror."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import checked_batch_size
from sqlbuffer.batches.forms import Form, StepForm, TransitionForm
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.loading.sufficient_data import Shortage, check_sufficient, shortage
from sqlbuffer.mirror.choosing.choosers import chooser_of
from sqlbuffer.mirror.choosing.chosen import Chooser
from sqlbuffer.mirror.choosing.uniform import UniformChooser
from sqlbuffer.mirror.draw_accounts import DrawAccounts
from sqlbuffer.mirror.matching_steps import MatchingSteps
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory_batches import MemoryBatches
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.refreshing import Refreshing
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.query.condition_tree import EVERYTHING, Group, Node
from sqlbuffer.samplers import PrioritizedSampler, Sampler
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.restrictions import below_min_size
from sqlbuffer.storage.store import BufferStore

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
T = TypeVar("T")
F = TypeVar("F", StepForm, TransitionForm)

# Results of more forms than this are forgotten.
MOST_FORMS = 8


class MemoryDraws:
    """Draws from a mirror.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        refreshing: Keeps its steps in memory.

    Attributes:
        accounts: Counts and logs the draws.
    """

    def __init__(
        self,
        store: BufferStore,
        settings: MirrorSettings,
        refreshing: Refreshing | SharedFollowing,
    ) -> None:
        self._store, self._settings, self._refreshing = store, settings, refreshing
        self._rng, self._matching = np.random.default_rng(), MatchingSteps()
        self._uniform = UniformChooser(self._rng, replace=True)
        self.accounts = DrawAccounts(store, settings.refresh_s)
        self._makers: dict[Form, MemoryBatches] = {}
        self._forms: dict[Any, Any] = {}
        self._every_step = StepForm.of(settings.fields)
        self._selects = settings.selects
        self._min_size = store.info.config.sampling.min_size
        self._has_priorities = store.info.config.priorities.enabled

    @property
    def selects(self) -> bool:
        """Whether the mirror has only the steps that match a condition."""
        return self._selects

    def n_steps(self) -> int:
        """Return how many steps the mirror has; those that match, where it selects some."""
        if self._selects:
            return self._refreshing.read(lambda memory: memory.n_wanted)
        return self._refreshing.n_live

    def catch_up(self, seq: int) -> None:
        """Read the buffer now, unless it had this step at the last look."""
        if self._refreshing.read(lambda memory: memory.high) < seq:
            self._refreshing.refresh()

    def sample(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
    ) -> Batch:
        """Return n things that a sampler draws; see `sampled`."""
        batch, _ = self.sampled(form, n, sampler, node)
        if sampler is not None and batch.n_rows:
            sampler.handed_out()  # loaders call it themselves
        return batch

    def sampled(
        self,
        form: Form,
        n: int,
        sampler: Sampler | None,
        node: Node,
    ) -> tuple[Batch, int]:
        """Return n items that a sampler draws, and the newest step of the buffer at that time.

        Args:
            form: Form of the items.
            n: Number of items.
            sampler: Sampler that draws them; None: uniform with replacement.
            node: Condition that first steps must match.

        Raises:
            InsufficientDataError: Fewer items can be drawn.
            FlowControlError: The rate limiter did not admit the draw in time.
        """
        chooser: Chooser = self._uniform
        if sampler is not None:
            has_condition = self._selects or node != EVERYTHING
            chooser = chooser_of(sampler, self._rng, has_condition=has_condition)
        n = checked_batch_size(n, sampler, replace=True)
        if isinstance(sampler, PrioritizedSampler) and self._has_priorities:
            self._refreshing.check_prioritized(sampler.normalize)
        if not self._refreshing.is_cut_off:  # they wait, and the draw would wait with them
            self._store.own_writes.store_before_draw(n, self.n_steps)

        def drawn(maker: MemoryBatches, wanted: "Flags | None") -> "tuple[Batch, int, int | None]":
            memory = maker.memory
            return maker.draw(chooser, n, wanted), memory.high, memory.clock

        n_drawn, n_counted = 0, self.accounts.begin(n)
        try:
            batch, head, clock = self.read(form, node, drawn)
            n_found = batch.n_rows
            if n_found < n:
                check_sufficient(n_found, n, True, lambda: self.shortage(node, sampler, form))
            self.accounts.log(batch, clock, sampler)
            n_drawn = n_found
        finally:
            self.accounts.end(n_counted, n_drawn)
        return batch, head

    def shortage(self, node: Node, sampler: Sampler | None, form: Form) -> Shortage:
        """Return why too few rows are drawn."""
        return shortage(self._store, Group("all", (self._settings.node, node)), sampler, form)

    def step_form(self, fields: Sequence[str] | None) -> StepForm:
        """Return the form of single steps with some fields, all by default; the same object for the
        same fields.

        Raises:
            FieldError: A field is unknown.
        """
        if fields is None:
            return self._every_step
        return self._form_of(
            ("steps", fields),
            lambda: StepForm.of(self._settings.fields, fields),
        )

    def transition_form(
        self,
        n_step: int,
        gamma: float,
        fields: Sequence[str] | None,
        stack: Mapping[str, int] | None,
        terminal_field: str | None,
        sequence_fields: Sequence[str] = (),
        skip_single: bool = False,
    ) -> TransitionForm:
        """Return the form of transitions: the same one for the same arguments.

        Raises:
            FieldError: See `TransitionForm.of`.
        """
        return self._form_of(
            (n_step, gamma, fields, stack, terminal_field, sequence_fields, skip_single),
            lambda: TransitionForm.of(
                self._settings.fields, n_step, gamma, names=fields, stack=stack,
                terminal_field=terminal_field, sequence_fields=sequence_fields,
                skip_single=skip_single,
            ),
        )  # fmt: skip

    def _form_of(self, given: tuple[Any, ...], made: Callable[[], F]) -> F:
        """Return the form that was made for these arguments, or make it."""
        try:
            key = _key_of(given)
            known = self._forms.get(key)
        except Exception:  # values that cannot be hashed or compared
            return made()  # raises the right error
        if known is None:
            known = made()
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = known
        form: F = known
        return form

    def read(self, form: Form, node: Node, made: Callable[[MemoryBatches, Flags | None], T]) -> T:
        """Return a result made from the steps as they are now.

        Args:
            form: Form of the items.
            node: Condition that first steps must match.
            made: Function that is called with the maker and with flags of slots whose steps match;
                None if all match.
        """
        self._refreshing.prepare()

        # In quotes: Python evaluates annotations of a nested function in each call.
        def of_memory(memory: "StepMemory") -> "T":
            if memory.n_live < self._min_size:
                self._check_size(memory)
            wanted = None if node is EVERYTHING else self._matching.of(memory, node)
            return made(self._maker(memory, form), wanted)

        return self._refreshing.read(of_memory)

    def _maker(self, memory: StepMemory, form: Form) -> MemoryBatches:
        """Return what makes batches of a form; it remembers what earlier draws found out."""
        known = self._makers.get(form)
        if known is None or known.memory is not memory:
            # One of another memory would keep all of its steps.
            if known is not None or len(self._makers) >= MOST_FORMS:
                self._makers.clear()
            buffer = str(self._store.url), self._store.info.id
            layout = self._store.observation_layout
            known = self._makers[form] = MemoryBatches(memory, form, layout, buffer)
        return known

    def _check_size(self, memory: StepMemory) -> None:
        needed, name = self._min_size, self._store.info.name
        n = memory.n_live
        if n < needed and self._selects:
            n = self._store.rows.count_stored(EVERYTHING)  # it does not have all steps
        if n < needed:
            why_none = "" if n else shortage(self._store, EVERYTHING, None).why_none
            raise InsufficientDataError(below_min_size(name, n, needed, why_none))


def _key_of(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments as a key."""
    try:
        hash(given)
    except TypeError:
        return tuple(
            frozenset(each.items()) if isinstance(each, Mapping)
            else tuple(each) if isinstance(each, list) else each
            for each in given
        )  # fmt: skip
    return given
