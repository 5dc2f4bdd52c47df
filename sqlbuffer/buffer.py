"""`ReplayBuffer`, the main class of the library.

Modules that not every process needs are imported by the methods that call them: writing, draws,
copies, leases, loaders, mirrors. Whoever opens a buffer does not wait for them.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial, wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import (
    LEASE_S,
    LEASE_WAIT_S,
    MIRROR_BYTES,
    MIRROR_REFRESH_S,
    SAME,
    Condition,
    Rows,
    Same,
    check_n_step,
    checked_buffer_name,
    checked_clock,
    checked_episodes,
    checked_rows,
    checked_session,
    checked_task_id,
    checked_window,
    keys_of_envs,
)
from sqlbuffer.batches.forms import StepForm, TransitionForm
from sqlbuffer.batches.hindsight import HindsightGoals
from sqlbuffer.checks import (
    checked_callable,
    checked_choice,
    checked_flag,
    checked_instance,
    checked_integer,
    checked_names,
    checked_seconds,
    refused,
)
from sqlbuffer.config import (
    RETRY_S,
    UNLIMITED,
    BufferConfig,
    Compression,
    Connection,
    Durability,
    EvictUnit,
    OpenerSettings,
    check_fits,
    check_reached,
    checked_limits,
    with_settings,
)
from sqlbuffer.encoding.columns import decode_step
from sqlbuffer.encoding.priority_values import EPS, checked_seqs
from sqlbuffer.encoding.records import Rebuild
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError
from sqlbuffer.fields import Casting, FieldSpec
from sqlbuffer.processes import late_part
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.query.tree import EVERYTHING, Group, Node
from sqlbuffer.rate_limits import FlowState, Policy, rate_limiter_of
from sqlbuffer.samplers import Sampler, TaskSampler
from sqlbuffer.spaces import Spaces, gymnasium_package
from sqlbuffer.steps import (
    Batch,
    DataRow,
    PriorityUpdate,
    RowList,
    StepKeys,
    StoreResult,
    takes,
    uuid7,
    whole_step,
)
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.database.engine import log_default
from sqlbuffer.storage.database.transactions import joined, working
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.store import BufferStore

if TYPE_CHECKING:
    from sqlbuffer.copying import CopyReport, OnProgress
    from sqlbuffer.encoding.episode_records import EpisodeStart
    from sqlbuffer.episode_writer import EpisodeWriter
    from sqlbuffer.front.checkpoints import Checkpoints
    from sqlbuffer.front.episode_changes import EndStatus, EpisodeChanges
    from sqlbuffer.front.leasing import Lease, LeasedBatch, Leasing
    from sqlbuffer.front.reading import Conditions, RowDecoding, RowReader
    from sqlbuffer.front.row_batch import LoggedBatch, TaskList
    from sqlbuffer.front.row_changes import RowChanges
    from sqlbuffer.front.sampling import AnyConverter, BatchConverter, BatchSampler, TaskConverter
    from sqlbuffer.front.work import Work
    from sqlbuffer.front.writing import StepWriter
    from sqlbuffer.loading.loader import Loader
    from sqlbuffer.loading.modes import LoaderOptions, LoaderSettings, Mode
    from sqlbuffer.loading.plans import BatchSource
    from sqlbuffer.loading.ranks import Shard
    from sqlbuffer.mirror.buffer_mirror import Mirror
    from sqlbuffer.stats import Removed, Stats
    from sqlbuffer.storage.documents import Document, Documents
    from sqlbuffer.storage.leases.checkpoints import Checkpoint, Restored
    from sqlbuffer.storage.leases.choosing import (
        GroupBy,
        Incomplete,
        OnFlat,
        OnLate,
        OnPartial,
        Order,
    )
    from sqlbuffer.vector_writer import VectorWriter

__all__ = ["ReplayBuffer", "StoreResult", "Transaction"]

T = TypeVar("T")
P = ParamSpec("P")
Rebuilders = tuple[Rebuild | None, Rebuild | None]


class ReplayBuffer:
    """A named stream of experience in a SQL database, shared by every process that opens it.

    It may be used from many threads, pickled, and used in forked and spawned processes.

    Args:
        url: Database URL, path of a SQLite file, SQLAlchemy URL or Engine. The default is the
            environment variable `SQLBUFFER_URL`, else `sqlite:///sqlbuffer.db`, and a warning is
            logged once. A SQLite URL with `?mode=ro` or `?immutable=1` refuses writes.
        name: Name of the buffer; one database holds many buffers. If a new one has nearly the name
            of another, that is logged once as a warning.
        create: True creates a missing schema and a missing buffer; False creates neither. By
            default a missing buffer is created, and the schema of a new SQLite file.
        config: Stored settings of the buffer, as a model. A new buffer gets them. If the buffer
            exists, the settings that the model was made with must equal the stored ones.
        connection: Settings of this process alone, as a model; nothing of it is stored.
        state_type: Type that pydantic rebuilds each state as when it is read. Without one, states
            are plain values.
        action_type: Type of each action, in the same way.
        settings: Settings of `BufferConfig` and `Connection` by name; they override those of the
            models. A setting that is omitted or None keeps its stored value; a new buffer gets the
            default. `alpha` is stored with a new buffer; later openers may draw with a different
            one.

    Raises:
        ArgumentError: An argument is invalid, or a setting is unknown.
        BufferConfigError: The buffer is stored with other settings, and the message lists each
            difference; or a value is invalid; or no row could ever be sampled with these settings.
        BufferNotFoundError: There is no such buffer, and `create` is False.
        FieldError: A field is malformed, or the buffer is stored with other fields.
        MissingExtraError: The buffer is compressed, and the package for that compression is not
            installed.
        SchemaMissingError: The database has no schema of sqlbuffer.
        SchemaOutdatedError: The schema is of an earlier release.
        SchemaTooNewError: The schema is of a later release.
        StorageUnreachableError: The database does not answer. Its subclasses name a wrong password,
            a missing role and a missing database.
        URLError: The URL cannot be used.

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
        checked_buffer_name(name)
        if create is not None:
            create = checked_flag(create, "create", more=", or None")
        rebuilders = _rebuilders(state_type, action_type)
        config, connection = with_settings(config, connection, settings)
        store = BufferStore.open(url, name, config, create=create, options=connection)
        if url is None:
            log_default(store.url, name)
        self._store, self._rebuilders = store, rebuilders
        self._types = (state_type, action_type)
        # The session that this object started, here or in the process that it was pickled in.
        self._own_session: str | None = None

    # Whoever opens a buffer does not wait for the modules of what it may do with it.

    @late_part
    def _conditions(self) -> Conditions:
        from sqlbuffer.front.reading import Conditions

        return Conditions(self._store.info)

    @late_part
    def _decoding(self) -> RowDecoding:
        from sqlbuffer.front.reading import RowDecoding

        return RowDecoding(self._store.source, *self._rebuilders)

    @late_part
    def _writer(self) -> StepWriter:
        from sqlbuffer.front.writing import StepWriter

        return StepWriter(self._store)

    @late_part
    def _sampler(self) -> BatchSampler:
        from sqlbuffer.front.sampling import BatchSampler

        return BatchSampler(self._store, self._decoding)

    @late_part
    def _readers(self) -> dict[BufferStore, RowReader]:
        return {}

    @late_part
    def _changes(self) -> RowChanges:
        from sqlbuffer.front.row_changes import RowChanges

        return RowChanges(self._store, self._conditions)

    @late_part
    def _episode_changes(self) -> EpisodeChanges:
        from sqlbuffer.front.episode_changes import EpisodeChanges

        return EpisodeChanges(self._store)

    @late_part
    def _leases(self) -> Leasing:
        from sqlbuffer.front.leasing import Leasing

        return Leasing(self._store, self._decoding.whole)

    @late_part
    def _checkpoints(self) -> Checkpoints:
        from sqlbuffer.front.checkpoints import Checkpoints

        return Checkpoints(self._store)

    @property
    def _reader(self) -> RowReader:
        """Reads the rows, from a standby if there is one."""
        return self._reader_of(self._store.reading)

    def _reader_of(self, store: BufferStore) -> RowReader:
        reader = self._readers.get(store)
        if reader is not None:
            return reader
        from sqlbuffer.front.reading import RowDecoding, RowReader

        decoding = RowDecoding(store.source, *self._rebuilders)
        return self._readers.setdefault(store, RowReader(store.rows, decoding))

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self._store, "types": self._types, "session": self._own_session}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._types = state["store"], state["types"]
        self._rebuilders = _rebuilders(*self._types)
        self._own_session = state["session"]

    def __repr__(self) -> str:
        from sqlbuffer.front.buffer_display import buffer_text

        return buffer_text(self._store)

    def _repr_html_(self) -> str:
        """Return a table of the buffer's settings and size, for notebooks."""
        from sqlbuffer.front.buffer_display import buffer_html

        return buffer_html(self._store)

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store the pending steps, then close this process's idle connections to the database.

        Afterwards draws and leases of this object are refused, also those of its mirrors, loaders
        and mixtures. Other calls open new connections.

        Raises:
            StorageError: The pending steps could not be stored; they stay pending.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.close()
        """
        try:
            if "_writer" in vars(self):  # else no step waits
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
        """The settings that are stored with the buffer now.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        return self._store.current_config()

    @property
    def connection(self) -> Connection:
        """The settings of this process alone."""
        return self._store.options

    @property
    def fields(self) -> dict[str, FieldSpec]:
        """The typed fields of a step, as stored."""
        return dict(self._store.info.config.fields.specs)

    @property
    def observation_fields(self) -> tuple[str, ...]:
        """Names of the typed fields that an observation consists of."""
        return self._store.info.config.fields.observations

    @property
    def meta_fields(self) -> dict[str, FieldSpec]:
        """The typed fields of an episode, as stored."""
        return dict(self._store.info.config.fields.meta)

    @property
    def spaces(self) -> Spaces | None:
        """The gymnasium spaces that are stored with the buffer: `observation` and `action`; None if
        none are.

        Raises:
            MissingExtraError: There are spaces, and gymnasium is not installed.

        Example:
            >>> from gymnasium.spaces import Box, Discrete
            >>> fields = {"obs": ("float32", (3,)), "action": "int64"}
            >>> spaces = {"observation": Box(-1, 1, (3,)), "action": Discrete(4)}
            >>> buffer = ReplayBuffer("sqlite://", fields=fields, spaces=spaces)
            >>> buffer.spaces.action, buffer.spaces.observation.shape
            (Discrete(4), (3,))
        """
        spaces = self._store.info.config.fields.spaces
        if spaces is not None:
            gymnasium_package("buffer.spaces")
        return spaces

    @property
    def compression(self) -> Compression | None:
        """Compression of the arrays' bytes, as stored; None if they are not compressed."""
        return self._store.info.config.payloads.compression

    @property
    def max_capacity(self) -> int | None:
        """Largest number of rows, as stored now; None is unlimited."""
        return self._store.window().max_capacity

    @property
    def max_episodes(self) -> int | None:
        """Largest number of episodes, as stored now; None is unlimited."""
        return self._store.window().max_episodes

    @property
    def max_age(self) -> float | None:
        """Largest age of a step in seconds, as stored now; None is unlimited."""
        return self._store.current_config().retention.max_age

    @property
    def max_bytes(self) -> int | None:
        """Largest size of all payloads in bytes, as stored now; None is unlimited."""
        return self._store.current_config().retention.max_bytes

    @property
    def evict_by(self) -> EvictUnit:
        """Unit that is evicted whole: `row`, `task` or `episode`."""
        return self._store.info.config.retention.evict_by

    @property
    def alpha(self) -> float | None:
        """Exponent of priorities, as stored; None if rows have no priorities."""
        info = self._store.info
        return info.config.priorities.alpha if info.config.priorities.enabled else None

    @property
    def max_use(self) -> int | None:
        """Largest number of times that a row is sampled; None is unlimited."""
        return self._store.info.config.sampling.max_use

    @property
    def max_staleness(self) -> int | None:
        """Largest lag of a sampled row's `model_version` behind the clock; None is unlimited."""
        return self._store.info.config.sampling.max_staleness

    @property
    def min_size(self) -> int:
        """Number of rows that the buffer must hold before any row is sampled."""
        return self._store.info.config.sampling.min_size

    @property
    def track_samples(self) -> bool:
        """Whether the rows of each batch are logged."""
        return self._store.info.config.sampling.track_samples

    def store(self, data: DataRow, *, priority: float | None = None) -> StoreResult:
        """Store one row, unless the buffer holds its id.

        Args:
            data: The row.
            priority: Its priority; see `store_batch`.

        Raises:
            FieldError: `data` is not a `DataRow`, or a value cannot be stored; nothing is written.
            OutOfOrderError: A typed step comes before the newest one of its episode; nothing is
                written.

        Example:
            >>> from sqlbuffer import DataRow, Experience, ExpMeta
            >>> keys = {"task_id": "t1", "task_name": "maze", "agent_id": "a1"}
            >>> meta = ExpMeta(**keys, step=1, execute_time=0.0)
            >>> row = DataRow(exp_meta=meta, exp_data=Experience(state={"x": 1}, actions=[0]))
            >>> ReplayBuffer("sqlite://").store(row).inserted
            1
        """
        return self._writer.store_rows(checked_rows([data], "data"), priority=priority)

    def store_batch(
        self,
        data_batch: Iterable[DataRow],
        model_version: int | None = None,
        *,
        session_id: str | None = None,
        priority: Any = None,
    ) -> StoreResult:
        """Store rows in one transaction, without those whose ids the buffer holds already.

        Either all new rows are stored or none.

        Args:
            data_batch: The rows.
            model_version: Version for rows that have none.
            session_id: Session for rows that have none. A row without a session belongs to all
                sessions.
            priority: One number for all rows or an array of shape (n,), from 0 to 1e100, for
                buffers with priorities. The default is the largest priority ever set, or 1.0 before
                any was set.

        Raises:
            ArgumentError: `data_batch` is not a list, or another iterable.
            FieldError: A value cannot be stored; nothing is written.
            OutOfOrderError: A typed step comes before the newest one of its episode; nothing is
                written.

        Example:
            >>> source = ReplayBuffer("sqlite://", "source")
            >>> source.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> copy = ReplayBuffer("sqlite://", "copy")
            >>> copy.store_batch(source).inserted
            1
        """
        rows = checked_rows(data_batch, "data_batch")
        return self._writer.store_rows(rows, model_version, session_id, priority)

    @takes(whole_step)
    def add(self, /, **fields: Any) -> StoreResult | None:
        """Store one step, given by its fields.

        A buffer without typed fields stores the step before the call returns. A buffer with typed
        fields stores it together with others, within `flush_s`, and returns None; `flush` stores
        the pending steps immediately.

        In a buffer with typed fields, a step without a number gets the next number of its episode,
        or of its task and agent in this process. Some arguments have the step stored immediately,
        after the pending ones: `id`, `episode_id`, `group_id`, `parent_id`, `execute_time`,
        `task_name`, `pre_agent`, `adv_t` and `v_t`.

        Args:
            **fields: `state`, `actions` (or `action`), `reward`, `adv_t`, `v_t`, `messages`,
                `terminated`, `truncated`, `extra`, `task_id`, `task_name`, `agent_id`, `step`,
                `execute_time`, `pre_agent`, `episode_id`, `group_id`, `parent_id`, `model_version`,
                `session_id` and `id`; `priority` as in `store_batch`; and the typed fields that the
                buffer declares. A typed field is required unless it has a default.

        Raises:
            FieldError: A field is unknown or missing, or a value cannot be stored; nothing is
                written.
            OutOfOrderError: A typed step comes before the newest one of its episode; nothing is
                written.
            SQLBufferError: Earlier steps could not be stored; they stay pending.

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
        """Store n steps, given as columns, in one transaction.

        Args:
            arrays: An array of shape (n, *shape) for each declared field, or n arrays if its length
                varies. `reward`, `adv_t`, `v_t`, `terminated` and `truncated` are optional, of
                shape (n,). `state`, `actions`, `messages` and `extra` are lists of n values, as in
                `add`.
            casting: `same_kind` refuses casts that change a value: floats to integers, integers out
                of range, finite floats to infinite ones. `unsafe` casts as numpy does.
            **keys: `task_id`, `agent_id`, `step`, `model_version`, `session_id`, `episode_id`,
                `group_id`, `parent_id`: n values, or one for all rows. `id`: n values. `priority`:
                see `store_batch`. Steps with an `episode_id` are appended to that episode; typed
                steps come in the order of their `step`, and without one they are numbered on.

        Raises:
            FieldError: A field is unknown or missing, has another shape, or cannot hold a value;
                nothing is written.
            OutOfOrderError: A typed step comes before the newest one of its episode; nothing is
                written.
            EpisodeEndedError: Steps name an episode that has ended and takes no more; nothing is
                written.
            EpisodeTakenError: Another writer has continued the episode; nothing is written.

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
        group_id: str | None = None,
        parent_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        final: Mapping[str, Any] | None = None,
        episode_reward: float | None = None,
        priority: Any = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> StoreResult:
        """Store a whole episode, given as columns, in one transaction.

        `v_episodes` shows the episode, even after its steps were evicted.

        Args:
            arrays: Columns as in `extend`, from the first step to the last.
            episode_id: Id of the episode; made if omitted. With an id, the episode is stored once
                however often it is sent, as long as the buffer holds a step of it. A different
                episode with the same id is not stored, and its steps count as conflicts.
            task_id: Task of the episode; the episode's own id if omitted.
            group_id: Group of rollouts that it belongs to; that of its task if omitted.
            parent_id: Id of the episode that it came from, such as that of the agent that called
                this one; see `episode`.
            agent_id: Agent that acted; `default` if omitted. Pass it as a column of `arrays` if it
                changes.
            model_version: Version of the model that acted; a column of `arrays` if it changes.
            session_id: Training session; a column of `arrays` if it changes.
            final: Observation after the last step, a value for each observation field.
            episode_reward: The episode's own reward, a finite number: a score for the whole
                episode. It is stored in addition to the sum of the steps' rewards (`reward` in
                `v_episodes`).
            priority: Priorities of the steps, as in `store_batch`, or as a column of `arrays`.
            casting: See `extend`.
            **meta: Values stored with the episode: values of `meta_fields`, and JSON values under
                other names.

        Raises:
            EpisodeExistsError: An episode with this id is open, or was aborted.
            FieldError: As in `extend`; or the final observation has other fields, meta cannot be
                stored as JSON, there are no steps, or the reward is not a finite number. Nothing is
                written.
            OutOfOrderError: A typed step comes after one with a higher `step`; nothing is written.

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
        episode = self._writer.encoded_episode(
            arrays, episode_id=episode_id, task_id=task_id, group_id=group_id,
            parent_id=parent_id, keys=keys, final=final, episode_reward=episode_reward,
            casting=casting, meta=meta,
        )  # fmt: skip
        return self._writer.store(episode)

    def episode(
        self,
        /,
        task_id: str | None = None,
        agent_id: str | None = None,
        *,
        episode_id: str | None = None,
        group_id: str | None = None,
        parent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        resume: bool = False,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> EpisodeWriter:
        """Begin an episode that is written step by step, or continue one with `resume=True`.

        Steps are stored in batches: when there are enough pending steps of all open episodes, and
        at the latest `flush_s` after the first of them, unless the database or the rate limiter
        holds them up. `end` stores the end of the episode before it returns. A process that dies
        loses its pending steps, at most `max_pending`, and leaves the episode open.

        Reads in this process include its pending steps: `len` and reads of rows include all of
        them. Random draws may miss the newest ones, at most 1 for 64 stored steps.

        Args:
            task_id: Task of the episode; the episode's own id if omitted.
            agent_id: Agent that acts; `default` if omitted.
            episode_id: Id of the episode, which no episode of the task may have; made if omitted.
            group_id: Group of rollouts that it belongs to, such as those of one prompt in one
                epoch; that of its task if omitted.
            parent_id: Id of the episode that it came from: that of the agent which called this
                sub-agent, that from which it branched off, or that whose context it compacts. The
                buffer need not have it.
            model_version: Version of the model that acts.
            session_id: Training session.
            resume: Continue the episode with this id if it is open, aborted or abandoned, whichever
                process began it: from then on only this writer adds steps to it and ends it. The
                first number is `writer.t`. Without such an episode, begin it; `meta` is for this
                case.
            casting: See `extend`.
            **meta: See `store_episode`.

        Raises:
            ArgumentError: `resume` without an `episode_id`.
            EpisodeExistsError: The buffer has an episode with this id.
            EpisodeEndedError: The episode to continue is complete, or a lease holds or has used it.
            FieldError: A key is not text, the episode is its own parent, or meta does not fit its
                declared fields.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> with buffer.episode(task_id="t1") as episode:
            ...     episode.append(obs=0.0, reward=0.0)
            ...     episode.append(obs=1.0, reward=1.0, terminated=True)
            >>> len(buffer)
            2
            >>> buffer.episode("t2", episode_id="e2").abort()
            >>> with buffer.episode("t2", episode_id="e2", resume=True) as episode:
            ...     episode.append(obs=float(episode.t), terminated=True)
            >>> episode.attempt, len(episode.steps())
            (2, 1)
        """
        if checked_flag(resume, "resume") and episode_id is None:
            raise ArgumentError("resume=True continues the episode with an id; give episode_id=...")
        beginning = self._writer.beginning(
            task_id,
            agent_id,
            episode_id,
            model_version,
            session_id,
            group_id,
            parent_id,
            casting,
            meta,
        )
        return self._writer.episode(
            beginning, casting, partial(self._steps_of, beginning.key, beginning.task_id),
            has_own_id=episode_id is not None, resume=resume,
        )  # fmt: skip

    def _steps_of(
        self, episode_id: str, task_id: str, node: Node = EVERYTHING
    ) -> builtins.list[DataRow]:
        """Return the steps of an episode that match, in their order, from the primary."""
        of_episode = QueryBuilder().eq("episode_id", episode_id).and_().eq("task_id", task_id)
        its = self._conditions.node(of_episode.build())
        both = its if node == EVERYTHING else Group("all", (its, node))
        return self._reader_of(self._store).episode(both)

    def vector_writer(
        self,
        n_envs: int,
        /,
        *,
        task_id: str | Sequence[str] | None = None,
        agent_id: str | Sequence[str] | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> VectorWriter:
        """Return a writer of the steps of several environments that act together.

        It takes arrays of all environments, one step or T steps at a time, and owns the ids of
        their episodes: where a step is `terminated` or `truncated`, its episode ends, and the next
        step of that environment begins another one. The steps are stored within `flush_s`, in
        chunks of each episode. Without `max_pending`, up to 256 steps of each environment may be
        pending.

        Args:
            n_envs: Number of environments.
            task_id: Task of the episodes, or one for each environment; each episode's own id if
                omitted.
            agent_id: Agent that acts, or one for each environment; `default` if omitted.
            model_version: Version of the model that acts; the writer has it as an attribute.
            session_id: Training session, in the same way.
            casting: See `extend`.
            **meta: See `episode`.

        Raises:
            ArgumentError: `n_envs` is not a number from 1 to 1,000,000.
            FieldError: The buffer has no typed fields, or a key or meta cannot be stored.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (4,))})
            >>> with buffer.vector_writer(2, task_id="walk") as writer:
            ...     writer.write({"obs": np.zeros((5, 2, 4)), "reward": np.ones((5, 2))})
            >>> len(buffer)
            10
        """
        from sqlbuffer.vector_writer import MAX_ENVS

        n_envs = checked_integer(n_envs, "n_envs", 1, MAX_ENVS)
        if wrong := {"episode_id", "group_id", "parent_id"}.intersection(meta):
            raise FieldError(
                f"vector_writer() begins the episodes; leave {min(wrong)} out, or write them with "
                f"episode()"
            )
        tasks = keys_of_envs(task_id, "task_id", n_envs)
        agents = keys_of_envs(agent_id, "agent_id", n_envs)

        def begin(i: int, version: int | None, session: str | None) -> EpisodeStart:
            return self._writer.beginning(
                tasks[i], agents[i], None, version, session, None, None, casting, meta
            )

        begin(0, model_version, session_id)  # an error is that of this call
        return self._writer.vector(n_envs, begin, casting, model_version, session_id)

    def record(
        self,
        /,
        env: Any,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
        info_fields: Sequence[str] = (),
        reward_field: str | None = None,
        reward: Callable[[Any], Any] | None = None,
        casting: Casting = "same_kind",
        **meta: Any,
    ) -> Any:
        """Return an environment that behaves as `env` and stores every step it takes.

        Each episode of each environment is stored as one episode, with its final observation. It
        begins with its first step and ends when the environment reports its end. A `reset` in the
        middle or `close` ends it as truncated; an exception in `step` marks it aborted. Steps that
        only reset the environment (gymnasium's autoreset) are not stored. Close the environment
        before the buffer.

        The newest step of an open episode is held back until the next call, which shows whether the
        episode was cut after it. `flush` does not store that step, and its `flush_s` begins with
        the next call. The environments of a vector may have 256 pending steps each, unless
        `max_pending` was given.

        A parallel environment of PettingZoo is stored as one episode with a step for all agents.
        `mask_<agent>` is False where an agent does not act: its other fields are zeros there. The
        episode ends when no agent is left, and is truncated if one was truncated in the last step.

        Args:
            env: A gymnasium environment, single or vectorized, or a parallel one of PettingZoo. The
                buffer must have the fields that `fields_from_env` reads from it, with or without
                `next_obs`. It may have more fields if they have a default.
            task_id: Task of all its episodes; each episode's own id if omitted.
            agent_id: Agent that acts; `default` if omitted.
            model_version: Version of the model that acts. The returned environment has it as the
                attribute `model_version`; a new value holds for the episodes that begin later.
            session_id: Training session, and the attribute `session_id` in the same way.
            info_fields: Values of `info` to store, each in the field of its name. One of the
                `observation_fields` is stored with the observation that `reset` or `step` returns
                with it, another one with the step that returns it. Where `info` does not have it,
                the field's default is stored.
            reward_field: Field in which the reward is stored as the environment gives it, such as a
                vector. `reward` is None then, unless the argument `reward` makes it.
            reward: Function that makes the reward of a step, a number, of the reward that the
                environment gives; for a vectorized environment, n numbers of n rewards; for several
                agents, a number of the dict of their rewards, whose sum is the default.
            casting: See `extend`.
            **meta: See `episode`.

        Raises:
            ArgumentError: `env` is not an environment of gymnasium or PettingZoo, or an argument is
                invalid.
            FieldError: The buffer has other fields than the environment, or a key or meta cannot be
                stored. From `step`: a field cannot hold a value, or `info` lacks one; the episodes
                are aborted.
            MissingExtraError: gymnasium is not installed, or older than 1.1.
            FlowControlError: From `step`: too many steps are pending, and the rate limiter allowed
                none in time. The environment did not take the step.
            StorageError: From `step`: earlier steps could not be stored; they stay pending. If the
                environment has taken the step, its episodes are aborted. From `close`: earlier
                steps could not be stored, and the environment is closed.

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
        from sqlbuffer.recording import RecordOptions, Writing, recorded

        if "episode_id" in meta:
            raise FieldError("record() makes an id for each episode; leave episode_id out")
        names = tuple(checked_names(info_fields, "info_fields", "['action_mask', 'cost']"))
        if reward_field is not None and not isinstance(reward_field, str):
            raise refused(reward_field, "reward_field", "the name of a field")
        if reward is not None:
            checked_callable(reward, "reward", "a function of the environment's reward")
        options = RecordOptions(names, reward_field, reward)
        if wrong := {"group_id", "parent_id"}.intersection(meta):
            raise FieldError(
                f"record() begins episodes without {min(wrong)}; write them with episode()"
            )
        self._writer.beginning(
            task_id, agent_id, None, model_version, session_id, None, None, casting, meta
        )
        keys: dict[str, Any] = {
            "task_id": task_id,
            "agent_id": agent_id,
            "casting": casting,
            **meta,
        }
        vector = partial(
            self.vector_writer, model_version=model_version, session_id=session_id, **keys
        )
        writing = Writing(
            partial(self.episode, **keys), self._writer.wait_for_room, vector, model_version,
            session_id,
        )  # fmt: skip
        return recorded(env, self, writing, options)

    def flush(self) -> None:
        """Store the pending steps now.

        Raises:
            StorageError: The steps could not be stored; they stay pending.
            EpisodeExistsError: The buffer holds other steps with the ids of some steps, which are
                lost.

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
            batch_size: Number of rows, at least 1; with replacement, at most 10,000,000.
            fields: Fields to read, of the declared ones, `reward`, `terminated` and `truncated`,
                all by default; also `adv_t` and `v_t`.
            sampler: Sampler that chooses the rows; `RandomSampler(replace=True)` by default.
            condition: Condition that rows must match.

        Returns:
            A batch of arrays of shape (batch_size, *shape); `reward` is float32.

        Raises:
            ArgumentError: The batch size or the sampler is invalid.
            BufferConfigError: The buffer is closed.
            ConditionError: The condition is malformed.
            InsufficientDataError: Fewer rows were drawn. With the default sampler: no row matches.
            FieldError: A field is unknown.
            ValueError: `batch_size` is out of its range.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (4,))})
            >>> buffer.extend({"obs": [[0.0] * 4] * 10, "reward": range(10)}).inserted
            10
            >>> batch = buffer.sample_arrays(32, fields=["obs", "reward"])
            >>> batch["obs"].shape, batch["reward"].dtype
            ((32, 4), dtype('float32'))
        """
        form = StepForm.of(self._store.info.config.fields, fields)
        return self._sampler.arrays(form, sampler, batch_size, self._conditions.node(condition))

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
        fields: Sequence[str] | None = None,
        sampler: Sampler | None = None,
        condition: Condition = None,
    ) -> Batch:
        """Draw transitions: steps with their n-step returns and the observations after them.

        For step t of an episode, m is n_step, or the number of steps to the episode's end if that
        is smaller. `reward` is the sum of gamma^k r_(t+k) for k < m. `discount` is gamma^m, or 0 if
        the episode terminates within these m steps. `next_obs` is the observation at t + m, or the
        final one of the episode (Sutton and Barto 2018, section 7.1). A declared field `next_obs`
        is used as it is.

        Steps whose successors are not stored are not drawn, for example those before a truncated
        end without a final observation. After a terminated end without one, `next_obs` is zeros.

        A step without an episode has no successor. With a declared `next_obs` it is a transition of
        one step, for every `n_step`. Otherwise it is never drawn, and the call raises unless
        `skip_single` is True.

        Args:
            batch_size: Number of transitions; with replacement, at most 10,000,000.
            n_step: Largest number of steps that a transition spans, from 1 to 1,000,000.
            gamma: Discount of one step.
            stack: Frames to stack for each observation field, up to 1,000. `{"obs": 4}` gives each
                observation as its last 4 frames, of shape (batch_size, 4, *shape), the oldest
                first. At an episode's start the first frame is repeated.
            terminal_field: Declared field, such as `done`, that marks where an episode terminated;
                for buffers that do not store `terminated`.
            skip_single: True draws from the episodes alone; steps without an episode are left out.
            relabel: Goals in hindsight (HER); see `HindsightGoals`. Only transitions of episodes
                that have ended are then drawn, with `n_step=1`.
            fields: Declared fields to read, all by default; also `adv_t` and `v_t`. With `relabel`,
                the goals are always read.
            sampler: Sampler that chooses the first steps; `RandomSampler(replace=True)` by default.
            condition: Condition that first steps must match.

        Returns:
            A batch of arrays of shape (batch_size, *shape): the fields, `reward` and `discount`
            (float32), `terminated`, and `next_<name>` for each observation field. `info` has
            `episode`, `t` and `n_steps`, which is m. With `relabel`, it has `relabelled`, which is
            True for transitions with a new goal, and `goal_seq`, the `seq` of the step after which
            that goal was achieved, -1 for the others.

        Raises:
            ArgumentError: The batch size, the sampler, `n_step`, `gamma` or `relabel` is invalid;
                or the function of `relabel` does not return rewards.
            BufferConfigError: The buffer is closed.
            ConditionError: The condition is malformed.
            InsufficientDataError: Too few steps have their successors stored.
            FieldError: A field is unknown; or no observation field is declared; or there is a field
                `done`, neither `terminated` nor `truncated` is stored, and `terminal_field` is
                omitted; or a matching step has no episode, the buffer has no field `next_obs` or
                `relabel` is given, and `skip_single` is False; or the buffer lacks a goal of
                `relabel`; or `stack` has a number of frames out of its range.
            ArgumentError: `batch_size` or `n_step` is out of its range.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> columns = {"obs": [0, 1], "reward": [1, 1], "terminated": [False, True]}
            >>> buffer.store_episode(columns).inserted
            2
            >>> batch = buffer.sample_transitions(64, n_step=2, gamma=0.5)
            >>> sorted(set(batch.reward.tolist()))
            [1.0, 1.5]
        """
        check_n_step(n_step, gamma)
        form = TransitionForm.of(
            self._store.info.config.fields, int(n_step), float(gamma), names=fields, stack=stack,
            terminal_field=terminal_field, skip_single=checked_flag(skip_single, "skip_single"),
            relabel=relabel,
        )  # fmt: skip
        return self._sampler.arrays(form, sampler, batch_size, self._conditions.node(condition))

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
    ) -> TaskList: ...
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
        """Draw a batch of rows, or of whole tasks with a task sampler.

        Args:
            batch_size: Number of rows, or of tasks with a task sampler. If fewer match, all that
                match are returned.
            sampler: Sampler that chooses the rows; `RandomSampler()` by default.
            condition: Condition that rows must match, or with a task sampler the tasks.
            converter: Function that is called once, on the whole batch.
            strict: Raise if fewer match.
            fields: Fields of each row to read, by dotted names such as `["state.image",
                "reward_t"]`; all by default. Keys are always read. A field that a row does not have
                is left out. See `docs/how-to/read-in-part.md`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of rows. With a task sampler, a `RowList` of tasks, each a list of rows in
            the order of `get_by_task_id`. Its `batch_id` is the number of the batch in
            the sample log (`track_samples`). With a converter, the converter's result.

        Raises:
            ArgumentError: The batch size, the sampler, the converter or `strict` is invalid.
            BufferConfigError: The buffer is closed.
            ConditionError: The condition is malformed.
            FieldError: A field is unknown.
            InsufficientDataError: Fewer rows or tasks match, and `strict` is set.

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
        return self._sampler.sample(sampler, batch_size, node, converter, strict, fields)

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
    ) -> TaskList: ...
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
        """Draw whole tasks.

        Args:
            n: Number of tasks. If fewer match, all that match are returned.
            sampler: Task sampler that chooses them; `RandomTaskSample()` by default.
            condition: Condition that a row of a task must match; all rows of the task are returned.
            converter: Function that is called once for each task.
            strict: Raise if fewer match.
            fields: Fields of each row to read; see `sample`.
            query_condition: Other name of `condition`.

        Returns:
            A `RowList` of tasks, each a list of rows in the order of `get_by_task_id`,
            or the converter's results. Its `batch_id` is the number of the batch in the sample log.

        Raises:
            ArgumentError: n, the sampler, the converter or `strict` is invalid.
            BufferConfigError: The buffer is closed.
            ConditionError: The condition is malformed.
            FieldError: A field is unknown.
            InsufficientDataError: Fewer tasks match, and `strict` is set.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for step in range(3):
            ...     result = buffer.add(state={"x": step}, task_id="t1", step=step)
            >>> [[row.exp_meta.step for row in task] for task in buffer.sample_tasks(1)]
            [[0, 1, 2]]
        """
        node = self._conditions.node(condition, query_condition)
        return self._sampler.tasks(sampler, n, node, converter, strict, fields)

    @overload
    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: None = None,
        batch_size: int = 1000,
    ) -> TaskList: ...
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
        """Draw whole tasks, as `sample_tasks`, with AWorld's name and arguments.

        Raises:
            ArgumentError: The batch size, the sampler or the converter is invalid.
            ConditionError: The condition is malformed.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> len(buffer.sample_task(batch_size=1))
            1
        """
        node = self._conditions.node(None, query_condition)
        return self._sampler.tasks(sampler, batch_size, node, converter, name="batch_size")

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
        """Draw rows, or tasks, to look at them.

        No limit applies, nothing waits, and nothing is counted.

        Args:
            n: Number of rows or tasks; if fewer match, fewer are returned.
            sampler: Sampler that chooses them; `RandomSampler()` by default.
            condition: Condition that rows must match.

        Returns:
            A list of rows; with a task sampler a list of tasks, each a list of rows.

        Raises:
            ArgumentError: n or the sampler is invalid.
            BufferConfigError: The buffer is closed.
            ConditionError: The condition is malformed.

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
        skip_single: bool = False,
        relabel: HindsightGoals | None = None,
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
        shard: Shard = None,
        even: bool = False,
        mirror: bool | Mirror = False,
    ) -> Loader[Any]:
        """Return an iterable of batches for a training loop: random draws without end, or passes.

        A pass (`epochs`, or `shuffle=False`) fixes the range of `seq` at its start, so rows that
        are stored later do not enter it. It visits each row once and skips rows that are evicted
        during the pass. A pass over an empty buffer has no batches.

        Args:
            mode: Contents of a batch. `step`: rows, as in `sample_arrays`. `transition`: as in
                `sample_transitions`. `n_step`: transitions with the sequences of chosen fields.
                `window`: stretches of steps of one length. `trajectory`: whole episodes.
            batch_size: Number of them in a batch.
            n_step: Largest number of steps that a transition spans; modes `transition` and
                `n_step`.
            gamma: Discount of one step; modes `transition` and `n_step`.
            length: Number of steps of a window, up to 1,000,000; mode `window`.
            burn_in: Number of steps before a window, up to 1,000,000; mode `window`.
            stride: Number of steps from the start of one window to the next; mode `window`.
            sequence_fields: Fields whose value at each step is returned; mode `n_step`.
            stack: Frames to stack, `{field: number}`; modes `transition`, `n_step` and `window`.
            terminal_field: Field that marks the end of an episode; modes `transition` and `n_step`.
            skip_single: Leave out steps without an episode; modes `transition` and `n_step`.
            relabel: Goals in hindsight (HER), as in `sample_transitions`; mode `transition`.
            include_partial: Include open and clipped episodes; mode `trajectory`.
            shuffle: False gives passes in the order of `seq`, one after the other.
            seed: Seed that repeats the same batches over the same live rows.
            drop_last: Omit the last batch of a pass if it is smaller.
            replace: Draw with replacement.
            sampler: Sampler that draws the batches; uniform by default.
            condition: Condition that rows must match; see the mode's own call for which rows are
                tested.
            fields: Declared fields to read, all by default; also `adv_t` and `v_t`.
            to_named_tuple: Names of arrays. Batches are then named tuples of these arrays, in this
                order, without leading underscores; `info` is the batch's info.
            fieldname_map: New names of arrays, `{name: new name}`.
            device: Device of torch, such as `cpu` or `cuda`. Arrays become tensors on it. Texts,
                objects and `info` stay as they are, because torch has no tensors for them.
            prefetch: Number of batches that a thread fetches ahead.
            epochs: Number of passes; without it, batches are drawn without end.
            shard: `(rank, world)` divides each pass between the ranks of a training run: each row
                is read by one of them. `torch` takes the rank from torch.distributed or torchrun.
                Batches drawn without end differ between ranks. See
                `docs/how-to/divide-a-pass-between-ranks.md`.
            even: All ranks have the same number of batches; with `shard`.
            mirror: Mirror of this buffer to read from; see `docs/how-to/draw-from-memory.md`. True
                opens one, which the loader's `close` closes.

        Raises:
            ArgumentError: An argument is invalid, the mode does not take an option, or options
                exclude each other.
            ConditionError: The condition is malformed.
            InsufficientDataError: In the loop: a batch could not be filled, or a pass without end
                finds no batch.
            BufferConfigError: Passes over a buffer with `max_use`, which counts each draw of a row;
                or the mirror is of another buffer, or the buffer cannot be mirrored; in the loop:
                the loader or the buffer is closed.
            MirrorFullError: A mirror is opened, and the buffer does not fit into it.
            FieldError: A field is unknown, or names collide.
            MissingExtraError: A device is given, and torch is not installed.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [0, 1, 2]}).inserted
            3
            >>> loader = buffer.loader("step", 2, epochs=1, shuffle=False)
            >>> [batch.obs.tolist() for batch in loader]
            [[0.0, 1.0], [2.0]]
        """
        from sqlbuffer.loading.loader import Output, open_loader
        from sqlbuffer.loading.modes import LoaderOptions

        options = LoaderOptions(
            mode=mode, batch_size=batch_size, n_step=n_step, gamma=gamma, length=length,
            burn_in=burn_in, stride=stride, sequence_fields=sequence_fields, stack=stack,
            terminal_field=terminal_field, skip_single=skip_single, relabel=relabel,
            include_partial=include_partial, shuffle=shuffle, seed=seed, drop_last=drop_last,
            replace=replace, sampler=sampler, condition=condition, fields=fields, epochs=epochs,
            shard=shard, even=even,
        )  # fmt: skip
        output = Output(fieldname_map, to_named_tuple, device)
        if mirror is not False:
            from sqlbuffer.mirror.buffer_mirror import mirrored_loader

            return mirrored_loader(self._store, mirror, options, output, prefetch)
        return open_loader(self._store, options, output, prefetch)

    def batch_source(self, options: LoaderOptions) -> BatchSource:
        """Return the source that a loader with these options reads its batches from.

        Use it to write your own loader.

        Raises:
            ArgumentError: `options` are not a `LoaderOptions`.
            BufferConfigError: Passes over a buffer with `max_use`.
            FieldError: A field is unknown.

        Example:
            >>> from sqlbuffer.loading.modes import LoaderOptions
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> source = buffer.batch_source(LoaderOptions(mode="step", batch_size=2))
        """
        from sqlbuffer.loading.modes import LoaderOptions

        what = "a LoaderOptions, such as LoaderOptions(mode='step')"
        checked_instance(options, "options", LoaderOptions, what)
        return options.source(self._store.drawing)

    def mirror(
        self,
        *,
        max_bytes: int = MIRROR_BYTES,
        refresh_s: float = MIRROR_REFRESH_S,
        max_lag_s: float | None = None,
        condition: Condition = None,
        fields: Sequence[str] | None = None,
        shared: bool = False,
        path: str | os.PathLike[str] | None = None,
    ) -> Mirror:
        """Copy the buffer's steps into the memory of this process, and keep the copy up to date.

        Args:
            max_bytes: Largest number of bytes that the steps may take.
            refresh_s: Seconds between two looks for what other processes have written.
            max_lag_s: Largest age in seconds of the last successful look; draws fail after it.
                None: draws never fail for this reason.
            condition: Condition that drawn steps must match; only their episodes are copied. It may
                use any field, also payloads, labels and facts of episodes, except a `status` that
                tells open episodes from abandoned ones.
            fields: Declared fields to copy; all by default.
            shared: True lets one process of the machine follow the buffer, while the others draw
                from the same memory. The settings `max_bytes` and `refresh_s` of that process
                count.
            path: File of a shared mirror. It remains after the last process has ended, and the next
                process continues from it. By default the mirror is in shared memory, which is freed
                then.

        Raises:
            ArgumentError: An argument is invalid.
            BufferConfigError: The buffer has no typed fields, counts uses, or has leases; or this
                machine cannot share a mirror.
            ConditionError: The condition is malformed, or asks for open or abandoned episodes.
            FieldError: A field is unknown.
            MirrorFullError: The buffer does not fit.
            StorageReadOnlyError: The buffer evicts by task or episode, and the role may not
                register a follower; that needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [0, 1, 2]}).inserted
            3
            >>> with buffer.mirror() as mirror:
            ...     batch = mirror.sample_arrays(8)
            >>> batch.obs.shape
            (8,)
        """
        from sqlbuffer.mirror.buffer_mirror import Mirror

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
        group_size: int | None = None,
        group_timeout_s: float | None = None,
        on_partial: OnPartial = "use",
        on_late: OnLate = "keep",
        incomplete: Incomplete = "exclude",
        order: Order = "random",
        timeout_s: float = LEASE_WAIT_S,
        lease_s: float = LEASE_S,
        condition: Condition = None,
        every: Condition = None,
        require_reward: bool = False,
        min_spread: float | None = None,
        on_flat: OnFlat = "keep",
        consumer: str | None = None,
    ) -> Lease:
        """Claim rows, or whole groups of them, for the duration of a `with` block.

        No other process gets them during that time. At the end of the block, a use of each row is
        counted, and rows that were used `max_use` times leave the buffer. An exception in the block
        returns the rows immediately, and no use is counted. If the process dies, they return when
        the lease expires.

        Without a block, `buffer.lease(...).take()` returns the batch. End it with `batch.ack()` or
        `batch.nack()`, at any time before it expires, or in another process (`leases`).

        Args:
            n: Number of rows or groups: all n are leased or none.
            group_by: `task_id` leases whole tasks, such as the rollouts of one GRPO prompt.
                `group_id` leases the episodes that were given the same one, such as those of one
                prompt in one epoch; those without one are grouped by task. `episode_id` leases
                whole episodes that have ended.
            min_group_size: Number of rollouts that make a group complete; 1 by default. Complete
                episodes count, and so do rows without an episode. A group with an open episode is
                not complete.
            group_size: Claim exactly this number of rollouts of each group, of those that have
                ended and that no limit excludes: those with a row that matches the condition come
                first, and then the oldest. The others stay in the queue, and open siblings hold up
                no group.
            group_timeout_s: Seconds to wait after the newest row of an incomplete group; unlimited
                by default.
            on_partial: Treatment of the group after that time: `use` leases it as it is, `drop`
                deletes it.
            on_late: Treatment of rollouts that arrive after a lease of their group was
                acknowledged: `keep` makes another group of them, `drop` deletes them when they
                have ended. `v_groups` counts those that are there.
            incomplete: Treatment of aborted and abandoned rollouts in groups. With `exclude` they
                do not count and are not handed out, so that another rollout can take their place.
                With `include` they are rollouts like others.
            order: `random` (uniform over rows, or over groups), `fifo`, `freshest` or `stalest` (by
                `model_version`, then by age; rows without a version are the oldest), `least_used`
                (fewest acknowledged uses first, then `fifo`), or of groups `spread` (largest spread
                of rewards first). Groups that were used wait behind unused ones: in `fifo` behind
                all of them, in `freshest` and `stalest` behind those of the same `model_version`.
            timeout_s: Seconds to wait until n rows or groups are there; 0 raises immediately.
            lease_s: Seconds until the lease expires; `batch.renew()` restarts them.
            condition: Condition that rows must match; a group needs one row that matches.
            every: Condition that one row of each rollout of a group must match.
            require_reward: Lease groups whose rollouts all have a reward: one of the episode, or
                of one of its steps.
            min_spread: Skip groups in which the largest minus the smallest reward of a rollout is
                not greater than this. Such flat groups are counted (`batch.n_skipped`). 0.0 skips
                groups whose rewards are all equal. A group waits until each of its rollouts has a
                finite reward. Groups by `task_id` or `group_id` only.
            on_flat: Treatment of the groups that `min_spread` skips: `keep` leaves them in the
                queue, for leases without it or until a reward changes; `drop` deletes them.
            consumer: Name of who takes the batch, such as `trainer-0`, for `leases`, `checkpoint`
                and the sample log.

        Returns:
            A context manager that yields a `LeasedBatch`; its `take()` returns one.

        Raises:
            ArgumentError: An argument is invalid, or arguments exclude each other.
            ConditionError: The condition is malformed.
            BufferConfigError: The buffer was made without `leases=True`; or, at the start of the
                block, it is closed.
            InsufficientDataError: At the start of the block: too few rows or groups were there in
                time.
            FlowControlError: At the start of the block: the rate limiter did not admit the batch in
                time.
            LeaseLostError: At the end of the block: the lease has expired, and nothing was counted.
            StorageReadOnlyError: The role may not lease; that needs the role of learners.

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
            n, self._conditions.node(condition), self._conditions.node(every), group_by=group_by,
            min_group_size=min_group_size, group_size=group_size, require_reward=require_reward,
            group_timeout_s=group_timeout_s, on_partial=on_partial, on_late=on_late,
            min_spread=min_spread, on_flat=on_flat, incomplete=incomplete, order=order,
            timeout_s=timeout_s, lease_s=lease_s, consumer=consumer,
        )  # fmt: skip

    def leases(self, consumer: str | None = None) -> builtins.list[LeasedBatch]:
        """Return the batches that are on lease now, oldest first, whichever process holds them.

        Their rows are read when they are used first.

        Args:
            consumer: Batches that were leased under this name; None: all.

        Raises:
            ArgumentError: The name is not text, or is empty.
            BufferConfigError: The buffer was made without `leases=True`.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", leases=True)
            >>> _ = buffer.add(state=1, actions=[0])
            >>> taken = buffer.lease(1, consumer="trainer-0").take()
            >>> for batch in buffer.leases("trainer-0"):
            ...     batch.nack()
            >>> buffer.leases()
            []
        """
        return self._leases.live(consumer)

    def batch(self, batch_id: int) -> LoggedBatch:
        """Return a batch of the sample log: what was trained on, with the labels of that moment.

        Values that a later annotation of the same `version` replaced are not known any more.
        Episodes show their present rewards.

        Args:
            batch_id: Number of the batch, as in `info["batch_id"][0]`, `LeasedBatch.batch_id` and
                `v_samples`. A batch of transitions, windows or episodes has their first rows.

        Raises:
            ArgumentError: It is not a number.
            BatchNotFoundError: It is not in the log, or not any more (`keep_samples_s`).
            BufferConfigError: The buffer was made without `track_samples=True`.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", track_samples=True, max_capacity=2)
            >>> _ = buffer.add(state=1, actions=[0], reward=0.0)
            >>> rows = buffer.sample(1)
            >>> _ = buffer.annotate([rows[0].seq], reward=1.0)
            >>> batch = buffer.batch(rows.batch_id)
            >>> batch.rows[0].exp_data.reward_t, batch.missing
            (0.0, [])
        """
        from sqlbuffer.front.row_batch import logged_batch

        return logged_batch(self._store, self._decoding.whole, batch_id)

    def checkpoint(
        self, name: str, *, consumer: str, loaders: Sequence[Any] = (), keep: int = 2
    ) -> Checkpoint:
        """Mark what a consumer has acknowledged until now, in one transaction.

        Make the mark first, and then write the file of the model, with the name of the mark in it.
        A trainer that starts again reads the file, and calls `restore` with that name. So what it
        took is trained on exactly once, whenever it is killed.

        From its first mark on, what the consumer acknowledges is kept: no other process gets these
        rows, and those that reach `max_use` stay until the oldest mark that is left includes them.

        Args:
            name: Name of the mark, such as the number of the training step.
            consumer: The consumer, as in `lease`.
            loaders: Loaders and samplers, whose `state_dict()` is stored with the mark.
            keep: Number of marks to keep, with this one: one more than the files that you keep.

        Raises:
            ArgumentError: An argument is invalid, or the consumer has a mark of this name.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", leases=True, max_use=1)
            >>> for step in range(3):
            ...     _ = buffer.add(state=step, actions=[0], step=step)
            >>> mark = buffer.checkpoint("start", consumer="trainer-0")
            >>> with buffer.lease(2, consumer="trainer-0") as batch:
            ...     pass
            >>> len(buffer), buffer.restore("start", consumer="trainer-0").n_freed
            (3, 2)
        """
        return self._checkpoints.make(name, consumer, loaders, keep)

    def restore(self, name: str, *, consumer: str) -> Restored:
        """Go back to a checkpoint: free what the consumer has taken after it.

        The uses that were counted since are undone, the batches that it still holds are revoked,
        and its entries of the sample log are marked as undone. Its later marks are deleted. The
        clock, the priorities, other consumers, and what was stored since stay as they are.

        Args:
            name: The mark that the model's file names.
            consumer: The consumer.

        Returns:
            The states of the loaders and samplers, and what was freed. Rows that were evicted or
            deleted since are counted in `n_missing`.

        Raises:
            ArgumentError: A name is not text, or is empty.
            CheckpointNotFoundError: The consumer has no mark of this name.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"x": "int64"})
            >>> _ = buffer.extend({"x": range(4)})
            >>> loader = buffer.loader("step", 2, epochs=1, shuffle=False)
            >>> batches = iter(loader)
            >>> next(batches).x.tolist()
            [0, 1]
            >>> _ = buffer.checkpoint("step-1", consumer="trainer-0", loaders=[loader])
            >>> next(batches).x.tolist()
            [2, 3]
            >>> loader.load_state_dict(buffer.restore("step-1", consumer="trainer-0").states[0])
            >>> next(iter(loader)).x.tolist()
            [2, 3]
        """
        return self._checkpoints.restore(name, consumer)

    def checkpoints(
        self, consumer: str | None = None, name: str | None = None
    ) -> builtins.list[Checkpoint]:
        """Return the checkpoints that are kept; those of each consumer oldest first.

        Args:
            consumer: The marks of this consumer; None: of all.
            name: The marks of this name, such as those of all ranks; None: all.

        Raises:
            ArgumentError: A name is not text, or is empty.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for rank in range(2):
            ...     mark = buffer.checkpoint("step-1", consumer=f"trainer-{rank}")
            >>> [(mark.consumer, mark.name) for mark in buffer.checkpoints(name="step-1")]
            [('trainer-0', 'step-1'), ('trainer-1', 'step-1')]
        """
        return self._checkpoints.of(consumer, name)

    def delete_checkpoints(self, consumer: str) -> int:
        """Delete all checkpoints of a consumer that will not come back; return how many.

        What it has acknowledged counts for good, and is kept no longer.

        Raises:
            ArgumentError: The name is not text, or is empty.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> mark = buffer.checkpoint("step-1", consumer="trainer-0")
            >>> buffer.delete_checkpoints("trainer-0")
            1
        """
        return self._checkpoints.delete(consumer)

    def size(self, condition: Condition = None, *, query_condition: Condition = None) -> int:
        """Return the number of rows that match.

        Raises:
            ConditionError: The condition is malformed.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.size(), buffer.size(QueryBuilder().eq("exp_meta.task_id", "t2"))
            (1, 0)
        """
        return self._store.reading.rows.count(self._conditions.node(condition, query_condition))

    def size_bytes(self) -> int:
        """Return the bytes of all payloads, as they are stored; indexes and pages take more.

        It reads the sizes of all rows.

        Raises:
            StorageError: The database cannot be read.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}).inserted
            1
            >>> buffer.size_bytes()
            7
        """
        return self._store.rows.size_bytes()

    def __len__(self) -> int:
        """Return the number of rows in the buffer, without a scan."""
        return self._store.reading.rows.count(EVERYTHING)

    def __bool__(self) -> bool:
        """Return True, also for an empty buffer: `if buffer` tests for None only."""
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
        """Stream the rows that match and are stored now, in insert order.

        Rows are read in pages, and no transaction stays open between two pages, so any number of
        rows can be read in little memory. Rows that are evicted before their page is read are left
        out.

        Args:
            condition: Condition that rows must match.
            fields: Fields of each row to read, by dotted names such as `["state.image",
                "reward_t"]`; all by default. Keys are always read. A field that a row does not have
                is left out. See `docs/how-to/read-in-part.md`.
            query_condition: Other name of `condition`.

        Raises:
            ConditionError: The condition is malformed.
            FieldError: A field is unknown.

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
            page: Number of the page, from 1; a page after the last one is empty.
            page_size: Number of rows in a page.
            condition: Condition that rows must match.
            fields: Fields to read; see `get_all`.
            query_condition: Other name of `condition`.

        Raises:
            ArgumentError: The page or the page size is not an integer from 1 on.
            ConditionError: The condition is malformed.
            FieldError: A field is unknown.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> for step in range(5):
            ...     result = buffer.add(state={"x": step}, step=step)
            >>> [row.exp_meta.step for row in buffer.get_paginated(2, page_size=2)]
            [2, 3]
        """
        node = self._conditions.node(condition, query_condition)
        return self._reader.page(node, page, page_size, fields)

    def get_by_ids(
        self, ids: Iterable[str], *, fields: Sequence[str] | None = None
    ) -> dict[str, DataRow]:
        """Return rows by their ids, in the order of the ids; ids without a row are left out.

        Args:
            ids: The ids.
            fields: Fields of each row to read; all by default. See `get_all`.

        Raises:
            ArgumentError: `ids` is not a list.
            FieldError: An id is not text, or a field is unknown.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, id="a").inserted
            1
            >>> [row.exp_data.state for row in buffer.get_by_ids(["a", "b"]).values()]
            [{'x': 1}]
        """
        return self._reader.by_ids(ids, fields)

    def get_by_task_id(self, task_id: str, *, fields: Sequence[str] | None = None) -> list[DataRow]:
        """Return all rows of a task: episode by episode, each in its order.

        Rows without an episode come first, in the order of (step, execute_time).

        The list is empty for an unknown task.

        Args:
            task_id: The task.
            fields: Fields of each row to read; all by default. See `get_all`.

        Raises:
            ArgumentError: The task is neither text nor a number.
            FieldError: A field is unknown.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> len(buffer.get_by_task_id("t1")), len(buffer.get_by_task_id("unknown"))
            (1, 0)
        """
        checked_task_id(task_id)
        return self._reader.tasks([task_id], fields)[task_id]

    def get_batch_by_task_ids(
        self, task_ids: Iterable[str], *, fields: Sequence[str] | None = None
    ) -> dict[str, list[DataRow]]:
        """Return the rows of several tasks as `{task_id: rows}`, in the order of the ids.

        The rows of a task are in the order of `get_by_task_id`.

        Args:
            task_ids: The tasks.
            fields: Fields of each row to read; all by default. See `get_all`.

        Raises:
            ArgumentError: The tasks are not a list of ids.
            FieldError: A field is unknown.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> found = buffer.get_batch_by_task_ids(["t1", "t2"])
            >>> len(found["t1"]), len(found["t2"])
            (1, 0)
        """
        return self._reader.tasks(task_ids, fields)

    def decode(
        self, block: bytes | bytearray | memoryview, place: int = 0, layout: int | None = None
    ) -> dict[str, Any]:
        """Return the typed fields of one step, `{name: array of its shape}`.

        Args:
            block: Value of the column `block` in the view `chunk_steps`, as plain SQL returns it.
            place: Value of the column `block_place`, the position of the step in the block.
            layout: Value of the column `layout`; None will do until fields are added to the buffer.

        Raises:
            ArgumentError: `block` is not bytes, or `place` or `layout` is not an integer from 0 on.
                `layout` is missing after `add_field`.
            FieldError: The step was not written with the buffer's fields, or is damaged.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.decode(b"\\x00\\x00\\x80?")["obs"]
            np.float32(1.0)
        """
        what = "the bytes of the column block"
        checked_instance(block, "block", (bytes, bytearray, memoryview), what)
        place = checked_integer(place, "place", 0)
        if layout is None and self._store.layout.number:
            raise ArgumentError(
                "fields were added to the buffer, so that blocks differ: give the column `layout` "
                "of chunk_steps too, decode(block, block_place, layout)"
            )
        number = checked_integer(0 if layout is None else layout, "layout", 0)
        if number > self._store.layout.number and number > self._store.learn_fields().number:
            n_added = self._store.layout.number
            raise refused(layout, "layout", f"at most {n_added}, the fields that were added")
        return decode_step(self._store.layout, bytes(block), place, number)

    def sql(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the SELECT for a condition, with its values written into the text.

        Raises:
            ConditionError: The condition is malformed.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> print(ReplayBuffer("sqlite://").sql(QueryBuilder().eq("exp_meta.task_id", "t1")))
            SELECT ...
        """
        return self._store.reading.rows.sql(self._conditions.node(condition, query_condition))

    def explain(self, condition: Condition = None, *, query_condition: Condition = None) -> str:
        """Return the database's query plan for the SELECT of a condition.

        Raises:
            ConditionError: The condition is malformed.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> print(buffer.explain(QueryBuilder().eq("exp_meta.task_id", "t1")))
            SEARCH ...
        """
        return self._store.reading.rows.explain(self._conditions.node(condition, query_condition))

    def annotate(
        self,
        condition_or_seqs: Any,
        /,
        *,
        reward_t: Any = None,
        adv_t: Any = None,
        v_t: Any = None,
        extra: Any = None,
        version: int | None = None,
        reward: Any = None,
        **fields: Any,
    ) -> int:
        """Add values to rows after they were stored: rewards, judges' scores, advantages.

        The rows themselves do not change. Every version of a value is kept in addition to the row.
        Conditions, samplers, n-step sums and views use the value of the highest version instead of
        the row's own one. The order in which versions arrive does not matter. Each key of `extra`
        has its own versions. A version that is given again adds to its earlier values, so a
        repeated call changes nothing. Priorities do not change.

        Args:
            condition_or_seqs: A condition; or the numbers of rows, shape (b,): `info["seq"]` of a
                batch, or `row.seq`. If a number occurs twice, the last one counts. A set has no
                order, so it takes one value for all rows.
            reward_t: Rewards: one finite number for all rows; or, with numbers of rows, an array of
                shape (b,).
            adv_t: Advantages, in the same form.
            v_t: Value estimates, in the same form.
            extra: One dict of JSON values for all rows; or, with numbers of rows, b dicts. Their
                keys are added to the row's `extra`, or replace keys in it.
            version: Version of the values, an integer of 64 bits. The default is one more than the
                highest version of the rows, starting with 1.
            reward: Other name of `reward_t`.
            fields: Values of declared fields that hold a number of up to 64 bits or a boolean, in
                the form of `reward_t`. They are read in place of the stored values.

        Returns:
            The number of annotated rows. Rows that the buffer does not hold are skipped, and a
            warning in the log names them.

        Raises:
            ConditionError: The condition is malformed or empty.
            FieldError: No value is given, a number is not finite, a value is not JSON, a shape is
                wrong, or a field is not a declared scalar; nothing is written.

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
        return self._changes.annotate(condition_or_seqs, values, extra, version, fields)

    def update_priorities(self, seqs: Any, priorities: Any, eps: float = EPS) -> PriorityUpdate:
        """Set the priorities of rows, usually to |TD error| + eps.

        See Schaul et al. 2016, section 3.3. One SQL statement updates any number of rows. Rows that
        were evicted since they were drawn are skipped.

        Args:
            seqs: Numbers of the rows, shape (b,): `info["seq"]` of a batch. If a number occurs
                twice, the last one counts.
            priorities: Their priorities, from 0 to 1e100, shape (b,), or one number for all.
            eps: Number that is added to each priority, because a row of priority 0 is never drawn.

        Returns:
            The number of updated rows, and the number of rows that the buffer does not hold.

        Raises:
            FieldError: A priority is NaN or out of range, a shape or type is wrong, or the buffer
                has no priorities; nothing is written.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://", priorities=True)
            >>> buffer.add(state=1).inserted
            1
            >>> buffer.update_priorities([1, 99], [0.5, 0.7])
            PriorityUpdate(updated=1, missing=1)
        """
        return self._changes.update_priorities(seqs, priorities, eps)

    def count_uses(self, seqs: Any) -> NDArray[np.int64]:
        """Count a use of each row, and return how often each was used, with this use.

        It is for rows that were drawn or read without counting. `sample` counts itself in a buffer
        with `max_use`, and rows that reach that limit here are not drawn any more.

        Args:
            seqs: Numbers of the rows, shape (b,). A number that occurs twice is used twice.

        Returns:
            An array of shape (b,).

        Raises:
            FieldError: A number of a row is not an integer; nothing is counted.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.extend({"state": [1, 2, 3]}).inserted
            3
            >>> buffer.count_uses([1, 3, 3]).tolist(), buffer.use_counts([1, 2, 3]).tolist()
            ([1, 1, 2], [1, 0, 2])
        """
        uses = self._store.uses.add(checked_seqs(seqs).tolist())
        return np.array(uses, np.int64)

    def use_counts(self, seqs: Any) -> NDArray[np.int64]:
        """Return how often rows were used; see `count_uses`.

        Args:
            seqs: Numbers of the rows, shape (b,).

        Returns:
            An array of shape (b,), with 0 for rows that were never used or have left.

        Raises:
            FieldError: A number of a row is not an integer.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.extend({"state": [1, 2]}).inserted
            2
            >>> buffer.count_uses([2]).tolist(), buffer.use_counts([1, 2]).tolist()
            ([1], [0, 1])
        """
        return np.array(self._store.uses.of(checked_seqs(seqs).tolist()), np.int64)

    def quarantine(self, condition_or_seqs: Rows, *, reason: str | None = None) -> int:
        """Exclude the rows that match now from sampling; `v_quarantine` lists them.

        These rows are not drawn, and neither are the tasks, transitions, windows and episodes that
        contain one of them. All other reads include them, and they are evicted as before. Rows that
        match later are not affected.

        Args:
            condition_or_seqs: A condition, or the numbers of rows: `info["seq"]` of a batch.
                Numbers that the buffer does not hold are skipped.
            reason: Text that is stored with each row. A row that is in quarantine already keeps its
                own.

        Returns:
            The number of rows that were not in quarantine before.

        Raises:
            ConditionError: The condition is malformed or empty.
            FieldError: A number of a row is not an integer, or the reason is not text.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

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
        """Put the rows in quarantine that match now back into sampling.

        Args:
            condition_or_seqs: See `quarantine`.

        Returns:
            The number of rows that were in quarantine.

        Raises:
            ConditionError: The condition is malformed or empty.
            FieldError: A number of a row is not an integer.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.quarantine([1]), buffer.release([1])
            (1, 1)
        """
        return self._changes.release(condition_or_seqs)

    def delete(
        self,
        condition: Condition | Rows = None,
        *,
        query_condition: Condition = None,
        older_than: str | timedelta | float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Delete the rows that match, and return their number.

        Args:
            condition: Condition that rows must match, or the numbers of rows (`seq`). Numbers of
                rows that the buffer does not hold are skipped.
            query_condition: Other name of `condition`.
            older_than: Only rows that were written longer ago, as `7d`, `12h`, `90 min`, a
                timedelta or seconds. The database's clock is compared with the time at which it
                wrote them (`inserted_at`), not with `execute_time`.
            dry_run: Delete nothing, and return how many rows would be deleted.

        Raises:
            ArgumentError: `older_than` is not an age, or `dry_run` not a truth value.
            ConditionError: The condition is empty, and `older_than` is omitted; `clear()` deletes
                everything.
            FieldError: A number of a row is not an integer.

        Example:
            >>> from sqlbuffer import QueryBuilder
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.delete(QueryBuilder().eq("exp_meta.task_id", "t1"))
            1
            >>> buffer.delete([1])
            0
            >>> buffer.delete(older_than="7d", dry_run=True)
            0
        """
        if checked_flag(dry_run, "dry_run"):
            return self._changes.deletable(condition, query_condition, older_than)[0]
        return self._changes.delete(condition, query_condition, older_than)

    def end_episode(
        self,
        episode_id: str,
        task_id: str | None = None,
        *,
        status: EndStatus = "complete",
        reward: float | None = None,
        final: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> bool:
        """End an episode whose steps are stored; return False if it has ended so already.

        It ends an open episode from any process, and for good one that its last step has ended.
        `v_episodes` shows its length and the sum of its rewards.

        Args:
            episode_id: Its id.
            task_id: Its task; None: the only one that has such an episode.
            status: `complete`, or `aborted`: its steps are not drawn as transitions.
            reward: The episode's own reward, a finite number.
            final: Observation after the last step, a value for each observation field.
            meta: Values that are stored with it; see `store_episode`.

        Raises:
            ArgumentError: `status` is another word, or `final` or `meta` is no dict.
            EpisodeNotFoundError: The buffer has no such episode.
            EpisodeEndedError: It has ended with another status, reward, observation or meta.
            FieldError: Several tasks have such an episode, or a value cannot be stored.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [0.0, 1.0]}, episode_id="e1", task_id="t1").inserted
            2
            >>> buffer.end_episode("e1", reward=1.0), buffer.end_episode("e1", reward=1.0)
            (True, False)
        """
        n_ended = self._episode_changes.end(
            [episode_id], [task_id], status, [reward], [meta], [final], must_exist=True
        )
        return n_ended == 1

    def end_episodes(
        self,
        episode_ids: Sequence[str],
        *,
        task_ids: Sequence[str | None] | None = None,
        status: EndStatus = "complete",
        rewards: Sequence[float | None] | None = None,
        finals: Sequence[Mapping[str, Any] | None] | None = None,
        metas: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> int:
        """End episodes as `end_episode` does, all or none; return how many were not ended so.

        Args:
            episode_ids: Their ids; those that the buffer does not have are left out.
            task_ids: Their tasks; None: the only one that has such an episode.
            status: See `end_episode`.
            rewards: The own reward of each; None for no reward.
            finals: The final observation of each.
            metas: Values that are stored with each.

        Raises:
            ArgumentError: The arguments are not lists, or have different lengths.
            EpisodeEndedError: One has ended in another way; nothing is written.
            FieldError: A key is not text, or a value cannot be stored; nothing is written.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> for obs in (0.0, 1.0):
            ...     buffer.extend({"obs": [obs]}, episode_id="e1", task_id="e1").inserted
            1
            1
            >>> buffer.end_episodes(["e1"], metas=[{"level": 3}])
            1
        """
        return self._episode_changes.end(episode_ids, task_ids, status, rewards, metas, finals)

    def annotate_episode(
        self,
        episode_id: str,
        task_id: str | None = None,
        *,
        reward: float | None = None,
        meta: Mapping[str, Any] | None = None,
        version: int | None = None,
    ) -> None:
        """Give an episode its own reward, or replace the values that are stored with it.

        Args:
            episode_id: Its id.
            task_id: Its task; None: the only one that has such an episode.
            reward: The episode's own reward, a finite number; None for no change.
            meta: See `store_episode`; None for no change.
            version: Version of the judge, from 1 to 2^63 - 1; by default one more than the highest
                version of the episode. `v_verdicts` keeps the last reward of every version, and the
                highest version counts: a late answer of an older judge changes nothing else. A
                reward that `end` gives counts until the first verdict. An episode that is continued
                has no verdict any more.

        Raises:
            ArgumentError: Neither is given, or meta is no dict.
            EpisodeNotFoundError: The buffer has no such episode.
            FieldError: Several tasks have such an episode, or a value cannot be stored.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.store_episode({"obs": [0, 1]}, episode_id="e1").inserted
            2
            >>> buffer.annotate_episode("e1", reward=0.5)
        """
        rewards, metas = (None if one is None else [one] for one in (reward, meta))
        self._episode_changes.annotate(
            [episode_id], [task_id], rewards, metas, version, must_exist=True
        )

    def annotate_episodes(
        self,
        episode_ids: Sequence[str],
        rewards: Sequence[float | None] | None,
        *,
        metas: Sequence[Mapping[str, Any] | None] | None = None,
        task_ids: Sequence[str | None] | None = None,
        version: int | None = None,
    ) -> int:
        """Annotate episodes as `annotate_episode` does, all or none; return how many there are.

        Args:
            episode_ids: Their ids; those that the buffer does not have are left out.
            rewards: The own reward of each; None for no change.
            metas: The values of each; None for no change.
            task_ids: Their tasks; None: the only one that has such an episode.
            version: Version of the judge, one for all; see `annotate_episode`.

        Raises:
            ArgumentError: The arguments are not lists, or have different lengths.
            FieldError: A key is not text, or a value cannot be stored; nothing is written.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.store_episode({"obs": [0, 1]}, episode_id="e1", level=1).inserted
            2
            >>> buffer.annotate_episodes(["e1"], [1.0], metas=[{"level": 2, "score": 0.5}])
            1
        """
        return self._episode_changes.annotate(episode_ids, task_ids, rewards, metas, version)

    def delete_episodes(
        self, episode_ids: Sequence[str], *, task_ids: Sequence[str | None] | None = None
    ) -> int:
        """Delete episodes with all their steps, and return how many the buffer had.

        It is faster than `delete` with a condition. `v_episodes` still lists those that had ended.

        Args:
            episode_ids: Their ids.
            task_ids: Their tasks; None: the only one that has such an episode.

        Raises:
            ArgumentError: The arguments are not lists, or have different lengths.
            FieldError: A key is not text that a database can store, or several tasks have an
                episode that was named without its task; nothing is deleted.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.store_episode({"obs": [0, 1]}, episode_id="e1").inserted
            2
            >>> buffer.delete_episodes(["e1", "e2"]), len(buffer)
            (1, 0)
        """
        return self._store.deletion.delete_episodes(checked_episodes(episode_ids, task_ids))

    @property
    def documents(self) -> Documents:
        """Small JSON documents that belong to the buffer, by key."""
        from sqlbuffer.storage.documents import Documents

        return Documents(self._store)

    @property
    def work(self) -> Work:
        """Rollouts to play, as rows: put by schedulers, taken by workers."""
        from sqlbuffer.front.work import Work

        return Work(self._store, self._writer, self._steps_of, self)

    def transaction(
        self,
        work: Callable[[Transaction], T],
        *,
        wait_s: float | None = None,
        durability: Durability | None = None,
    ) -> T:
        """Call `work(tx)` in one transaction, and return its result.

        `tx` is a `Transaction`: it has `add`, `store`, `store_batch`, `extend`, `store_episode`,
        `end_episode`, `end_episodes`, `annotate_episode`, `annotate_episodes`, `annotate`,
        `update_priorities`, `count_uses`,
        `quarantine`, `release`, `delete`, `delete_episodes`, `clear`, `start_session`,
        `set_model_version`, `set_clock` and `documents`, and reads with `sample`, `size`,
        `use_counts`, `get_paginated`, `get_by_ids`, `get_by_task_id` and `get_batch_by_task_ids`.
        All of them take effect, or none, and that once. After a lost connection or a deadlock
        `work` is called again, so it
        changes nothing else that could not be changed twice. An error undoes everything.

        Waiting steps are stored before. Rows and documents that `work` has changed are locked until
        it ends, so keep it short. The rate limiter refuses at once what it does not allow.

        Args:
            work: The function. It writes with `tx` only, not with a buffer of this database.
            wait_s: Seconds to wait for the writes of other processes; up to 30, the default.
            durability: Failures that the transaction survives, as in `Connection`; None: the
                setting of the opener.

        Raises:
            ArgumentError: `work` is not a function, or it writes with a buffer; or `durability` is
                unknown.
            StorageBusyError: Other processes were busy for `wait_s`; nothing is written.
            SQLBufferError: The error of a call of `work`; nothing is written.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> def import_once(tx):
            ...     if tx.documents.get("imported", lock=True) is None:
            ...         tx.extend({"state": [1, 2]}, task_id="t1")
            ...         tx.documents.put("imported", ["a.json"])
            >>> buffer.transaction(import_once), buffer.transaction(import_once), len(buffer)
            (None, None, 2)
        """
        work = checked_callable(work, "work", "a function of the transaction")
        wait_s = None if wait_s is None else checked_seconds(wait_s, "wait_s")
        if durability is not None:
            checked_choice(durability, "durability", get_args(Durability), more=", or None")
        self.flush()
        result, n_stored, n_updated = self._store.write(
            lambda c: Transaction(self, c).run(work), durability, wait_s
        )
        self._store.clean(n_stored, n_updated)
        return result

    def snapshot(self, work: Callable[[Snapshot], T], *, documents: Sequence[str] = ()) -> T:
        """Call `work(view)` on one state of the buffer, and return its result.

        `view` is a `Snapshot`: it reads with `sample`, `use_counts`, `get_paginated`,
        `get_by_task_id`, `get_batch_by_task_ids` and `documents`. What other processes store or
        delete meanwhile is not seen. After a lost connection `work` is called again.

        Args:
            work: The function. It reads with `view`.
            documents: Names of documents that are read together with the begin of the transaction,
                without another message to the server.

        Raises:
            ArgumentError: `work` is not a function, or `documents` not a list of names.
            FieldError: A name of a document is not text that a database can store.
            SQLBufferError: The error of a call of `work`.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.documents.put("cursor", 7)
            1
            >>> buffer.snapshot(lambda view: view.prefetched["cursor"].value, documents=["cursor"])
            7
        """
        from sqlbuffer.storage.documents import checked_keys, read_at_once

        work = checked_callable(work, "work", "a function of the snapshot")
        keys = checked_keys(documents, "documents")
        self.flush()
        return read_at_once(
            self._store,
            keys,
            lambda connection, prefetched, n: work(Snapshot(self, connection, prefetched, n)),
        )

    def copy_to(
        self,
        other: ReplayBuffer,
        condition: Condition = None,
        *,
        prefix: str = "",
        on_conflict: Literal["error", "skip"] = "error",
        include_open: bool = False,
        on_progress: OnProgress | None = None,
    ) -> CopyReport:
        """Copy the steps of this buffer into another one, in this database or in another.

        If `other` is empty, it becomes an exact copy. If it has steps, or with a `prefix`, the
        steps are merged into it: see `docs/how-to/merge-recordings.md`. A repeated call takes what
        has come since.

        An exact copy has the steps that are stored now, with their `seq`, times, ids, typed fields,
        episodes, sessions, labels with their history, priorities, quarantine, use counts and
        documents. Labels, priorities and use counts are those of the moment at which a step is
        read, documents those of the end. Documents that `other` has already stay. Leases and the
        sample log are not copied.

        Steps that leave this buffer's window during the copy are not deleted before they are
        copied. Whole tasks, whole episodes and rows that are too old are not removed until the copy
        is complete. If a copy is killed, its unread steps are held for two minutes. Holding steps
        needs the role of learners in this database; without it, steps may leave before they are
        copied.

        Until the copy is complete, `other` shows the steps that it has so far and refuses new ones.
        If the process is killed, repeat the call: it continues where it stopped. The target needs
        the role that owns its tables.

        Args:
            other: The other buffer. Its fields must equal those of this buffer, and for an exact
                copy its settings of eviction, retention and leases too; make it with
                `config=buffer.config`.
            condition: Condition that steps must match. A chunk of steps is copied whole if one step
                matches. The other steps of the chunk are deleted in the copy, but their bytes
                remain in its files. Merged steps leave no such bytes.
            prefix: Text that is put before the ids of steps and episodes, such as `run1/`.
            on_conflict: For merged steps whose ids `other` has, and for episodes whose id other
                steps have there: `error`, or `skip` to leave them out.
            include_open: Merge episodes that have not ended too; else a later call takes them.
            on_progress: Function that is called after each batch with the number of copied steps,
                the last copied `seq`, and the range of `seq` to copy.

        Raises:
            ArgumentError: `other` is not a buffer, or `on_progress` not a function.
            ConditionError: The condition is malformed.
            CopyError: The target cannot hold the same steps, would evict what is merged, or has
                some of the ids; or steps left this buffer before they were copied.
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
        from sqlbuffer.copying import checked_progress, copy_buffer, merge_options

        checked_buffer(other, "other")
        node = self._conditions.node(condition)
        on_progress = checked_progress(on_progress)
        options = merge_options(prefix, on_conflict, include_open)
        self.flush()
        other.flush()
        return copy_buffer(self._store, other._store, node, on_progress, options)

    def clear(self) -> int:
        """Delete every row, and return the number of deleted rows.

        The list of episodes and the work (`work`) are deleted as well.

        Raises:
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state={"x": 1}, task_id="t1").inserted
            1
            >>> buffer.clear(), len(buffer)
            (1, 0)
        """
        return self._store.deletion.clear()

    def add_field(self, name: str, declaration: Any) -> bool:
        """Add a typed field to the buffer; return False if it has the field already.

        No stored step is written again: older steps have the default everywhere, and `annotate`
        gives a number of them other values. Open objects of the buffer, also in other processes,
        go on; their steps have the default until they know the field, from their next read on.
        Mirrors read their steps again, unless they are shared or keep chosen fields.

        Args:
            name: Name of the field.
            declaration: Its declaration, with a default: `(dtype, shape, default)`, or a dict of
                `dtype`, `shape`, `default` and `column`. See `Fields`.

        Raises:
            FieldError: The declaration is malformed or has no default, the buffer has another field
                of that name, or has no typed fields at all.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
            >>> buffer.extend({"obs": [1.0, 2.0]}).inserted
            2
            >>> buffer.add_field("weight", ("float32", (), 1.0))
            True
            >>> buffer.extend({"obs": [3.0], "weight": [0.5]}).inserted
            1
            >>> sorted(float(row.fields["weight"]) for row in buffer)
            [0.5, 1.0, 1.0]
        """
        spec = FieldSpec.parse(name, declaration)
        store = self._store
        if not store.info.has_chunks or store.info.layout is not None:
            raise FieldError(
                f"field {name!r}: buffer {store.info.name!r} has no typed fields that more can be "
                f"added to; make another buffer with fields=..."
            )
        if spec.default is None:
            raise FieldError(
                f"field {name!r}: the steps that are stored need a default for it; give (dtype, "
                f"shape, default), such as ('float32', (), 0.0)"
            )
        store.learn_fields()
        known = store.info.config.fields
        if known.with_field(spec) is known:  # a writer, which may not add fields, learns of it
            return False
        is_new = store.write(partial(catalog.add_field, buffer_id=store.info.id, spec=spec))
        store.learn_fields()
        return is_new

    def resize(
        self,
        max_capacity: int | Same | None = SAME,
        *,
        max_episodes: int | Same | None = SAME,
        max_age: str | timedelta | float | Same | None = SAME,
        max_bytes: str | int | Same | None = SAME,
    ) -> None:
        """Change the stored limits; a lower limit evicts the oldest rows immediately.

        Args:
            max_capacity: Largest number of rows; None is unlimited. Typed steps are stored in
                chunks, and steps that were deleted from the end of the newest chunk still count.
            max_episodes: Largest number of episodes, for a buffer that was made with
                `max_episodes`; None is unlimited.
            max_age: Largest age of a step, as `7d`, `12h`, `90 min`, a timedelta or seconds; None
                is unlimited. Steps that are stored have the age since they were written.
            max_bytes: Largest size of all payloads, as `200 GB`, `500 MiB` or bytes; None is
                unlimited.

        Raises:
            ArgumentError: No limit is given.
            BufferConfigError: A limit is invalid, or below the buffer's `min_size`; or the buffer
                is of `compat.memmap`, which has its own limit.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_capacity=10)
            >>> buffer.extend({"state": list(range(10))}).inserted
            10
            >>> buffer.resize(4)
            >>> len(buffer)
            4
        """
        from sqlbuffer.storage.retention.eviction import resize_buffer

        changes: dict[str, Any] = {
            name: None
            if value is None
            else checked_integer(value, name, 1, more=UNLIMITED, error=BufferConfigError)
            for name, value in (("max_capacity", max_capacity), ("max_episodes", max_episodes))
            if not isinstance(value, Same)
        }
        given = {"max_age": max_age, "max_bytes": max_bytes}
        changes |= {name: value for name, value in given.items() if not isinstance(value, Same)}
        changes |= checked_limits(changes)
        if not changes:
            raise ArgumentError(
                "resize() needs max_capacity=..., max_episodes=..., max_age=... or max_bytes=..."
            )
        check_fits(changes.get("max_capacity"), self._store.info.config.sampling.min_size)
        if "max_episodes" in changes and self.evict_by != "episode":
            raise BufferConfigError(
                f"buffer {self.name!r} evicts by {self.evict_by}; a limit of episodes takes a "
                f"buffer that was made with max_episodes"
            )
        resize_buffer(self._store, changes)
        if any(changes.get(name) is not None for name in given):
            self._store.sweep.run(is_new=True)

    @property
    def clock(self) -> int | None:
        """The last value of `set_clock`, from any process; None before the first."""
        return self._store.sessions.clock()

    def set_clock(self, clock: int) -> None:
        """Set the buffer's clock, which all its processes share.

        In a buffer with `max_staleness`, rows whose `model_version` is further behind the clock are
        not sampled. With `track_samples`, the log of batches contains the clock. If a session was
        started, the clock is also the version of the current session; use `set_model_version` to
        name the session.

        Args:
            clock: The learner's iteration, or the version of its model; an integer of 64 bits. It
                may go back, for example when a learner restarts from a checkpoint.

        Raises:
            ArgumentError: The clock is not an integer of 64 bits.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_staleness=1)
            >>> buffer.add(state={"x": 1}, model_version=1).inserted
            1
            >>> buffer.set_clock(3)
            >>> len(buffer.sample(1))
            0
        """
        self._set_version(checked_clock(clock, "clock"), None)

    def expire(self, *, accept_clock: bool = False) -> Removed:
        """Delete all rows that can never be sampled again, and those past `max_age`, `max_bytes`.

        These rows are too stale by the clock, used `max_use` times, or of another session. A
        process that samples or sets the clock also deletes some of them every ten seconds, unless
        the buffer was made with `keep_expired`.

        Steps of an episode are deleted when no step of it may be sampled, because other steps need
        them. Buffers that evict by task or by episode delete whole ones. Rows in quarantine stay.

        A process that writes also lets steps leave by `max_age` and `max_bytes`, every ten seconds.
        For a buffer to which no process writes, call this, or `sqlbuffer expire`, every 45 seconds.
        Steps age by the machines' monotonic clocks, so that a clock that is set makes none old.
        While no process runs, time counts by the database's clock, up to half of `max_age`.

        Args:
            accept_clock: The database's clock is right: time that passed by it while no process ran
                counts, however long.

        Returns:
            The number of deleted rows, by cause.

        Raises:
            ArgumentError: `accept_clock` is not a truth value.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_staleness=1, keep_expired=True)
            >>> buffer.add(state={"x": 1}, model_version=1).inserted
            1
            >>> buffer.set_clock(3)
            >>> buffer.expire().total
            1
        """
        swept = self._store.sweep.run(accept_clock=checked_flag(accept_clock, "accept_clock"))
        return swept + self._store.expiry.run()

    def start_session(self, session_id: str | None = None) -> str:
        """Begin or resume a session, as the current one of the buffer and all its processes.

        The buffer's clock becomes the version of the session; a new session has none.

        Args:
            session_id: Key of the session; made if omitted.

        Returns:
            The key.

        Raises:
            FieldError: The key is not text.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

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
        """Key of the buffer's current session, started by any process; None before the first
        session.
        """
        return self._store.sessions.current()

    def set_model_version(self, version: int, session_id: str | None = None) -> bool:
        """Store the version of a session's model.

        The buffer's clock changes too if the session is the current one, or if no session was ever
        started. A learner that remains from an earlier session therefore does not change the clock.

        Args:
            version: The version; an integer of 64 bits.
            session_id: The session; by default the one that this object started, else the current
                one.

        Returns:
            True if the clock has changed; False if another session has begun since.

        Raises:
            ArgumentError: The version is not an integer of 64 bits.
            FieldError: The key of the session cannot be stored.
            SessionNotFoundError: The buffer has no session with this key.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.start_session("monday")
            'monday'
            >>> buffer.set_model_version(7), buffer.clock
            (True, 7)
        """
        number = checked_clock(version, "version")
        key = self._own_session if session_id is None else checked_session(session_id)
        return self._set_version(number, key)

    def _set_version(self, version: int, session: str | None) -> bool:
        is_current = self._store.sessions.set_version(version, session)
        self._store.expiry.run_if_due()
        return is_current

    def model_version(self) -> int | None:
        """Return the version of the current session's model, or else the clock; None before either
        is set.

        It reads one row by its key, so collectors may call it before each episode.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.set_clock(7)
            >>> buffer.model_version()
            7
        """
        return self._store.sessions.clock()

    def flow(self) -> FlowState:
        """Return the state of flow control: the policy, the counts, and the calls that wait.

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
        """Replace the policy that every process of the buffer obeys, and count from now on.

        A process notices the change within five seconds; a process that waits notices it
        immediately.

        Args:
            policy: A `RateLimiter`, a `RatioWindow`, or None for no policy.

        Raises:
            BufferConfigError: The policy is something else, or it stops inserts before the buffer's
                `min_size` is reached.
            BufferNotFoundError: The buffer was dropped.
            StorageReadOnlyError: The role may not do this; it needs the role of learners.

        Example:
            >>> from sqlbuffer import RateLimiter
            >>> buffer = ReplayBuffer("sqlite://")
            >>> limiter = RateLimiter(samples_per_insert=2.0, min_size=1, error_buffer=10.0)
            >>> buffer.set_rate_limiter(limiter)
            >>> buffer.flow().policy.samples_per_insert
            2.0
        """
        policy = rate_limiter_of(policy, "policy")
        min_size = self._store.info.config.sampling.min_size
        if min_size:
            check_reached(policy, min_size, self._store.rows.count(EVERYTHING))
        self._store.pacer.set_policy(policy)

    def stats(self, window_s: float = 60.0) -> Stats:
        """Return figures of the buffer now, for all its processes together.

        The cost does not grow with the buffer. Uses, priorities and staleness are those of up to
        2,000 rows drawn uniformly. Rates are found by bisection. Rows are counted as `len` does,
        which reads an index once in a process.

        Args:
            window_s: Seconds over which rates are measured, up to an hour.

        Raises:
            ArgumentError: `window_s` is not a number of seconds in that range.
            BufferNotFoundError: The buffer was dropped.

        Example:
            >>> buffer = ReplayBuffer("sqlite://", max_capacity=10)
            >>> buffer.add(state={"x": 1}).inserted
            1
            >>> stats = buffer.stats()
            >>> stats.rows, stats.fill
            (1, 0.1)
        """
        window_s = checked_window(window_s)
        self._store.pacer.publish_now()
        from sqlbuffer.storage.inspect.buffer_stats import stats

        return self._store.with_retries(lambda: stats(self._store.rows, window_s))

    @staticmethod
    def list(url: Database = None, *, retry_s: float = RETRY_S) -> builtins.list[str]:
        """Return the names of the buffers in a database, sorted.

        Args:
            url: The database; see `ReplayBuffer`.
            retry_s: Seconds to keep trying if the server does not answer; see `Connection`.

        Raises:
            ArgumentError: `retry_s` is not a number of seconds from 0 on.
            BufferNotFoundError: There is no such SQLite file.
            SchemaMissingError: The database has no schema of sqlbuffer.
            StorageUnreachableError: The database does not answer.
            URLError: The URL cannot be used.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "replay.db")
            ...     ReplayBuffer(path, "train").close()
            ...     ReplayBuffer.list(path)
            ['train']
        """
        return catalog.list_buffers(url, checked_seconds(retry_s, "retry_s"))

    @staticmethod
    def drop(url: Database, name: str, *, retry_s: float = RETRY_S) -> None:
        """Delete a buffer with everything that belongs to it.

        Args:
            url: The database; see `ReplayBuffer`.
            name: Name of the buffer.
            retry_s: Seconds to keep trying if the server does not answer; see `Connection`.

        Raises:
            ArgumentError: The name is not text, or `retry_s` is not a number of seconds from 0 on.
            BufferNotFoundError: There is no such buffer.
            StorageUnreachableError: The database does not answer.
            URLError: The URL cannot be used.

        Example:
            >>> import os, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = os.path.join(folder, "replay.db")
            ...     ReplayBuffer(path, "train").close()
            ...     ReplayBuffer.drop(path, "train")
            ...     ReplayBuffer.list(path)
            []
        """
        checked_buffer_name(name)
        from sqlbuffer.storage.retention.deletion import drop_buffer

        drop_buffer(url, name, checked_seconds(retry_s, "retry_s"))


