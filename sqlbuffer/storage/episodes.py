"""Episodes: their keys, beginnings, endings and rows."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    case,
    cast,
    column,
    false,
    func,
    select,
    table,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, PlacedEpisode
from sqlbuffer.encoding.records import NAMED_FACTS
from sqlbuffer.errors import EpisodeExistsError, EpisodeTakenError, FieldError
from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import experiences, sessions
from sqlbuffer.storage.database.errors import EPISODE_ENDED, ended_otherwise, episode_ended
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database, number_array
from sqlbuffer.storage.rollout_stats import rollout_stats
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of, utc_now
from sqlbuffer.storage.schema.metadata import (
    BYTES,
    JSON,
    KEY,
    SERIAL,
    TIME,
    UUID,
    metadata,
    partial_index,
)

episodes = Table(
    "episodes",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="key of the episode"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column(
        "key", KEY, nullable=False, comment="the user's episode_id, unique within buffer and task"
    ),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("agent_id", KEY, comment="the agent"),
    Column(
        "group_id",
        KEY,
        comment="rollouts with the same one belong together; null: those of the task",
    ),
    Column("parent_id", KEY, comment="episode_id of the episode that it came from"),
    Column(
        "status",
        Text,
        nullable=False,
        server_default="open",
        comment="open, complete or aborted; v_episodes also shows abandoned ones",
    ),
    Column("length", Integer, comment="steps"),
    Column(
        "return",
        Double,
        comment="sum of rewards; while the episode is open, the sum of changes by annotations",
    ),
    Column("reward", Double, comment="reward of the episode itself"),
    Column("first_seq", BigInteger, comment="seq of the first step"),
    Column("last_seq", BigInteger, comment="seq of the last step"),
    Column("model_version", BigInteger, comment="version of the model at its start"),
    Column("meta", JSON, comment="user's fields"),
    Column("final_arrays", BYTES, comment="the final observation"),
    Column(
        "started_at", TIME, nullable=False, server_default=utc_now(), comment="time when it began"
    ),
    Column("ended_at", TIME, comment="time when it ended"),
    Column("n_rows", BigInteger, comment="rows held, if eviction is by episode"),
    Column(
        "next_t",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="steps stored in chunks, which is the t of the next step",
    ),
    Column(
        "is_implied",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true: its last step ended it, and no call; a later step opens it again",
    ),
    Column(
        "by_arrival",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true: a row of it gave no step, so its rows are in the order of their arrival",
    ),
    Column(
        "was_used",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true: a lease that held steps of it was acknowledged",
    ),
    Column(
        "attempt",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="0: steps arrive without a writer; else the number of the writer that owns it",
    ),
    Column("writer", UUID, comment="random id of that writer"),
    Column(
        "writers",
        JSON,
        comment=(
            "who has continued it: attempt, host and process, time, and the place (t) where its "
            "steps begin"
        ),
    ),
    Column(
        "verdicts", JSON, comment="rewards that annotate_episode gave it: version, reward and time"
    ),
    Column("used_at", TIME, comment="when the first such lease was acknowledged"),
    Column(
        "item_id",
        BigInteger,
        comment="the work item whose rollout it is; null: it was not handed out",
    ),
    UniqueConstraint("buffer_id", "key", "task_id"),
    CheckConstraint("status IN ('open', 'complete', 'aborted')", name="status_known"),
    CheckConstraint(column("parent_id") != column("key"), name="parent_is_another"),
    # Numbers are unique: readers depend on them.
    sqlite_autoincrement=True,
)
Index(None, episodes.c.buffer_id, episodes.c.id)

# The status of every episode, also of abandoned ones: one that is open here is not abandoned.
episode_states = table(
    "episode_states",
    column("id", BigInteger()),
    column("buffer_id", Integer()),
    column("n_rows", BigInteger()),
    column("status", Text()),
)

# Finds the oldest held episode behind any number of those whose steps have left.
partial_index(
    "ix_episodes_held",
    episodes.c.buffer_id,
    episodes.c.id,
    where=episodes.c.n_rows > 0,
)

# Finds the episodes with held steps, without those whose steps have left.
Index(None, episodes.c.buffer_id, episodes.c.last_seq)
_HAS_PARENT = episodes.c.parent_id.is_not(None)
partial_index(
    "ix_episodes_parent",
    episodes.c.buffer_id,
    episodes.c.parent_id,
    episodes.c.id,
    where=_HAS_PARENT,
)


_SQLITE_ADVANCE = """
UPDATE episodes SET next_t = g.end_t
FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS t,
    json_extract(value, '$[2]') AS end_t FROM json_each(?)) AS g
