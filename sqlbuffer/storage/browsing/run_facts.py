"""Facts of one buffer for the head of its page: settings, versions, sessions, open episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from sqlbuffer.config import BufferConfig
from sqlbuffer.fields import FieldSpec
from sqlbuffer.storage.browsing.buffers import version_bounds
from sqlbuffer.storage.browsing.curves import step_ages
from sqlbuffer.storage.buffers.catalog import find_buffer
from sqlbuffer.storage.buffers.tables import buffers, sessions
from sqlbuffer.storage.episodes import episode_states, episodes
from sqlbuffer.storage.rollout_stats import rollout_stats
from sqlbuffer.storage.schema.expressions import SeqList, age_s, is_number_of

MOST_SESSIONS = 20
MOST_OPEN = 200
# The collector of an open episode may have stopped, if it wrote no step for this long.
SILENT_S = 300.0


@dataclass(frozen=True)
class OpenEpisode:
    """An episode that no writer has ended.

    Attributes:
        number: Its key in `episodes`.
        episode_id: The user's id of it.
        task_id: Its task.
        agent_id: Its agent; None if none was given.
        is_abandoned: Nothing was written to it for the time that the buffer allows.
        silent_s: Seconds since its last step, or since it began.
    """

    number: int
    episode_id: str
    task_id: str
    agent_id: str | None
    is_abandoned: bool
    silent_s: float


@dataclass(frozen=True)
class RunFacts:
    """Facts of a buffer.

    Attributes:
        fields: Its typed fields by name.
        settings: Its settings that differ from the usual ones, by name.
        age_s: Seconds since it was created.
        versions: Least and greatest model version among steps at both ends of the buffer.
        sessions: Key and model version of its newest sessions, the newest first.
        n_sessions: Number of its sessions.
        session: Key of the current session; None without one.
        open: Its oldest open episodes, up to a limit.
    """

    fields: Mapping[str, FieldSpec]
    settings: Mapping[str, Any]
    age_s: float
    versions: tuple[int | None, int | None]
    sessions: Sequence[tuple[str, int | None]]
    n_sessions: int
    session: str | None
    open: Sequence[OpenEpisode]

    @property
    def stopped(self) -> list[OpenEpisode]:
        """The open episodes that are abandoned, or got no step for `SILENT_S` seconds."""
        return [one for one in self.open if one.is_abandoned or one.silent_s >= SILENT_S]


def run_facts(connection: Connection, name: str) -> RunFacts | None:
    """Return the facts of a buffer; None if there is no such buffer."""
    info = find_buffer(connection, name)
    if info is None:
        return None
    session, buffer = sessions.c, buffers.c
    created_s, current = connection.execute(
        select(age_s(buffer.created_at), buffer.session_id).where(buffer.id == info.id)
    ).one()
    listed = connection.execute(
        select(session.id, session.key, session.current_version)
        .where(session.buffer_id == info.id)
        .order_by(session.id.desc())
        .limit(MOST_SESSIONS)
    ).all()
    of_buffer = select(func.count()).where(session.buffer_id == info.id)
    key = select(session.key).where(session.id == current)
    usual = BufferConfig().settings()
    settings = {
        name: value
        for name, value in info.config.settings().items()
        if name != "fields" and value != usual[name]
    }
    return RunFacts(
        info.config.fields.specs,
        settings,
        float(created_s),
        version_bounds(connection, [info.id]).get(info.id, (None, None)),
        [(str(one.key), one.current_version) for one in listed],
        int(connection.execute(of_buffer).scalar_one()),
        connection.execute(key).scalar_one_or_none(),
        open_episodes(connection, info.id),
    )


def open_episodes(connection: Connection, buffer_id: int) -> list[OpenEpisode]:
    """Return the oldest open episodes of a buffer, those that are silent the longest first."""
    episode, rollout = episodes.c, rollout_stats.c
    # Only an ended episode has `last_seq`, which an index finds.
    oldest = (
        select(episode.id)
        .where(episode.buffer_id == buffer_id, episode.last_seq.is_(None), episode.status == "open")
        .order_by(episode.id)
        .limit(MOST_OPEN)
    )
    numbers = list(connection.execute(oldest).scalars())
    is_listed = is_number_of(episode.id, bindparam("numbers", numbers, SeqList()))
    last_seq = (
        select(rollout.last_seq)
        .where(
            rollout.buffer_id == buffer_id,
            rollout.task_id == episode.task_id,
            rollout.episode_id == episode.id,
        )
        .limit(1)
        .scalar_subquery()
    )
    state = (
        select(episode_states.c.status).where(episode_states.c.id == episode.id).scalar_subquery()
    )
    listed = select(
        episode.id, episode.key, episode.task_id, episode.agent_id, state == "abandoned",
        age_s(episode.started_at), last_seq,
    ).where(is_listed)  # fmt: skip
    rows = connection.execute(listed).all() if numbers else []
    ages_s = step_ages(connection, buffer_id, [row[-1] or 0 for row in rows])
    found = [
        OpenEpisode(
            number,
            key,
            task_id,
            agent_id,
            bool(is_abandoned),
            float(began_s if age is None else age),
        )
        for (number, key, task_id, agent_id, is_abandoned, began_s, _), age in zip(
            rows, ages_s, strict=True
        )
    ]
    return sorted(found, key=lambda one: -one.silent_s)