def _rebuilders(state_type: Any, action_type: Any) -> Rebuilders:
    if state_type is None and action_type is None:
        return None, None
    from sqlbuffer.front.reading import rebuilder

    return rebuilder(state_type, "state_type"), rebuilder(action_type, "action_type")


def _joining(
    method: Callable[Concatenate[ReplayBuffer, P], T],
) -> Callable[Concatenate[Transaction | Snapshot, P], T]:
    """Return a method of a buffer that takes part in a transaction."""

    @wraps(method)
    def call(self: Transaction | Snapshot, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.joined(lambda: method(self.buffer, *args, **kwargs))

    return call


class Transaction:
    """The calls of a buffer that `ReplayBuffer.transaction` makes in one transaction.

    Each call does what the one of the buffer does, and sees what those before it have written.
    `add` stores the step at once.
    Other processes see nothing before the transaction ends. An error of a call undoes the whole
    transaction, also where `work` catches it.

    Attributes:
        buffer: The buffer.
        documents: Its documents, read and written in the transaction.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> def replace(tx):
        ...     stored = tx.extend({"state": [1, 2]}, task_id="new")
        ...     return stored.inserted, tx.delete({"field": "task_id", "op": "eq", "value": "old"})
        >>> buffer.add(state=0, task_id="old").inserted
        1
        >>> buffer.transaction(replace), len(buffer)
        ((2, 1), 2)
    """

    def __init__(self, buffer: ReplayBuffer, connection: Any) -> None:
        from sqlbuffer.storage.documents import Documents

        self.buffer, self._connection = buffer, connection
        self.documents = Documents(buffer._store, self.joined)
        self._error: BaseException | None = None
        self._is_open, self._n_stored, self._n_updated = True, 0, 0

    add = _joining(ReplayBuffer.add)
    store = _joining(ReplayBuffer.store)
    store_batch = _joining(ReplayBuffer.store_batch)
    extend = _joining(ReplayBuffer.extend)
    store_episode = _joining(ReplayBuffer.store_episode)
    annotate = _joining(ReplayBuffer.annotate)
    update_priorities = _joining(ReplayBuffer.update_priorities)
    count_uses = _joining(ReplayBuffer.count_uses)
    quarantine = _joining(ReplayBuffer.quarantine)
    release = _joining(ReplayBuffer.release)
    delete = _joining(ReplayBuffer.delete)
    clear = _joining(ReplayBuffer.clear)
    start_session = _joining(ReplayBuffer.start_session)
    set_model_version = _joining(ReplayBuffer.set_model_version)
    set_clock = _joining(ReplayBuffer.set_clock)
    sample: Any = _joining(ReplayBuffer.sample)
    use_counts = _joining(ReplayBuffer.use_counts)
    end_episode = _joining(ReplayBuffer.end_episode)
    end_episodes = _joining(ReplayBuffer.end_episodes)
    annotate_episode = _joining(ReplayBuffer.annotate_episode)
    annotate_episodes = _joining(ReplayBuffer.annotate_episodes)
    delete_episodes = _joining(ReplayBuffer.delete_episodes)
    size = _joining(ReplayBuffer.size)
    get_paginated = _joining(ReplayBuffer.get_paginated)
    get_by_ids = _joining(ReplayBuffer.get_by_ids)
    get_by_task_id = _joining(ReplayBuffer.get_by_task_id)
    get_batch_by_task_ids = _joining(ReplayBuffer.get_batch_by_task_ids)

    def locked(self, documents: Sequence[str]) -> tuple[dict[str, Document], int]:
        """Return documents, and how often steps of the buffer were deleted, in one statement.

        Until the end of the transaction no other process changes these documents or deletes steps.
        A cache that depends on the steps is valid while the number stays; see `Snapshot`.

        Args:
            documents: Names of documents; those that do not exist are left out.

        Raises:
            ArgumentError: `documents` is not a list of names.
            FieldError: A name is not text that a database can store.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.documents.put("cursor", 7)
            1
            >>> found, n_deletions = buffer.transaction(lambda tx: tx.locked(["cursor"]))
            >>> found["cursor"].value, n_deletions
            (7, 0)
        """
        from sqlbuffer.storage.documents import checked_keys, locked_documents

        keys, store = checked_keys(documents, "documents"), self.buffer._store
        return self.joined(lambda: store.write(lambda c: locked_documents(c, store, keys)))

    def joined(self, call: Callable[[], T]) -> T:
        """Return the result of a call whose reads and writes are part of the transaction.

        :meta private:
        """
        if not self._is_open:
            raise ArgumentError(
                "the transaction has ended: use tx only in the function that got it"
            )
        if self._error is not None:
            raise self._error
        try:
            with joined(self._connection):
                result = call()
        except BaseException as error:
            self._error = error
            raise
        if isinstance(result, StoreResult):
            self._n_stored += result.inserted
        elif isinstance(result, PriorityUpdate):
            self._n_updated += result.updated
        return result

    def run(self, work: Callable[[Transaction], T]) -> tuple[T, int, int]:
        """Return the result of `work`, how many steps it has stored, and how many priorities it has
        set.

        :meta private:
        """
        try:
            with working(self._connection):
                result = work(self)
        finally:
            self._is_open = False
        if self._error is not None:
            raise self._error
        return result, self._n_stored, self._n_updated


class Snapshot:
    """One state of a buffer, which `ReplayBuffer.snapshot` reads.

    Attributes:
        buffer: The buffer.
        documents: Its documents, as they were.
        prefetched: The documents that were asked for, by key, as far as they exist.
        deletions: How often steps of the buffer were deleted. A cache that depends on the steps is
            valid while this number stays.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.add(state=0, task_id="t").inserted
        1
        >>> buffer.snapshot(lambda view: (view.deletions, len(view.get_by_task_id("t"))))
        (0, 1)
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        connection: Any,
        prefetched: Mapping[str, Document],
        deletions: int,
    ) -> None:
        from sqlbuffer.storage.documents import Documents

        self.buffer, self._connection = buffer, connection
        self.prefetched, self.deletions = prefetched, deletions
        self.documents = Documents(buffer._store, self.joined)

    get_paginated = _joining(ReplayBuffer.get_paginated)
    get_by_task_id = _joining(ReplayBuffer.get_by_task_id)
    get_batch_by_task_ids = _joining(ReplayBuffer.get_batch_by_task_ids)
    use_counts = _joining(ReplayBuffer.use_counts)

    def sample(self, batch_size: int = 256, **options: Any) -> Any:
        """Draw rows; see `ReplayBuffer.sample`.

        Raises:
            ArgumentError: An argument is invalid, or the buffer counts or logs what is sampled: a
                snapshot only reads.

        Example:
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state=0, task_id="t").inserted
            1
            >>> len(buffer.snapshot(lambda view: view.sample(1)))
            1
        """
        if self.buffer._store.uses.is_on:
            raise ArgumentError(
                "a snapshot only reads, and this buffer counts or logs what is sampled (max_use, "
                "track_samples); sample in a transaction"
            )
        return self.joined(lambda: self.buffer.sample(batch_size, **options))

    def joined(self, call: Callable[[], T]) -> T:
        """Return the result of a call whose reads are part of the snapshot.

        :meta private:
        """
        with joined(self._connection):
            return call()


def checked_buffer(buffer: Any, name: str = "buffer") -> ReplayBuffer:
    """Return an argument that is a buffer.

    Raises:
        ArgumentError: It is something else.
    """
    what = "a ReplayBuffer, such as ReplayBuffer(url, name)"
    if isinstance(getattr(buffer, "sync", None), ReplayBuffer):
        what += "; give its .sync"
    opened: ReplayBuffer = checked_instance(buffer, name, ReplayBuffer, what)
    return opened