WHERE episodes.id = g.id AND episodes.next_t = g.t RETURNING episodes.id
"""


def _sqlite_free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    """Free the id of an ended episode without steps; else return its status and length."""
    episode = connection.exec_driver_sql(
        "SELECT id, status, length FROM episodes WHERE buffer_id = ? AND key = ? AND task_id = ?",
        (buffer_id, key, task_id),
    ).one_or_none()
    if episode is None:
        return None
    number, status, length = episode
    is_held = connection.exec_driver_sql(
        "SELECT 1 FROM step_numbers WHERE buffer_id = ? AND episode_id = ? "
        "AND +seq > (SELECT low_seq FROM v_windows WHERE buffer_id = ?) LIMIT 1",
        (buffer_id, number, buffer_id),
    ).one_or_none()
    if status == "open" or is_held:
        return status, length
    connection.exec_driver_sql("DELETE FROM episodes WHERE id = ?", (number,))
    return None


def _sqlite_advance(connection: Connection, spans: Mapping[int, tuple[int, int]]) -> set[int]:
    """Append steps, {episode: (first place, end)}; return the episodes for which they were next."""
    spans_json = json.dumps([(id_, *span) for id_, span in spans.items()])
    return set(connection.exec_driver_sql(_SQLITE_ADVANCE, (spans_json,)).scalars())


# The number of an episode; the place of a step in it, and whether the step ends an episode.
LastStep = tuple[int, int, bool]
_SQLITE_SETTLE = "INSERT INTO new_episode_steps (id, t, ends) VALUES (?, ?, ?)"


def sqlite_settle_episodes(connection: Connection, last_steps: Sequence[LastStep]) -> None:
    """End or open episodes that got steps; on PostgreSQL triggers do so.

    Args:
        connection: The transaction.
        last_steps: Of each the last of the new steps, in the order of the episode.

    Raises:
        EpisodeEndedError: One takes no more steps.
    """
    cursor = driver_of(connection)
    for last_step in last_steps:
        try:
            cursor.execute(_SQLITE_SETTLE, last_step)
        except sqlite3.IntegrityError as error:
            if EPISODE_ENDED not in str(error):
                raise
            query = "SELECT key, task_id, status FROM episodes WHERE id = ?"
            raise episode_ended(*cursor.execute(query, last_step[:1]).fetchone()) from error


_POSTGRESQL_ADVANCE = """
UPDATE episodes e SET next_t = g.end_t
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS g(id, t, end_t)
WHERE e.id = g.id AND e.next_t = g.t RETURNING e.id
"""


def _postgresql_free_episode(
    connection: Connection, buffer_id: int, key: str, task_id: str
) -> tuple[str, int | None] | None:
    statement = "SELECT status, length FROM sqlbuffer_free_episode_v1(%s::integer, %s, %s)"
    values = (buffer_id, key, task_id)
    ((status, length),) = driver_of(connection).execute(statement, values)
    return None if status is None else (status, length)


def _postgresql_advance(connection: Connection, spans: Mapping[int, tuple[int, int]]) -> set[int]:
    firsts, ends = zip(*spans.values(), strict=True)
    values = number_array(spans), number_array(firsts), number_array(ends)
    return {id_ for (id_,) in driver_of(connection).execute(_POSTGRESQL_ADVANCE, values)}


EpisodeKey = tuple[str, str]  # the user's id and the task
# Of the episodes that a writer owns: all others end with their last step.
Beginnings = Mapping[EpisodeKey, EpisodeStart]

# Both databases know this form. The call sorts by key, so that two writers of the same new keys
# cannot deadlock.
INSERT_EPISODE = text(
    "INSERT INTO episodes "
    "(buffer_id, key, task_id, agent_id, group_id, parent_id, model_version, meta, attempt, "
    "writer, item_id) VALUES (:buffer_id, :key, :task_id, :agent_id, :group_id, :parent_id, "
    ":model_version, :meta, :attempt, :writer, :item_id) "
    "ON CONFLICT DO NOTHING"
).bindparams(bindparam("writer", type_=UUID))
_INSERT_ONE = text(f"{INSERT_EPISODE.text} RETURNING id")
# Made once: building them again takes several times as long as running them.
_KEYS, _TASKS = bindparam("keys", type_=KeyList()), bindparam("tasks", type_=KeyList())
# Locked in the order of their ids, as by all who change episodes.
_EPISODES = (
    select(
        episodes.c.key, episodes.c.task_id, episodes.c.id, episodes.c.status,
        episodes.c.attempt, episodes.c.writer, episodes.c.reward, episodes.c.group_id,
        episodes.c.parent_id, episodes.c.verdicts.is_not(None).label("is_judged"),
    )
    .where(
        episodes.c.buffer_id == bindparam("buffer_id"),
        is_one_of(episodes.c.key, _KEYS),
        is_one_of(episodes.c.task_id, _TASKS),
    )
    .order_by(episodes.c.id)
    .with_for_update(key_share=True)
)  # fmt: skip
_NEWEST_WRITER = select(
    episodes.c.key, episodes.c.task_id, episodes.c.attempt, cast(episodes.c.writers, Text()),
    episodes.c.item_id,
).where(episodes.c.id == bindparam("of_id"))  # fmt: skip
_SESSIONS = select(sessions.c.key, sessions.c.id).where(
    sessions.c.buffer_id == bindparam("buffer_id"), is_one_of(sessions.c.key, _KEYS)
)


# The groups and parents that steps name, by the name of the fact and by the episode.
NamedFacts = Mapping[str, Mapping[EpisodeKey, str]]
NONE_NAMED: NamedFacts = {}
_KEYS_OF_FACTS = dict(zip(NAMED_FACTS, ("group_key", "parent_key"), strict=True))


_SQLITE_PUT = (
    "INSERT INTO episodes (buffer_id, key, task_id, agent_id, group_id, parent_id, model_version, "
    "meta, attempt, writer, next_t) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING RETURNING id"
)
_SQLITE_OF_KEY = (
    "SELECT id, status, attempt, writer, next_t, group_id, parent_id FROM episodes "
    "WHERE buffer_id = ? AND key = ? AND task_id = ?"
)


def sqlite_put_episodes(
    connection: Connection, buffer_id: int, placed: Sequence[PlacedEpisode]
) -> list[int] | None:
    """Find or make episodes, and append the places of their new steps; return their numbers.

    None: one of them is not as its writer expects, and nothing was changed. On PostgreSQL the
    function `sqlbuffer_put_episodes_v1` does so.
    """
    driver, ids = driver_of(connection), []
    made: list[tuple[int]] = []
    continued: list[tuple[int, int]] = []
    for episode in placed:
        key = episode.key, episode.task_id
        row = None
        if episode.begins:
            values = (
                buffer_id, episode.key, episode.task_id, episode.agent_id, episode.group_id,
                episode.parent_id, episode.model_version, episode.meta, episode.attempt,
                episode.writer, episode.end_t,
            )  # fmt: skip
            row = driver.execute(_SQLITE_PUT, values).fetchone()
            made += [row] if row is not None else ()
        if row is None:
            row = driver.execute(_SQLITE_OF_KEY, (buffer_id, *key)).fetchone()
            if row is None or not _is_expected(episode, *row[1:]):
                driver.executemany("DELETE FROM episodes WHERE id = ?", made)
                return None
            continued.append((episode.end_t, row[0]))
        ids.append(row[0])
    driver.executemany("UPDATE episodes SET next_t = ? WHERE id = ?", continued)
    return ids


def _is_expected(
    episode: PlacedEpisode,
    status: str,
    attempt: int,
    writer: str | None,
    next_t: int,
    group_id: str | None,
    parent_id: str | None,
) -> bool:
    """Return True if a stored episode takes the steps, and its end if it ends."""
    if episode.writer is None:
        is_own = episode.attempt == 0 and attempt <= 1
    else:
        is_own = (attempt, writer) == (episode.attempt, episode.writer)
    return (
        is_own
        and next_t == episode.t
        and (episode.status is None or status == "open")
        and episode.group_id in (None, group_id)
        and episode.parent_id in (None, parent_id)
    )


class Keyed(Protocol):
    """A row or a chunk, with the name of its episode."""

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
    def group_key(self) -> str | None:
        """The user's id of the group of its episode."""

    @property
    def parent_key(self) -> str | None:
        """The user's id of the episode that its episode came from."""


