"""`ReplayBuffer`: the front door."""

import builtins
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from sqlbuffer.arguments import (
    MAX_LIMIT,
    SAME,
    Condition,
    Same,
    check_batch_size,
    check_capacity,
    check_limits,
    check_n_step,
    check_name,
    check_options,
    check_seconds,
    check_sufficient,
    columns_of,
    one_condition,
    row_of,
)
from sqlbuffer.batches import Batch
from sqlbuffer.compression import check_compression
from sqlbuffer.converters import Converter
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from sqlbuffer.ids import uuid7
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import Options as LoaderOptions
from sqlbuffer.loading.opening import open_loader
from sqlbuffer.loading.output import Output
from sqlbuffer.query import EVERYTHING, Node, check
from sqlbuffer.rows import DataRow
from sqlbuffer.samplers import RandomSampler, RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.specs import Fields, FieldSpec, check_casting
from sqlbuffer.storage import catalog
from sqlbuffer.storage.catalog import Limits
from sqlbuffer.storage.columns import decode_row, encode_columns
from sqlbuffer.storage.episodes import Beginning, Ending, encode_meta, pack_final
from sqlbuffer.storage.keys import EpisodeKey
from sqlbuffer.storage.readers.base import Reader
from sqlbuffer.storage.readers.steps import StepReader
from sqlbuffer.storage.readers.transitions import TransitionReader
from sqlbuffer.storage.records import Decoder, Record, encode_key, encode_rows, encode_step
from sqlbuffer.storage.store import RETRY_S, BufferStore, Options, Written
from sqlbuffer.storage.write_queue import FLUSH_S, WriteQueue

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.engine import URL

logger = logging.getLogger("sqlbuffer")

AnyConverter = Converter[Any] | Callable[[Any], Any]

MAX_EPISODE = 500  # bytes; the ids of its steps have it with a number behind
_MADE_TIME = frozenset(("execute_time",))  # was not given, so it makes no conflict


@dataclass(frozen=True)
class StoreResult:
    """What became of the rows of one call; the three numbers add up to all of them.

    Attributes:
        inserted: Rows stored.
        duplicates: Rows whose id the buffer holds with the same content: not stored again.
        conflicts: Rows whose id the buffer holds with other content: not stored.
        conflicting_ids: The ids of those.

    Example:
        >>> StoreResult(inserted=2, duplicates=0, conflicts=0).inserted
        2
    """

    inserted: int
    duplicates: int
    conflicts: int
    conflicting_ids: tuple[str, ...] = field(default=(), compare=False)


