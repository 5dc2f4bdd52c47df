"""Import flat arrays of transitions as whole episodes."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from heapq import merge
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_choice, checked_dict, checked_flag, checked_text, refused
from sqlbuffer.config import BufferConfig
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import (
    EpisodeEndedError,
    EpisodeExistsError,
    FieldError,
    FileImportError,
    InsufficientDataError,
)
from sqlbuffer.fields import Fields, FieldSpec
from sqlbuffer.interchange.arrays.episodes import (
    TAILS,
    EpisodePart,
    EpisodeSplitter,
    Findings,
    Tail,
    rows_of,
)
from sqlbuffer.interchange.arrays.naming import REWARD, ArrayPlan, planned
from sqlbuffer.interchange.arrays.sources import Columns, FlatSource, Lane, opened_source
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.output import ImportCounts, ImportIds, ImportReport, counted
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.spaces import NEXT
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.database.urls import Database


def import_arrays(
    url: Database,
    arrays: Any,
    name: str = "default",
    *,
    columns: Mapping[str, str | None] | None = None,
    tail: Tail = "cut",
    store_next: bool | None = None,
    task_id: str | None = None,
    agent_id: str = "default",
    prefix: str = "",
    on_conflict: Literal["error", "skip"] = "error",
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> ImportReport:
    """Store flat arrays of transitions, the form of D4RL and d3rlpy, as whole episodes.

    The arrays have a row for each step: `observations`, `actions`, `rewards`, and `terminals`,
    `timeouts` or both. They become the fields `obs` and `action`, and the values `reward`,
    `terminated` and `truncated`. `next_observations`, `infos/qpos` and further arrays are optional:
    `infos/qpos` becomes the field `info_qpos`, and `observations/image` becomes `obs_image`. Names
    of d3rlpy, Minari, cpprb and gymnasium are known too, such as `episode_terminals`.

    An episode ends after a row whose `terminals` or `timeouts` is true. Without `timeouts`, it also
    ends where the next observation is not that of the next row, as in `qlearning_dataset` of D4RL,
    which leaves out the steps at time limits. `next_observations` of the last step of an episode is
    its final observation; those of other steps are not stored, because they are the observations of
    the next steps.

    Files and chunks are read in pieces of some megabytes, and nothing is unpickled. Arrays that can
    be read twice are checked before the first episode is stored. The id of an episode
    is made of its first step: if an import was interrupted, call it again. It continues, and no
    episode is stored twice.

    Args:
        url: The database; see `ReplayBuffer`.
        arrays: A dict of arrays of numpy, tensors of torch on the CPU, or data sets of h5py; the
            path of an `.npz` or HDF5 file; or an iterable of such dicts, each with some rows.
        name: The buffer; a missing one is made.
        columns: Meanings of arrays with other names: `{"acts": "actions", "x": None}`. None leaves
            an array out.
        tail: What to do with steps at the end of the arrays whose episode has not ended: `cut` ends
            it as truncated, `open` leaves it open, and `drop` leaves the steps out.
        store_next: Store `next_observations` in the fields `next_obs`. By default only where they
            are not the observations of the next steps.
        task_id: Task of all episodes; `default` if omitted. An episode of another task is another
            one, also if its steps are the same.
        agent_id: Agent that acted.
        prefix: Text that is put before the ids of episodes, such as `run1/`.
        on_conflict: For other episodes of the buffer that have the ids: `error`, or `skip` to leave
            those of the arrays out.
        on_progress: Function that is called after each episode with the number of steps that are
            stored, the number that were read, and the range of all steps; of a generator, the range
            of those that were read.
        **settings: Settings of the buffer; see `ReplayBuffer`.

    Raises:
        ArgumentError: An argument is invalid.
        BufferConfigError: A setting is wrong.
        FieldError: An array is missing, has another length or a value that cannot be stored, or the
            buffer has other fields.
        FileImportError: There is no such file, it is damaged, or the buffer has other episodes with
            the ids, or an earlier import has cut an episode that is longer now.
        InsufficientDataError: The arrays have no rows.
        MissingExtraError: The file is HDF5, and h5py is not installed.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import numpy as np
        >>> arrays = {
        ...     "observations": np.zeros((5, 3), np.float32), "actions": np.arange(5),
        ...     "rewards": np.ones(5), "terminals": np.array([0, 1, 0, 0, 0]),
        ... }
        >>> import_arrays("sqlite://", arrays).n_stored
        5
    """
    options = ArrayOptions.checked(
        columns, tail, store_next, task_id, agent_id, prefix, on_conflict, on_progress
    )
    with ExitStack() as stack:
        source = opened_source(arrays, stack)
        return import_source(source, url, name, options, settings)


def checked_columns(columns: Any) -> Mapping[str, str | None]:
    """Return meanings of arrays by their names.

    Raises:
        ArgumentError: Something else.
    """
    if columns is None:
        return {}
    meanings: Mapping[str, str | None] = checked_dict(columns, "columns", "{'acts': 'actions'}")
    for column, meaning in meanings.items():
        if not isinstance(column, str) or not (meaning is None or isinstance(meaning, str)):
            what = "a dict of names of arrays, and their meanings or None"
            raise refused(columns, "columns", what)
    return meanings


@dataclass(frozen=True)
class ArrayOptions:
    """How arrays are imported; attributes as the arguments of `import_arrays`."""

    columns: Mapping[str, str | None]
    tail: Tail
    store_next: bool | None
    task_id: str | None
    agent_id: str
    ids: ImportIds
    on_progress: OnProgress | None

    @classmethod
    def checked(
        cls, columns: Any, tail: Any, store_next: Any, task_id: Any, agent_id: Any, prefix: Any,
        on_conflict: Any, on_progress: Any,
    ) -> "ArrayOptions":  # fmt: skip
        checked_choice(tail, "tail", TAILS)
        if store_next is not None:
            store_next = checked_flag(store_next, "store_next", more=", or None")
        if task_id is not None:
            checked_text(task_id, "task_id")
        checked_text(agent_id, "agent_id")
        ids = ImportIds.checked(prefix, on_conflict)
        on_progress = checked_progress(on_progress)
        return cls(checked_columns(columns), tail, store_next, task_id, agent_id, ids, on_progress)


def import_source(
    source: FlatSource, url: Database, name: str, options: ArrayOptions, settings: Mapping[str, Any]
) -> ImportReport:
    """Store the episodes of a source; see `import_arrays`."""
    began_at = time.monotonic()
    counts = ImportCounts()
    with ExitStack() as stack:
        buffer = found_buffer(url, name)
        if buffer is not None and settings:
            buffer.close()
            buffer = ReplayBuffer(url, name, **settings)
        if buffer is not None:
            stack.enter_context(buffer)
        declared = _declared(settings) if buffer is None else buffer.config.fields
        lanes, plan, findings, n_all = _looked_at(source, options, declared)
        store_next = _stores_next(plan, findings, options, buffer)
        settings = {**plan.declared(store_next=store_next), **settings}
        if declared is not None:
            whose = "the new buffer" if buffer is None else f"buffer {buffer.name!r}"
            _check_fits(plan, declared.specs, whose, store_next=store_next)
        target = stack.enter_context(import_target(buffer, url, name, settings, counts))
        task = options.task_id or "default"
        stores = [
            _LaneStore(
                target, counts, options, source.name, task, lane.agent_id or options.agent_id,
                lane.agent_id or "",
            )
            for lane in lanes
        ]  # fmt: skip
        for number, part in _parts(
            source, lanes, plan, findings, options, declared, store_next=store_next
        ):
            stores[number].store(part)
            if options.on_progress is not None:
                n_range = counts.n_steps if n_all is None else n_all
                options.on_progress(counts.n_stored, counts.n_steps, range(n_range))
        where = f"{target.name!r} in {target.url}"
        return counts.report(source.name, where, time.monotonic() - began_at)


def _declared(settings: Mapping[str, Any]) -> Fields | None:
    """Return the fields that a new buffer is given; None: they follow from the arrays."""
    if settings.get("config") is not None:
        config: BufferConfig = BufferConfig.model_validate(settings["config"])
        return config.fields
    names = ("fields", "observation_fields")
    given: Any = {name: settings[name] for name in names if settings.get(name) is not None}
    return BufferConfig.of(**given).fields if "fields" in given else None


def _looked_at(
    source: FlatSource, options: ArrayOptions, declared: Fields | None
) -> tuple[list[Lane], ArrayPlan, Findings, int | None]:
    """Return the lanes to store, what their arrays mean, and what a look at them has found.

    Arrays that can be read only once are looked at in their first chunk.
    """
    lanes, found, n_all, plan = [], Findings(), 0, None
    for lane in source.lanes:
        chunks = lane.columns()
        first = next(chunks, None)
        if first is None:
            continue
        if plan is None:
            plan = planned(first, options.columns, source.name, declared)
        looked_at = Findings()
        same = _SameArrays(plan, options, source.name, declared)
        rest = chunks if source.may_repeat else iter(())
        for rows in rows_of(chain([first], rest), plan, same.check):
            looked_at.add(rows)
        if not source.may_repeat:
            lane = Lane(_once(first, chunks), lane.agent_id, lane.after)
        found = Findings(
            found.n_rows + looked_at.n_rows,
            looked_at.gap if found.gap is None else found.gap,
            found.n_ends + looked_at.n_ends,
            found.n_linked_ends + looked_at.n_linked_ends,
        )
        lanes.append(lane)
        n_all += looked_at.n_rows
    if plan is None or (not n_all and source.may_repeat):
        raise InsufficientDataError(f"{source.name} has no rows: there is nothing to import")
    return lanes, plan, found, n_all if source.may_repeat else None


def _once(first: Columns, chunks: Iterator[Columns]) -> Any:
    return lambda: chain([first], chunks)


@dataclass
class _SameArrays:
    """Checks that chunks have the arrays of the first one."""

    plan: ArrayPlan
    options: ArrayOptions
    source: str
    declared: Fields | None
    n_chunks: int = 0

    def check(self, columns: Columns) -> None:
        """Raise FieldError if a chunk has other arrays."""
        plan = planned(columns, self.options.columns, self.source, self.declared)
        self.n_chunks += 1
        if plan.names != self.plan.names or any(
            shape != self.plan.specs[name][1] for name, (_, shape) in plan.specs.items()
        ):
            shown = {self.plan.names[n]: shape for n, (_, shape) in self.plan.specs.items()}
            raise FieldError(
                f"chunk {self.n_chunks - 1} of {self.source} has other arrays than the first one: "
                f"{ {plan.names[n]: shape for n, (_, shape) in plan.specs.items()} } with "
                f"{', '.join(plan.names.values())}, and the first one has {shown} with "
                f"{', '.join(self.plan.names.values())}"
            )


def _stores_next(
    plan: ArrayPlan, findings: Findings, options: ArrayOptions, buffer: ReplayBuffer | None
) -> bool:
    """Return whether next observations are stored in fields of their own."""
    if options.store_next and not plan.has_next:
        raise FieldError("store_next=True needs next_observations, which the arrays do not have")
    if buffer is not None and options.store_next is None:
        return plan.has_next and all(NEXT + name in buffer.fields for name in plan.observations)
    if options.store_next is None:
        return findings.gap is not None
    return options.store_next


def _check_fits(
    plan: ArrayPlan, fields: Mapping[str, FieldSpec], whose: str, *, store_next: bool
) -> None:
    """Raise FieldError unless the arrays have the fields of a buffer."""
    if not fields:
        raise FieldError(
            f"{whose} stores JSON rows and has no typed fields for arrays; take another name, and "
            f"a buffer with the fields of the arrays is made"
        )
    listed = ", ".join(f"{name} {spec}" for name, spec in fields.items()) or "none"
    specs = {n: s for n, s in plan.specs.items() if store_next or not plan.is_next(n)}
    for name, (dtype, shape) in specs.items():
        spec = fields.get(name)
        if spec is None:
            raise FieldError(
                f"{whose} has no field {name!r} for array {plan.names[name]!r}; it has {listed}; "
                f"name the field with columns={{{plan.names[name]!r}: FIELD}} (--column "
                f"{plan.names[name]}=FIELD), leave the array out with None, or take another buffer"
            )
        if not spec.is_variable and spec.shape != shape:
            raise FieldError(
                f"array {plan.names[name]!r} has rows of the shape {shape}, and field {name!r} of "
                f"{whose} is {spec}; reshape it, or take another buffer"
            )
        if not np.can_cast(dtype, spec.dtype, "same_kind"):
            raise FieldError(
                f"array {plan.names[name]!r} is {dtype}, and field {name!r} of {whose} is {spec}; "
                f"convert it with astype, or take another buffer"
            )
    for name, spec in fields.items():
        if name not in specs and spec.default is None:
            raise FieldError(
                f"{whose} has the field {name!r} ({spec}), and there is no such array; say which "
                f"one it is with columns={{ARRAY: {name!r}}} (--column ARRAY={name})"
            )


def _parts(
    source: FlatSource,
    lanes: list[Lane],
    plan: ArrayPlan,
    findings: Findings,
    options: ArrayOptions,
    declared: Fields | None,
    *,
    store_next: bool,
) -> Iterator[tuple[int, EpisodePart]]:
    """Yield episodes of all lanes in the order in which they ended, with the numbers of lanes."""

    def of_lane(number: int, lane: Lane) -> Iterator[tuple[int, EpisodePart]]:
        splitter = EpisodeSplitter(
            plan, options.tail, lane.after, source.name, store_next=store_next,
            is_shifted=findings.is_shifted,
        )  # fmt: skip
        check = _SameArrays(plan, options, source.name, declared).check
        for part in splitter.parts(rows_of(lane.columns(), plan, check)):
            yield number, part

    streams = [of_lane(number, lane) for number, lane in enumerate(lanes)]
    return merge(*streams, key=lambda one: (one[1].stop, one[0]))


class _Held(NamedTuple):
    """What a buffer has of an episode.

    Attributes:
        steps: Its steps there.
        is_truncated: Whether the last one is truncated.
    """

    steps: tuple[int, ...]
    is_truncated: bool

    @property
    def n_steps(self) -> int:
        """Length of the episode."""
        return max(self.steps, default=-1) + 1


@dataclass
class _LaneStore:
    """Stores the episodes of one agent.

    Attributes:
        buffer: The buffer.
        counts: Receives what was stored.
        options: See `import_arrays`.
        source: Name of the arrays, for messages.
        task: Task of the episodes.
        agent: The agent.
        lane: What tells the ids of this lane from those of others; empty if it is the only one.
    """

    buffer: ReplayBuffer
    counts: ImportCounts
    options: ArrayOptions
    source: str
    task: str
    agent: str
    lane: str
    _beginnings: Counter[bytes] = field(default_factory=Counter)
    _id: str = ""
    _writer: EpisodeWriter | None = None
    _n_before: int = 0
    _n_given: int = 0
    _is_other: bool = False
    _has_cut_end: bool = False
    _is_cut: bool = False

    def store(self, part: EpisodePart) -> None:
        """Store an episode, or the next part of one."""
        where = f"{self.source}, rows from {part.first:,} on"
        if part.is_begin:
            self._id, self._is_cut = self._made_id(part), False
            if part.is_open and part.is_end and self.options.tail == "drop":
                self.counts.n_steps += part.n_steps
                self.counts.n_open += 1
                return
        if part.is_begin and part.is_end and not part.is_open:
            try:
                stored = self._stored_whole(part)
            except EpisodeExistsError:  # open: it was stored in parts
                stored = self._appended(part)
        else:
            stored = self._appended(part)
        if self._is_cut and self.options.ids.on_conflict == "error":
            raise FileImportError(
                f"{where}: episode {self._id!r} of the buffer has the first "
                f"{counted(self._n_before, 'step')} of this one and is truncated there, as if an "
                f"earlier import with tail='cut' had cut it; arrays that grow need tail='open' or "
                f"'drop' (--tail open) from the first import on: import them like that into a new "
                f"buffer. If it is another episode, give prefix='run1/' (--prefix); "
                f"on_conflict='skip' (--on-conflict skip) leaves the longer one out"
            )
        self.counts.add(part.n_steps, stored, self.options.ids, where)

    def _made_id(self, part: EpisodePart) -> str:
        """Return the id of an episode: the hash of its first step and of its lane, and a number
        for others of the lane that begin in the same way. So an open episode is known again
        when it is longer, and however many steps other lanes have.
        """
        digest = blake2b(self.lane.encode(), digest_size=8)
        for name, spec in sorted(self.buffer.fields.items()):
            if name in part.columns:
                digest.update(spec.cast(part.columns[name][0]).tobytes())
        digest.update(part.columns[REWARD][:1].tobytes())
        key = digest.digest()
        self._beginnings[key] += 1
        number = "" if self._beginnings[key] == 1 else f"-{self._beginnings[key]}"
        return f"{self.options.ids.prefix}{key.hex()}{number}"

    def _stored_whole(self, part: EpisodePart) -> StoreResult:
        writer = self.buffer._writer
        episode = writer.encoded_episode(
            part.columns, episode_id=self._id, task_id=self.task, group_id=None, parent_id=None,
            keys={"agent_id": self.agent}, final=part.final, episode_reward=None,
            casting="same_kind", meta={},
        )  # fmt: skip
        stored = writer.store(episode)
        if not stored.conflicts:
            return stored
        held = self._held()
        self._n_before = held.n_steps
        is_longer = held.n_steps < part.n_steps
        self._is_cut = is_longer and held.is_truncated and self._has_same(part)
        # The buffer has no steps after the end of a shorter episode.
        ids = {f"{self._id}/{t}" for t in held.steps}
        in_both = tuple(known for known in stored.conflicting_ids if known in ids)
        return replace(stored, conflicting_ids=in_both or stored.conflicting_ids)

    def _held(self) -> "_Held":
        """Return what the buffer has of the episode."""
        rows = self.buffer.get_all(self._condition().build(), fields=("truncated",))
        truncated = {row.exp_meta.step: bool(row.exp_data.truncated) for row in rows}
        return _Held(tuple(truncated), bool(truncated) and truncated[max(truncated)])

    def _condition(self) -> QueryBuilder:
        return QueryBuilder().eq("episode_id", self._id).and_().eq("task_id", self.task)

    def _appended(self, part: EpisodePart) -> StoreResult:
        """Append the steps that the buffer does not have."""
        if part.is_begin:
            self._is_other = not self._has_same(part)
            self._writer = None if self._is_other else self._begun()
        if self._is_other:
            return StoreResult(0, 0, part.n_steps, (self._id,))
        n_known = min(max(self._n_before - self._n_given, 0), part.n_steps)
        self._n_given += part.n_steps
        if self._writer is None:  # it is complete
            if n_known == part.n_steps:
                return StoreResult(0, part.n_steps, 0)
            self._is_cut = self._has_cut_end
            return StoreResult(0, n_known, part.n_steps - n_known, (self._id,))
        for i in range(n_known, part.n_steps):
            self._writer.append(**{name: values[i] for name, values in part.columns.items()})
        if part.is_end:
            self._end(part)
        return StoreResult(part.n_steps - n_known, n_known, 0)

    def _has_same(self, part: EpisodePart) -> bool:
        """Return whether the buffer's steps of the episode, if it has any, are those of a part."""
        for row in self.buffer.get_all(self._condition().and_().lt("step", part.n_steps).build()):
            i = row.exp_meta.step
            if row.exp_data.reward_t != part.columns[REWARD][i]:
                return False
            for name, spec in self.buffer.fields.items():
                if name in part.columns:
                    value = spec.cast(part.columns[name][i])
                    is_real = spec.dtype.kind in "fc"
                    if not np.array_equal(row.fields[name], value, equal_nan=is_real):
                        return False
        return True

    def _begun(self) -> EpisodeWriter | None:
        """Return the writer of the episode; None: it is complete."""
        self._n_before = self._n_given = 0
        try:
            writer = self.buffer.episode(self.task, self.agent, episode_id=self._id, resume=True)
        except EpisodeEndedError:
            held = self._held()
            # Without its steps, it is as long as that of the arrays.
            self._n_before = held.n_steps or sys.maxsize
            self._has_cut_end = held.is_truncated
            return None
        self._n_before = writer.t
        return writer

    def _end(self, part: EpisodePart) -> None:
        assert self._writer is not None
        if not part.is_open:
            final: dict[str, Any] = part.final or {}
            self._writer.end(**final)
        elif self.options.tail == "open":
            self._writer.leave()
        else:  # too long to be held until it was known to have no end
            self._writer.abort()
        self._writer = None
