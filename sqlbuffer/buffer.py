"""`ReplayBuffer`: the front door."""

import builtins
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from sqlbuffer.arguments import (
    SAME,
    Condition,
    Same,
    check_fits,
    check_name,
    check_options,
    checked_alpha,
    checked_capacity,
    checked_limits,
    checked_seconds,
    checked_wait,
)
from sqlbuffer.encoding.compression import check_compression
from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.records import Decoder, Record
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.front.annotating import Annotating
from sqlbuffer.front.clock import Clocked
from sqlbuffer.front.draw_calls import Sampling
from sqlbuffer.front.leasing import Leasing
from sqlbuffer.front.lookups import Lookups
from sqlbuffer.front.metrics import Monitoring
from sqlbuffer.front.prioritising import Prioritising
from sqlbuffer.front.quarantining import Quarantining
from sqlbuffer.front.session_calls import Sessions
from sqlbuffer.front.write_calls import MADE_TIME, StoreResult, Writing
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.rate_limits import Policy, check_policy
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.buffers.limits import Limits
from sqlbuffer.storage.buffers.open_buffer import RETRY_S, WAIT_S, OpenerOptions
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.retention.dropping import drop_buffer
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.insertion import Written
from sqlbuffer.storage.writing.write_queue import FLUSH_S, WriteQueue

__all__ = ["ReplayBuffer", "StoreResult"]


