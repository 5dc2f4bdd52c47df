"""Find a rollout: an episode by its number, or the steps of a task that belong to no episode."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, cast, select
from sqlalchemy.engine import URL

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.storage.buffers.buffer_info import find_buffer
from sqlbuffer.storage.buffers.catalog import not_found
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.rollout_stats.tables import rollout_stats
from sqlbuffer.storage.rows.statements import episode_states


@dataclass(frozen=True)
class Rollout:
    """An episode, or the steps of a task that belong to no episode.

    Attributes:
        number: Key of the episode in `episodes`; None for steps without an episode.
        task_id: The task.
        agent_id: The acting agent; None for all agents of steps without an episode.
        episode_id: The user's id of the episode.
        status: `open`, `complete`, `aborted` or `abandoned`.
        length: Number of steps, so far while it is open.
        return_: Sum of the rewards; None if no step has one.
        reward: Reward of the episode itself.
        model_version: Version of the model at its start.
        meta: JSON of the metadata given when it was stored.
        started_at: Time when its first step was written; text on SQLite.
        ended_at: Time when its end was written.
    """

    task_id: str
    number: int | None = None
    agent_id: str | None = None
    episode_id: str | None = None
    status: str | None = None
    length: int | None = None
    return_: float | None = None
    reward: float | None = None
    model_version: int | None = None
    meta: str | None = None
    started_at: Any = None
    ended_at: Any = None


def browsed_buffer(connection: Connection, url: URL, name: str) -> OpenBuffer:
    """Return a buffer by name.

    It opens no connection of its own while it is used only in functions that take a connection.

    Raises:
        BufferNotFoundError: No such buffer.
    """
    info = find_buffer(connection, name) if is_storable_text(name) else None
    if info is None:
        raise not_found(name, url)
    return OpenBuffer(url, info)


def find_episode(connection: Connection, buffer: OpenBuffer, number: int) -> Rollout | None:
    """Return an episode of a buffer; None if the buffer has none of that number."""
    own, state = episodes.c, episode_states.c
    if not 0 < number < 2**63:
        return None
    found = connection.execute(
        select(
            own.task_id, own.agent_id, own.key, state.status, own.length, own["return"],
            own.reward, own.model_version, cast(own.meta, Text), own.started_at, own.ended_at,
        )
        .join(episode_states, state.id == own.id)
        .where(own.id == number, own.buffer_id == buffer.info.id)
    ).one_or_none()  # fmt: skip
    if found is None:
        return None
    task_id, agent_id, key, status, length, return_, *rest = found
    if status in ("open", "abandoned"):
        # `episodes` has these sums only after the episode has ended.
        sums = rollout_stats.c
        is_own = (sums.buffer_id == buffer.info.id) & (sums.task_id == task_id)
        so_far = select(sums.length, sums["return"]).where(is_own, sums.episode_id == number)
        length, return_ = connection.execute(so_far).one_or_none() or (None, None)
    return Rollout(task_id, number, agent_id, key, status, length, return_, *rest)