def episode_ids(
    connection: Connection,
    buffer_id: int,
    records: Sequence[Keyed],
    beginnings: Beginnings | None,
    made: set[int] | None = None,
) -> list[int | None]:
    """Return the number of each record's episode, or None without one.

    New episodes are made.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        records: The records.
        beginnings: Those that a writer owns; None: steps are restored, whichever writer had them.
        made: Gets the numbers of the episodes that this transaction has made.
    """
    first_of: dict[EpisodeKey, Keyed] = {}
    named: dict[str, dict[EpisodeKey, str]] = {fact: {} for fact in NAMED_FACTS}
    for record in records:
        if record.episode_key is not None:
            key = record.episode_key, record.task_id
            first_of.setdefault(key, record)
            for fact, attribute in _KEYS_OF_FACTS.items():
                value = getattr(record, attribute)
                if value is not None:
                    check_named(fact, *key, named[fact].setdefault(key, value), value)
    if not first_of:
        return [None] * len(records)
    known = locked_episodes(connection, buffer_id, first_of, beginnings, named)
    unknown = sorted(key for key in first_of if key not in known)
    _check_items(unknown, beginnings)
    new_episodes = [
        {
            "buffer_id": buffer_id,
            "key": key[0],
            "task_id": key[1],
            "agent_id": first_of[key].agent_id,
            "model_version": first_of[key].model_version,
            **{fact: named[fact].get(key) for fact in NAMED_FACTS},
            **_owner((beginnings or {}).get(key)),
        }
        for key in unknown
    ]
    number = (
        connection.execute(_INSERT_ONE, new_episodes[0]).scalar()
        if len(new_episodes) == 1
        else None
    )
    if number is not None:
        known[unknown[0]] = number
    elif new_episodes:
        # As many as are missing: no other transaction has made one of them meanwhile.
        n_made = connection.execute(INSERT_EPISODE, new_episodes).rowcount
        known = locked_episodes(connection, buffer_id, first_of, beginnings, named)
        unknown = unknown if n_made == len(new_episodes) else []
    if made is not None:
        made.update(known[key] for key in unknown if number is not None or len(new_episodes) > 1)
    return [None if r.episode_key is None else known[r.episode_key, r.task_id] for r in records]