class ReplayBuffer(
    Writing,
    Annotating,
    Prioritising,
    Sampling,
    Leasing,
    Clocked,
    Sessions,
    Quarantining,
    Lookups,
    Monitoring,
):
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
        priorities: True: rows have priorities, which `update_priorities` sets and
            `PrioritizedSampler` draws by. Omitted: what is stored, none for a new buffer.
        alpha: How much they matter, from 0, not at all, to 1. Omitted: what is stored, 0.6 for a
            new buffer. A buffer stored with another one is drawn from by reading all of it.
        max_use: How often a row is sampled at most; sampling is then a write. Omitted: what is
            stored, any number for a new buffer.
        max_staleness: By how much the `model_version` of a row may be behind the clock
            (`set_clock`) to be sampled. Omitted: what is stored, any for a new buffer.
        min_size: How many rows there must be before any is sampled. Omitted: what is stored, 0 for
            a new buffer.
        track_samples: True: which rows each batch held is noted, and `v_samples` shows it. Omitted:
            what is stored, False for a new buffer.
        keep_samples_s: How long the notes are kept. Omitted: what is stored, a week for a new
            buffer.
        leases: True: rows are handed out by `lease`, each `max_use` times. Omitted: what is stored,
            False for a new buffer.
        current_session_only: True: rows of other sessions than the one that `start_session` began
            last are not sampled. Omitted: what is stored, False for a new buffer.
        keep_expired: True: rows that are too old, used up or of another session stay until they are
            evicted, and may be sampled again should the clock go back. Omitted: what is stored,
            False for a new buffer: they leave before.
        max_row_bytes: A row whose payload is larger is refused. Omitted: what is stored, 256 MiB
            for a new buffer.
        flush_s: How long a step of `episode()` waits at most before it is stored.
        durability: What a write that returned survives. Omitted: the death of any process of the
            client or the server, and what more the server's `synchronous_commit` is set to; SQLite
            may lose the last writes when the power fails. `full`: the power failing too, at a sync
            of the disk for each write. `relaxed`: on PostgreSQL the last half second may be lost
            when the server dies, and writes do not wait for its disk; as omitted on SQLite. The
            batch is whole or absent, whichever is chosen.
        retry_s: How long a call is repeated when the connection to the server is lost; a write
            takes effect once. Opening waits for a server only if this process has reached it
            before, or if it says that it restarts. 0 raises immediately.
        rate_limiter: A `RateLimiter` or `RatioWindow` that all processes of the buffer obey: the
            faster side waits for the other. Omitted: what is stored, none for a new buffer;
            `set_rate_limiter` changes it.
        wait_s: How long a call waits for it before it raises `FlowControlError`; 0 raises at once.

    Raises:
        BufferConfigError: The buffer is stored with another capacity, eviction or compression, or
            settings under which none of its rows could ever be sampled.
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
        url: Database = None,
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
        priorities: bool | None = None,
        alpha: float | None = None,
        max_use: int | None = None,
        max_staleness: int | None = None,
        min_size: int | None = None,
        track_samples: bool | None = None,
        keep_samples_s: float | None = None,
        leases: bool | None = None,
        current_session_only: bool | None = None,
        keep_expired: bool | None = None,
        max_row_bytes: int | None = None,
        flush_s: float = FLUSH_S,
        durability: str | None = None,
        retry_s: float = RETRY_S,
        rate_limiter: Policy | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        check_name(name)
        check_options(durability, retry_s)
        check_policy(rate_limiter)
        wait_s = checked_wait("wait_s", wait_s)
        limits = Limits(
            max_capacity, evict_by, max_episodes, keep_episodes, open_timeout_s, priorities,
            max_use, max_staleness, min_size, track_samples, keep_samples_s, rate_limiter,
            leases, current_session_only, keep_expired, max_row_bytes,
        )  # fmt: skip
        limits = checked_limits(limits)
        alpha = checked_alpha(alpha, priorities)
        flush_s = checked_seconds("flush_s", flush_s)
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
            options=OpenerOptions(durability, float(retry_s), alpha, wait_s),
        )
        self._decoder = self._make_decoder()
        self._flush_s = flush_s
        self._queue = WriteQueue(self._write, self._flush_s, self._store.pacer.admit)

    @property
    def max_capacity(self) -> int | None:
        """Rows held at most, as stored now; None is unlimited."""
        return self._store.window().max_capacity

    @property
    def max_episodes(self) -> int | None:
        """Episodes held at most, as stored now; None is unlimited."""
        return self._store.window().max_episodes

    @property
    def compression(self) -> str | None:
        """How the bytes of arrays are compressed, as stored; None: not at all."""
        return self._store.info.compression

    @property
    def meta_fields(self) -> dict[str, FieldSpec]:
        """The typed fields of an episode, as stored."""
        return dict(self._store.info.fields.meta)

    @property
    def alpha(self) -> float | None:
        """Exponent of priorities, as stored; None: rows have no priorities."""
        info = self._store.info
        return info.alpha if info.priorities else None

    @property
    def max_use(self) -> int | None:
        """How often a row is sampled at most; None is any number."""
        return self._store.info.max_use

    @property
    def max_staleness(self) -> int | None:
        """By how much a row may be behind the clock to be sampled; None is any."""
        return self._store.info.max_staleness

    @property
    def min_size(self) -> int:
        """How many rows there must be before any is sampled."""
        return self._store.info.min_size

    @property
    def track_samples(self) -> bool:
        """Whether batches are noted."""
        return self._store.info.track_samples

    @property
    def evict_by(self) -> str:
        """What leaves at once: `row`, `task` or `episode`."""
        return self._store.info.evict_by

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

        Raises:
            BufferConfigError: Fewer rows than the buffer's `min_size`; or a buffer of
                `compat.memmap`, which has a limit of its own.
        """
        changes = {
            name: checked_capacity(value, name)
            for name, value in (("max_capacity", max_capacity), ("max_episodes", max_episodes))
            if not isinstance(value, Same)
        }
        if not changes:
            raise TypeError("resize() needs max_capacity=... or max_episodes=...")
        check_fits(changes.get("max_capacity"), self._store.info.min_size)
        if "max_episodes" in changes and self.evict_by != "episode":
            raise BufferConfigError(
                f"buffer {self.name!r} evicts by {self.evict_by}; a limit of episodes takes a "
                f"buffer that was made with max_episodes"
            )
        self._store.resize(changes)

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
    def list(url: Database = None, *, retry_s: float = RETRY_S) -> builtins.list[str]:
        """Return the names of the buffers of a database, in order.

        Args:
            url: The database; see `ReplayBuffer`.
            retry_s: How long to wait for a server that restarts; see `ReplayBuffer`.
        """
        check_options(None, retry_s)
        return [info.name for info in catalog.list_buffers(url, float(retry_s))]

    @staticmethod
    def drop(url: Database, name: str, *, retry_s: float = RETRY_S) -> None:
        """Delete a buffer and all that belongs to it.

        Args:
            url: The database; see `ReplayBuffer`.
            name: The buffer.
            retry_s: How long to wait for a server that restarts; see `ReplayBuffer`.

        Raises:
            BufferNotFoundError: No such buffer.
        """
        check_options(None, retry_s)
        drop_buffer(url, name, float(retry_s))

    def __repr__(self) -> str:
        return f"ReplayBuffer({self._store.shown_url!r}, name={self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        state = {"store": self._store, "types": self._types, "flush_s": self._flush_s}
        return {**state, "session": self._own_session}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._store, self._types = state["store"], state["types"]
        self._own_session = state["session"]
        self._decoder = self._make_decoder()
        self._flush_s = state["flush_s"]
        self._queue = WriteQueue(self._write, self._flush_s, self._store.pacer.admit)

    def _make_decoder(self, wanted: SelectedFields | None = None) -> Decoder:
        state, action = map(_rebuild, self._types)
        if wanted is not None:  # a type takes a whole value
            state = state if wanted.is_whole("state") else None
            action = action if wanted.is_whole("actions") else None
        return Decoder(state, action, self._store.layout)

    def _write(
        self,
        records: Sequence[Record],
        endings: Sequence[EpisodeEnd],
        metas: Mapping[EpisodeKey, str],
    ) -> Written:
        return self._store.insert(
            records, ignore=MADE_TIME, endings=endings, metas=metas, admitted=True
        )


def _rebuild(type_: Any) -> Callable[[Any], Any] | None:
    if type_ is None:
        return None
    adapter = TypeAdapter(type_)
    # Models are stored under the names of their fields.
    return lambda value: adapter.validate_python(value, by_alias=True, by_name=True)
