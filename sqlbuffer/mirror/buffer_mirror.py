"""`Mirror`: draws from memory."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack, overload

from sqlbuffer.arguments import Condition, check_n_step, described
from sqlbuffer.encoding.priority_values import EPS, check_kept, checked_update
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings, Mode, options_of
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.ranks import warn_of_ranks
from sqlbuffer.mirror.filling import check_mirrored
from sqlbuffer.mirror.loader_factory import open_mirror_loader
from sqlbuffer.mirror.memory_draws import MemoryDraws
from sqlbuffer.mirror.mirror_lag import MirrorLag
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.refreshing import Refreshing
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.mirror.step_columns import check_in_memory
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.query.tree_checks import check
from sqlbuffer.samplers import Sampler
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.priority_update import PriorityUpdate
from sqlbuffer.storage.sampling.readers.single_steps import StepReader
from sqlbuffer.storage.sampling.readers.transitions import TransitionReader
from sqlbuffer.storage.store import BufferStore

MAX_BYTES = 8 * 2**30
REFRESH_S = 0.5


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
        self._store = store
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
        self._draws = MemoryDraws(store, self._settings, self._refreshing)
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
        return self._draws.n_steps()

    @property
    def path(self) -> Path | None:
        """The file of a shared mirror; None for one that is not."""
        following = self._refreshing
        return following.path if isinstance(following, SharedFollowing) else None

    def __repr__(self) -> str:
        return f"Mirror({self._store.info.name!r}, {len(self)} steps)"

    def close(self) -> None:
        """Stop following the buffer; what it holds is freed with the object.

        Raises:
            StorageError: Priorities that were set, or the last batches of the sample log, could not
                be written.
        """
        try:
            self._draws.accounts.close()
        finally:
            self._refreshing.close()

    def refresh(self) -> None:
        """Write the priorities that were set, and take what is new in the buffer now.

        Raises:
            MirrorFullError: It does not fit into `max_bytes`.
            StorageError: The database cannot be read, or the sample log written.
        """
        self._store.own_writes.store()
        self._draws.accounts.settle()
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
            sampler: A `RandomSampler`, `PrioritizedSampler`, `FifoSampler` or `LatestSampler`; by
                default the first, with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            ConditionError: A malformed condition, or one that names what is not in memory.
            InsufficientDataError: Fewer steps can be drawn.
            FieldError: An unknown field.
        """
        form = self._draws.step_form(fields)
        reader = partial(StepReader, self._settings.fields, fields)
        return self._draws.sample(form, batch_size, sampler, self._node(condition), reader)

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
            sampler: A `RandomSampler`, `PrioritizedSampler`, `FifoSampler` or `LatestSampler`; by
                default the first, with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape).

        Raises:
            ConditionError: A malformed condition, or one that names what is not in memory.
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: An unknown field, no observation field, or a field `done` where neither
                `terminated` nor `truncated` is stored and no `terminal_field` is given.
        """
        check_n_step(n_step, gamma)
        form = self._draws.transition_form(int(n_step), float(gamma), fields, stack, terminal_field)
        reader = partial(TransitionReader, form)
        return self._draws.sample(form, batch_size, sampler, self._node(condition), reader)

    def update_priorities(self, seqs: Any, priorities: Any, eps: float = EPS) -> PriorityUpdate:
        """Set the priorities of steps; arguments as those of `ReplayBuffer.update_priorities`.

        The next draw of this mirror uses them. They are written to the database within `refresh_s`,
        and by `refresh` and `close`. While the database is away they are kept.

        Returns:
            How many steps were updated, and how many the mirror does not hold.

        Raises:
            FieldError: NaN, a number out of range, another shape or type, or a buffer without
                priorities; nothing is set.
            BufferConfigError: The mirror is shared.
            StorageReadOnlyError: The role may not set priorities.
        """
        check_kept(self._store.info.config.priorities.enabled)
        given = checked_update(seqs, priorities, eps)
        n_updated = self._refreshing.update_priorities(given.seqs, given.priorities)
        return PriorityUpdate(n_updated, len(given.seqs) - n_updated)

    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        to_named_tuple: None = None,
        **options: Unpack[LoaderSettings],
    ) -> Loader[Batch]: ...
    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        to_named_tuple: Sequence[str],
        **options: Unpack[LoaderSettings],
    ) -> Loader[Any]: ...
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        to_named_tuple: Sequence[str] | None = None,
        **options: Unpack[LoaderSettings],
    ) -> Loader[Any]:
        """Return an iterable of batches: drawn from the mirror without end, or in passes.

        A pass covers the steps that the mirror has at its start. Steps that are evicted later are
        passed over. The state of a loader says at which head of the buffer it stopped; going on at
        another one warns, where batches are drawn.

        Args:
            mode: What a batch holds; see `ReplayBuffer.loader`.
            batch_size: How many a batch.
            to_named_tuple: Batches are named tuples of these arrays.
            **options: See `ReplayBuffer.loader`.

        Raises:
            ConditionError: A malformed condition, or one that names what is not in memory.
            FieldError: An unknown field, or names that collide.
            ValueError: An option that the mode does not take.
            MissingExtraError: A device, and torch is not installed.
        """
        given: dict[str, Any] = dict(options)
        output = Output(given.pop("fieldname_map", None), to_named_tuple, given.pop("device", None))
        prefetch = given.pop("prefetch", 0)
        wanted = options_of({"mode": mode, "batch_size": batch_size, **given})
        warn_of_ranks(passes=not wanted.is_drawn, seeded=wanted.seed is not None)
        return self._loader(wanted, output, prefetch)

    def _loader(self, options: LoaderOptions, output: Output, prefetch: Any) -> Loader[Any]:
        return open_mirror_loader(
            self._store, self._settings, self._draws, options, output, prefetch
        )

    def _node(self, condition: Condition) -> Node:
        """Return a condition checked."""
        if condition is None:
            return EVERYTHING
        node = check(condition, self._store.info.config.fields.comparable)
        check_in_memory(node, self._settings.fields.specs)
        return node


def mirrored_loader(
    store: BufferStore, given: Any, options: LoaderOptions, output: Output, prefetch: Any
) -> Loader[Any]:
    """Return a loader of a buffer that reads from a mirror.

    Args:
        store: The buffer.
        given: The mirror; True: one is opened, which the loader closes.
        options: What the loader is asked for.
        output: How it hands batches out.
        prefetch: How many a thread makes ahead.

    Raises:
        BufferConfigError: A mirror of another buffer.
        TypeError: Not a mirror.
    """
    if isinstance(given, Mirror):
        if (given._store.url, given._store.info.id) != (store.url, store.info.id):
            raise BufferConfigError(
                f"the mirror is one of another buffer; open one with buffer.mirror() of "
                f"{store.info.name!r}, or pass mirror=True"
            )
        return given._loader(options, output, prefetch)
    if given is not True:
        raise TypeError(f"mirror is True, False or a Mirror, got {described(given)}")
    mirror = Mirror(store)
    try:
        loader = mirror._loader(options, output, prefetch)
    except BaseException:
        mirror.close()
        raise
    loader.on_close = mirror.close
    return loader