def _check_items(unknown: Iterable[EpisodeKey], beginnings: Beginnings | None) -> None:
    """Raise EpisodeTakenError for an episode of a work item that is not there any more."""
    for key in unknown:
        if beginnings and key in beginnings and beginnings[key].item_id is not None:
            raise _deleted(*key)


def _owner(beginning: EpisodeStart | None) -> dict[str, Any]:
    """Return the values of an episode that its writer gives, if it has one."""
    if beginning is None:
        return {"meta": None, "attempt": 0, "writer": None, "item_id": None}
    values = {name: getattr(beginning, name) for name in ("meta", "attempt", "writer", "item_id")}
    named = {fact: getattr(beginning, fact) for fact in NAMED_FACTS}
    return values | {fact: value for fact, value in named.items() if value is not None}


def check_named(fact: str, key: str, task_id: str, stored: str | None, given: str) -> None:
    """Raise FieldError if a step names another group or parent than that of its episode."""
    if stored == given:
        return
    what, verb = ("group", "belongs to") if fact == "group_id" else ("parent", "has")
    of_stored = f"no {what}" if stored is None else f"{what} {stored!r}"
    raise FieldError(
        f"{fact}: episode {key!r} of task {task_id!r} {verb} {of_stored}, and not "
        f"{'to ' if fact == 'group_id' else ''}{given!r}; its first step decides"
    )


