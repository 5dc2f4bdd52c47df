"""Check and encode steps, and hand them to the database."""

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from uuid import uuid4

from sqlbuffer.arguments import checked_session, checked_sessions, columns_of, key_text, row_of
from sqlbuffer.display import shown
from sqlbuffer.encoding.column_chunks import StepPacker, StepStream
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, encode_meta, pack_final
from sqlbuffer.encoding.priority_values import check_kept
from sqlbuffer.encoding.records import encode_key, encode_parent, encode_step
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import Casting, check_casting
from sqlbuffer.front.step_encoding import ChunkEncoding, EncodedSteps, encoding_of
from sqlbuffer.steps import DataRow, StoreResult, uuid7
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.episode_changes import Continued, continue_episode
from sqlbuffer.storage.labels.values import checked_reward
from sqlbuffer.storage.rows.payload_parts import row_limit
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.rows import MADE_TIME, WriteBatch
from sqlbuffer.storage.writing.write_queue import WriteQueue
from sqlbuffer.vector_writer import STEPS_OF_ENV, Begin, RowWriter, VectorWriter

logger = logging.getLogger("sqlbuffer")

MAX_EPISODE = 500  # bytes; the ids of its steps have it with a number behind
# Arguments of `add` that chunks of many steps seldom have: such a step is stored separately.
SINGLE = frozenset(
    ("id", "episode_id", "group_id", "parent_id", "execute_time", "task_name", "pre_agent")
)
_OF_STREAM = ("task_id", "agent_id", "model_version", "session_id")
# Other names that `add` takes, and the names in a step.
_NAMES_OF_SAME = {"reward_t": "reward", "action": "actions"}
MAX_STREAMS = 1_000
_NOTHING = StoreResult(0, 0, 0)


