"""Ends, rewards and values that stored episodes get later, from any process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    Double,
    LargeBinary,
    Text,
    Update,
    bindparam,
    cast,
    func,
    select,
    update,
)

from sqlbuffer.codec.equality import equal
from sqlbuffer.errors import EpisodeEndedError, EpisodeNotFoundError, FieldError
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.episodes import ENDED, episodes, of_rollout
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of
from sqlbuffer.storage.schema.metadata import json_parameter


class EpisodeChange(NamedTuple):
    """What an episode gets.

    Attributes:
        key: Its id.
        task_id: Its task; None: the only one that has such an episode.
        reward: Its own reward; None for no change.
        meta: JSON of the user's values; None for no change.
        final_arrays: The observation after its last step, packed; None for no change.
    """

    key: str
    task_id: str | None
    reward: float | None = None
    meta: str | None = None
    final_arrays: bytes | None = None


_STORED = (
    select(
        episodes.c.id, episodes.c.key, episodes.c.task_id, episodes.c.status,
        episodes.c.is_implied, episodes.c.reward, cast(episodes.c.meta, Text()).label("meta"),
        episodes.c.final_arrays, of_rollout("last_seq").label("last_seq"),
    )
    .where(
        episodes.c.buffer_id == bindparam("buffer_id"),
        is_one_of(episodes.c.key, bindparam("keys", type_=KeyList())),
    )
    .order_by(episodes.c.id)
    .with_for_update(key_share=True)
)  # fmt: skip
_ANNOTATE = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        reward=func.coalesce(bindparam("of_reward", type_=Double()), episodes.c.reward),
        meta=func.coalesce(json_parameter("of_meta"), episodes.c.meta),
    )
)
_END = _ANNOTATE.values(
    {
        "status": bindparam("of_status"),
        "final_arrays": func.coalesce(
            bindparam("of_final", type_=LargeBinary()), episodes.c.final_arrays
        ),
        **ENDED,
    }
)


# Returns True for an episode that a call changes.
_Decide = Callable[[Any, EpisodeChange], bool]


def end_stored(
    buffer: OpenBuffer, status: str, changes: Sequence[EpisodeChange], *, must_exist: bool = False
) -> int:
    """End episodes that are open, or that their last step ended; return how many there were.

    Raises:
        EpisodeEndedError: One has ended in another way; nothing is changed.
        EpisodeNotFoundError: There is none, and it `must_exist`.
        FieldError: Several tasks have an episode that was named without its task.
    """

    def is_to_end(episode: Any, change: EpisodeChange) -> bool:
        if episode.status == "open" or episode.is_implied:
            return True
        difference = _difference(episode, status, change)
        if difference is not None:
            raise EpisodeEndedError(
                f"episode {episode.key!r} of task {episode.task_id!r} has ended already, with "
                f"{difference}; annotate_episode() changes its reward and its values",
                [(episode.key, episode.task_id)],
            )
        return False

    return _change(buffer, changes, is_to_end, _END, {"of_status": status}, must_exist)


def annotate_stored(
    buffer: OpenBuffer, changes: Sequence[EpisodeChange], *, must_exist: bool = False
) -> int:
    """Set the rewards and the values of episodes; return how many there were.

    Raises:
        FieldError: Several tasks have an episode that was named without its task.
    """
    return _change(buffer, changes, lambda *_: True, _ANNOTATE, {}, must_exist)


def _change(
    buffer: OpenBuffer,
    changes: Sequence[EpisodeChange],
    decide: _Decide,
    statement: Update,
    of_all: Mapping[str, Any],
    must_exist: bool,
) -> int:
    """Change stored episodes in one transaction, and tell followers; return how many."""

    def work(connection: Connection) -> int:
        if buffer.info.config.retention.evict_by == "episode":
            # First, as in evictions: an episode that ends may exceed the limit.
            lock_as_writer(connection, buffer.info.id)
        parameters = {"buffer_id": buffer.info.id, "keys": [*{change.key for change in changes}]}
        by_key: dict[str, dict[str, Any]] = {}
        for episode in connection.execute(_STORED, parameters):
            by_key.setdefault(episode.key, {})[episode.task_id] = episode
        rows, last_seqs = [], []
        for change in changes:
            episode = _named(by_key.get(change.key, {}), change)
            if episode is None and must_exist:
                raise _not_found(buffer, change)
            if episode is None or not decide(episode, change):
                continue
            rows.append(
                {
                    "of_id": episode.id,
                    "of_reward": change.reward,
                    "of_meta": change.meta,
                    "of_final": change.final_arrays,
                    **of_all,
                }
            )
            if episode.last_seq is not None:
                last_seqs.append(episode.last_seq)
        if rows:
            connection.execute(statement, rows)
            log_change(connection, buffer.info.id, "labelled", last_seqs, buffer.origin)
        return len(rows)

    return buffer.write(work) if changes else 0


def _not_found(buffer: OpenBuffer, change: EpisodeChange) -> EpisodeNotFoundError:
    of_task = "" if change.task_id is None else f" of task {change.task_id!r}"
    return EpisodeNotFoundError(
        f"buffer {buffer.info.name!r} has no episode {change.key!r}{of_task}; store a step of it "
        f"first, or check its id and its task in v_episodes"
    )


def _named(by_task: Mapping[str, Any], change: EpisodeChange) -> Any:
    """Return the episode that a change names; None if there is none."""
    if change.task_id is not None:
        return by_task.get(change.task_id)
    if len(by_task) > 1:
        tasks = ", ".join(map(repr, sorted(by_task)[:5]))
        raise FieldError(
            f"episode {change.key!r}: {len(by_task)} tasks have an episode with this id ({tasks}); "
            f"name its task"
        )
    return next(iter(by_task.values()), None)


def _difference(episode: Any, status: str, change: EpisodeChange) -> str | None:
    """Return in words how an episode has ended differently; None if it has not."""
    if episode.status != status:
        return f"status {episode.status!r}, and not {status!r}"
    if change.reward is not None and change.reward != episode.reward:
        return f"reward {episode.reward}, and not {change.reward}"
    if change.final_arrays is not None and change.final_arrays != episode.final_arrays:
        return "another final observation"
    if change.meta is not None and not _same_json(change.meta, episode.meta):
        return f"meta {episode.meta}, and not {change.meta}"
    return None


def _same_json(left: str, right: str | None) -> bool:
    return right is not None and equal(orjson.loads(left), orjson.loads(right), strict=True)