def session_ids(
    connection: Connection, buffer_id: int, keys: Sequence[str | None]
) -> list[int | None]:
    """Return the number of each session, or None for none; new sessions are made."""
    distinct = sorted({key for key in keys if key is not None})
    if not distinct:
        return [None] * len(keys)
    known = _known_sessions(connection, buffer_id, distinct)
    new_sessions = [{"buffer_id": buffer_id, "key": key} for key in distinct if key not in known]
    if new_sessions:
        connection.execute(INSERT_SESSION, new_sessions)
        known = _known_sessions(connection, buffer_id, distinct)
    return [None if key is None else known[key] for key in keys]


def locked_episodes(
    connection: Connection,
    buffer_id: int,
    keys: Iterable[EpisodeKey],
    beginnings: Beginnings | None,
    named: NamedFacts = NONE_NAMED,
) -> dict[EpisodeKey, int]:
    """Return the numbers of the episodes that exist; until the transaction ends nobody else changes
    them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        keys: The episodes.
        beginnings: See `episode_ids`.
        named: Groups and parents that steps of them name.

    Raises:
        EpisodeTakenError: Another writer has continued one of them.
        FieldError: One belongs to another group or has another parent.
    """
    wanted = set(keys)
    parameters = {
        "buffer_id": buffer_id,
        "keys": list({key for key, _ in wanted}),
        "tasks": list({task_id for _, task_id in wanted}),
    }
    known: dict[EpisodeKey, int] = {}
    for episode in connection.execute(_EPISODES, parameters):
        name = episode.key, episode.task_id
        known[name] = episode.id
        for fact, of_names in named.items():
            if name in of_names:
                check_named(fact, *name, getattr(episode, fact), of_names[name])
        if beginnings is not None and name in wanted:
            beginning = beginnings.get(name)
            if _is_other(beginning, episode.attempt, episode.writer):
                raise _taken(connection, episode.id, beginning)
    return known


def _is_other(beginning: EpisodeStart | None, attempt: int, writer: str | None) -> bool:
    """Return True if an episode belongs to another writer than the one that began so."""
    if beginning is None:
        return attempt > 1
    is_whole = beginning.writer is None  # stored in one transaction
    return not is_whole and (attempt, writer) != (beginning.attempt, beginning.writer)


def _taken(connection: Connection, id_: int, beginning: EpisodeStart | None) -> EpisodeTakenError:
    """Return the error for a writer that another one has replaced."""
    stored = connection.execute(_NEWEST_WRITER, {"of_id": id_}).one()
    key, task_id, attempt, writers, item_id = stored
    newest = (json.loads(writers) if writers else [{}])[-1]
    who = f"by {newest['holder']} at {newest['at']} " if newest else ""
    own = "names no attempt" if beginning is None else f"is attempt {beginning.attempt}"
    if item_id is not None:
        return EpisodeTakenError(
            f"episode {key!r} of task {task_id!r} belongs to a work item whose lease ran out; it "
            f"was taken again {who}as attempt {attempt}, and nothing of this write, which {own}, "
            f"is stored; take another item, and call heartbeat() in time",
            [(key, task_id)],
        )
    return EpisodeTakenError(
        f"episode {key!r} of task {task_id!r} was continued {who}as attempt {attempt}; this write "
        f"{own}, and nothing of it is stored; to write on here, continue the episode again with "
        f"resume=True",
        [(key, task_id)],
    )


