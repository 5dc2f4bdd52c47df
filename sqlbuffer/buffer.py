"""`ReplayBuffer`: the front door."""

import builtins
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from sqlbuffer.arguments import (
    SAME,
    Condition,
    Rows,
    Same,
    check_n_step,
    check_name,
    check_rate_window,
    checked_clock,
    checked_session,
)
from sqlbuffer.config.buffer_config import BufferConfig
from sqlbuffer.config.connection import RETRY_S, Connection
from sqlbuffer.config.opener_settings import OpenerSettings, with_settings
from sqlbuffer.config.setting_checks import (
    check_fits,
    check_reached,
    checked_capacity,
    checked_retry,
)
from sqlbuffer.config.setting_groups import Compression, EvictUnit
from sqlbuffer.copying.buffer_copy import OnProgress, copy_buffer
from sqlbuffer.copying.copy_report import CopyReport
from sqlbuffer.encoding.columns import decode_step
from sqlbuffer.encoding.priority_values import EPS
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from sqlbuffer.fields.specs import Casting, FieldSpec
from sqlbuffer.front.batch_sampler import (
    AnyConverter,
    BatchConverter,
    BatchSampler,
    TaskConverter,
    converted,
)
from sqlbuffer.front.buffer_display import buffer_html, buffer_text
from sqlbuffer.front.condition_checks import Conditions
from sqlbuffer.front.decoding import RowDecoding
from sqlbuffer.front.leasing import LEASE_S, TIMEOUT_S, Lease, Leasing
from sqlbuffer.front.row_changes import RowChanges
from sqlbuffer.front.row_reader import RowReader
from sqlbuffer.front.step_writer import StepWriter
from sqlbuffer.loading.factory import open_loader
from sqlbuffer.loading.loader import Loader
from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings, Mode
from sqlbuffer.loading.output import Output
from sqlbuffer.loading.ranks import warn_of_ranks
from sqlbuffer.loading.source import BatchSource
from sqlbuffer.mirror.buffer_mirror import MAX_BYTES, REFRESH_S, Mirror, mirrored_loader
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.rate_limits import FlowState, Policy, rate_limiter_of
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.stats import Removed, Stats
from sqlbuffer.steps.batches import Batch, RowList
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.ids import uuid7
from sqlbuffer.steps.priority_update import PriorityUpdate
from sqlbuffer.steps.step_arguments import StepKeys, takes, whole_step
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.inspect.buffer_stats import stats
from sqlbuffer.storage.leases.claim_request import GroupBy, OnPartial, Order
from sqlbuffer.storage.retention.dropping import drop_buffer
from sqlbuffer.storage.sampling.readers.single_steps import StepReader
from sqlbuffer.storage.sampling.readers.transition_form import TransitionForm
from sqlbuffer.storage.sampling.readers.transitions import TransitionReader
from sqlbuffer.storage.store import BufferStore

__all__ = ["ReplayBuffer", "StoreResult"]

T = TypeVar("T")