class ReplayBuffer:
    """A named stream of experience in a SQL database, shared by every process that opens it.

    Safe to use from many threads, to pickle, and to use in forked and spawned processes.

    Args:
        url: Database URL, SQLAlchemy URL or Engine; without one `SQLBUFFER_URL`, else `sqlite:///sqlbuffer.db`.
        name: One database holds many buffers.
        max_capacity: Rows held at most; the oldest leave first. Omitted: what is stored, unlimited
            for a new buffer.
        evict_by: `row`, or `task`: the task whose last write is oldest leaves whole. Omitted: what
            is stored, `row` for a new buffer.
        create: True creates a missing schema and buffer, False neither. Omitted: the buffer, and
            the schema of a new SQLite file.
        fields: Typed array fields, `{name: spec}`; a spec is a dtype, `(dtype, shape)` or `(dtype,
            shape, default)`, with -1 for a length that varies. Omitted: what is stored, none for a
            new buffer.
        observation_fields: Which of them an observation is made of; `obs` by default.
        meta_fields: Typed fields of an episode, declared like `fields`: numbers, booleans, texts
            and small arrays of them, kept as JSON. Omitted: what is stored.
        compression: `zstd`: the bytes of arrays, of typed fields and inside payloads, are kept
            compressed where that makes them shorter. Omitted: what is stored, none for a new
            buffer.
        state_type: Type that states are rebuilt as when read, by pydantic; plain values without
            one.
        action_type: Type that each action is rebuilt as.
        max_episodes: Episodes held at most; the ended ones that began first leave whole. Omitted:
            what is stored, unlimited for a new buffer.
        keep_episodes: How many episodes `v_episodes` lists at most after their steps have left.
            Omitted: what is stored, a million for a new buffer.
        open_timeout_s: An open episode without a write for so many seconds is abandoned. Omitted:
            what is stored, an hour for a new buffer.
        flush_s: How long a step of `episode()` waits at most before it is stored.
        durability: What a write that returned survives. Omitted: the death of any process of the
            client or the server, and what more the server's `synchronous_commit` is set to; SQLite
            may lose the last writes when the power fails. `full`: the power failing too, at a sync
            of the disk for each write. `relaxed`: on PostgreSQL the last half second may be lost
            when the server dies, and writes do not wait for its disk; as omitted on SQLite. The
            batch is whole or absent, whichever is chosen.
        retry_s: How long a call tries again when the connection to the server is lost; a batch is
            stored once however often it is sent. 0 raises at once.

    Raises:
        BufferConfigError: The buffer is stored with another capacity, eviction or compression.
        FieldError: A malformed field, or the buffer is stored with other fields.
        MissingExtraError: The buffer is compressed, and the package for it is not installed.
        SchemaMissingError: A database without the schema.
        SchemaOutdatedError: A schema of an earlier release.
        SchemaTooNewError: A schema of a later release.
        StorageUnreachableError: No database answers.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", max_capacity=100)
        >>> buffer.add(state={"x": 1}, actions=[0], reward=1.0, task_id="t1", step=1).inserted
        1
        >>> [row.exp_data.state for row in buffer.sample(8)]
        [{'x': 1}]
    """

    def __init__(
        self,
        url: "str | URL | Engine | None" = None,
        *,
        name: str = "default",
        max_capacity: int | None = None,
        evict_by: str | None = None,
        create: bool | None = None,
        fields: Mapping[str, Any] | None = None,
        observation_fields: Sequence[str] | None = None,
        meta_fields: Mapping[str, Any] | None = None,
        compression: str | None = None,
        state_type: Any = None,
        action_type: Any = None,
        max_episodes: int | None = None,
        keep_episodes: int | None = None,
        open_timeout_s: float | None = None,
        flush_s: float = FLUSH_S,
        durability: str | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        check_name(name)
        check_options(durability, retry_s)
        limits = Limits(max_capacity, evict_by, max_episodes, keep_episodes, open_timeout_s)
        check_limits(limits)
        check_seconds("flush_s", flush_s)
        check_compression(compression)
        if fields is None and observation_fields is not None:
            raise FieldError("observation_fields go with fields=...; leave both out to reopen")
        self._types = (state_type, action_type)
        self._store = BufferStore.open(
            url,
            name,
            limits=limits,
            create=create,
            fields=None
            if fields is None and meta_fields is None
            else Fields.parse(fields, observation_fields, meta_fields),
            compression=compression,
            options=Options(durability, float(retry_s)),
        )
        self._decoder = self._make_decoder()
        self._flush_s = float(flush_s)
        self._queue = WriteQueue(self._write, self._flush_s)

    @property
    def name(self) -> str:
        """Name of the buffer."""
        return self._store.info.name

    @property
    def max_capacity(self) -> int | None:
        """Rows held at most, as stored now; None is unlimited."""
        return self._store.window().max_capacity

    @property
    def max_episodes(self) -> int | None:
        """Episodes held at most, as stored now; None is unlimited."""
        return self._store.window().max_episodes

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """The typed fields, as stored."""
        return dict(self._store.info.fields.specs)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Which of them an observation is made of."""
        return self._store.info.fields.observations

    @property
    def compression(self) -> str | None:
        """How the bytes of arrays are compressed, as stored; None: not at all."""
        return self._store.info.compression

    @property
    def meta_fields(self) -> dict[str, FieldSpec]:
        """The typed fields of an episode, as stored."""
        return dict(self._store.info.fields.meta)

    def decode(self, arrays: bytes) -> dict[str, Any]:
        """Return the typed fields of one row, `{name: array of its shape}`, from its column
        `arrays`, as plain SQL returns it.

        Raises:
            FieldError: The row was not written with the buffer's fields.
        """
        return decode_row(self._store.layout, bytes(arrays))

    @property
    def evict_by(self) -> str:
        """What leaves at once: `row`, `task` or `episode`."""
        return self._store.info.evict_by

    def store(self, data: DataRow) -> StoreResult:
        """Store one row, unless the buffer holds its id.

        Raises:
            ValueError: No row.
            FieldError: A value cannot be stored; nothing is written.
        """
        if not data:
            raise ValueError("Data is required")
        return self._insert([data])

    def store_batch(
        self, data_batch: Iterable[DataRow], model_version: int | None = None
    ) -> StoreResult:
        """Store rows in one transaction: all those whose ids the buffer does not hold, or none.

        Args:
            data_batch: The rows.
            model_version: Version for rows that name none.

        Raises:
            FieldError: A value cannot be stored; nothing is written.
        """
        return self._insert(list(data_batch or ()), model_version=model_version)

    def add(self, **fields: Any) -> StoreResult:
        """Store one experience given by its fields; none is required.

        Args:
            **fields: `state`, `actions` (or `action`), `reward`, `adv_t`, `v_t`, `messages`,
                `terminated`, `truncated`, `extra`, `task_id`, `task_name`, `agent_id`, `step`,
                `execute_time`, `pre_agent`, `episode_id`, `model_version`, `session_id` and `id`.

        Raises:
            FieldError: An unknown field, or a value that cannot be stored; nothing is written.
        """
        ignore = frozenset() if "execute_time" in fields else _MADE_TIME
        return self._insert([row_of(fields)], ignore=ignore)

    def extend(
        self, arrays: Mapping[str, Any], *, casting: str = "same_kind", **keys: Any
    ) -> StoreResult:
        """Store n steps given as columns, in one transaction.

        Args:
            arrays: For each declared field an array of shape (n, *shape), or n arrays where its
                length varies; `reward`, `terminated`, `truncated` of shape (n,) if there are any;
                `state`, `actions`, `messages`, `extra` as lists of n values, as `add` takes them.
            casting: `same_kind` refuses casts that lose what a value means: floats to integers,
                integers out of range, finite floats to infinite ones. `unsafe` is numpy's.
            **keys: `task_id`, `agent_id`, `step`, `model_version`: n values or one for all rows;
                `id`: n values.

        Raises:
            FieldError: An unknown or missing field, another shape, a value that the field cannot
                hold; nothing is written.
        """
        columns = columns_of(arrays, keys)
        records = encode_columns(self._store.layout, columns, casting=casting)
        return self._insert_records(records, ignore=_MADE_TIME)

    def store_episode(
        self,
        arrays: Mapping[str, Any],
        *,
        episode_id: str | None = None,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        final: Mapping[str, Any] | None = None,
        casting: str = "same_kind",
        **meta: Any,
    ) -> StoreResult:
        """Store a whole episode given as columns, in one transaction; `v_episodes` shows it, also
        after its steps were evicted.

        Args:
            arrays: As `extend` takes them, from the first step to the last.
            episode_id: Its id; made when left out. Given, the episode is stored once however often
                it is sent, as long as the buffer holds a step of it: another one of that id is not
                stored, and its steps count as conflicts.
            task_id: Its task; the episode's own id when left out.
            agent_id: Who acted; `default` when left out. A column of `arrays`, where it changes.
            model_version: Version of the model that acted; likewise.
            final: The observation after the last step, a value for each observation field.
            casting: See `extend`.
            **meta: Kept with the episode: values of `meta_fields`, and of other names JSON values.

        Raises:
            EpisodeExistsError: An episode of that id is open, or was aborted.
            FieldError: As `extend`; a final observation with other fields; meta that is no JSON;
                no step. Nothing is written.
        """
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        keys = {"task_id": task, "agent_id": agent_id, "model_version": model_version}
        own_ids = () if episode_id is None else ("id",)  # made of the episode's
        columns = columns_of(arrays, keys, own_ids)
        store = self._store
        records = encode_columns(store.layout, columns, casting=casting, episode=key)
        if not records:
            raise FieldError("an episode has at least one step")
        if episode_id is not None:
            records = [record._replace(id=f"{key}/{record.t}") for record in records]
        rewards = [record.reward_t for record in records if record.reward_t is not None]
        ending = Ending(
            key,
            task,
            "complete",
            len(records),
            sum(rewards) if rewards else None,
            records[0].id,
            records[-1].id,
            pack_final(store.observation_layout, final, casting),
        )
        text = encode_meta(meta, store.info.fields.meta, casting)
        metas = {} if text is None else {(key, task): text}
        return self._insert_records(
            records,
            ignore=_MADE_TIME,
            endings=[ending],
            metas=metas,
            whole=None if episode_id is None else (key, task),
        )

    def episode(
        self,
        task_id: str | None = None,
        agent_id: str | None = None,
        *,
        episode_id: str | None = None,
        model_version: int | None = None,
        casting: str = "same_kind",
        **meta: Any,
    ) -> EpisodeWriter:
        """Begin an episode that is written step by step.

        Steps are stored in batches: when there are enough of all open episodes, and never later
        than `flush_s` after the first. The end of an episode is stored before `end` returns; a
        process that dies loses the steps of its last `flush_s`, and leaves the episode open.

        Args:
            task_id: Its task; the episode's own id when left out.
            agent_id: Who acts; `default` when left out.
            episode_id: Its id, which no episode of the task may have; made when left out.
            model_version: Version of the model that acts.
            casting: See `extend`.
            **meta: See `store_episode`.

        Raises:
            EpisodeExistsError: The buffer knows an episode of that id.
            FieldError: A key that is no text, or meta that does not fit.
        """
        beginning = self._beginning(task_id, agent_id, episode_id, model_version, casting, meta)
        if episode_id is not None:
            self._store.begin_episode(beginning)
        layouts = (self._store.layout, self._store.observation_layout)
        return EpisodeWriter(layouts, self._queue, beginning, casting)

    def record(
        self,
        env: Any,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        casting: str = "same_kind",
        **meta: Any,
    ) -> Any:
        """Return a gymnasium environment that behaves as `env`, and stores every step it takes.

        Each episode of each environment is one of `episode`, begun with its first step, ended when
        the environment says so, with its final observation. `reset` in the middle and `close` end
        it as truncated; an exception in `step` marks it aborted. Nothing is stored of the steps
        that only reset (gymnasium's autoreset). Close the environment before the buffer.

        The newest step of an open episode waits for the next call, which tells whether the episode
        was cut after it: `flush` leaves it, and its `flush_s` counts from then.

        Args:
            env: A gymnasium environment, single or vectorized. The buffer has the fields that
                `fields_from_env` reads from it, with `next_obs` or without, and maybe others that
                have a default.
            task_id: The task of all its episodes; each one's own id when left out.
            agent_id: Who acts; `default` when left out.
            model_version: Version of the model that acts: the attribute `model_version` of what is
                returned, which may be set at any time and holds for the episodes begun since.
            casting: See `extend`.
            **meta: See `episode`.

        Raises:
            FieldError: The buffer has other fields than the environment, or a key or meta cannot be
                stored. From `step`: a value that its field cannot hold; the episodes are aborted.
            MissingExtraError: No gymnasium, or one before 1.1.
            StorageError: From `step`, earlier steps could not be stored; they wait to be, and the
                episodes are aborted. From `close`, likewise; the environment is closed.
        """
        from sqlbuffer.recording import recorded

        if "episode_id" in meta:
            raise FieldError("record() makes an id for each episode; leave episode_id out")
        self._beginning(task_id, agent_id, None, model_version, casting, meta)
        begin = partial(self.episode, task_id, agent_id, casting=casting, **meta)
        return recorded(env, self, begin, model_version)

    def flush(self) -> None:
        """Store the steps of open episodes that wait.

        Raises:
            StorageError: They could not be stored; they wait to be.
            EpisodeExistsError: The buffer holds other steps under the ids of some, which are lost.
        """
        self._queue.flush()

    def sample_arrays(
        self,
        batch_size: int = 256,
        *,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Condition = None,
    ) -> Batch:
        """Draw rows as arrays.

        Args:
            batch_size: How many rows.
            fields: Which of the declared fields, `reward`, `terminated` and `truncated`; all by
                default.
            sampler: Which rows; `RandomSampler(replace=True)` by default.
            condition: Which rows may be drawn.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            InsufficientDataError: Fewer rows were drawn: with the default sampler none matches.
            FieldError: An unknown field.
        """
        node = self._node(condition)
        sampler = RandomSampler(replace=True) if sampler is None else sampler
        check_batch_size(batch_size)
        reader = StepReader(self._store.info.fields, fields, self._store.info.compression)
        return self._draw(reader, sampler, batch_size, node)

    def sample_transitions(
        self,
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Condition = None,
    ) -> Batch:
        """Draw transitions: steps with their n-step returns and the observations after them.

        For step t of an episode, m is n_step, or the steps to the episode's end where they are
        fewer: `reward` is the sum of gamma^k r_(t+k) for k < m, `discount` is gamma^m, or 0 where
        the episode terminated within, and `next_obs` the observation at t + m, or the final one of
        the episode (Sutton and Barto 2018, section 7.1). A declared field `next_obs` is used as it
        is. Steps whose successors are not stored are not drawn: those before a truncated end
        without a final observation, say. A terminated end without one has zeros.

        Args:
            batch_size: How many.
            n_step: How many steps a transition spans at most.
            gamma: Discount of one step.
            stack: `{"obs": 4}`: each observation as its last 4 frames, of shape (batch_size, 4,
                *shape), the oldest first; at an episode's start the first frame is repeated.
            terminal_field: The declared field, such as `done`, that tells where an episode
                terminated, for buffers that do not store `terminated`.
            fields: Which of the declared fields; all by default.
            sampler: Which first steps; `RandomSampler(replace=True)` by default.
            condition: Which first steps may be drawn.

        Returns:
            A batch of arrays of shape (batch_size, *shape): the fields, `reward` and `discount`
            (float32), `terminated`, and `next_<name>` for each observation field; in `info` also
            `episode`, `t` and `n_steps`, which is m.

        Raises:
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: An unknown field, no observation field, or a field `done` where neither
                `terminated` nor `truncated` is stored and no `terminal_field` is given.
        """
        node = self._node(condition)
        sampler = RandomSampler(replace=True) if sampler is None else sampler
        check_batch_size(batch_size)
        check_n_step(n_step, gamma)
        info = self._store.info
        reader = TransitionReader(
            info.fields,
            int(n_step),
            float(gamma),
            names=fields,
            stack=stack,
            terminal_field=terminal_field,
            compression=info.compression,
        )
        return self._draw(reader, sampler, batch_size, node)

    def loader(
        self,
        mode: str = "transition",
        batch_size: int = 256,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        length: int | None = None,
        burn_in: int = 0,
        stride: int = 1,
        sequence_fields: Sequence[str] = (),
        stack: Mapping[str, int] | None = None,
        terminal_field: str | None = None,
        include_partial: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        drop_last: bool = False,
        replace: bool = False,
        sampler: Sampler | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        to_named_tuple: Sequence[str] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        device: Any = None,
        prefetch: int = 0,
        epochs: int | None = None,
    ) -> Loader:
        """Return an iterable of batches for a training loop: drawn without end, or in passes.

        A pass (`epochs`, or `shuffle=False`) fixes the range of seq at its start, so that rows
        stored later do not enter it, visits what is there once and skips what is evicted meanwhile.
        An empty buffer has a pass without batches.

        Args:
            mode: What a batch holds: `step`, rows as `sample_arrays`; `transition`, as
                `sample_transitions`; `n_step`, transitions with the sequences of chosen fields;
                `window`, stretches of one length; `trajectory`, whole episodes.
            batch_size: How many of them.
            n_step: Modes `transition` and `n_step`: how many steps a transition spans at most.
            gamma: The same modes: discount of one step.
            length: Mode `window`: how many steps.
            burn_in: Mode `window`: how many steps before it.
            stride: Mode `window`: how far one begins behind the other.
            sequence_fields: Mode `n_step`: fields whose values of each step are wanted.
            stack: Modes `transition`, `n_step` and `window`: `{field: how many frames}`.
            terminal_field: Modes `transition` and `n_step`: the field that says an episode ended.
            include_partial: Mode `trajectory`: episodes that are open or clipped as well.
            shuffle: False: passes in the order of seq, one after the other.
            seed: Repeat the same batches over the same live rows.
            drop_last: Leave out the last batch of a pass where it is smaller.
            replace: Draw with replacement.
            sampler: Draws the batches; uniform by default.
            condition: Which rows; see the mode's own call for what of it must match.
            fields: Which of the declared fields; all by default.
            to_named_tuple: Batches are named tuples of these arrays, in this order, without
                leading underscores; `info` is the batch's info.
            fieldname_map: `{name: other name}` of arrays.
            device: `cpu`, `cuda` or another of torch: arrays become tensors there, but for texts
                and objects, which torch has no tensors for, and `info`.
            prefetch: How many batches a thread fetches ahead.
            epochs: How many passes; without, batches are drawn without end.

        Raises:
            InsufficientDataError: In the loop: fewer were drawn than a batch holds, or a pass
                without end finds no batch.
            FieldError: An unknown field, or names that collide.
            ValueError: An option that the mode does not take, or options that exclude each other.
            MissingExtraError: A device, and torch is not installed.
        """
        options = LoaderOptions(
            mode=mode, batch_size=batch_size, n_step=n_step, gamma=gamma, length=length,
            burn_in=burn_in, stride=stride, sequence_fields=sequence_fields, stack=stack,
            terminal_field=terminal_field, include_partial=include_partial, shuffle=shuffle,
            seed=seed, drop_last=drop_last, replace=replace, sampler=sampler, condition=condition,
            fields=fields, epochs=epochs,
        )  # fmt: skip
        output = Output(fieldname_map, to_named_tuple, device)
        return open_loader(self._store, options, output, prefetch)

    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        query_condition: Condition = None,
    ) -> Any:
        """Draw a batch.

        Args:
            batch_size: How many rows, or tasks with a task sampler. When fewer match, all that
                match come back.
            sampler: Which rows; `RandomSampler()` by default.
            condition: Which rows may be drawn, or with a task sampler which tasks.
            converter: Called once, on the whole batch.
            strict: Raise when fewer match.
            query_condition: Other name of `condition`.

        Returns:
            A list of rows, or with a task sampler a list of tasks, each a list of rows in the order
            of (episode, step, execute_time); or what the converter makes of it.

        Raises:
            ConditionError: A malformed condition.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative batch size.
        """
        node = self._node(condition, query_condition)
        sampler = RandomSampler() if sampler is None else sampler
        check_batch_size(batch_size)
        if isinstance(sampler, TaskSampler):
            batch: Any = self._sample_tasks(sampler, batch_size, node)
        elif isinstance(sampler, Sampler):
            batch = self._sample_rows(sampler, batch_size, node)
        else:
            raise TypeError(f"sampler is a Sampler or a TaskSampler, got {type(sampler).__name__}")
        check_sufficient(len(batch), batch_size, strict)
        return _convert(converter, batch)

    def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        query_condition: Condition = None,
    ) -> builtins.list[Any]:
        """Draw whole tasks: `RandomTaskSample()` by default. The converter is called once a task.

        Args:
            n: How many tasks. When fewer match, all that match come back.
            sampler: Which tasks.
            condition: A task can be drawn if one of its rows matches; all its rows come back.
            converter: Called once for each task.
            strict: Raise when fewer match.
            query_condition: Other name of `condition`.

        Returns:
            A list of tasks, each a list of rows in the order of (episode, step, execute_time), or
            what the converter makes of them.

        Raises:
            ConditionError: A malformed condition.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative n.
        """
        sampler = RandomTaskSample() if sampler is None else sampler
        if not isinstance(sampler, TaskSampler):
            raise TypeError(
                f"sample_tasks takes a TaskSampler, got {type(sampler).__name__}; use sample() for "
                f"rows"
            )
        node = self._node(condition, query_condition)
        check_batch_size(n)
        tasks = self._sample_tasks(sampler, n, node)
        check_sufficient(len(tasks), n, strict)
        return [_convert(converter, task) for task in tasks]

    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: AnyConverter | None = None,
        batch_size: int = 1000,
    ) -> builtins.list[Any]:
        """Draw whole tasks: `sample_tasks` by AWorld's name and arguments."""
        return self.sample_tasks(
            batch_size, sampler=sampler, condition=query_condition, converter=converter
        )

    def size(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Return how many rows match."""
        return self._store.count(self._node(condition, query_condition))

    def __len__(self) -> int:
        """Return how many rows the buffer holds; nothing is scanned."""
        return self._store.count(EVERYTHING)

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer: `if buffer` asks whether there is one."""
        return True

    def __iter__(self) -> Iterator[DataRow]:
        """Iterate over all rows as `get_all` does."""
        return self.get_all()

    def get_all(
        self, condition: Condition = None, *, query_condition: Condition = None
    ) -> Iterator[DataRow]:
        """Stream the rows that match and are there now, in insert order.

        Rows come in pages and no transaction stays open between them, so any number may be read in
        little memory. Rows evicted before their page is read are left out.
        """
        node = self._node(condition, query_condition)
        pages = self._store.pages(node)
        # One by one: a page of compressed rows may be many times as large expanded.
        return (row for page in pages for row in map(self._decoder.row, page))

    def get_paginated(
        self,
        page: int,
        page_size: int,
        condition: Condition = None,
        *,
        query_condition: Condition = None,
    ) -> builtins.list[DataRow]:
        """Return one page of the rows that match, in insert order.

        Args:
            page: From 1; a page past the end is empty.
            page_size: Rows a page.
            condition: Which rows.
            query_condition: Other name of `condition`.

        Raises:
            ValueError: A page or page size below 1.
        """
        if page < 1:
            raise ValueError("Page must be greater than 0")
        if page_size < 1:
            raise ValueError("Page size must be greater than 0")
        node = self._node(condition, query_condition)
        offset = min((page - 1) * page_size, MAX_LIMIT)
        return self._decoder.rows(self._store.page(node, offset, min(page_size, MAX_LIMIT)))

    def get_by_task_id(self, task_id: str) -> builtins.list[DataRow]:
        """Return all rows of a task in the order of (episode, step, execute_time); none for an
        unknown task.
        """
        return self.get_batch_by_task_ids([task_id])[task_id]

    def get_batch_by_task_ids(self, task_ids: Iterable[str]) -> dict[str, builtins.list[DataRow]]:
        """Return `{task_id: rows}` in the order of the ids, each task's rows in the order of
        (episode, step, execute_time).
        """
        wanted = list(task_ids)
        found = self._store.tasks([str(task_id) for task_id in wanted])
        return {task_id: self._decoder.rows(found[str(task_id)]) for task_id in wanted}

    def delete(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Delete the rows that match and return how many.

        Raises:
            ConditionError: An empty condition; `clear()` deletes everything.
        """
        node = self._node(condition, query_condition)
        if node == EVERYTHING:
            raise ConditionError("delete() needs a condition; use clear() to delete every row")
        return self._store.delete(node)

    def clear(self) -> int:
        """Delete every row and return how many there were."""
        return self._store.clear()

    def resize(
        self, max_capacity: "int | Same | None" = SAME, *, max_episodes: "int | Same | None" = SAME
    ) -> None:
        """Change the stored limits; shrinking evicts the oldest at once.

        Args:
            max_capacity: Rows held at most; None is unlimited.
            max_episodes: Episodes held at most, of a buffer that was made with `max_episodes`; None
                is unlimited.
        """
        changes = {
            name: value
            for name, value in (("max_capacity", max_capacity), ("max_episodes", max_episodes))
            if not isinstance(value, Same)
        }
        if not changes:
            raise TypeError("resize() needs max_capacity=... or max_episodes=...")
        for name, value in changes.items():
            check_capacity(value, name)
        if "max_episodes" in changes and self.evict_by != "episode":
            raise BufferConfigError(
                f"buffer {self.name!r} evicts by {self.evict_by}; a limit of episodes takes a "
                f"buffer that was made with max_episodes"
            )
        self._store.resize(changes)

    def sql(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the select that a condition becomes, its values written out for reading."""
        return self._store.sql(self._node(condition, query_condition))

    def explain(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the database's plan for that select."""
        return self._store.explain(self._node(condition, query_condition))

    def close(self) -> None:
        """Store the steps that wait, and close this process's idle connections to the database; a
        later call opens new ones.
        """
        try:
            self._queue.flush()
        finally:
            self._store.close()

    def __enter__(self) -> "ReplayBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def list(url: "str | URL | Engine | None" = None) -> builtins.list[str]:
        """Return the names of the buffers of a database, in order."""
        return [info.name for info in catalog.list_buffers(url)]

    @staticmethod
    def drop(url: "str | URL | Engine | None", name: str) -> None:
        """Delete a buffer and all that belongs to it.

        Raises:
            BufferNotFoundError: No such buffer.
        """
        catalog.drop_buffer(url, name)

    def __repr__(self) -> str:
        return f"ReplayBuffer({self._store.shown_url!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store, "types": self._types, "flush_s": self._flush_s}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._types = state["store"], state["types"]
        self._decoder = self._make_decoder()
        self._flush_s = state["flush_s"]
        self._queue = WriteQueue(self._write, self._flush_s)

    def _make_decoder(self) -> Decoder:
        state, action = map(_rebuild, self._types)
        return Decoder(state, action, self._store.layout)

    def _beginning(
        self,
        task_id: str | None,
        agent_id: str | None,
        episode_id: str | None,
        model_version: int | None,
        casting: str,
        meta: Mapping[str, Any],
    ) -> Beginning:
        """Return what an episode begins with, checked."""
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        agent = encode_key("default" if agent_id is None else agent_id, "agent_id")
        version = None if model_version is None else encode_step(model_version, "model_version")
        check_casting(casting)
        text = encode_meta(meta, self._store.info.fields.meta, casting)
        return Beginning(key, task, agent, version, text)

    def _write(
        self,
        records: Sequence[Record],
        endings: Sequence[Ending],
        metas: Mapping[EpisodeKey, str],
    ) -> Written:
        return self._store.insert(records, ignore=_MADE_TIME, endings=endings, metas=metas)

    def _node(self, condition: Condition, query_condition: Condition = None) -> Node:
        """Return a condition checked, by either of its two names."""
        one = one_condition(condition, query_condition)
        return check(one, self._store.info.fields.comparable)

    def _insert(
        self,
        rows: builtins.list[DataRow],
        *,
        model_version: int | None = None,
        ignore: frozenset[str] = frozenset(),
    ) -> StoreResult:
        if not rows:
            return StoreResult(0, 0, 0)
        if self._store.info.fields.specs:
            raise FieldError(
                f"buffer {self.name!r} has typed fields "
                f"({', '.join(self._store.info.fields.specs)}); store rows with extend({{...}})"
            )
        return self._insert_records(encode_rows(rows, model_version), ignore=ignore)

    def _insert_records(
        self,
        records: builtins.list[Record],
        *,
        ignore: frozenset[str] = frozenset(),
        endings: Sequence[Ending] = (),
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
    ) -> StoreResult:
        if not records:
            return StoreResult(0, 0, 0)
        written = self._store.insert(
            records, ignore=ignore, endings=endings, metas=metas, whole=whole
        )
        conflicts = tuple(written.conflicts)
        self._warn_of(conflicts)
        return StoreResult(
            len(written.inserted), len(written.duplicates), len(conflicts), conflicts
        )

    def _warn_of(self, conflicts: Sequence[str]) -> None:
        if conflicts:
            logger.warning(
                "buffer %r: %d rows were not stored, it holds their ids with other content: %s",
                self.name,
                len(conflicts),
                ", ".join(conflicts[:10]),
            )

    def _draw(self, reader: Reader, sampler: Sampler, batch_size: int, node: Node) -> Batch:
        n = min(int(batch_size), MAX_LIMIT)
        batch = self._store.draw(
            node, lambda population: reader.draw(population, sampler, n), reader.columns
        )
        check_sufficient(batch.n_rows, batch_size, True)
        return batch

    def _sample_rows(self, sampler: Sampler, batch_size: int, node: Node) -> builtins.list[DataRow]:
        if batch_size == 0:
            return []
        n = min(int(batch_size), MAX_LIMIT)
        return self._decoder.rows(
            self._store.draw(node, lambda found: found.rows(sampler.choose(found, n)))
        )

    def _sample_tasks(
        self, sampler: TaskSampler, batch_size: int, node: Any
    ) -> builtins.list[builtins.list[DataRow]]:
        if batch_size == 0:
            return []
        n = min(int(batch_size), MAX_LIMIT)
        drawn = self._store.draw_tasks(node, lambda found: sampler.choose_tasks(found, n))
        return [self._decoder.rows(rows) for rows in drawn if rows]


def _rebuild(type_: Any) -> Callable[[Any], Any] | None:
    if type_ is None:
        return None
    adapter = TypeAdapter(type_)
    # Models are stored under the names of their fields.
    return lambda value: adapter.validate_python(value, by_alias=True, by_name=True)


def _convert(converter: AnyConverter | None, value: Any) -> Any:
    if converter is None:
        return value
    if isinstance(converter, Converter):
        return converter.to_dataset_row(value)
    return converter(value)