class StepWriter:
    """Checks and encodes steps, and hands them to the database.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._store = store
        self._encoding, pacer = encoding_of(store), store.pacer
        # It takes what the encoding makes.
        self._writer: Any = store.chunk_writer if store.info.has_chunks else store.writer
        self._queue: WriteQueue[Any, Any] = WriteQueue(
            self._encoding.waiting, partial(self._writer.store, admitted=True),
            partial(store.once, is_queued=True), store.options.flush_s, pacer.admit,
            partial(pacer.admit, wait_s=0.0), store.options.max_pending,
        )  # fmt: skip
        store.own_writes.add(self._queue)
        fields = store.info.config.fields
        # Steps without an episode are of use, or it was said that they are not.
        self._may_be_single = fields.has_next or not fields.observations
        self._streams: dict[tuple[Any, ...], _Stream] = {}
        self._numbers: dict[tuple[str, str], StepNumbers] = {}

    def store_rows(
        self,
        rows: Sequence[DataRow],
        model_version: int | None = None,
        session_id: str | None = None,
        priority: Any = None,
        ignore: frozenset[str] = frozenset(),
        *,
        makes_steps: bool = False,
    ) -> StoreResult:
        """Store rows; fields to `ignore` make no conflict.

        With `makes_steps`, the step numbers were not given: they follow those of their episodes.
        """
        batch = self.encoded_rows(
            rows, model_version, session_id, priority, ignore, makes_steps=makes_steps
        )
        return self.store(batch)

    def encoded_rows(
        self,
        rows: Sequence[DataRow],
        model_version: int | None = None,
        session_id: str | None = None,
        priority: Any = None,
        ignore: frozenset[str] = frozenset(),
        *,
        makes_steps: bool = False,
    ) -> EncodedSteps:
        """Return rows in the form in which they are stored."""
        if priority is not None:
            check_kept(self._store.info.config.priorities.enabled)
        if not rows:
            return WriteBatch(())
        session = None if session_id is None else checked_session(session_id)
        return self._encoding.rows(
            rows, model_version, session, priority, ignore, makes_steps=makes_steps
        )

    def add(self, values: dict[str, Any]) -> StoreResult | None:
        """Store one step given by its fields; return None if it waits for others."""
        specs = self._store.layout.specs
        if specs and values.get("episode_id") is None and not self._may_be_single:
            self._may_be_single = True
            logger.warning(
                "buffer %r: steps that add() stores without episode_id= have no successor, and "
                "sample_transitions() does not draw them; use episode() or record(), or declare "
                "the field next_obs",
                self._store.info.name,
            )
        # A transaction may be undone, so no step of it waits, and none that waits is stored in it.
        may_wait = bool(specs) and not is_joined()
        if may_wait and not SINGLE.intersection(values):
            self._add_waiting(values)
            return None
        if may_wait:
            self._queue.flush()  # in their order
        ignore = frozenset() if "execute_time" in values else MADE_TIME
        priority = values.pop("priority", None)
        makes_steps, row = values.get("step") is None, row_of(values, specs)
        return self.store_rows([row], priority=priority, ignore=ignore, makes_steps=makes_steps)

    def _add_waiting(self, values: dict[str, Any]) -> None:
        """Take a step that waits for others of the same task and agent."""
        stream, step = self._stream_of(values), values.pop("step", None)
        if step is not None:
            self._queue.add(stream.packer.encode(encode_step(step, "step"), values))
            return
        number = stream.numbers.take()
        try:
            self._queue.add(stream.packer.encode(number, values))
        except BaseException:
            stream.numbers.give_back(number)
            raise

    def _stream_of(self, values: dict[str, Any]) -> "_Stream":
        """Return the stream of a step, and give its values the names of a step."""
        keys = tuple(_hashable(values.pop(name, None), name) for name in _OF_STREAM)
        for name, also in _NAMES_OF_SAME.items():
            if name in values and name not in self._store.layout.specs:
                if values.get(also) is not None:
                    raise FieldError(f"give {also}=... or {name}=..., not both")
                value = values.pop(name)
                values[also] = [value] if name == "action" and value is not None else value
        stream = self._streams.get(keys)
        if stream is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.clear()
                self._numbers.clear()
            stream = self._streams.setdefault(keys, self._stream(*keys))
        return stream

    def _stream(self, task_id: Any, agent_id: Any, version: Any, session: Any) -> "_Stream":
        key = StepStream(
            encode_key("default" if task_id is None else task_id, "task_id"),
            encode_key("default" if agent_id is None else agent_id, "agent_id"),
            None if version is None else encode_step(version, "model_version"),
            None if session is None else checked_session(session),
        )
        config = self._store.info.config
        has_priorities, limit = config.priorities.enabled, row_limit(config)
        packer = StepPacker(self._store.layout, key, "same_kind", has_priorities, limit)
        return _Stream(packer, self._numbers.setdefault((key.task_id, key.agent_id), StepNumbers()))

    def extend(
        self, arrays: Mapping[str, Any], casting: Casting, keys: Mapping[str, Any]
    ) -> StoreResult:
        """Store steps given as columns."""
        return self.store(self.encoded_columns(arrays, casting, keys))

    def encoded_columns(
        self, arrays: Mapping[str, Any], casting: Casting, keys: Mapping[str, Any]
    ) -> EncodedSteps:
        """Return steps given as columns in the form in which they are stored."""
        check_casting(casting)
        columns = self._checked(columns_of(arrays, keys))
        return self._encoding.columns(columns, casting)

    def encoded_episode(
        self,
        arrays: Mapping[str, Any],
        *,
        episode_id: str | None,
        task_id: str | None,
        group_id: str | None,
        parent_id: str | None,
        keys: Mapping[str, Any],
        final: Mapping[str, Any] | None,
        episode_reward: float | None,
        casting: Casting,
        meta: Mapping[str, Any],
        is_new: bool = False,
    ) -> EncodedSteps:
        """Return a whole episode given as columns in the form in which it is stored; see
        `ReplayBuffer.store_episode`.

        With `is_new`, no other episode has the id, which is not looked for.
        """
        check_casting(casting)
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        columns = self._checked(columns_of(arrays, {"task_id": task, **keys}, ("episode_id",)))
        if episode_id is not None and columns.get("id") is not None:
            raise FieldError(
                "an episode with an episode_id is stored once by that id; leave out `id` of its "
                "steps, or episode_id"
            )
        made = {"task_id": task_id, "episode_key": episode_id, "episode_id": episode_id}
        # Keys that the library makes are not content: they never make a conflict.
        ignore = frozenset(name for name, value in made.items() if value is None)
        store = self._store
        text = encode_meta(meta, store.info.config.fields.meta, casting)
        group = None if group_id is None else encode_key(group_id, "group_id")
        parent = None if parent_id is None else encode_parent(parent_id, key)
        start = EpisodeStart(key, task, "", None, text, group_id=group, parent_id=parent)
        beginnings = {(key, task): start}
        whole = None if episode_id is None or is_new else (key, task)
        final_arrays = pack_final(store.observation_layout, final, casting)
        reward = checked_reward(episode_reward, "episode_reward")

        ending = EpisodeEnd(key, task, "complete", final_arrays, reward)
        return self._encoding.episode(columns, casting, key, ending, beginnings, whole, ignore)

    def store(self, batch: EncodedSteps) -> StoreResult:
        """Store steps that were encoded."""
        return self._warned(self._writer.store(batch)) if batch.n_steps else _NOTHING

    def episode(
        self,
        beginning: EpisodeStart,
        casting: Casting,
        read: Callable[[], list[DataRow]],
        *,
        has_own_id: bool,
        resume: bool,
    ) -> EpisodeWriter:
        """Begin an episode that is written step by step, or continue it.

        Args:
            beginning: Result of `beginning`.
            casting: See `ReplayBuffer.extend`.
            read: Returns the steps that the buffer holds of it.
            has_own_id: True if the user gave the id, so another episode may have it.
            resume: Continue the episode if there is one.
        """
        store, continued = self._store, Continued(beginning)
        if resume:
            self._queue.flush()  # the steps of a writer that this one replaces here
            continued = continue_episode(store, beginning)
        elif has_own_id:
            store.writer.begin_episode(beginning)
        if has_own_id:
            self._queue.take_over(continued.beginning)
        return self._writer_of(continued, casting, read)

    def begun(
        self, beginning: EpisodeStart, casting: Casting, read: Callable[[], list[DataRow]]
    ) -> EpisodeWriter:
        """Return the writer of an episode that its work item has begun; see `episode`."""
        self._queue.take_over(beginning)
        return self._writer_of(Continued(beginning), casting, read)

    def _writer_of(
        self, continued: Continued, casting: Casting, read: Callable[[], list[DataRow]]
    ) -> EpisodeWriter:
        encoding = partial(self._encoding.step_encoder, casting=casting)
        observation = self._store.observation_layout
        return EpisodeWriter(encoding, observation, self._queue, continued, casting, read)

    def vector(
        self,
        n_envs: int,
        begin: Begin,
        casting: Casting,
        model_version: int | None,
        session_id: str | None,
    ) -> VectorWriter:
        """Return the writer of several environments.

        Args:
            n_envs: Number of environments.
            begin: Begins an episode of one of them.
            casting: See `ReplayBuffer.extend`.
            model_version: The first version.
            session_id: The first session.

        Raises:
            FieldError: The buffer has no typed fields.
        """
        encoding, store = self._encoding, self._store
        if not isinstance(encoding, ChunkEncoding):
            raise FieldError(
                "a vector writer takes arrays, and the buffer was made without typed fields; make "
                "it with ReplayBuffer(url, fields={..}), or write each episode with episode()"
            )
        if "max_pending" not in store.options.model_fields_set:
            self._queue.widen(STEPS_OF_ENV * n_envs)
        return VectorWriter(
            n_envs, begin, encoding.block, store.layout, store.observation_layout, self._queue,
            casting, model_version, session_id,
        )  # fmt: skip

    def rows(
        self, names: Sequence[str], n_envs: int, begin: Callable[[int], EpisodeStart]
    ) -> RowWriter:
        """Return a writer of single steps of several environments that act together.

        Args:
            names: Fields of the steps; see `RowWriter`, also for the others.
            n_envs: Number of environments.
            begin: Begins an episode of one of them.
        """
        encoding = self._encoding
        assert isinstance(encoding, ChunkEncoding)  # the buffer has typed fields
        return RowWriter(names, n_envs, begin, encoding.block, self._store.layout, self._queue)

    def beginning(
        self,
        task_id: str | None,
        agent_id: str | None,
        episode_id: str | None,
        model_version: int | None,
        session_id: str | None,
        group_id: str | None,
        parent_id: str | None,
        casting: Casting,
        meta: Mapping[str, Any],
    ) -> EpisodeStart:
        """Return what an episode begins with, checked."""
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        agent = encode_key("default" if agent_id is None else agent_id, "agent_id")
        version = None if model_version is None else encode_step(model_version, "model_version")
        session = None if session_id is None else checked_session(session_id)
        check_casting(casting)
        text = encode_meta(meta, self._store.info.config.fields.meta, casting)
        group = None if group_id is None else encode_key(group_id, "group_id")
        parent = None if parent_id is None else encode_parent(parent_id, key)
        return EpisodeStart(
            key, task, agent, version, text, session, writer=str(uuid4()), group_id=group,
            parent_id=parent,
        )  # fmt: skip

    def flush(self) -> None:
        """Store the steps that wait."""
        self._queue.flush()
        self._queue.check_all()

    def wait_for_room(self, n: int) -> None:
        """Wait until n more steps may wait, and raise the error that an earlier write met."""
        self._queue.wait_for_room(n)
        self._queue.raise_error()

    def _checked(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return columns with the keys of sessions checked; raise if they have priorities and the
        buffer has none.
        """
        if columns.get("priority") is not None:
            check_kept(self._store.info.config.priorities.enabled)
        if columns.get("session_id") is not None:
            columns["session_id"] = checked_sessions(columns["session_id"])
        return columns

    def _warned(self, result: StoreResult) -> StoreResult:
        if result.conflicts:
            logger.warning(
                "buffer %r: %d rows were not stored, it holds their ids with other content: %s",
                self._store.info.name,
                result.conflicts,
                ", ".join(result.conflicting_ids[:10]),
            )
        return result