def _deleted(key: str, task_id: str) -> EpisodeTakenError:
    """Return the error for a writer of a work item whose episode was deleted."""
    return EpisodeTakenError(
        f"episode {key!r} of task {task_id!r} belongs to a work item, and was deleted; nothing of "
        f"this write is stored; take another item",
        [(key, task_id)],
    )


def _known_sessions(connection: Connection, buffer_id: int, keys: Iterable[str]) -> dict[str, int]:
    parameters = {"buffer_id": buffer_id, "keys": list(keys)}
    return dict(connection.execute(_SESSIONS, parameters).all())


free_episode = by_database(sqlite=_sqlite_free_episode, postgresql=_postgresql_free_episode)
advance = by_database(sqlite=_sqlite_advance, postgresql=_postgresql_advance)

_STATUS = text(
    "SELECT s.status FROM episodes p JOIN episode_states s ON s.id = p.id "
    "WHERE p.buffer_id = :buffer_id AND p.key = :key AND p.task_id = :task_id"
)
_ROLLOUT = rollout_stats.c


def of_rollout(name: str) -> Any:
    """Return a value that the statistics have of the steps of an episode."""
    is_episode = (
        (_ROLLOUT.buffer_id == episodes.c.buffer_id)
        & (_ROLLOUT.task_id == episodes.c.task_id)
        & (_ROLLOUT.episode_id == episodes.c.id)
    )
    return select(_ROLLOUT[name]).where(is_episode).scalar_subquery()


_ROWS_WITH_PLACE = (
    select(func.max(experiences.c.t) + 1)
    .where(
        experiences.c.buffer_id == episodes.c.buffer_id,
        experiences.c.episode_id == episodes.c.id,
    )
    .scalar_subquery()
)
# The last step of an episode has the place before its length, also where steps were deleted.
LENGTH = case(
    (episodes.c.next_t > 0, episodes.c.next_t),
    else_=func.coalesce(_ROWS_WITH_PLACE, of_rollout("length"), 0),
)
ENDED = {
    "length": LENGTH,
    **{name: of_rollout(name) for name in ("return", "first_seq", "last_seq")},
    "is_implied": False,
    "ended_at": utc_now(),
}


def reward_of_end(reward: Any) -> Any:
    """Return the reward that an episode has after an end: a verdict that came before counts."""
    return case(
        (episodes.c.verdicts.is_not(None), episodes.c.reward),
        else_=func.coalesce(reward, episodes.c.reward),
    )


_END = (
    update(episodes)
    .where(
        episodes.c.buffer_id == bindparam("of_buffer"),
        episodes.c.key == bindparam("of_key"),
        episodes.c.task_id == bindparam("of_task"),
        episodes.c.status == "open",
    )
    .values(
        {
            "status": bindparam("status_"),
            "reward": reward_of_end(bindparam("reward_", type_=Double())),
            "final_arrays": func.coalesce(
                bindparam("final_", type_=BYTES), episodes.c.final_arrays
            ),
            **ENDED,
        }
    )
)


def of_keys(buffer_id: int, keys: Sequence[EpisodeKey]) -> Any:
    """Return the select of the number, the task and the status of episodes, in order."""
    has_key = tuple_(episodes.c.key, episodes.c.task_id).in_(list(keys))
    return (
        select(episodes.c.id, episodes.c.task_id, episodes.c.status)
        .where(episodes.c.buffer_id == buffer_id, has_key)
        .order_by(episodes.c.id)
    )


class EpisodeFacts(NamedTuple):
    """What is known of an episode next to its steps.

    Attributes:
        status: `open`, `complete`, `aborted` or `abandoned`; None if it is not known.
        reward: Reward of the episode itself; None without one.
        meta: Its meta, as JSON text; None without one.
        total: Sum of the rewards of its steps, also of those that have left; None without any.
        length: Number of its steps when it ended; None while it is open.
    """

    status: str | None
    reward: float | None = None
    meta: str | None = None
    total: float | None = None
    length: int | None = None


