"""`Mirror`: draws from memory."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import numpy as np

from sqlbuffer.arguments import Condition, check_batch_size, check_n_step
from sqlbuffer.errors import BufferConfigError, InsufficientDataError
from sqlbuffer.fields.declarations import BUILT_IN
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.plans import Draws
from sqlbuffer.loading.sufficient_data import check_sufficient, undrawn
from sqlbuffer.mirror.choosing.choosers import chooser_of
from sqlbuffer.mirror.choosing.chosen import Chooser
from sqlbuffer.mirror.filling import check_mirrored
from sqlbuffer.mirror.loader_source import MirrorSource
from sqlbuffer.mirror.matching_steps import MatchingSteps
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.mirror_lag import MirrorLag
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.refreshing import Refreshing
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.mirror.step_batches import step_batch
from sqlbuffer.mirror.step_columns import check_in_memory
from sqlbuffer.mirror.transition_batches import TransitionBatches
from sqlbuffer.query.condition_tree import EVERYTHING, Group, Node
from sqlbuffer.query.tree_checks import check
from sqlbuffer.samplers import Sampler
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.sampling.readers.base import BatchReader
from sqlbuffer.storage.sampling.readers.checks import checked_step_names
from sqlbuffer.storage.sampling.readers.single_steps import StepReader
from sqlbuffer.storage.sampling.readers.transition_form import TransitionForm
from sqlbuffer.storage.sampling.readers.transitions import TransitionReader
from sqlbuffer.storage.store import BufferStore

DrawnMode = Literal["step", "transition", "n_step"]
MAX_BYTES = 8 * 2**30
REFRESH_S = 0.5
# What was found out for other forms of transitions is forgotten.
MOST_FORMS = 8


class Mirror:
    """A copy of a buffer's steps in the memory of this process, kept in step with the database.

    A draw comes from one committed state of the buffer, at most `refresh_s` old, and has all that
    this process has written. It has the distribution of the same draw from the buffer. While the
    database is away, draws go on from what is known.

    Opened by `ReplayBuffer.mirror`. Safe to use from many threads; a forked process opens its own.

    Example:
        >>> import numpy as np
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": np.float32})
        >>> _ = buffer.extend({"obs": np.arange(5.0)}, task_id="walk")
        >>> with buffer.mirror() as mirror:
        ...     sorted(set(mirror.sample_arrays(256).obs.tolist()))
        [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    def __init__(
        self,
        store: BufferStore,
        *,
        max_bytes: int = MAX_BYTES,
        refresh_s: float = REFRESH_S,
        max_lag_s: float | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        shared: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        check_mirrored(store)
        self._store, self._rng = store, np.random.default_rng()
        self._settings = MirrorSettings.of(
            store, max_bytes, refresh_s, max_lag_s, condition, fields
        )
        if path is not None and not shared:
            raise BufferConfigError("path= says where a shared mirror is; give shared=True too")
        self._refreshing: Refreshing | SharedFollowing = (
            SharedFollowing(store, self._settings, path)
            if shared
            else Refreshing(store, self._settings)
        )
        self._forms: dict[tuple[Any, ...], TransitionForm] = {}
        self._batches: dict[TransitionForm, TransitionBatches] = {}
        self._matching = MatchingSteps()
        self._every_name = [*self._settings.fields.specs, *BUILT_IN]
        store.own_writes.store()
        self._refreshing.start()

    def __enter__(self) -> "Mirror":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a mirror belongs to one process and cannot be pickled; pickle the buffer")

    def __len__(self) -> int:
        """Return how many steps it has; those that match, where it was opened with a condition."""
        if self._settings.selects:
            return self._refreshing.read(lambda memory: memory.n_wanted)
        return self._refreshing.n_live

    @property
    def path(self) -> Path | None:
        """The file of a shared mirror; None for one that is not."""
        following = self._refreshing
        return following.path if isinstance(following, SharedFollowing) else None

    def __repr__(self) -> str:
        return f"Mirror({self._store.info.name!r}, {len(self)} steps)"

    def close(self) -> None:
        """Stop following the buffer; what it holds is freed with the object."""
        self._refreshing.close()

    def refresh(self) -> None:
        """Take what is new in the buffer now.

        Raises:
            MirrorFullError: It does not fit into `max_bytes`.
            StorageError: The database cannot be read.
        """
        self._store.own_writes.store()
        self._refreshing.refresh()

    def lag(self) -> MirrorLag:
        """Return how far the mirror is behind its buffer, and why."""
        return self._refreshing.lag()

    def sample_arrays(
        self,
        batch_size: int = 256,
        *,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
    ) -> Batch:
        """Draw steps as arrays; see `ReplayBuffer.sample_arrays`.

        Args:
            batch_size: How many steps.
            condition: Which steps. It names keys, `reward`, flags and declared fields.
            fields: Which of the mirror's fields, `reward`, `terminated` and `truncated`; all by
                default.
            sampler: A `RandomSampler`, `FifoSampler` or `LatestSampler`; by default the first,
                with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            ConditionError: A malformed condition, or one that names what is not in memory.
            InsufficientDataError: Fewer steps can be drawn.
            FieldError: An unknown field.
        """
        own_fields, names = self._settings.fields, self._every_name
        if fields is not None:
            own, built_in = checked_step_names(own_fields, fields, "steps")
            names = [*own, *built_in]

        node = self._node(condition)

        def made(memory: StepMemory, chooser: Chooser, n: int) -> Batch:
            wanted = self._matching.of(memory, node)
            return step_batch(memory, chooser.choose(memory, wanted, n), names)

        return self._drawn(made, batch_size, sampler, lambda: StepReader(own_fields, fields), node)

    def sample_transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
    ) -> Batch:
        """Draw transitions; see `ReplayBuffer.sample_transitions`.

        Args:
            batch_size: How many.
            n_step: How many steps a transition spans at most.
            gamma: Discount of one step.
            stack: How many frames are stacked, by field.
            terminal_field: The field that tells where an episode terminated.
            condition: Which first steps; see `sample_arrays`. The others may be any.
            fields: Which of the declared fields; all by default.
            sampler: A `RandomSampler`, `FifoSampler` or `LatestSampler`; by default the first,
                with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape).

        Raises:
            ConditionError: A malformed condition, or one that names what is not in memory.
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: An unknown field, no observation field, or a field `done` where neither
                `terminated` nor `truncated` is stored and no `terminal_field` is given.
        """
        check_n_step(n_step, gamma)
        form = self._form(int(n_step), float(gamma), fields, stack, terminal_field)
        return self._transitions(form, batch_size, sampler, self._node(condition))

    def loader(
        self,
        mode: DrawnMode = "transition",
        batch_size: int = 256,
        **settings: Unpack[LoaderSettings],
    ) -> Loader[Batch]:
        """Return an iterable of batches that are drawn from the mirror without end.

        Args:
            mode: `step`, `transition` or `n_step`; see `ReplayBuffer.loader`.
            batch_size: How many a batch.
            **settings: See `ReplayBuffer.loader`. Passes and conditions read from the buffer
                itself.

        Raises:
            BufferConfigError: Another mode, a pass or a condition.
            FieldError: An unknown field, or names that collide.
            ValueError: An option that the mode does not take.
            MissingExtraError: A device, and torch is not installed.
        """
        given: dict[str, Any] = dict(settings)
        output = Output(given.pop("fieldname_map", None), None, given.pop("device", None))
        prefetch = given.pop("prefetch", 0)
        options = LoaderOptions(mode=mode, batch_size=batch_size, **given)
        if mode not in get_args(DrawnMode) or not options.is_drawn or options.condition is not None:
            raise BufferConfigError(
                "a mirror's loader draws steps and transitions without end, and without a "
                "condition; use buffer.loader() for windows, trajectories, passes and conditions"
            )
        source = MirrorSource(self._draw_for(options), self._store)
        plan = Draws(source, int(batch_size), options.sampler, bool(options.replace))
        identity = {"buffer": self._store.info.name, **options.identity(EVERYTHING)}
        return Loader(plan, identity, seed=options.seed, output=output, prefetch=prefetch)

    def _draw_for(self, options: LoaderOptions) -> Callable[[int, Sampler], Batch]:
        """Return what draws the batches of a loader."""
        if options.mode == "step":
            return lambda n, sampler: self.sample_arrays(n, fields=options.fields, sampler=sampler)
        form = self._form(
            int(options.n_step), float(options.gamma), options.fields, options.stack,
            options.terminal_field, options.sequence_fields,
        )  # fmt: skip
        return lambda n, sampler: self._transitions(form, n, sampler)

    def _transitions(
        self,
        form: TransitionForm,
        batch_size: int,
        sampler: Sampler | None,
        node: Node = EVERYTHING,
    ) -> Batch:
        def made(memory: StepMemory, chooser: Chooser, n: int) -> Batch:
            wanted = None if node is EVERYTHING else self._matching.of(memory, node)
            return self._batches_of(memory, form).draw(chooser, n, wanted)

        return self._drawn(made, batch_size, sampler, lambda: TransitionReader(form), node)

    def _node(self, condition: Condition) -> Node:
        """Return a condition checked."""
        if condition is None:
            return EVERYTHING
        node = check(condition, self._store.info.config.fields.comparable)
        check_in_memory(node, self._settings.fields.specs)
        return node

    def _form(
        self,
        n_step: int,
        gamma: float,
        fields: Sequence[str] | None,
        stack: Mapping[str, int] | None,
        terminal_field: str | None,
        sequence_fields: Sequence[str] = (),
    ) -> TransitionForm:
        """Return the form of transitions: the same one for the same arguments."""
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
            self._batches.clear()
        if key is not None:
            self._forms[key] = form
        return form

    def _batches_of(self, memory: StepMemory, form: TransitionForm) -> TransitionBatches:
        """Return what makes transitions of a form; it remembers what earlier draws found out."""
        known = self._batches.get(form)
        if known is None or known.memory is not memory:
            known = TransitionBatches(memory, form, self._store.observation_layout)
            self._batches[form] = known
        return known

    def _drawn(
        self,
        made: Callable[[StepMemory, Chooser, int], Batch],
        batch_size: int,
        sampler: Sampler | None,
        reader: Callable[[], BatchReader],
        node: Node,
    ) -> Batch:
        chooser = chooser_of(sampler, self._rng)
        check_batch_size(batch_size)
        refreshing, n = self._refreshing, int(batch_size)
        self._store.own_writes.store_before_draw(n, lambda: len(self))
        refreshing.prepare()

        def batch_of(memory: StepMemory) -> Batch:
            self._check_size(memory)
            return made(memory, chooser, n)

        batch = refreshing.read(batch_of)
        check_sufficient(
            batch.n_rows,
            batch_size,
            True,
            lambda: undrawn(
                self._store, Group("all", (self._settings.node, node)), sampler, reader()
            ),
        )
        return batch

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
