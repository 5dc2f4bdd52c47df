"""What stored episodes get from any process: ends, rewards, values, and further writers."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    Double,
    LargeBinary,
    Text,
    Update,
    and_,
    bindparam,
    cast,
    exists,
    func,
    null,
    select,
    update,
)

from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import INT64_MAX
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.records import NAMED_FACTS
from sqlbuffer.errors import EpisodeEndedError, EpisodeNotFoundError, FieldError, OutOfOrderError
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.database.errors import ended_otherwise
from sqlbuffer.storage.episodes import (
    ENDED,
    LENGTH,
    begin,
    check_named,
    episodes,
    of_rollout,
    reward_of_end,
    several_tasks,
)
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of, is_past
from sqlbuffer.storage.schema.metadata import UUID, json_parameter


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
        episodes.c.final_arrays, cast(episodes.c.verdicts, Text()).label("verdicts"),
        episodes.c.ended_at,
    )
    .where(
        episodes.c.buffer_id == bindparam("buffer_id"),
        is_one_of(episodes.c.key, bindparam("keys", type_=KeyList())),
    )
    .order_by(episodes.c.id)
    .with_for_update(key_share=True)
)  # fmt: skip
_SET_VALUES = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        reward=func.coalesce(bindparam("of_reward", type_=Double()), episodes.c.reward),
        meta=func.coalesce(json_parameter("of_meta"), episodes.c.meta),
    )
)
_ANNOTATE = _SET_VALUES.values(
    verdicts=func.coalesce(json_parameter("of_verdicts"), episodes.c.verdicts)
)
_END = _SET_VALUES.values(
    {
        "status": bindparam("of_status"),
        "reward": reward_of_end(bindparam("of_reward", type_=Double())),
        "final_arrays": func.coalesce(
            bindparam("of_final", type_=LargeBinary()), episodes.c.final_arrays
        ),
        **ENDED,
    }
)


# Returns True for an episode that a call changes.
_Decide = Callable[[Any, EpisodeChange], bool]
# Returns further values for an episode.
_MoreValues = Callable[[Any, EpisodeChange], Mapping[str, Any]]


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
            raise ended_otherwise(episode.key, episode.task_id, difference)
        return False

    return _change(buffer, changes, is_to_end, _END, {"of_status": status}, must_exist)


def annotate_stored(
    buffer: OpenBuffer,
    changes: Sequence[EpisodeChange],
    version: int | None = None,
    *,
    must_exist: bool = False,
) -> int:
    """Set the rewards and the values of episodes; return how many there were.

    Args:
        buffer: The buffer.
        changes: What they get.
        version: Version of the verdicts; None for one more than the highest of each episode. With a
            lower version than the highest, the reward is noted, and nothing else changes.
        must_exist: See `end_stored`.

    Raises:
        EpisodeNotFoundError: There is none, and it `must_exist`.
        FieldError: Several tasks have an episode that was named without its task.
    """

    def judged(episode: Any, change: EpisodeChange) -> dict[str, Any]:
        verdicts = _verdicts(episode)
        highest = max((one["version"] for one in verdicts), default=None)
        if version is None and highest == INT64_MAX:
            raise FieldError(
                f"episode {episode.key!r} of task {episode.task_id!r} has the highest version, "
                f"{INT64_MAX}; pass that version"
            )
        given = (highest or 0) + 1 if version is None else version
        values: dict[str, Any] = {"of_verdicts": None}
        noted = next((one for one in verdicts if one["version"] == given), None)
        reward = noted["reward"] if noted and change.reward is None else change.reward
        is_new = noted is None or noted["reward"] != reward
        if is_new and (reward is not None or version is not None):
            at = _time_text(datetime.now(UTC))
            others = [one for one in verdicts if one["version"] != given]
            verdict = {"version": given, "reward": reward, "at": at}
            values["of_verdicts"] = orjson.dumps([*others, verdict]).decode()
        if highest is not None and given < highest:
            values |= {"of_reward": None, "of_meta": None}
        return values

    return _change(buffer, changes, lambda *_: True, _ANNOTATE, {}, must_exist, judged)


def _time_text(time: datetime) -> str:
    """Return a time as SQLite has it."""
    return f"{time.astimezone(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


def _verdicts(episode: Any) -> list[dict[str, Any]]:
    """Return the verdicts on an episode; before the first one, its reward is version 0."""
    if episode.verdicts is not None:
        verdicts: list[dict[str, Any]] = orjson.loads(episode.verdicts)
        return verdicts
    if episode.reward is None:
        return []
    at = episode.ended_at
    if isinstance(at, datetime):
        at = _time_text(at)
    return [{"version": 0, "reward": episode.reward, "at": at}]


def _change(
    buffer: OpenBuffer,
    changes: Sequence[EpisodeChange],
    decide: _Decide,
    statement: Update,
    of_all: Mapping[str, Any],
    must_exist: bool,
    more_of: _MoreValues | None = None,
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
        rows: dict[tuple[str, int], dict[str, Any]] = {}
        for change in changes:
            episode = _named(by_key.get(change.key, {}), change)
            if episode is None and must_exist:
                raise _not_found(buffer, change)
            if episode is None or not decide(episode, change):
                continue
            if (episode.task_id, episode.id) in rows:
                raise FieldError(
                    f"episode {episode.key!r} of task {episode.task_id!r} is named twice; name "
                    f"each episode once"
                )
            rows[episode.task_id, episode.id] = {
                "of_id": episode.id,
                "of_reward": change.reward,
                "of_meta": change.meta,
                "of_final": change.final_arrays,
                **of_all,
                **({} if more_of is None else more_of(episode, change)),
            }
        if rows:
            # In the order in which annotations of steps change the sums of rollouts.
            connection.execute(statement, [rows[name] for name in sorted(rows)])
            ids = [id_ for _, id_ in sorted(rows)]
            log_change(connection, buffer.info.id, "episodes", ids, buffer.origin)
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
        raise several_tasks(change.key, by_task)
    return next(iter(by_task.values()), None)


def _difference(episode: Any, status: str, change: EpisodeChange) -> str | None:
    """Return in words how an episode has ended differently; None if it has not."""
    if episode.status != status:
        return f"status {episode.status!r}, and not {status!r}"
    is_judged = episode.verdicts is not None  # its verdict counts
    if change.reward not in (None, episode.reward) and not is_judged:
        return f"reward {episode.reward}, and not {change.reward}"
    if change.final_arrays is not None and change.final_arrays != episode.final_arrays:
        return "another final observation"
    if change.meta is not None and not _same_json(change.meta, episode.meta):
        return f"meta {episode.meta}, and not {change.meta}"
    return None


def _same_json(left: str, right: str | None) -> bool:
    return right is not None and equal(orjson.loads(left), orjson.loads(right), strict=True)


class Continued(NamedTuple):
    """An episode that a writer continues.

    Attributes:
        beginning: Its beginning, with the number of the writer.
        n_steps: Number of steps that were written, and the place of the next one.
        total: Sum of their rewards; None if none has one.
    """

    beginning: EpisodeStart
    n_steps: int = 0
    total: float | None = None


_IS_NAMED = and_(
    episodes.c.buffer_id == bindparam("buffer_id"),
    episodes.c.key == bindparam("key"),
    episodes.c.task_id == bindparam("task_id"),
)
_LOCK = select(episodes.c.id).where(_IS_NAMED).with_for_update(key_share=True)
_CONTINUED = (
    select(
        episodes.c.id, episodes.c.status, episodes.c.is_implied, episodes.c.was_used,
        episodes.c.attempt, episodes.c.writer, episodes.c.group_id, episodes.c.parent_id,
        episodes.c.item_id, cast(episodes.c.writers, Text()).label("writers"),
        LENGTH.label("length"), of_rollout("last_seq").label("last_seq"),
        of_rollout("return").label("total"), of_rollout("length").label("n_stored"),
        exists(
            select(1).where(
                queue_items.c.buffer_id == episodes.c.buffer_id,
                queue_items.c.episode_id == episodes.c.id,
                ~is_past(queue_items.c.leased_until),
            )
        ).label("is_leased"),
    )
    .where(_IS_NAMED)
)  # fmt: skip
_TAKE = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        {
            "status": "open",
            "is_implied": False,
            "attempt": bindparam("of_attempt"),
            "writer": bindparam("of_writer", type_=UUID),
            "writers": json_parameter("of_writers"),
            **dict.fromkeys(("length", "return", "reward", "first_seq", "last_seq"), null()),
            "final_arrays": null(),
            "verdicts": null(),
            "ended_at": null(),
        }
    )
)


def continue_episode(buffer: OpenBuffer, beginning: EpisodeStart) -> Continued:
    """Make an episode that of a new writer, or begin it if there is none.

    Raises:
        EpisodeEndedError: It is complete, or a lease holds or has used it.
    """

    def work(connection: Connection) -> Continued:
        if buffer.info.config.retention.evict_by == "episode":
            lock_as_writer(connection, buffer.info.id)
        names = {
            "buffer_id": buffer.info.id,
            "key": beginning.key,
            "task_id": beginning.task_id,
        }
        while True:
            # Read after the lock, which may have waited for a writer or a lease.
            if connection.execute(_LOCK, names).one_or_none() is not None:
                stored = connection.execute(_CONTINUED, names).one()
                return _take_over(connection, buffer, beginning, stored)
            if begin(connection, buffer.info.id, beginning):
                return Continued(beginning)

    return buffer.write(work)


def _take_over(
    connection: Connection, buffer: OpenBuffer, beginning: EpisodeStart, stored: Any
) -> Continued:
    """Give an episode its next attempt, unless a commit whose answer was lost has done so."""
    attempt, n_steps = stored.attempt, stored.length
    if not buffer.info.has_chunks:  # rows of others have no place in it
        n_steps = max(n_steps, stored.n_stored or 0)
    for fact in NAMED_FACTS:
        named = getattr(beginning, fact)
        if named is not None:
            check_named(fact, beginning.key, beginning.task_id, getattr(stored, fact), named)
    if stored.writer != beginning.writer:
        _check_continues(beginning, stored)
        _check_order(beginning, n_steps, _newest_step(connection, buffer, stored.id))
        attempt = max(attempt, 1) + 1
        writers = [] if stored.writers is None else orjson.loads(stored.writers)
        writers.append(
            {
                "attempt": attempt,
                "holder": f"{os.uname().nodename}/{os.getpid()}",
                "at": _time_text(datetime.now(UTC)),
                "from_t": n_steps,
            }
        )
        values = {
            "of_id": stored.id,
            "of_attempt": attempt,
            "of_writer": beginning.writer,
            "of_writers": orjson.dumps(writers).decode(),
        }
        connection.execute(_TAKE, values)
        log_change(connection, buffer.info.id, "episodes", [stored.id], buffer.origin)
    return Continued(beginning._replace(attempt=attempt), n_steps, stored.total)


_GREATEST_STEP = select(func.max(experiences.c.step)).where(
    experiences.c.buffer_id == bindparam("buffer_id"),
    experiences.c.episode_id == bindparam("of_id"),
)
_NEWEST_CHUNK = (
    select(chunks.c.step, chunks.c.n_steps, chunks.c.steps)
    .where(chunks.c.buffer_id == bindparam("buffer_id"), chunks.c.episode_id == bindparam("of_id"))
    .order_by(chunks.c.t.desc())
    .limit(1)
)


def _newest_step(connection: Connection, buffer: OpenBuffer, id_: int) -> int | None:
    """Return the greatest step number of an episode; None if no step is held."""
    parameters = {"buffer_id": buffer.info.id, "of_id": id_}
    if not buffer.info.has_chunks:
        step: int | None = connection.execute(_GREATEST_STEP, parameters).scalar_one()
        return step
    chunk = connection.execute(_NEWEST_CHUNK, parameters).one_or_none()
    if chunk is None:
        return None
    steps = orjson.loads(chunk.steps) if isinstance(chunk.steps, str) else chunk.steps
    return int(chunk.step + chunk.n_steps - 1 if steps is None else steps[-1])


def _check_order(beginning: EpisodeStart, n_steps: int, newest_step: int | None) -> None:
    if newest_step is not None and newest_step >= n_steps:
        raise OutOfOrderError(
            f"episode {beginning.key!r} of task {beginning.task_id!r} cannot be continued: its "
            f"newest step is {newest_step}, and a writer would go on with {n_steps}; add further "
            f"steps with add(step=...), or take another episode_id"
        )


def _check_continues(beginning: EpisodeStart, stored: Any) -> None:
    name = f"episode {beginning.key!r} of task {beginning.task_id!r}"
    key = beginning.key, beginning.task_id
    if stored.item_id is not None:
        raise EpisodeEndedError(
            f"{name} belongs to a work item, and is not continued: an item that is taken again "
            f"begins another episode; use item.episode()",
            [key],
        )
    if stored.was_used or stored.is_leased:
        how = "has used" if stored.was_used else "holds"
        raise EpisodeEndedError(
            f"{name} cannot be continued: a lease {how} it; take another episode_id", [key]
        )
    if stored.status == "complete":
        raise EpisodeEndedError(
            f"{name} is complete, and cannot be continued; take another episode_id, or delete it "
            f"first with delete_episodes()",
            [key],
        )