# Rows of one statement of `facts_of`: SQLite admits a limited number of parameters.
_MOST_KEYS = 500


def facts_of(
    connection: Connection, buffer_id: int, keys: Iterable[EpisodeKey]
) -> dict[EpisodeKey, EpisodeFacts]:
    """Return what is known of episodes; those that have left are missing."""
    facts = {}
    ordered = sorted(set(keys))
    for start in range(0, len(ordered), _MOST_KEYS):
        is_one = tuple_(episodes.c.key, episodes.c.task_id).in_(ordered[start : start + _MOST_KEYS])
        known = select(
            episodes.c.key,
            episodes.c.task_id,
            episode_states.c.status,
            episodes.c.reward,
            cast(episodes.c.meta, Text),
            of_rollout("return"),
            episodes.c.length,
        ).where(episodes.c.buffer_id == buffer_id, is_one, episode_states.c.id == episodes.c.id)
        for key, task_id, *values in connection.execute(known):
            facts[key, task_id] = EpisodeFacts(*values)
    return facts


_TASKS_OF_KEYS = select(episodes.c.key, episodes.c.task_id).where(
    episodes.c.buffer_id == bindparam("buffer_id"),
    is_one_of(episodes.c.key, bindparam("keys", type_=KeyList())),
)


def with_tasks(
    connection: Connection, buffer_id: int, named: Sequence[tuple[str, str | None]]
) -> list[EpisodeKey]:
    """Return episodes with their tasks: the only one that has such an episode, if none is named.

    Raises:
        FieldError: Several tasks have one.
    """
    keys = [key for key, task in named if task is None]
    tasks_by_key: dict[str, list[str]] = {}
    if keys:
        parameters = {"buffer_id": buffer_id, "keys": keys}
        for key, task in connection.execute(_TASKS_OF_KEYS, parameters):
            tasks_by_key.setdefault(key, []).append(task)
    for key, tasks in tasks_by_key.items():
        if len(tasks) > 1:
            raise several_tasks(key, tasks)
    only_tasks = {key: task for key, (task,) in tasks_by_key.items()}
    completed = ((key, only_tasks.get(key) if task is None else task) for key, task in named)
    return [(key, task) for key, task in completed if task is not None]


def several_tasks(key: str, tasks: Iterable[str]) -> FieldError:
    """Return the error of an episode that was named without its task."""
    ordered = sorted(tasks)
    shown = ", ".join(map(repr, ordered[:5]))
    return FieldError(
        f"episode {key!r}: {len(ordered)} tasks have an episode with this id ({shown}); "
        f"name its task"
    )


def begin(connection: Connection, buffer_id: int, beginning: EpisodeStart) -> bool:
    """Make the row of an episode; return False if it existed."""
    values = {"buffer_id": buffer_id, **beginning._asdict()}
    return bool(connection.execute(INSERT_EPISODE, values).rowcount)


def begin_whole(
    connection: Connection,
    buffer_id: int,
    key: EpisodeKey,
    first: Keyed,
    beginnings: Beginnings,
) -> int | None:
    """Begin an episode that is stored whole; return the length of the one that is held instead.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        key: The user's id of the episode, and its task.
        first: Its first step.
        beginnings: Its beginning.

    Raises:
        EpisodeExistsError: The episode is open, or was aborted.
    """
    beginning = beginnings[key]._replace(agent_id=first.agent_id, model_version=first.model_version)
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
    parameters = {"buffer_id": buffer_id, "key": key, "task_id": task_id}
    status = connection.execute(_STATUS, parameters).scalar() or "open"
    return EpisodeExistsError(
        f"episode {key!r} of task {task_id!r} is stored already (it is {status}); take another "
        f"episode_id, or leave it out to have one made"
    )


