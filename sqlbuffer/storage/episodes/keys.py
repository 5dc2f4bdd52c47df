"""The users' keys of episodes and sessions, and the numbers that rows store for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from sqlalchemy import Connection, bindparam, select, text

from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import sessions
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.schema.column_types import KeyList
from sqlbuffer.storage.schema.list_parameters import is_one_of
from sqlbuffer.storage.schema.list_parameters import one_of as listed

EpisodeKey = tuple[str, str]  # the user's id and the task

# Both databases know this form. The call sorts by key, so that two writers of the same new keys
# cannot deadlock.
INSERT_EPISODE = text(
    "INSERT INTO episodes (buffer_id, key, task_id, agent_id, model_version, meta) "
    "VALUES (:buffer_id, :key, :task_id, :agent_id, :model_version, :meta) ON CONFLICT DO NOTHING"
)
_INSERT_ONE = text(f"{INSERT_EPISODE.text} RETURNING id")
# Made once: building them again takes several times as long as running them.
_KEYS, _TASKS = bindparam("keys", type_=KeyList()), bindparam("tasks", type_=KeyList())
_EPISODES = select(episodes.c.key, episodes.c.task_id, episodes.c.id).where(
    episodes.c.buffer_id == bindparam("buffer_id"),
    is_one_of(episodes.c.key, _KEYS),
    is_one_of(episodes.c.task_id, _TASKS),
)
_SESSIONS = select(sessions.c.key, sessions.c.id).where(
    sessions.c.buffer_id == bindparam("buffer_id"), is_one_of(sessions.c.key, _KEYS)
)


class Keyed(Protocol):
    """A row or a chunk, with the names of its episode and its session."""

    @property
    def episode_key(self) -> str | None:
        """The user's id of the episode."""

    @property
    def task_id(self) -> str:
        """The task."""

    @property
    def agent_id(self) -> str:
        """The acting agent."""

    @property
    def model_version(self) -> int | None:
        """Version of the acting model."""

    @property
    def session_key(self) -> str | None:
        """The user's id of the session."""


def episode_ids(
    connection: Connection,
    buffer_id: int,
    records: Sequence[Keyed],
    metas: Mapping[EpisodeKey, str],
) -> list[int | None]:
    """Return the number of each record's episode, or None without one.

    New episodes are made, with the JSON of their meta.
    """
    first_of: dict[EpisodeKey, Keyed] = {}
    for record in records:
        if record.episode_key is not None:
            first_of.setdefault((record.episode_key, record.task_id), record)
    if not first_of:
        return [None] * len(records)
    known = _known_episodes(connection, buffer_id, first_of)
    unknown = sorted(key for key in first_of if key not in known)
    new = [
        {
            "buffer_id": buffer_id,
            "key": key[0],
            "task_id": key[1],
            "agent_id": first_of[key].agent_id,
            "model_version": first_of[key].model_version,
            "meta": metas.get(key),
        }
        for key in unknown
    ]
    made = connection.execute(_INSERT_ONE, new[0]).scalar() if len(new) == 1 else None
    if made is not None:
        known[unknown[0]] = made
    elif new:
        connection.execute(INSERT_EPISODE, new)
        known = _known_episodes(connection, buffer_id, first_of)
    return [None if r.episode_key is None else known[r.episode_key, r.task_id] for r in records]


def session_ids(
    connection: Connection, buffer_id: int, records: Sequence[Keyed]
) -> list[int | None]:
    """Return the number of each record's session, or None without one; new sessions are made."""
    keys = sorted({record.session_key for record in records if record.session_key is not None})
    if not keys:
        return [None] * len(records)
    known = _known_sessions(connection, buffer_id, keys)
    new = [{"buffer_id": buffer_id, "key": key} for key in keys if key not in known]
    if new:
        connection.execute(INSERT_SESSION, new)
        known = _known_sessions(connection, buffer_id, keys)
    return [None if r.session_key is None else known[r.session_key] for r in records]


def _known_episodes(
    connection: Connection, buffer_id: int, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    given = {
        "buffer_id": buffer_id,
        "keys": list({key for key, _ in keys}),
        "tasks": list({task_id for _, task_id in keys}),
    }
    return {(key, task_id): id_ for key, task_id, id_ in connection.execute(_EPISODES, given)}


def _known_sessions(connection: Connection, buffer_id: int, keys: Iterable[str]) -> dict[str, int]:
    given = {"buffer_id": buffer_id, "keys": list(keys)}
    return dict(connection.execute(_SESSIONS, given).all())


def one_of(column: Any, keys: Iterable[str]) -> Any:
    """Return the expression that is true if a text column is one of the keys."""
    return listed(column, bindparam(None, list(keys), KeyList(), unique=True))