class ReplayBuffer:
    """A named stream of experience in a SQL database, shared by every process that opens it.

    Safe to use from many threads, to pickle, and to use in forked and spawned processes.

    Args:
        url: Database URL, path of a SQLite file, SQLAlchemy URL or Engine; without one
            `SQLBUFFER_URL`, else `sqlite:///sqlbuffer.db`. Of a SQLite URL, `?mode=ro` and
            `?immutable=1` refuse writes.
        name: One database holds many buffers.
        create: True creates a missing schema and buffer, False neither. Omitted: the buffer, and
            the schema of a new SQLite file.
        config: What is stored about the buffer, as a model. A new buffer is made with it. Of a
            stored one the settings that the model was made with are compared.
        connection: What this opener chooses for itself, as a model.
        state_type: Type that states are rebuilt as when read, by pydantic; plain values without
            one.
        action_type: Type that each action is rebuilt as.
        settings: The settings of `BufferConfig` and `Connection` by name, which override those of
            the models. Those that are left out, or None, are what is stored, and the defaults of a
            new buffer. `alpha` is stored with a new buffer; later openers may draw with another.

    Raises:
        BufferConfigError: The buffer is stored with other settings; the message lists each of them.
            Or a wrong value, or settings under which none of its rows could ever be sampled.
        FieldError: A malformed field, or the buffer is stored with other fields.
        MissingExtraError: The buffer is compressed, and the package for it is not installed.
        SchemaMissingError: A database without the schema.
        SchemaOutdatedError: A schema of an earlier release.
        SchemaTooNewError: A schema of a later release.
        StorageUnreachableError: No database answers. Its subclasses name a wrong password, a
            missing role and a missing database.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", max_capacity=100)
        >>> buffer.add(state={"x": 1}, actions=[0], reward=1.0, task_id="t1", step=1).inserted
        1
        >>> [row.exp_data.state for row in buffer.sample(8)]
        [{'x': 1}]
    """

    def __init__(
        self,
        url: Database = None,
        name: str = "default",
        *,
        create: bool | None = None,
        config: BufferConfig | None = None,
        connection: Connection | None = None,
        state_type: Any = None,
        action_type: Any = None,
        **settings: Unpack[OpenerSettings],
    ) -> None:
        check_name(name)
        config, connection = with_settings(config, connection, settings)
        store = BufferStore.open(url, name, config, create=create, options=connection)
        self._compose(store, (state_type, action_type))

    def _compose(self, store: BufferStore, types: tuple[Any, Any]) -> None:
        self._store, self._types = store, types
        # The session that this object started, here or in the process that it was pickled in.
        self._own_session: str | None = None
        self._conditions = Conditions(store.info)
        decoding = RowDecoding(store.source, *types)
        self._writer = StepWriter(store)
        self._sampler = BatchSampler(store, decoding)
        self._reader = RowReader(store.rows, decoding)
        self._changes = RowChanges(store, self._conditions)
        self._leases = Leasing(store, decoding.whole)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store, "types": self._types, "session": self._own_session}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._compose(state["store"], state["types"])
        self._own_session = state["session"]

    def __repr__(self) -> str:
        return buffer_text(self._store)

    def _repr_html_(self) -> str:
        """Return a table of what the buffer is, for notebooks."""
        return buffer_html(self._store)

    def __enter__(self) -> "ReplayBuffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the steps that wait, and close this process's idle connections to the database; a
        later call opens new ones.

        Raises:
            StorageError: The steps that wait could not be stored.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.close()
        """
        try:
            self._writer.flush()
        finally:
            self._store.close()

    @property
    def name(self) -> str:
        """Name of the buffer."""
        return self._store.info.name

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return self._store.shown_url

    @property
    def config(self) -> BufferConfig:
        """What is stored about the buffer now.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        return self._store.current_config()

    @property
    def connection(self) -> Connection:
        """What this opener has chosen for itself."""
        return self._store.options

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """The typed fields, as stored."""
        return dict(self._store.info.config.fields.specs)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Which of them an observation is made of."""
        return self._store.info.config.fields.observations

    @property
    def meta_fields(self) -> dict[str, FieldSpec]:
        """The typed fields of an episode, as stored."""
        return dict(self._store.info.config.fields.meta)

    @property
    def compression(self) -> Compression | None:
        """How the bytes of arrays are compressed, as stored; None: not at all."""
        return self._store.info.config.payloads.compression

    @property
    def max_capacity(self) -> int | None:
        """Rows held at most, as stored now; None is unlimited."""
        return self._store.window().max_capacity

    @property
    def max_episodes(self) -> int | None:
        """Episodes held at most, as stored now; None is unlimited."""
        return self._store.window().max_episodes

    @property
    def evict_by(self) -> EvictUnit:
        """What leaves at once: `row`, `task` or `episode`."""
        return self._store.info.config.retention.evict_by

    @property
    def alpha(self) -> float | None:
        """Exponent of priorities, as stored; None: rows have no priorities."""
        info = self._store.info
        return info.config.priorities.alpha if info.config.priorities.enabled else None

    @property
    def max_use(self) -> int | None:
        """How often a row is sampled at most; None is any number."""
        return self._store.info.config.sampling.max_use

    @property
    def max_staleness(self) -> int | None:
        """By how much a row may be behind the clock to be sampled; None is any."""
        return self._store.info.config.sampling.max_staleness

    @property
    def min_size(self) -> int:
        """How many rows there must be before any is sampled."""
        return self._store.info.config.sampling.min_size

    @property
    def track_samples(self) -> bool:
        """Whether batches are noted."""
        return self._store.info.config.sampling.track_samples

    def store(self, data: DataRow, *, priority: float | None = None) -> StoreResult:
        """Store one row, unless the buffer holds its id.

        Args:
            data: The row.
            priority: See `store_batch`.

        Raises:
            ValueError: No row.
            FieldError: A value cannot be stored; nothing is written.

        Example:
            >>> from sqlbuffer import DataRow, Experience, ExpMeta
            >>> keys = {"task_id": "t1", "task_name": "maze", "agent_id": "a1"}
            >>> meta = ExpMeta(**keys, step=1, execute_time=0.0)
            >>> row = DataRow(exp_meta=meta, exp_data=Experience(state={"x": 1}, actions=[0]))
            >>> ReplayBuffer("sqlite://").store(row).inserted
            1
        """
        if not data:
            raise ValueError("Data is required")
        return self._writer.store_rows([data], priority=priority)

    def store_batch(
        self,
        data_batch: Iterable[DataRow],
        model_version: int | None = None,
        *,
        session_id: str | None = None,
        priority: Any = None,
    ) -> StoreResult:
        """Store rows in one transaction: all those whose ids the buffer does not hold, or none.

        Args:
            data_batch: The rows.
            model_version: Version for rows that name none.
            session_id: Session for rows that name none; without one a row belongs to all.
            priority: Of a buffer with priorities, one number for all rows or an array of shape
                (n,), from 0 to 1e100; the largest ever set when left out, 1.0 before any.

        Raises:
            FieldError: A value cannot be stored; nothing is written.

        Example:
            >>> source = ReplayBuffer("sqlite://", "source")
            >>> source.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> copy = ReplayBuffer("sqlite://", "copy")
            >>> copy.store_batch(source).inserted
            1
        """
        rows = list(data_batch or ())
        return self._writer.store_rows(rows, model_version, session_id, priority)

    @takes(whole_step)
    def add(self, /, **fields: Any) -> StoreResult | None:
        """Store one experience given by its fields.

        A buffer without typed fields stores it before the call returns. One with them stores it
        with others, `flush_s` later at most, and returns None; `flush` stores what waits. There a
        step without a number has the next one of its task and agent in this process, and `id`,
        `episode_id`, `execute_time`, `task_name`, `pre_agent`, `adv_t` and `v_t` have it stored at
        once, after what waits.

        Args:
            **fields: `state`, `actions` (or `action`), `reward`, `adv_t`, `v_t`, `messages`,
                `terminated`, `truncated`, `extra`, `task_id`, `task_name`, `agent_id`, `step`,
                `execute_time`, `pre_agent`, `episode_id`, `model_version`, `session_id` and `id`;
                `priority` as for `store_batch`; and the typed fields that the buffer declares,
                which are required unless they have a default.

        Raises:
            FieldError: An unknown or missing field, or a value that cannot be stored; nothing is
                written.
            SQLBufferError: Steps that were given before could not be stored; they wait.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, actions=[0], reward=1.0, task_id="t1", step=1).inserted
            1
        """
        return self._writer.add(fields)

    def extend(
        self,
        /,
        arrays: Mapping[str, Any],
        *,
        casting: Casting = "same_kind",
        **keys: Unpack[StepKeys],
    ) -> StoreResult:
        """Store n steps given as columns, in one transaction.

        Args:
            arrays: For each declared field an array of shape (n, *shape), or n arrays where its
                length varies; `reward`, `terminated`, `truncated` of shape (n,) if there are any;
                `state`, `actions`, `messages`, `extra` as lists of n values, as `add` takes them.
            casting: `same_kind` refuses casts that lose what a value means: floats to integers,
                integers out of range, finite floats to infinite ones. `unsafe` is numpy's.
            **keys: `task_id`, `agent_id`, `step`, `model_version`, `session_id`, `episode_id`: n
                values or one for all rows; `id`: n values; `priority` as for `store_batch`. Steps
                that name an episode are appended to it.

        Raises:
            FieldError: An unknown or missing field, another shape, a value that the field cannot
                hold; nothing is written.

        Example:
            >>> fields = {"obs": ("float32", (2,)), "action": "int64"}
            >>> buffer = ReplayBuffer("sqlite://", fields=fields)
            >>> columns = {"obs": [[0, 1], [2, 3]], "action": [0, 1], "reward": [0.5, 1.0]}
            >>> buffer.extend(columns, task_id="t1").inserted
            2
        """
        return self._writer.extend(arrays, casting, keys)

    def store_episode(
        self,
        /,
        arrays: Mapping[str, Any],
        *,
        episode_id: str | None = None,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        final: Mapping[str, Any] | None = None,
        episode_reward: float | None = None,
        priority: Any = None,
        casting: Casting = "same_kind",
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
            session_id: The training session; likewise.
            final: The observation after the last step, a value for each observation field.
            episode_reward: The episode's own reward, a finite number: a verdict on the whole of it,
                kept beside the sum of its steps' rewards (`reward` in `v_episodes`).
            priority: Of its steps; see `store_batch`. Or a column of `arrays`.
            casting: See `extend`.
            **meta: Kept with the episode: values of `meta_fields`, and of other names JSON values.

        Raises:
            EpisodeExistsError: An episode of that id is open, or was aborted.
            FieldError: As `extend`; a final observation with other fields; meta that is no JSON;
                no step; a reward that is no finite number. Nothing is written.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> columns = {"obs": [0, 1], "reward": [0, 1], "terminated": [False, True]}
            >>> buffer.store_episode(columns, task_id="t1", episode_reward=1.0).inserted
            2
        """
        keys = {
            "agent_id": agent_id,
            "model_version": model_version,
            "session_id": session_id,
            "priority": priority,
        }
        return self._writer.store_episode(
            arrays, episode_id=episode_id, task_id=task_id, keys=keys, final=final,
            episode_reward=episode_reward, casting=casting, meta=meta,
        )  # fmt: skip

    def episode(
        self,
        /,
        task_id: str | None = None,
        agent_id: str | None = None,
        *,
        episode_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> EpisodeWriter:
        """Begin an episode that is written step by step.

        Steps are stored in batches: when there are enough of all open episodes, and never later
        than `flush_s` after the first. The end of an episode is stored before `end` returns; a
        process that dies loses the steps of its last `flush_s`, and leaves the episode open. What
        this process reads of the buffer has the steps that wait: all of them in `len` and in reads
        of rows, all but one in 64 of the stored ones in random draws.

        Args:
            task_id: Its task; the episode's own id when left out.
            agent_id: Who acts; `default` when left out.
            episode_id: Its id, which no episode of the task may have; made when left out.
            model_version: Version of the model that acts.
            session_id: The training session.
            casting: See `extend`.
            **meta: See `store_episode`.

        Raises:
            EpisodeExistsError: The buffer knows an episode of that id.
            FieldError: A key that is no text, or meta that does not fit.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> with buffer.episode(task_id="t1") as episode:
            ...     episode.append(obs=0.0, reward=0.0)
            ...     episode.append(obs=1.0, reward=1.0, terminated=True)
            >>> len(buffer)
            2
        """
        beginning = self._writer.beginning(
            task_id, agent_id, episode_id, model_version, session_id, casting, meta
        )
        return self._writer.episode(beginning, casting, has_own_id=episode_id is not None)

    def record(
        self,
        /,
        env: Any,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        casting: Casting = "same_kind",
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
            session_id: The training session: the attribute `session_id`, likewise.
            casting: See `extend`.
            **meta: See `episode`.

        Raises:
            FieldError: The buffer has other fields than the environment, or a key or meta cannot be
                stored. From `step`: a value that its field cannot hold; the episodes are aborted.
            MissingExtraError: No gymnasium, or one before 1.1.
            StorageError: From `step`, earlier steps could not be stored; they wait to be, and the
                episodes are aborted. From `close`, likewise; the environment is closed.

        Example:
            >>> import gymnasium
            >>> from sqlbuffer import fields_from_env
            >>> env = gymnasium.make("CartPole-v1")
            >>> buffer = ReplayBuffer("sqlite://", **fields_from_env(env))
            >>> env = buffer.record(env, task_id="cartpole")
            >>> observation, info = env.reset(seed=0)
            >>> step = env.step(env.action_space.sample())
            >>> env.close()
            >>> len(buffer)
            1
        """
        from sqlbuffer.recording import recorded

        if "episode_id" in meta:
            raise FieldError("record() makes an id for each episode; leave episode_id out")
        self._writer.beginning(task_id, agent_id, None, model_version, session_id, casting, meta)
        begin = partial(self.episode, task_id, agent_id, casting=casting, **meta)
        return recorded(env, self, begin, model_version, session_id)

    def flush(self) -> None:
        """Store the steps of open episodes that wait.

        Raises:
            StorageError: They could not be stored; they wait to be.
            EpisodeExistsError: The buffer holds other steps under the ids of some, which are lost.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.add(obs=1.0)
            >>> buffer.flush()
        """
        self._writer.flush()

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
            ConditionError: A malformed condition.
            InsufficientDataError: Fewer rows were drawn: with the default sampler none matches.
            FieldError: An unknown field.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (4,))})
            >>> buffer.extend({"obs": [[0.0] * 4] * 10, "reward": range(10)}).inserted
            10
            >>> batch = buffer.sample_arrays(32, fields=["obs", "reward"])
            >>> batch["obs"].shape, batch["reward"].dtype
            ((32, 4), dtype('float32'))
        """
        info = self._store.info
        reader = StepReader(info.config.fields, fields, info.config.payloads.compression)
        return self._sampler.arrays(reader, sampler, batch_size, self._conditions.node(condition))

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
            ConditionError: A malformed condition.
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: An unknown field, no observation field, or a field `done` where neither
                `terminated` nor `truncated` is stored and no `terminal_field` is given.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> columns = {"obs": [0, 1], "reward": [1, 1], "terminated": [False, True]}
            >>> buffer.store_episode(columns).inserted
            2
            >>> batch = buffer.sample_transitions(8, n_step=2, gamma=0.5)
            >>> sorted(set(batch.reward.tolist()))
            [1.0, 1.5]
        """
        check_n_step(n_step, gamma)
        info = self._store.info
        form = TransitionForm.of(
            info.config.fields, int(n_step), float(gamma), names=fields, stack=stack,
            terminal_field=terminal_field,
        )  # fmt: skip
        reader = TransitionReader(form, info.config.payloads.compression)
        return self._sampler.arrays(reader, sampler, batch_size, self._conditions.node(condition))

    @overload
    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | None = None,
        condition: Condition = None,
        converter: None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> RowList[DataRow]: ...
    @overload
    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: TaskSampler,
        condition: Condition = None,
        converter: None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> RowList[list[DataRow]]: ...
    @overload
    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
        converter: BatchConverter[T],
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> T: ...
    def sample(
        self,
        batch_size: int = 256,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
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
            fields: Which fields of each row are read and come back, by dotted names such as
                `["state.image", "reward_t"]`; all by default, keys always. What a row does not have
                is left out. See `docs/how-to/train-on-fragments.md`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of rows, or with a task sampler of tasks, each a list of rows in the order
            of (episode, step, execute_time); `batch_id` is the number that it is noted under
            (`track_samples`). Or what the converter makes of it.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative batch size.

        Example:
            >>> from sqlbuffer import LatestSampler, QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for step in range(5):
            ...     result = buffer.add(state={"x": step}, task_id="t1", step=step)
            >>> early = QueryBuilder().lt("exp_meta.step", 3)
            >>> rows = buffer.sample(2, sampler=LatestSampler(), condition=early)
            >>> sorted(row.exp_meta.step for row in rows)
            [1, 2]
        """
        node = self._conditions.node(condition, query_condition)
        return converted(converter, self._sampler.rows(sampler, batch_size, node, strict, fields))

    @overload
    def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> RowList[list[DataRow]]: ...
    @overload
    def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: TaskConverter[T],
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> RowList[T]: ...
    def sample_tasks(
        self,
        n: int,
        *,
        sampler: TaskSampler | None = None,
        condition: Condition = None,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> RowList[Any]:
        """Draw whole tasks: `RandomTaskSample()` by default. The converter is called once a task.

        Args:
            n: How many tasks. When fewer match, all that match come back.
            sampler: Which tasks.
            condition: A task can be drawn if one of its rows matches; all its rows come back.
            converter: Called once for each task.
            strict: Raise when fewer match.
            fields: Which fields of each row; see `sample`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of tasks, each a list of rows in the order of (episode, step,
            execute_time), or what the converter makes of them; `batch_id` is the number that
            they are noted under.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            InsufficientDataError: Fewer match and `strict` is set.
            ValueError: A negative n.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for step in range(3):
            ...     result = buffer.add(state={"x": step}, task_id="t1", step=step)
            >>> [[row.exp_meta.step for row in task] for task in buffer.sample_tasks(1)]
            [[0, 1, 2]]
        """
        node = self._conditions.node(condition, query_condition)
        tasks = self._sampler.tasks(sampler, n, node, strict, fields)
        return RowList((converted(converter, task) for task in tasks), batch_id=tasks.batch_id)

    @overload
    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: None = None,
        batch_size: int = 1000,
    ) -> RowList[list[DataRow]]: ...
    @overload
    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        *,
        converter: TaskConverter[T],
        batch_size: int = 1000,
    ) -> RowList[T]: ...
    @overload
    def sample_task(
        self,
        sampler: TaskSampler | None,
        query_condition: Condition,
        converter: TaskConverter[T],
        batch_size: int = 1000,
    ) -> RowList[T]: ...
    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: AnyConverter | None = None,
        batch_size: int = 1000,
    ) -> RowList[Any]:
        """Draw whole tasks: `sample_tasks` by AWorld's name and arguments.

        Raises:
            ConditionError: A malformed condition.
            ValueError: A negative batch size.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> len(buffer.sample_task(batch_size=1))
            1
        """
        return self.sample_tasks(
            batch_size, sampler=sampler, condition=query_condition, converter=converter
        )

    @overload
    def peek(
        self, n: int = 10, *, sampler: Sampler | None = None, condition: Condition = None
    ) -> builtins.list[DataRow]: ...
    @overload
    def peek(
        self, n: int = 10, *, sampler: TaskSampler, condition: Condition = None
    ) -> builtins.list[builtins.list[DataRow]]: ...
    def peek(
        self,
        n: int = 10,
        *,
        sampler: Sampler | TaskSampler | None = None,
        condition: Condition = None,
    ) -> builtins.list[Any]:
        """Draw rows, or tasks, for a look. No limit applies, nothing waits, nothing is counted.

        Args:
            n: How many; fewer come back if fewer match.
            sampler: Which of them; `RandomSampler()` by default.
            condition: Which rows may be drawn.

        Returns:
            A list of rows; with a task sampler a list of tasks, each a list of rows.

        Raises:
            ConditionError: A malformed condition.
            ValueError: A negative n.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_use=1)
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.peek(1)[0].exp_data.state
            {'x': 1}
            >>> len(buffer.sample(1))  # the row was not used up
            1
        """
        return self._sampler.peek(sampler, n, self._conditions.node(condition))

    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        mirror: bool | Mirror = False,
        to_named_tuple: None = None,
        **options: Unpack[LoaderSettings],
    ) -> Loader[Batch]: ...
    @overload
    def loader(
        self,
        mode: Mode = "transition",
        batch_size: int = 256,
        *,
        mirror: bool | Mirror = False,
        to_named_tuple: Sequence[str],
        **options: Unpack[LoaderSettings],
    ) -> Loader[Any]: ...
    def loader(
        self,
        mode: Mode = "transition",
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
        mirror: bool | Mirror = False,
    ) -> Loader[Any]:
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
            mirror: Read from a mirror of this buffer; see `docs/how-to/draw-from-memory.md`. True
                opens one, which `close` of the loader closes.

        Raises:
            ConditionError: A malformed condition.
            InsufficientDataError: In the loop: fewer were drawn than a batch holds, or a pass
                without end finds no batch.
            BufferConfigError: Passes over a buffer with `max_use`, whose rows are counted as they
                are drawn. Or a mirror of another buffer, or of one that cannot be mirrored.
            MirrorFullError: A mirror is opened, and the buffer does not fit.
            FieldError: An unknown field, or names that collide.
            ValueError: An option that the mode does not take, or options that exclude each other.
            MissingExtraError: A device, and torch is not installed.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [0, 1, 2]}).inserted
            3
            >>> loader = buffer.loader("step", 2, epochs=1, shuffle=False)
            >>> [batch.obs.tolist() for batch in loader]
            [[0.0, 1.0], [2.0]]
        """
        options = LoaderOptions(
            mode=mode, batch_size=batch_size, n_step=n_step, gamma=gamma, length=length,
            burn_in=burn_in, stride=stride, sequence_fields=sequence_fields, stack=stack,
            terminal_field=terminal_field, include_partial=include_partial, shuffle=shuffle,
            seed=seed, drop_last=drop_last, replace=replace, sampler=sampler, condition=condition,
            fields=fields, epochs=epochs,
        )  # fmt: skip
        output = Output(fieldname_map, to_named_tuple, device)
        warn_of_ranks(passes=not options.is_drawn, seeded=seed is not None)
        if mirror is not False:
            return mirrored_loader(self._store, mirror, options, output, prefetch)
        return open_loader(self._store, options, output, prefetch)

    def batch_source(self, options: LoaderOptions) -> BatchSource:
        """Return what a loader with these options reads its batches from, for own loaders.

        Raises:
            BufferConfigError: Passes over a buffer with `max_use`.
            FieldError: An unknown field.

        Example:
            >>> from sqlbuffer.loading.modes import LoaderOptions
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> source = buffer.batch_source(LoaderOptions(mode="step", batch_size=2))
        """
        return options.source(self._store)

    def mirror(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        refresh_s: float = REFRESH_S,
        max_lag_s: float | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        shared: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> Mirror:
        """Copy the buffer's steps into the memory of this process, and keep them in step.

        Args:
            max_bytes: How much memory the steps may take.
            refresh_s: How often to look for what others have written, in seconds.
            max_lag_s: Draws fail when the last look that succeeded is longer ago; None: they go on.
            condition: Only steps that match are drawn, and only their episodes are kept. It may
                name anything, payloads and labels too.
            fields: Which of the declared fields are kept; all by default.
            shared: One process of the machine follows the buffer, and the others draw from the same
                memory. Its `max_bytes` and `refresh_s` count.
            path: The file of a shared mirror. It stays after the last process, and the next one
                goes on from it. By default it is in shared memory, which is freed then.

        Raises:
            BufferConfigError: The buffer has no typed fields, counts uses, or hands out leases; or
                this machine cannot share a mirror.
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            MirrorFullError: The buffer does not fit.
            StorageReadOnlyError: The buffer evicts by task or episode, and the role may not
                register a follower: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [0, 1, 2]}).inserted
            3
            >>> with buffer.mirror() as mirror:
            ...     batch = mirror.sample_arrays(8)
            >>> batch.obs.shape
            (8,)
        """
        return Mirror(
            self._store, max_bytes=max_bytes, refresh_s=refresh_s, max_lag_s=max_lag_s,
            condition=condition, fields=fields, shared=shared, path=path,
        )  # fmt: skip

    def lease(
        self,
        n: int,
        *,
        group_by: GroupBy | None = None,
        min_group_size: int | None = None,
        group_timeout_s: float | None = None,
        on_partial: OnPartial = "use",
        order: Order = "random",
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
        condition: Condition = None,
    ) -> Lease:
        """Claim rows, or whole groups of them, for the time of a `with` block.

        Nobody else gets them meanwhile. Leaving the block acknowledges: a use of each row is
        counted, and those that were used `max_use` times leave the buffer. An exception gives them
        back at once, and a process that is lost when the lease runs out; such a use is not counted.

        Args:
            n: How many rows, or groups: all of them or none.
            group_by: `task_id`: whole tasks, such as the rollouts of one GRPO prompt. `episode_id`:
                whole episodes that have ended.
            min_group_size: How many rollouts a task is whole with, 1 by default: its ended
                episodes, and its rows without one. None of its episodes is open.
            group_timeout_s: How many seconds after its newest row a group that is not whole is
                waited for; for ever by default.
            on_partial: What becomes of it then: `use` hands it out as it is, `drop` deletes it.
            order: `random` (uniform over rows, or over groups), `fifo`, `freshest` or `stalest` (by
                `model_version`, then by age; rows without one are the oldest).
            timeout_s: How long to wait for so many at most; 0 raises at once.
            lease_s: After how many seconds the lease runs out; `batch.renew()` begins anew.
            condition: Which rows; of groups, those with a row that matches.

        Returns:
            A context manager that yields a `LeasedBatch`.

        Raises:
            ConditionError: A malformed condition.
            BufferConfigError: The buffer was made without `leases=True`, or a malformed argument.
            InsufficientDataError: At the beginning of the block: there were too few in time.
            FlowControlError: Likewise: the rate limiter did not let them out in time.
            LeaseLostError: At its end: the lease has run out, and nothing was counted.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", leases=True, max_use=1)
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> with buffer.lease(1, timeout_s=0) as batch:
            ...     states = [row.exp_data.state for row in batch]
            >>> states, len(buffer)
            ([{'x': 1}], 0)
        """
        return self._leases.lease(
            n, self._conditions.node(condition), group_by=group_by, min_group_size=min_group_size,
            group_timeout_s=group_timeout_s, on_partial=on_partial, order=order,
            timeout_s=timeout_s, lease_s=lease_s,
        )  # fmt: skip

    def size(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Return how many rows match.

        Raises:
            ConditionError: A malformed condition.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.size(), buffer.size(QueryBuilder().eq("exp_meta.task_id", "t2"))
            (1, 0)
        """
        return self._store.rows.count(self._conditions.node(condition, query_condition))

    def __len__(self) -> int:
        """Return how many rows the buffer holds; nothing is scanned."""
        return self._store.rows.count(EVERYTHING)

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer: `if buffer` asks whether there is one."""
        return True

    def __iter__(self) -> Iterator[DataRow]:
        """Iterate over all rows as `get_all` does."""
        return self.get_all()

    def get_all(
        self,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> Iterator[DataRow]:
        """Stream the rows that match and are there now, in insert order.

        Rows come in pages and no transaction stays open between them, so any number may be read in
        little memory. Rows evicted before their page is read are left out.

        Args:
            condition: Which rows.
            fields: Which fields of each row are read and come back, by dotted names such as
                `["state.image", "reward_t"]`; all by default, keys always. What a row does not have
                is left out. See `docs/how-to/train-on-fragments.md`.
            query_condition: Other name of `condition`.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1, "image": "large"}, task_id="t1").inserted
            1
            >>> [row.exp_data.state for row in buffer.get_all(fields=["state.x"])]
            [{'x': 1}]
        """
        return self._reader.all(self._conditions.node(condition, query_condition), fields)

    def get_paginated(
        self,
        page: int,
        page_size: int,
        condition: Condition = None,
        *,
        fields: Sequence[str] | None = None,
        query_condition: Condition = None,
    ) -> list[DataRow]:
        """Return one page of the rows that match, in insert order.

        Args:
            page: From 1; a page past the end is empty.
            page_size: Rows a page.
            condition: Which rows.
            fields: Which fields; see `get_all`.
            query_condition: Other name of `condition`.

        Raises:
            ConditionError: A malformed condition.
            FieldError: An unknown field.
            ValueError: A page or page size below 1.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for step in range(5):
            ...     result = buffer.add(state={"x": step}, step=step)
            >>> [row.exp_meta.step for row in buffer.get_paginated(2, page_size=2)]
            [2, 3]
        """
        node = self._conditions.node(condition, query_condition)
        return self._reader.page(node, page, page_size, fields)

    def get_by_task_id(self, task_id: str, *, fields: Sequence[str] | None = None) -> list[DataRow]:
        """Return all rows of a task in the order of (episode, step, execute_time); none for an
        unknown task. Of each those `fields`, all by default; see `get_all`.

        Raises:
            FieldError: An unknown field.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> len(buffer.get_by_task_id("t1")), len(buffer.get_by_task_id("unknown"))
            (1, 0)
        """
        return self._reader.tasks([task_id], fields)[task_id]

    def get_batch_by_task_ids(
        self, task_ids: Iterable[str], *, fields: Sequence[str] | None = None
    ) -> dict[str, list[DataRow]]:
        """Return `{task_id: rows}` in the order of the ids, each task's rows in the order of
        (episode, step, execute_time). Of each row those `fields`, all by default; see `get_all`.

        Raises:
            FieldError: An unknown field.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> found = buffer.get_batch_by_task_ids(["t1", "t2"])
            >>> len(found["t1"]), len(found["t2"])
            (1, 0)
        """
        return self._reader.tasks(task_ids, fields)

    def decode(self, block: bytes, place: int = 0) -> dict[str, Any]:
        """Return the typed fields of one step, `{name: array of its shape}`.

        Args:
            block: The column `block` of the view `chunk_steps`, as plain SQL returns it.
            place: The column `block_place`: where the step is in the block.

        Raises:
            FieldError: The step was not written with the buffer's fields, or is damaged.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.decode(b"\\x00\\x00\\x80?")["obs"]
            np.float32(1.0)
        """
        return decode_step(self._store.layout, bytes(block), place)

    def sql(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the select that a condition becomes, its values written out for reading.

        Raises:
            ConditionError: A malformed condition.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> print(ReplayBuffer("sqlite://").sql(QueryBuilder().eq("exp_meta.task_id", "t1")))
            SELECT ...
        """
        return self._store.rows.sql(self._conditions.node(condition, query_condition))

    def explain(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the database's plan for that select.

        Raises:
            ConditionError: A malformed condition.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> print(buffer.explain(QueryBuilder().eq("exp_meta.task_id", "t1")))
            SEARCH ...
        """
        return self._store.rows.explain(self._conditions.node(condition, query_condition))

    def annotate(
        self,
        condition_or_seqs: Any,
        *,
        reward_t: Any = None,
        adv_t: Any = None,
        v_t: Any = None,
        extra: Any = None,
        version: int | None = None,
        reward: Any = None,
    ) -> int:
        """Give rows values that arrive after they were stored: rewards, judges' scores, advantages.

        The rows stay as they are; what is given is kept beside them, every version of it, and from
        then on conditions, samplers, n-step sums and views see it in the place of the row's own
        value. Of each value, and of each key of extra, the one of the highest version holds,
        whichever came last. A version that is given again adds to what it said before: a call that
        is repeated changes nothing. Priorities do not change.

        Args:
            condition_or_seqs: A condition; or the rows' numbers, shape (b,): `info["seq"]` of a
                batch, or `row.seq`. The last of equal ones counts. A set of them has no order, and
                takes one value for all.
            reward_t: Rewards: one finite number for all rows; or, with numbers of rows, an array of
                shape (b,).
            adv_t: Advantages, likewise.
            v_t: Value estimates, likewise.
            extra: A dict of JSON values for all rows; or, with numbers of rows, b of them. Its keys
                are added to the row's extra, or replace those there.
            version: Its version, an integer of 64 bits. Omitted: one more than the highest of the
                rows, from 1 on.
            reward: Other name of `reward_t`.

        Returns:
            How many rows were annotated; those that the buffer does not hold are skipped.

        Raises:
            ConditionError: A malformed condition, or an empty one.
            FieldError: Nothing is given, a number that is not finite, no JSON, or another shape;
                nothing is written.

        Example:
            >>> from sqlbuffer import QueryBuilder, ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state="a long answer", task_id="t1").inserted
            1
            >>> of_t1 = QueryBuilder().eq("exp_meta.task_id", "t1").build()
            >>> buffer.annotate(of_t1, reward=0.5, extra={"judge": "strict"})
            1
            >>> [(row.exp_data.reward_t, row.exp_data.extra) for row in buffer]
            [(0.5, {'judge': 'strict'})]
        """
        if reward is not None and reward_t is not None:
            raise FieldError("give reward=... or reward_t=..., not both")
        values = {"reward_t": reward if reward_t is None else reward_t, "adv_t": adv_t, "v_t": v_t}
        return self._changes.annotate(condition_or_seqs, values, extra, version)

    def update_priorities(self, seqs: Any, priorities: Any, eps: float = EPS) -> PriorityUpdate:
        """Set the priorities of rows, to |TD error| + eps as a rule (Schaul et al. 2016, section
        3.3): one statement, whatever their number. Rows that were evicted meanwhile are skipped.

        Args:
            seqs: The rows, shape (b,): `info["seq"]` of a batch. The last of equal ones counts.
            priorities: Their priorities, shape (b,), or one for all; from 0 to 1e100.
            eps: Added to each, so that none is 0: such a row is never drawn.

        Returns:
            How many rows were updated, and how many the buffer does not hold.

        Raises:
            FieldError: NaN, a number out of range, another shape or type, or a buffer without
                priorities; nothing is written.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://", priorities=True)
            >>> buffer.add(state=1).inserted
            1
            >>> buffer.update_priorities([1, 99], [0.5, 0.7])
            PriorityUpdate(updated=1, missing=1)
        """
        return self._changes.update_priorities(seqs, priorities, eps)

    def quarantine(self, condition_or_seqs: Rows, *, reason: str | None = None) -> int:
        """Take the rows that match now out of sampling; `v_quarantine` lists them.

        They are not drawn, and neither is what they are part of: tasks, transitions, windows and
        episodes with one of them. Everything else sees them as before, and they are evicted in
        their turn. Rows that match later are not in quarantine.

        Args:
            condition_or_seqs: A condition, or the numbers of rows: `info["seq"]` of a batch. Those
                that the buffer does not hold are passed over.
            reason: Kept with each row; one that is in quarantine already keeps its own.

        Returns:
            How many rows were not in quarantine before.

        Raises:
            ConditionError: An empty condition, or a malformed one.
            FieldError: Numbers that are none, or a reason that is no text.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> from sqlbuffer import QueryBuilder, ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state=1, task_id="good").inserted
            1
            >>> buffer.add(state=2, task_id="bad").inserted
            1
            >>> bad = QueryBuilder().eq("exp_meta.task_id", "bad")
            >>> buffer.quarantine(bad, reason="the judge crashed")
            1
            >>> [row.exp_meta.task_id for row in buffer.sample(9)], len(buffer)
            (['good'], 2)
            >>> buffer.release(bad), len(buffer.sample(9))
            (1, 2)
        """
        return self._changes.quarantine(condition_or_seqs, reason)

    def release(self, condition_or_seqs: Rows) -> int:
        """Put rows in quarantine that match now back into sampling.

        Args:
            condition_or_seqs: See `quarantine`.

        Returns:
            How many rows were in quarantine.

        Raises:
            ConditionError: An empty condition, or a malformed one.
            FieldError: Numbers that are none.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.quarantine([1]), buffer.release([1])
            (1, 1)
        """
        return self._changes.release(condition_or_seqs)

    def delete(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Delete the rows that match and return how many.

        Raises:
            ConditionError: An empty condition; `clear()` deletes everything.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.delete(QueryBuilder().eq("exp_meta.task_id", "t1"))
            1
        """
        node = self._conditions.node(condition, query_condition)
        if node == EVERYTHING:
            raise ConditionError("delete() needs a condition; use clear() to delete every row")
        return self._store.retention.delete(node)

    def copy_to(
        self,
        other: "ReplayBuffer",
        condition: Condition = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> CopyReport:
        """Copy the steps of this buffer into an empty one, in this database or in another.

        The copy has the steps that are there now, with their `seq`, times, ids, typed fields,
        episodes, sessions, labels and their history, priorities, quarantine and use counts. Leases
        and the sample log are not copied. Labels, priorities and use counts are those of the time
        at which a step is read.

        What leaves the window of this buffer in the meantime is not deleted before it is copied.
        Where tasks, episodes or rows that are too old leave, this waits until the copy is complete.
        A copy that was killed holds what it has not read for two minutes. To hold steps takes the
        role of learners here; without it, steps may leave before they are copied.

        Until the copy is complete `other` shows the steps that it has so far, and refuses others.
        If the process is killed, call this again: it goes on where it was. The target needs the
        role that owns its tables.

        Args:
            other: The empty buffer. Its fields and what it evicts, keeps and leases must be as
                here; `config=buffer.config` makes one like that.
            condition: Which steps. Chunks of steps are copied whole if one step matches; the others
                are deleted in the copy, but their bytes are in its files.
            on_progress: Called after each batch with the number of steps copied so far, the last
                `seq` that was copied, and the range of those to copy.

        Raises:
            ConditionError: A malformed condition.
            CopyError: The target is not empty, or cannot hold the same steps; or steps left this
                buffer before they were copied.
            StorageBusyError: A transaction that writes to this buffer does not end.
            StorageReadOnlyError: The role may not write to the target.

        Example:
            >>> source = ReplayBuffer("sqlite://", "source")
            >>> source.add(task_id="t1", state={"x": 1}, reward=1.0).inserted
            1
            >>> copy = ReplayBuffer("sqlite://", "copy", config=source.config)
            >>> source.copy_to(copy).n_steps
            1
            >>> list(copy) == list(source)
            True
        """
        node = self._conditions.node(condition)
        self.flush()
        return copy_buffer(self._store, other._store, node, on_progress)

    def clear(self) -> int:
        """Delete every row and return how many there were.

        Raises:
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.clear(), len(buffer)
            (1, 0)
        """
        return self._store.retention.clear()

    def resize(
        self, max_capacity: "int | Same | None" = SAME, *, max_episodes: "int | Same | None" = SAME
    ) -> None:
        """Change the stored limits; shrinking evicts the oldest at once.

        Args:
            max_capacity: Rows held at most; None is unlimited. Typed steps are kept in chunks, and
                steps that were deleted from the end of the newest chunk still count.
            max_episodes: Episodes held at most, of a buffer that was made with `max_episodes`; None
                is unlimited.

        Raises:
            BufferConfigError: Fewer rows than the buffer's `min_size`; or a buffer of
                `compat.memmap`, which has a limit of its own.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_capacity=10)
            >>> buffer.extend({"state": list(range(10))}).inserted
            10
            >>> buffer.resize(4)
            >>> len(buffer)
            4
        """
        changes = {
            name: checked_capacity(value, name)
            for name, value in (("max_capacity", max_capacity), ("max_episodes", max_episodes))
            if not isinstance(value, Same)
        }
        if not changes:
            raise TypeError("resize() needs max_capacity=... or max_episodes=...")
        check_fits(changes.get("max_capacity"), self._store.info.config.sampling.min_size)
        if "max_episodes" in changes and self.evict_by != "episode":
            raise BufferConfigError(
                f"buffer {self.name!r} evicts by {self.evict_by}; a limit of episodes takes a "
                f"buffer that was made with max_episodes"
            )
        self._store.retention.resize(changes)

    @property
    def clock(self) -> int | None:
        """What `set_clock` set last, in any process; None before."""
        return self._store.sessions.clock()

    def set_clock(self, clock: int) -> None:
        """Set the buffer's clock, which all its processes share.

        In a buffer with `max_staleness`, rows whose `model_version` is further behind it are not
        sampled. Batches are noted with it where `track_samples` is set. It is the version of the
        current session too, where one was started; `set_model_version` minds which session it is.

        Args:
            clock: The learner's iteration, or the version of its model; an integer of 64 bits. It
                may go back, as when a learner restarts from a checkpoint.

        Raises:
            TypeError: No integer.
            ValueError: More than 64 bits.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_staleness=1)
            >>> buffer.add(state={"x": 1}, model_version=1).inserted
            1
            >>> buffer.set_clock(3)
            >>> len(buffer.sample(1))
            0
        """
        self._set_version(checked_clock(clock), None)

    def expire(self) -> Removed:
        """Delete all rows that can never be sampled again: too old by the clock, used up, or of
        another session.

        A process that samples or sets the clock does so by itself, a little every ten seconds,
        unless the buffer was made with `keep_expired`. Steps of an episode leave when none of them
        may be sampled, for others need them; of buffers that evict by task or episode whole ones.
        Rows in quarantine stay.

        Returns:
            How many rows left, by cause.

        Raises:
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_staleness=1, keep_expired=True)
            >>> buffer.add(state={"x": 1}, model_version=1).inserted
            1
            >>> buffer.set_clock(3)
            >>> buffer.expire().total
            1
        """
        return self._store.expiry.run()

    def start_session(self, session_id: str | None = None) -> str:
        """Begin a session, or resume it, as the current one of the buffer and all its processes.

        The buffer's clock becomes the version that the session has: none for a new one.

        Args:
            session_id: Its key; made when left out.

        Returns:
            The key.

        Raises:
            FieldError: A key that is no text.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.start_session("monday")
            'monday'
        """
        key = uuid7() if session_id is None else checked_session(session_id)
        self._store.sessions.start(key)
        self._own_session = key
        self._store.expiry.run_if_due()
        return key

    @property
    def session_id(self) -> str | None:
        """The key of the buffer's current session, whoever started it; None before any was."""
        return self._store.sessions.current()

    def set_model_version(self, version: int, session_id: str | None = None) -> bool:
        """Note which version a session's model has.

        The buffer's clock moves along if the session is the current one, or none was ever started:
        a learner that is left over from an earlier session moves nothing.

        Args:
            version: The version; an integer of 64 bits.
            session_id: The session; by default the one that this object started, else the current
                one.

        Returns:
            Whether the clock has moved; False: another session has begun since.

        Raises:
            SessionNotFoundError: The buffer has no session of that key.
            StorageReadOnlyError: The role may not: it is a right of learners.
            TypeError: No integer.
            ValueError: More than 64 bits.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.start_session("monday")
            'monday'
            >>> buffer.set_model_version(7), buffer.clock
            (True, 7)
        """
        number = checked_clock(version, "a model version")
        key = self._own_session if session_id is None else checked_session(session_id)
        return self._set_version(number, key)

    def _set_version(self, version: int, session: str | None) -> bool:
        is_current = self._store.sessions.set_version(version, session)
        self._store.expiry.run_if_due()
        return is_current

    def model_version(self) -> int | None:
        """Return the version of the current session's model, or what `set_clock` set; None before.

        One read by key, from any process: for collectors that ask before each episode.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.set_clock(7)
            >>> buffer.model_version()
            7
        """
        return self._store.sessions.clock()

    def flow(self) -> FlowState:
        """Return how collectors and learners keep pace: the policy, the counts, and who waits.

        Raises:
            BufferNotFoundError: The buffer was dropped.

        Example:
            >>> from sqlbuffer import RateLimiter
            >>> limiter = RateLimiter(samples_per_insert=2.0, min_size=1, error_buffer=10.0)
            >>> buffer = ReplayBuffer("sqlite://", rate_limiter=limiter)
            >>> buffer.add(state={"x": 1}).inserted
            1
            >>> buffer.flow().inserted
            1
        """
        return self._store.pacer.state()

    def set_rate_limiter(self, policy: Policy | None) -> None:
        """Have every process of the buffer obey another policy, counting from now; None: no policy.

        A process notices within five seconds; those that wait notice at once.

        Args:
            policy: A `RateLimiter`, a `RatioWindow`, or None.

        Raises:
            BufferConfigError: Something else, or a limiter that stops inserts before the buffer's
                `min_size` is reached.
            BufferNotFoundError: The buffer was dropped.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> from sqlbuffer import RateLimiter
            >>> buffer = ReplayBuffer("sqlite://")
            >>> limiter = RateLimiter(samples_per_insert=2.0, min_size=1, error_buffer=10.0)
            >>> buffer.set_rate_limiter(limiter)
            >>> buffer.flow().policy.samples_per_insert
            2.0
        """
        policy = rate_limiter_of(policy)
        min_size = self._store.info.config.sampling.min_size
        if min_size:
            check_reached(policy, min_size, self._store.rows.count(EVERYTHING))
        self._store.pacer.set_policy(policy)

    def stats(self, window_s: float = 60.0) -> Stats:
        """Return figures of the buffer now, for all its processes together.

        The cost does not grow with the buffer: uses, priorities and staleness are those of up to
        2,000 rows drawn uniformly, rates are found by bisection, and rows are counted as `len`
        does, which reads an index once in a process.

        Args:
            window_s: Seconds that the rates are over, up to an hour.

        Raises:
            BufferConfigError: No such number of seconds.
            BufferNotFoundError: The buffer was dropped.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_capacity=10)
            >>> buffer.add(state={"x": 1}).inserted
            1
            >>> stats = buffer.stats()
            >>> stats.rows, stats.fill
            (1, 0.1)
        """
        check_rate_window(window_s)
        self._store.pacer.publish_now()
        return self._store.with_retries(lambda: stats(self._store.rows, float(window_s)))

    @staticmethod
    def list(url: Database = None, *, retry_s: float = RETRY_S) -> builtins.list[str]:
        """Return the names of the buffers of a database, in order.

        Args:
            url: The database; see `ReplayBuffer`.
            retry_s: How long to wait for a server; see `ReplayBuffer`.

        Raises:
            BufferNotFoundError: There is no such SQLite file.
            SchemaMissingError: A database without the schema.
            StorageUnreachableError: No database answers.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "replay.db")
            ...     ReplayBuffer(path, "train").close()
            ...     ReplayBuffer.list(path)
            ['train']
        """
        return catalog.list_buffers(url, checked_retry("retry_s", retry_s))

    @staticmethod
    def drop(url: Database, name: str, *, retry_s: float = RETRY_S) -> None:
        """Delete a buffer and all that belongs to it.

        Args:
            url: The database; see `ReplayBuffer`.
            name: The buffer.
            retry_s: How long to wait for a server; see `ReplayBuffer`.

        Raises:
            BufferNotFoundError: No such buffer.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "replay.db")
            ...     ReplayBuffer(path, "train").close()
            ...     ReplayBuffer.drop(path, "train")
            ...     ReplayBuffer.list(path)
            []
        """
        drop_buffer(url, name, checked_retry("retry_s", retry_s))