def _sqlite_end(
    connection: Connection,
    buffer_id: int,
    endings: Sequence[EpisodeEnd],
    beginnings: Beginnings,
) -> None:
    """Store the ends of open episodes, in the transaction that stores their last steps.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        endings: The ends.
        beginnings: The beginnings of these episodes.

    Raises:
        EpisodeEndedError: One has ended with another status or reward.
        EpisodeTakenError: Another writer has continued one of them.
    """
    of_endings = {(ending.key, ending.task_id): ending for ending in endings}
    if any(beginnings[key].writer is not None for key in of_endings if key in beginnings):
        locked_episodes(connection, buffer_id, of_endings, beginnings)
    if sqlite_end_open(connection, buffer_id, endings) < len(endings):
        _check_ends(connection, buffer_id, of_endings)


def sqlite_end_open(connection: Connection, buffer_id: int, endings: Sequence[EpisodeEnd]) -> int:
    """Store the ends of those episodes that are open; return how many there were."""
    statement, names, constants = _sqlite_end_statement()
    rows = []
    for ending in endings:
        values = {
            "of_buffer": buffer_id,
            "of_key": ending.key,
            "of_task": ending.task_id,
            "status_": ending.status,
            "final_": ending.final_arrays,
            "reward_": ending.reward,
        }
        rows.append([values[name] if name in values else constants[name] for name in names])
    return int(driver_of(connection).executemany(statement, rows).rowcount)


@cache
def _sqlite_end_statement() -> tuple[str, Sequence[str], Mapping[str, Any]]:
    """Return `_END` for the driver: its text, the names of its values in order, and constants."""
    compiled = _END.compile(dialect=sqlite_dialect())
    return str(compiled), compiled.positiontup or (), compiled.params


def _check_ends(
    connection: Connection, buffer_id: int, of_endings: Mapping[EpisodeKey, EpisodeEnd]
) -> None:
    """Raise EpisodeEndedError if an episode has another end than the one that is stored again."""
    keys, tasks = (list(set(names)) for names in zip(*of_endings, strict=True))
    parameters = {"buffer_id": buffer_id, "keys": keys, "tasks": tasks}
    for episode in connection.execute(_EPISODES, parameters):
        ending = of_endings.get((episode.key, episode.task_id))
        if ending is None:
            continue
        if ending.status != episode.status:
            raise episode_ended(episode.key, episode.task_id, episode.status)
        if ending.reward not in (None, episode.reward) and not episode.is_judged:
            difference = f"reward {episode.reward}, and not {ending.reward}"
            raise ended_otherwise(episode.key, episode.task_id, difference)


_POSTGRESQL_END = (
    "SELECT taken_id, ended_place, ended_status FROM sqlbuffer_end_episodes_v1(%s::integer, "
    "%s::text[], %s::text[], %s::text[], %s::double precision[], %s::bytea[], %s::integer[], "
    "%s::uuid[])"
)


def _postgresql_end(
    connection: Connection,
    buffer_id: int,
    endings: Sequence[EpisodeEnd],
    beginnings: Beginnings,
) -> None:
    """Store ends; see `_sqlite_end`. To plan the statement would take longer than to run it."""
    owners = [beginnings.get((ending.key, ending.task_id)) for ending in endings]
    columns = (
        [ending.key for ending in endings],
        [ending.task_id for ending in endings],
        [ending.status for ending in endings],
        [ending.reward for ending in endings],
        [ending.final_arrays for ending in endings],
        [None if owner is None else owner.attempt for owner in owners],
        [None if owner is None else owner.writer for owner in owners],
    )
    rows = driver_of(connection).execute(_POSTGRESQL_END, (buffer_id, *columns))
    ((taken_id, place, status),) = rows
    if taken_id is not None:
        raise _taken(connection, taken_id, owners[place - 1])
    if status is not None:
        ending = endings[place - 1]
        _check_ends(connection, buffer_id, {(ending.key, ending.task_id): ending})


end = by_database(sqlite=_sqlite_end, postgresql=_postgresql_end)
