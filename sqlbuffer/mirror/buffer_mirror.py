"""`Mirror`: draws from memory."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, overload

from sqlbuffer.arguments import MIRROR_BYTES, MIRROR_REFRESH_S, Condition, check_n_step
from sqlbuffer.batches.hindsight import HindsightGoals
from sqlbuffer.checks import checked_flag, checked_path, refused
from sqlbuffer.encoding.priority_values import EPS, check_kept, checked_update
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.loading.loader import Loader, Output
from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings, Mode, options_of
from sqlbuffer.mirror.conditions import check_in_memory
from sqlbuffer.mirror.draws import MemoryDraws
from sqlbuffer.mirror.following import Refreshing, check_mirrored
from sqlbuffer.mirror.loader import open_mirror_loader
from sqlbuffer.mirror.settings import MirrorLag, MirrorSettings
from sqlbuffer.mirror.shared_following import SharedFollowing
from sqlbuffer.query.tree import EVERYTHING, Node, check
from sqlbuffer.samplers import Sampler
from sqlbuffer.steps import Batch, PriorityUpdate
from sqlbuffer.storage.store import BufferStore


class Mirror:
    """A copy of a buffer's steps in the memory of this process that follows the database.

    A draw reads one committed state of the buffer, at most `refresh_s` old, and includes everything
    that this process has written. It has the same distribution as a draw from the buffer. While the
    database is unreachable, draws continue from the last known state.

    `ReplayBuffer.mirror` opens it. It may be used from many threads. A forked process must open its
    own.

    Example:
        >>> import numpy as np
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": np.float32}, priorities=True)
        >>> _ = buffer.extend({"obs": np.arange(5.0)}, task_id="walk", episode_id="walk-1")
        >>> with buffer.mirror() as mirror:
        ...     sorted(set(mirror.sample_arrays(256).obs.tolist()))
        ...     batch = mirror.sample_transitions(8)
        ...     bool((batch.next_obs == batch.obs + 1).all())
        ...     mirror.update_priorities(batch.info["seq"], np.ones(8)).missing
        ...     next(iter(mirror.loader("step", 4))).n_rows
        ...     mirror.refresh()
        ...     mirror.lag().steps
        [0.0, 1.0, 2.0, 3.0, 4.0]
        True
        0
        4
        0
    """

    def __init__(
        self,
        store: BufferStore,
        *,
        max_bytes: int = MIRROR_BYTES,
        refresh_s: float = MIRROR_REFRESH_S,
        max_lag_s: float | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        shared: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        check_mirrored(store)
        shared = checked_flag(shared, "shared")
        path = None if path is None else checked_path(path, "path")
        self._store = store
        self._settings = MirrorSettings.of(
            store, max_bytes, refresh_s, max_lag_s, condition, fields
        )
        if path is not None and not shared:
            raise ArgumentError("path= says where a shared mirror is; give shared=True too")
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
        """Return the number of its steps; with a condition, of the steps that match."""
        return self._draws.n_steps()

    @property
    def path(self) -> Path | None:
        """File of a shared mirror; None if the mirror is not shared."""
        following = self._refreshing
        return following.path if isinstance(following, SharedFollowing) else None

    def __repr__(self) -> str:
        return f"Mirror({self._store.info.name!r}, {len(self)} steps)"

    def close(self) -> None:
        """Stop following the buffer. The memory is freed with the object.

        Raises:
            StorageError: Priorities that were set, or the last batches of the sample log, could not
                be written.
        """
        try:
            self._draws.accounts.close()
        finally:
            self._refreshing.close()

    def refresh(self) -> None:
        """Write the priorities that were set, and read what is new in the buffer now.

        Raises:
            MirrorFullError: The new steps do not fit into `max_bytes`.
            StorageError: The database cannot be read, or the sample log cannot be written.
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
            batch_size: Number of steps.
            condition: Condition that steps must match. It may use keys, `reward`, flags and
                declared fields.
            fields: Fields to read, of the mirror's fields, `reward`, `terminated` and `truncated`,
                all by default; also `adv_t` and `v_t`.
            sampler: A `RandomSampler`, `PrioritizedSampler`, `FifoSampler` or `LatestSampler`; by
                default the first, with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            BufferConfigError: The mirror is closed, or another process opened it; or the sampler
                draws by priority, and the mirror has no priorities.
            ConditionError: The condition is malformed, or uses a field that is not in memory.
            FieldError: A field is unknown.
            InsufficientDataError: Fewer steps can be drawn.
            MirrorBehindError: The mirror is more than `max_lag_s` behind.
            MirrorFullError: The buffer has outgrown `max_bytes`.
            StorageReadOnlyError: The sampler draws by priority, and the role may not follow changes
                of priorities.
        """
        form = self._draws.step_form(fields)
        return self._draws.sample(form, batch_size, sampler, self._node(condition))

    def sample_transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        skip_single: bool = False,
        relabel: HindsightGoals | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
    ) -> Batch:
        """Draw transitions; see `ReplayBuffer.sample_transitions`.

        Args:
            batch_size: Number of transitions.
            n_step: Largest number of steps that a transition spans, from 1 to 1,000,000.
            gamma: Discount of one step.
            stack: Number of stacked frames, by field.
            terminal_field: Field that marks where an episode terminated.
            skip_single: True draws from the episodes alone; steps without an episode are left out.
            relabel: Goals in hindsight; see `HindsightGoals`.
            condition: Condition that first steps must match; see `sample_arrays`. The later steps
                may be any.
            fields: Declared fields to read, all by default; also `adv_t` and `v_t`.
            sampler: A `RandomSampler`, `PrioritizedSampler`, `FifoSampler` or `LatestSampler`; by
                default the first, with replacement.

        Returns:
            A batch of arrays of shape (batch_size, *shape).

        Raises:
            ConditionError: The condition is malformed, or uses a field that is not in memory.
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: A field is unknown; or no observation field is declared; or there is a field
                `done`, neither `terminated` nor `truncated` is stored, and `terminal_field` is
                omitted; or a matching step has no episode, the buffer has no field `next_obs`, and
                `skip_single` is False.
            SQLBufferError: The other errors of `sample_arrays`.
        """
        check_n_step(n_step, gamma)
        form = self._draws.transition_form(
            int(n_step), float(gamma), fields, stack, terminal_field,
            skip_single=checked_flag(skip_single, "skip_single"), relabel=relabel,
        )  # fmt: skip
        return self._draws.sample(form, batch_size, sampler, self._node(condition))

    def update_priorities(self, seqs: Any, priorities: Any, eps: float = EPS) -> PriorityUpdate:
        """Set the priorities of steps; the arguments are those of `ReplayBuffer.update_priorities`.

        The next draw of this mirror uses them. They are written to the database within `refresh_s`,
        and by `refresh` and `close`. While the database is unreachable, they are kept in memory.

        Returns:
            The number of updated steps, and the number of steps that the mirror does not hold.

        Raises:
            FieldError: A priority is NaN or out of range, a shape or type is wrong, or the buffer
                has no priorities; nothing is set.
            BufferConfigError: The mirror is shared.
            StorageReadOnlyError: The role may not set priorities.
        """
        check_kept(self._store.info.config.priorities.enabled)
        update = checked_update(seqs, priorities, eps)
        n_updated = self._refreshing.update_priorities(update.seqs, update.priorities)
        return PriorityUpdate(n_updated, len(update.seqs) - n_updated)

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
        """Return an iterable of batches of the mirror: random draws without end, or passes.

        A pass covers the steps that the mirror has at its start. Steps that are evicted later are
        skipped. The state of a loader includes the newest step of the buffer at which it stopped.
        If a loader of random draws continues with another newest step, it warns. An iteration
        raises the errors of `sample_arrays`.

        Args:
            mode: Contents of a batch; see `ReplayBuffer.loader`.
            batch_size: Number of items in a batch.
            to_named_tuple: Names of arrays; batches are then named tuples of them.
            **options: See `ReplayBuffer.loader`.

        Raises:
            ConditionError: The condition is malformed, or uses a field that is not in memory.
            FieldError: A field is unknown, or names collide.
            ValueError: The mode does not take an option.
            MissingExtraError: A device is given, and torch is not installed.
        """
        settings: dict[str, Any] = dict(options)
        output = Output(
            settings.pop("fieldname_map", None), to_named_tuple, settings.pop("device", None)
        )
        prefetch = settings.pop("prefetch", 0)
        loader_options = options_of({"mode": mode, "batch_size": batch_size, **settings})
        return self._loader(loader_options, output, prefetch)

    def _loader(self, options: LoaderOptions, output: Output, prefetch: Any) -> Loader[Any]:
        return open_mirror_loader(
            self._store, self._settings, self._draws, options, output, prefetch
        )

    def _node(self, condition: Condition) -> Node:
        if condition is None:
            return EVERYTHING
        node = check(condition, self._store.info.config.fields.comparable)
        check_in_memory(node, self._settings.fields.specs)
        return node


def mirrored_loader(
    store: BufferStore, mirror_or_true: Any, options: LoaderOptions, output: Output, prefetch: Any
) -> Loader[Any]:
    """Return a loader of a buffer that reads from a mirror.

    Args:
        store: The buffer.
        mirror_or_true: The mirror, or True to open one that the loader closes.
        options: Options of the loader.
        output: Form of its batches.
        prefetch: Number of batches that a thread makes ahead.

    Raises:
        BufferConfigError: A mirror of another buffer.
        ArgumentError: Not a mirror.
    """
    if isinstance(mirror_or_true, Mirror):
        if (mirror_or_true._store.url, mirror_or_true._store.info.id) != (store.url, store.info.id):
            raise BufferConfigError(
                f"the mirror is one of another buffer; open one with buffer.mirror() of "
                f"{store.info.name!r}, or pass mirror=True"
            )
        return mirror_or_true._loader(options, output, prefetch)
    if mirror_or_true is not True:
        raise refused(mirror_or_true, "mirror", "True, False or a Mirror, such as buffer.mirror()")
    mirror = Mirror(store)
    try:
        loader = mirror._loader(options, output, prefetch)
    except BaseException:
        mirror.close()
        raise
    loader.on_close = mirror.close
    return loader
