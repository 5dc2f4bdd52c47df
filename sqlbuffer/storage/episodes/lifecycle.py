"""Begin and end episodes in the database."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, Double, bindparam, case, func, or_, text, update

from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.errors import EpisodeExistsError
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import postgresql, sqlite
from sqlbuffer.storage.episodes.keys import INSERT_EPISODE, EpisodeKey, Keyed
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.schema.server_clock import utc_now

free_episode = by_database(sqlite=sqlite.free_episode, postgresql=postgresql.free_episode)
advance = by_database(sqlite=sqlite.advance, postgresql=postgresql.advance)

# The id of an episode, its task, and the place of a step in it.
StepPlace = tuple[str | None, str, int | None]

_STATUS = text(
    "SELECT s.status FROM episodes p JOIN episode_states s ON s.id = p.id "
    "WHERE p.buffer_id = :buffer_id AND p.key = :key AND p.task_id = :task_id"
)
_FIRST = bindparam("first_", type_=BigInteger())
_RETURN: Any = bindparam("return_", type_=Double())
# For an open episode the column holds the sum of the changes by annotations so far.
_WHOLE_RETURN = case(
    (
        (episodes.c.status == "open") & episodes.c["return"].is_not(None),
        func.coalesce(_RETURN, 0.0) + episodes.c["return"],
    ),
    else_=_RETURN,
)
_END = (
    update(episodes)
    .where(
        episodes.c.buffer_id == bindparam("of_buffer"),
        episodes.c.key == bindparam("of_key"),
        episodes.c.task_id == bindparam("of_task"),
        # Or the episode was sent again after its steps had left.
        or_(
            episodes.c.status == "open",
            episodes.c.first_seq < _FIRST,
        ),
    )
    .values(
        {
            "status": bindparam("status_"),
            "length": bindparam("length_"),
            "return": _WHOLE_RETURN,
            "reward": bindparam("reward_"),
            "first_seq": _FIRST,
            "last_seq": bindparam("last_"),
            "final_arrays": bindparam("final_"),
            "ended_at": utc_now(),
        }
    )
)


def begin(connection: Connection, buffer_id: int, beginning: EpisodeStart) -> bool:
    """Make the row of an episode; return False if it existed."""
    values = {"buffer_id": buffer_id, **vars(beginning)}
    return bool(connection.execute(INSERT_EPISODE, values).rowcount)


def begin_whole(
    connection: Connection,
    buffer_id: int,
    key: EpisodeKey,
    first: Keyed,
    metas: Mapping[EpisodeKey, str],
) -> int | None:
    """Begin an episode that is stored whole; return the length of the one that is held instead.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        key: The user's id of the episode, and its task.
        first: Its first step.
        metas: The JSON of the user's metadata.

    Raises:
        EpisodeExistsError: The episode is open, or was aborted.
    """
    beginning = EpisodeStart(*key, first.agent_id, first.model_version, metas.get(key))
    while True:
        held = free_episode(connection, buffer_id, *key)
        if held is not None:
            status, length = held
            if status != "complete":
                raise exists(connection, buffer_id, *key)
            return length
        # If there was none before, another process may have begun it since.
        if begin(connection, buffer_id, beginning):
            return None


def exists(connection: Connection, buffer_id: int, key: str, task_id: str) -> EpisodeExistsError:
    """Return the error for an id that is taken, with the status that the views show."""
    given = {"buffer_id": buffer_id, "key": key, "task_id": task_id}
    status = connection.execute(_STATUS, given).scalar() or "open"
    return EpisodeExistsError(
        f"episode {key!r} of task {task_id!r} is stored already (it is {status}); take another "
        f"episode_id, or leave it out to have one made"
    )


def end(
    connection: Connection,
    buffer_id: int,
    endings: Iterable[EpisodeEnd],
    seqs: Mapping[StepPlace, int],
) -> None:
    """Store the ends of open episodes, in the transaction that stores their last steps.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        endings: Ends of the episodes.
        seqs: Numbers of steps of this batch.
    """

    def number(ending: EpisodeEnd, t: int, known: int | None) -> int | None:
        return seqs.get((ending.key, ending.task_id, t)) if known is None else known

    # In one order: two writers may end several of the same episodes.
    rows = [
        {
            "of_buffer": buffer_id,
            "of_key": ending.key,
            "of_task": ending.task_id,
            "status_": ending.status,
            "length_": ending.length,
            # SQLite has no NaN, which inf - inf is.
            "return_": None if ending.return_ != ending.return_ else ending.return_,
            "first_": number(ending, ending.first_t, ending.first_seq),
            "last_": number(ending, ending.last_t, ending.last_seq),
            "final_": ending.final_arrays,
            "reward_": ending.reward,
        }
        for ending in sorted(endings, key=lambda ending: (ending.key, ending.task_id))
    ]
    if rows:
        connection.execute(_END, rows)
