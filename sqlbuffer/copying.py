"""Copy buffers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlbuffer.checks import checked_callable, checked_choice, checked_flag, refused
from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.config import BufferConfig
from sqlbuffer.errors import CopyError
from sqlbuffer.fields import FieldSpec, described
from sqlbuffer.query.tree import Node
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.copies.parts import CopiedRange
from sqlbuffer.storage.copies.source import CopySource
from sqlbuffer.storage.copies.target import (
    CopyProgress,
    CopyTarget,
    TargetKeys,
    begin_copy,
    resume_copy,
    take_hold,
)
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.merging.batches import ON_CONFLICT, MergeOptions, MergeReader
from sqlbuffer.storage.merging.target import MergeTarget
from sqlbuffer.storage.store import BufferStore


@dataclass(frozen=True)
class CopyReport:
    """Result of a copy.

    The steps are those that the source held when the copy began. Their labels, priorities, uses and
    reasons of quarantine are those at the time at which each batch of steps was read; later changes
    are not in the copy. Leases are not copied.

    Attributes:
        source: Name and database of the buffer that was copied, without a password.
        target: Name and database of the copy.
        low_seq: Lower end, excluded: the copy has steps with `low_seq < seq <= high_seq`.
        high_seq: Upper end of these numbers, included.
        n_steps: Number of steps in the copy.
        n_copied: Number of steps that this call copied; fewer if an earlier call was interrupted.
        was_finished: True if an earlier call has copied all that there is, and this one nothing.
        seconds: Duration of this call.
        is_exact: True for a copy with the numbers of the source; False for steps that were merged.
        n_skipped: Number of steps that were left out, because the target has their ids.
        n_open: Number of episodes that were left out, because they have not ended.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> source, target = ReplayBuffer("sqlite://", "a"), ReplayBuffer("sqlite://", "b")
        >>> source.add(task_id="t1", state={"x": 1}, reward=1.0).inserted
        1
        >>> report = source.copy_to(target)
        >>> report.n_steps, report.high_seq
        (1, 1)
    """

    source: str
    target: str
    low_seq: int
    high_seq: int
    n_steps: int
    n_copied: int
    was_finished: bool
    seconds: float
    is_exact: bool = True
    n_skipped: int = 0
    n_open: int = 0

    def __str__(self) -> str:
        if not self.is_exact:
            return self._merged()
        steps = f"{self.n_steps:,} steps with {self.low_seq:,} < seq <= {self.high_seq:,}"
        if self.was_finished:
            return (
                f"{self.target} has the copy of {self.source} already: {steps}; for later steps, "
                f"copy into another buffer"
            )
        rate = f"{self.n_copied / max(self.seconds, 1e-9):,.0f} steps/s"
        earlier = self.n_steps - self.n_copied
        before = f", {earlier:,} of them earlier" if earlier else ""
        return (
            f"copied {self.source} to {self.target}: {steps}{before}, in {self.seconds:.1f} s "
            f"({rate}); labels, priorities, uses and quarantine are those of the time at which "
            f"each step was read"
        )

    def _merged(self) -> str:
        left_out = []
        if self.n_skipped:
            left_out.append(f"{_counted(self.n_skipped, 'step')} with ids that are there already")
        if self.n_open:
            left_out.append(f"{_counted(self.n_open, 'episode')} without an end")
        without = f", without {' and '.join(left_out)}" if left_out else ""
        if self.was_finished:
            return (
                f"{self.target} has the steps of {self.source} already: "
                f"{_counted(self.n_steps, 'step')}{without}, and none is new"
            )
        earlier = self.n_steps - self.n_copied
        before = f" after {earlier:,} earlier" if earlier else ""
        return (
            f"merged {_counted(self.n_copied, 'step')}{before} of {self.source} into "
            f"{self.target}{without}, in {self.seconds:.1f} s"
        )


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


# Called with the steps copied so far, the last number that was copied and the range of numbers.
OnProgress = Callable[[int, int, range], None]
EXTEND_EVERY_S = 2.0
MOST_PREFIX = 100
# Settings that decide what steps, or what belongs to them, look like.
_SAME_STEPS = ("fields", "observation_fields", "meta_fields", "compression", "priorities")
_SAME = ("evict_by", *_SAME_STEPS)
# Those that are fields, and their names in `Fields`.
_OF_FIELDS = {"fields": "specs", "meta_fields": "meta"}


def checked_progress(on_progress: Any) -> OnProgress | None:
    """Return the function that is told of the progress, or None.

    Raises:
        ArgumentError: Something else.
    """
    if on_progress is None:
        return None
    what = "a function of (number of steps, seq, range of seq)"
    function: OnProgress = checked_callable(on_progress, "on_progress", what)
    return function


def merge_options(prefix: Any, on_conflict: Any, include_open: Any) -> MergeOptions:
    """Return how steps are merged.

    Raises:
        ArgumentError: An argument is invalid.
    """
    if not isinstance(prefix, str) or not is_storable_text(prefix) or len(prefix) > MOST_PREFIX:
        what = f"text of at most {MOST_PREFIX} characters, such as 'run1/'"
        raise refused(prefix, "prefix", what)
    checked_choice(on_conflict, "on_conflict", ON_CONFLICT)
    return MergeOptions(prefix, on_conflict, checked_flag(include_open, "include_open"))


def copy_buffer(
    source: BufferStore,
    target: BufferStore,
    node: Node,
    on_progress: OnProgress | None = None,
    options: MergeOptions | None = None,
) -> CopyReport:
    """Copy the matching steps of a buffer into an empty one, continue an unfinished copy, or merge
    the steps into a buffer that is in use.

    Args:
        source: The buffer.
        target: The other one.
        node: Condition that steps must match.
        on_progress: Function that is called after each batch.
        options: How steps are merged.

    Raises:
        CopyError: The buffers cannot hold the same steps, the target has some of the ids, or steps
            have left the source.
    """
    began_at = time.monotonic()
    options = MergeOptions() if options is None else options
    _check_kinds(source, target)
    reader = CopySource(source, node)
    writer = CopyTarget(target, reader)
    identity = reader.identity()
    progress = writer.progress(identity)
    ours, theirs = source.learn_fields(), target.learn_fields()
    # The same fields, in another order or added at another time: their bytes are not the same.
    can_repack = _without_defaults(ours.specs) == _without_defaults(theirs.specs)
    must_repack = can_repack and not ours.has_same_bytes(theirs)
    can_be_exact = writer.is_empty() and not must_repack
    if options.prefix or (progress is None and not can_be_exact):
        return merge_buffer(reader, target, options, on_progress)
    if progress is not None and progress.is_finished:
        return merge_buffer(reader, target, options, on_progress, progress)
    is_resumed = progress is not None
    if progress is None:
        check_agreement(source, target)
        begin_copy(reader, writer, identity)
        progress = writer.progress(identity)
        assert progress is not None
    else:
        _check_layouts(source, target)
        resume_copy(reader, writer, progress)
    n_before = progress.n_steps
    keys = writer.keys(reader, is_resumed=is_resumed)
    progress = _copy_steps(reader, writer, keys, progress, on_progress)
    _check_layouts(source, target)
    target.write(partial(writer.finish, documents=reader.documents()))
    if reader.hold is not None:
        reader.hold.release()
    return CopyReport(
        _shown(source), _shown(target), progress.range.low, progress.range.high, progress.n_steps,
        progress.n_steps - n_before, False, time.monotonic() - began_at,
    )  # fmt: skip


def _check_layouts(source: BufferStore, target: BufferStore) -> None:
    """Raise if fields were added to a buffer while it is copied."""
    if not source.learn_fields().has_same_bytes(target.learn_fields()):
        raise CopyError(
            f"fields were added to {_shown(source)} after the copy began; add them to "
            f"{_shown(target)} as well (add_field, or `sqlbuffer add-field`), and repeat the call"
        )


def _copy_steps(
    reader: CopySource,
    writer: CopyTarget,
    keys: TargetKeys,
    progress: CopyProgress,
    on_progress: OnProgress | None,
) -> CopyProgress:
    """Copy the steps that are left, a batch at a time; return how far that is."""
    copied, n_steps, n_left = progress.range, progress.n_steps, progress.n_left
    extended_at = time.monotonic()
    while copied.cursor < copied.high:
        batch = reader.batch(copied)
        writer.buffer.write(partial(writer.write, batch=batch, keys=keys))
        copied, n_steps = replace(copied, cursor=batch.end), n_steps + batch.n_steps
        n_left = None if n_left is None else n_left - batch.n_read
        if reader.hold is not None and time.monotonic() >= extended_at + EXTEND_EVERY_S:
            extended_at = time.monotonic()
            reader.hold.extend(max(copied.cursor, copied.low))
        if on_progress is not None:
            on_progress(n_steps, copied.cursor, range(copied.low, copied.high))
    if n_left and not (reader.hold is not None and reader.hold.extend(copied.high)):
        raise reader.missing(copied.low + 1, copied.high, f"{n_left:,} of the ")
    return replace(progress, range=copied, n_steps=n_steps)


def merge_buffer(
    source: CopySource,
    target: BufferStore,
    options: MergeOptions,
    on_progress: OnProgress | None = None,
    copied: CopyProgress | None = None,
) -> CopyReport:
    """Merge the steps of a buffer into one that is in use, or go on with that.

    Args:
        source: The buffer.
        target: The other one.
        options: How steps are merged.
        on_progress: Function that is called after each batch.
        copied: A finished copy of the source that the target was before.

    Raises:
        CopyError: The target cannot hold the steps, or has some of their ids.
    """
    began_at = time.monotonic()
    lines = mergeable_differences(source.store.current_config(), target)
    if lines:
        raise CopyError(
            f"{_shown(target)} cannot hold the steps to merge:\n  "
            + ";\n  ".join(lines)
            + "\nmake a buffer with these settings alike"
        )
    reader, merger = MergeReader(source), MergeTarget(target, source.identity(), options)
    run = merger.run()
    if run is None and copied is not None:
        run = merger.after_copy(copied)
    n_before = 0 if run is None else run.n_steps
    if run is not None and run.newest is not None:
        source.check_same(*run.newest)
    take_hold(source)
    try:
        if run is None or run.is_done:
            settled = source.settled()
            run, sessions = source.read(
                partial(reader.next_run, last=run, settled=settled, options=options)
            )
            if not run.is_done:
                counts = source.read(partial(reader.counts, run=run, options=options))
                check_room(counts, _shown(source.store), target)
            target.write(partial(merger.begin, run=run, versions=sessions))
        low = source.read(source.buffer.window_in).low
        extended_at = time.monotonic()
        while not run.is_done:
            batch = reader.batch(CopiedRange(min(low, run.high), run.high, run.cursor), run.late)
            run = merger.write(run, batch.repacked(source.store.layout, target.layout))
            if source.hold is not None and time.monotonic() >= extended_at + EXTEND_EVERY_S:
                extended_at = time.monotonic()
                source.hold.extend(max(run.cursor, low))
            if on_progress is not None:
                on_progress(run.n_steps, run.cursor, range(low, run.high))
        run = run.ended(options)
        target.write(partial(merger.finish, run=run, documents=source.documents()))
    finally:
        if source.hold is not None:
            source.hold.release()
    n_open = sum(since < run.high for since in run.pending.values())
    n_copied = run.n_steps - n_before
    return CopyReport(
        _shown(source.store), _shown(target), low, run.high, run.n_steps, n_copied,
        was_finished=n_copied == 0 < n_before, seconds=time.monotonic() - began_at,
        is_exact=False, n_skipped=run.n_skipped, n_open=n_open,
    )  # fmt: skip


def mergeable_differences(config: BufferConfig, target: BufferStore) -> list[str]:
    """Return in words what keeps a buffer from holding steps of a buffer with other settings.

    Merged steps have a value in each field, so that defaults may differ.
    """
    there = target.current_config()
    return _differences(config, there, _SAME_STEPS, "here", with_defaults=False)


def _without_defaults(specs: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    return {name: replace(spec, default=None) for name, spec in specs.items()}


def _differences(
    here: BufferConfig,
    there: BufferConfig,
    names: Sequence[str],
    where: str,
    *,
    with_defaults: bool = True,
) -> list[str]:
    """Return how settings differ, a line each."""
    lines = []
    ours, theirs = here.settings(), there.settings()
    for name in names:
        if ours[name] == theirs[name]:
            continue
        if name not in _OF_FIELDS:
            lines.append(f"{name}: {_value(ours[name])} there, {_value(theirs[name])} {where}")
            continue
        specs, others = (getattr(config.fields, _OF_FIELDS[name]) for config in (here, there))
        for field in dict.fromkeys([*specs, *others]):
            own, other = specs.get(field), others.get(field)
            if not with_defaults and own is not None and other is not None:
                own, other = replace(own, default=None), replace(other, default=None)
            if own != other:
                way = " (add_field adds it)" if other is None and name == "fields" else ""
                noun = "field" if name == "fields" else "meta field"
                pair = f"{described(own)} there, {described(other)} {where}"
                lines.append(f"{noun} {field!r}: {pair}{way}")
    return lines


def check_room(counts: tuple[int, int], source: str, target: BufferStore) -> None:
    """Raise if a buffer would evict steps that are merged into it.

    Args:
        counts: Number of steps to merge, and of their episodes.
        source: What they are from.
        target: The buffer.

    Raises:
        CopyError: It would.
    """
    retention = target.current_config().retention
    limits = (
        ("step", "max_capacity", retention.max_capacity),
        ("episode", "max_episodes", retention.max_episodes),
    )
    for n, (noun, name, limit) in zip(counts, limits, strict=True):
        if limit is not None and n > limit:
            raise CopyError(
                f"{_counted(n, noun)} of {source} do not fit into {_shown(target)} "
                f"({name}={limit:,}): it would evict what is merged; merge fewer with a "
                f"condition, or raise the limit with resize()"
            )


def _check_kinds(source: BufferStore, target: BufferStore) -> None:
    for store in (source, target):
        if store.info.layout is not None:
            raise CopyError(
                f"buffer {store.info.name!r} in {store.shown_url} has the layout "
                f"{store.info.layout!r} of sqlbuffer.compat, and is not copied alone; copy the "
                f"whole database (`pg_dump`, or `.backup` of SQLite)"
            )
    # Each opener of a database in memory has its own.
    same_database = source.url == target.url and not is_memory(source.url)
    if source is target or (same_database and source.info.id == target.info.id):
        raise CopyError(f"{_shown(source)} cannot be copied into itself")


def check_agreement(source: BufferStore, target: BufferStore) -> None:
    """Raise unless a buffer can hold what another one holds.

    Raises:
        CopyError: It cannot; the message lists the settings.
    """
    here, there = source.current_config(), target.current_config()
    lines = _differences(here, there, _SAME, "in the copy")
    if here.leases.enabled != there.leases.enabled:
        lines.append(f"leases: {here.leases.enabled} there, {there.leases.enabled} in the copy")
    elif here.sampling.max_use is not None and there.sampling.max_use is None:
        lines.append(f"max_use: {here.sampling.max_use} there, none in the copy")
    lines += _too_small(here, there)
    if lines:
        raise CopyError(
            f"{_shown(target)} cannot hold what {_shown(source)} holds:\n  "
            + ";\n  ".join(lines)
            + "\nmake a buffer with `config=source.config`, or with these settings alike"
        )


def _too_small(here: BufferConfig, there: BufferConfig) -> list[str]:
    lines = []
    for name in ("max_capacity", "max_episodes"):
        ours, theirs = getattr(here.retention, name), getattr(there.retention, name)
        if theirs is not None and (ours is None or ours > theirs):
            lines.append(f"{name}: {ours or 'unlimited'} there, {theirs} in the copy")
    return lines


def _value(setting: object) -> str:
    return "none" if setting is None else repr(setting)


def _shown(store: OpenBuffer) -> str:
    return f"{store.info.name!r} in {store.shown_url}"