class StepNumbers:
    """The step numbers of one task and agent in this process: 0, 1, 2 and so on, without a gap.

    Example:
        >>> numbers = StepNumbers()
        >>> numbers.take(), numbers.take()
        (0, 1)
        >>> numbers.give_back(1)
        >>> numbers.take(), numbers.take()
        (1, 2)
    """

    def __init__(self) -> None:
        self._unused = count()
        self._returned: deque[int] = deque()

    def take(self) -> int:
        """Return the next number; threads get different ones."""
        if self._returned:
            try:
                return self._returned.popleft()
            except IndexError:  # another thread has it
                pass
        return next(self._unused)

    def give_back(self, number: int) -> None:
        """Take a number back whose step was refused; the next step has it."""
        self._returned.append(number)


class _Stream(NamedTuple):
    """Steps of one task, agent, version and session that are added one at a time."""

    packer: StepPacker
    numbers: StepNumbers


def _hashable(key: Any, name: str) -> Any:
    """Return a key; numbers are texts, as in the rows of other buffers."""
    if name == "session_id" and key is not None:
        return checked_session(key)
    text = None if name == "model_version" else key_text(key)
    if text is not None:
        return text
    try:
        hash(key)
    except Exception:
        raise FieldError(f"{name}: expected one value, got {shown(key)}") from None
    return key  # what it is to be, the encoder says
