"""The calls that write."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sqlbuffer.arguments import checked_session, columns_of, row_of
from sqlbuffer.encoding.columns import encode_columns
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, encode_meta, pack_final
from sqlbuffer.encoding.priority_values import check_kept
from sqlbuffer.encoding.records import Record, encode_key, encode_rows, encode_step
from sqlbuffer.episode_writer import EpisodeWriter
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.specs import check_casting
from sqlbuffer.front.shared import Parts
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.ids import uuid7
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.labels.label_values import checked_reward
from sqlbuffer.storage.rows.payload_parts import check_row_sizes, row_limit

logger = logging.getLogger("sqlbuffer")

MAX_EPISODE = 500  # bytes; the ids of its steps have it with a number behind
MADE_TIME = frozenset(("execute_time",))  # was not given, so it makes no conflict


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


class Writing(Parts):
    """The calls of `ReplayBuffer` that write."""

    def store(self, data: DataRow, *, priority: float | None = None) -> StoreResult:
        """Store one row, unless the buffer holds its id.

        Args:
            data: The row.
            priority: See `store_batch`.

        Raises:
            ValueError: No row.
            FieldError: A value cannot be stored; nothing is written.
        """
        if not data:
            raise ValueError("Data is required")
        return self._insert([data], priority=priority)

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
        """
        rows = list(data_batch or ())
        return self._insert(
            rows, model_version=model_version, session_id=session_id, priority=priority
        )

    def add(self, **fields: Any) -> StoreResult:
        """Store one experience given by its fields; none is required.

        Args:
            **fields: `state`, `actions` (or `action`), `reward`, `adv_t`, `v_t`, `messages`,
                `terminated`, `truncated`, `extra`, `task_id`, `task_name`, `agent_id`, `step`,
                `execute_time`, `pre_agent`, `episode_id`, `model_version`, `session_id` and `id`;
                `priority` as for `store_batch`.

        Raises:
            FieldError: An unknown field, or a value that cannot be stored; nothing is written.
        """
        ignore = frozenset() if "execute_time" in fields else MADE_TIME
        priority = fields.pop("priority", None)
        row = row_of(fields, self._store.info.fields.specs)
        return self._insert([row], ignore=ignore, priority=priority)

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
            **keys: `task_id`, `agent_id`, `step`, `model_version`, `session_id`: n values or one
                for all rows; `id`: n values; `priority` as for `store_batch`.

        Raises:
            FieldError: An unknown or missing field, another shape, a value that the field cannot
                hold; nothing is written.
        """
        columns = self._checked(columns_of(arrays, keys))
        records = encode_columns(self._store.layout, columns, casting=casting)
        return self._insert_records(records, ignore=MADE_TIME)

    def store_episode(
        self,
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
        """
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        keys = {
            "task_id": task,
            "agent_id": agent_id,
            "model_version": model_version,
            "session_id": session_id,
            "priority": priority,
        }
        own_ids = () if episode_id is None else ("id",)  # made of the episode's
        columns = self._checked(columns_of(arrays, keys, own_ids))
        store = self._store
        records = encode_columns(store.layout, columns, casting=casting, episode=key)
        if not records:
            raise FieldError("an episode has at least one step")
        if episode_id is not None:
            records = [record._replace(id=f"{key}/{record.t}") for record in records]
        rewards = [record.reward_t for record in records if record.reward_t is not None]
        ending = EpisodeEnd(
            key,
            task,
            "complete",
            len(records),
            sum(rewards) if rewards else None,
            records[0].id,
            records[-1].id,
            pack_final(store.observation_layout, final, casting),
            checked_reward(episode_reward, "episode_reward"),
        )
        text = encode_meta(meta, store.info.fields.meta, casting)
        metas = {} if text is None else {(key, task): text}
        return self._insert_records(
            records,
            ignore=MADE_TIME,
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
        session_id: str | None = None,
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
            session_id: The training session.
            casting: See `extend`.
            **meta: See `store_episode`.

        Raises:
            EpisodeExistsError: The buffer knows an episode of that id.
            FieldError: A key that is no text, or meta that does not fit.
        """
        beginning = self._beginning(
            task_id, agent_id, episode_id, model_version, session_id, casting, meta
        )
        if episode_id is not None:
            self._store.begin_episode(beginning)
        layouts = (self._store.layout, self._store.observation_layout)
        info = self._store.info
        return EpisodeWriter(
            layouts, self._queue, beginning, casting, info.priorities, row_limit(info)
        )

    def record(
        self,
        env: Any,
        *,
        task_id: str | None = None,
        agent_id: str | None = None,
        model_version: int | None = None,
        session_id: str | None = None,
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
            session_id: The training session: the attribute `session_id`, likewise.
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
        self._beginning(task_id, agent_id, None, model_version, session_id, casting, meta)
        begin = partial(self.episode, task_id, agent_id, casting=casting, **meta)
        return recorded(env, self, begin, model_version, session_id)

    def flush(self) -> None:
        """Store the steps of open episodes that wait.

        Raises:
            StorageError: They could not be stored; they wait to be.
            EpisodeExistsError: The buffer holds other steps under the ids of some, which are lost.
        """
        self._queue.flush()

    def _beginning(
        self,
        task_id: str | None,
        agent_id: str | None,
        episode_id: str | None,
        model_version: int | None,
        session_id: str | None,
        casting: str,
        meta: Mapping[str, Any],
    ) -> EpisodeStart:
        """Return what an episode begins with, checked."""
        key = encode_key(uuid7() if episode_id is None else episode_id, "episode_id", MAX_EPISODE)
        task = encode_key(key if task_id is None else task_id, "task_id")
        agent = encode_key("default" if agent_id is None else agent_id, "agent_id")
        version = None if model_version is None else encode_step(model_version, "model_version")
        session = None if session_id is None else checked_session(session_id)
        check_casting(casting)
        text = encode_meta(meta, self._store.info.fields.meta, casting)
        return EpisodeStart(key, task, agent, version, text, session)

    def _checked(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return columns; priorities are for buffers that have some."""
        if columns.get("priority") is not None:
            check_kept(self._store.info.priorities)
        return columns

    def _insert(
        self,
        rows: list[DataRow],
        *,
        model_version: int | None = None,
        session_id: str | None = None,
        ignore: frozenset[str] = frozenset(),
        priority: Any = None,
    ) -> StoreResult:
        if priority is not None:
            check_kept(self._store.info.priorities)
        if not rows:
            return StoreResult(0, 0, 0)
        if self._store.info.fields.specs:
            raise FieldError(
                f"buffer {self.name!r} has typed fields "
                f"({', '.join(self._store.info.fields.specs)}); store rows with extend({{...}})"
            )
        records = encode_rows(rows, model_version, priority)
        if session_id is not None:
            records = in_session(records, checked_session(session_id))
        return self._insert_records(records, ignore=ignore)

    def _insert_records(
        self,
        records: list[Record],
        *,
        ignore: frozenset[str] = frozenset(),
        endings: Sequence[EpisodeEnd] = (),
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
    ) -> StoreResult:
        if not records:
            return StoreResult(0, 0, 0)
        check_row_sizes(records, row_limit(self._store.info))
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


def in_session(records: list[Record], session: str) -> list[Record]:
    """Return records, those of no session as ones of this."""
    return [
        record._replace(session_key=session) if record.session_key is None else record
        for record in records
    ]
