"""Sums over the steps of each rollout, and the spread of the rollouts of a group.

Triggers keep the groups. On PostgreSQL one transaction at a time does so for a buffer. Transactions
that find it busy leave their changes in `group_changes`, for the next one.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    Table,
    bindparam,
    case,
    delete,
    false,
    func,
    literal_column,
    text,
    update,
)

from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.storage.chunks.numbered_chunks import NumberedChunks
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database, insert_columns
from sqlbuffer.storage.schema.metadata import KEY, SERIAL, buffer_key, metadata

# Before rollout_stats: rows of a dropped buffer are deleted here first, so that no trigger
# subtracts from them.
group_stats = Table(
    "group_stats",
    metadata,
    buffer_key(),
    Column("group_id", KEY, primary_key=True, comment="group_id of its episodes, or their task"),
    Column("n_rollouts", BigInteger, nullable=False, comment="its episodes, without aborted ones"),
    Column(
        "n_rewards",
        BigInteger,
        nullable=False,
        comment=("those with a finite reward: of the episode itself, or else the sum of its steps"),
    ),
    Column("mean", Double, comment="mean of these rewards"),
    Column("m2", Double, nullable=False, comment="sum of their squared differences from the mean"),
    Column("min", Double, comment="smallest of them"),
    Column("max", Double, comment="largest of them"),
    Column(
        "spread",
        Double,
        comment="largest minus smallest; null if an episode has no such reward",
    ),
    info={"is_vacuumed": True, "learner_may": "DELETE"},
)
Index(None, group_stats.c.buffer_id, group_stats.c.spread, group_stats.c.group_id)

# Here no writer waits for another one.
group_changes = Table(
    "group_changes",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="key of the change"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("group_id", KEY, nullable=False, comment="the group"),
    Column(
        "n_rollouts",
        Integer,
        comment=(
            "1: an episode counts from now on; -1: no longer; 0: its reward changed; null: rewards "
            "of rows of this group or task in the queue may have changed"
        ),
    ),
    Column("was", Double, comment="its reward before; null if it had none"),
    Column("now", Double, comment="its reward now; null if it has none"),
    info={"is_vacuumed": True, "learner_may": "DELETE"},
)
Index(None, group_changes.c.buffer_id, group_changes.c.group_id)

# A claim that needs a spread reads each group once after a change, and keeps what it found here.
queue_groups = Table(
    "queue_groups",
    metadata,
    buffer_key(),
    Column("key", KEY, primary_key=True, comment="a task or a group of rows in the queue"),
    Column(
        "task_bound",
        Double,
        nullable=False,
        server_default=text("1e308"),
        comment=(
            "rewards of the rollouts of the task differ at most by this; 1e308: unknown; "
            "-1: no rollout waits"
        ),
    ),
    Column(
        "group_bound",
        Double,
        nullable=False,
        server_default=text("1e308"),
        comment="the same of the group",
    ),
    Column(
        "version",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="differs after each change: the transaction on PostgreSQL",
    ),
    info={
        "is_vacuumed": True,
        "learner_may": "INSERT, UPDATE (task_bound, group_bound, version), DELETE",
    },
)
Index(None, queue_groups.c.buffer_id, queue_groups.c.task_bound, queue_groups.c.key)
Index(None, queue_groups.c.buffer_id, queue_groups.c.group_bound, queue_groups.c.key)
UNKNOWN_BOUND = 1e308

rollout_stats = Table(
    "rollout_stats",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column(
        "episode_id",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number of the episode; 0: the steps of the task without an episode",
    ),
    Column(
        "part",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        server_default=text("0"),
        comment=(
            "0; for steps without an episode on PostgreSQL, a part of them: writers "
            "that write one task at the same time have a part each"
        ),
    ),
    Column(
        "length", BigInteger, nullable=False, comment="steps written, also those that were evicted"
    ),
    Column(
        "return",
        Double,
        comment="sum of their rewards, annotations applied; null if none has a reward",
    ),
    Column("first_seq", BigInteger, nullable=False, comment="seq of the first step"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last step"),
    Column(
        "group_id",
        KEY,
        nullable=False,
        comment="its group: group_id of the episode, or else the task",
    ),
    Column("reward", Double, comment="reward of the episode itself"),
    Column(
        "is_aborted",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true: the episode was aborted, and does not count in its group",
    ),
    info={
        "is_vacuumed": True,
        "learner_may": 'UPDATE (length, "return"), DELETE',
    },
)
_own = rollout_stats.c
# The reward of a rollout: that of the episode itself, or else the sum of its steps' rewards.
rollout_reward = func.coalesce(_own.reward, _own["return"])
# Pages continue by these indexes: each ends with a column that is unique to a rollout.
Index(None, _own.buffer_id, _own.first_seq)
Index(None, _own.buffer_id, _own.length, _own.first_seq)
Index("ix_rollout_stats_reward", _own.buffer_id, rollout_reward, _own.first_seq)
Index("ix_rollout_stats_group", _own.buffer_id, _own.group_id, rollout_reward, _own.first_seq)


# The sum of such numbers never overflows, which would be an error on PostgreSQL. Larger ones count
# as infinite, in the triggers too.
LARGEST = 1e290
# Rewards from here on are not counted in their group, where they are squared.
LARGEST_OF_GROUP = 1e100


class AddedSteps:
    """Adds up steps by rollout.

    Attributes:
        rollouts: For each task and number of the episode (0 without one): number of steps, sum of
            their rewards (None if none has one), and numbers of the first and the last step.
    """

    def __init__(self) -> None:
        self.rollouts: dict[tuple[str, int], list[Any]] = {}

    @classmethod
    def of_chunks(cls, numbered: NumberedChunks) -> "AddedSteps":
        """Return the sums of the steps of chunks."""
        chunks, firsts = numbered.chunks, numbered.first_seqs
        lengths, totals = chunks.column("n_steps"), chunks.once(totals_of_rewards)
        lasts = [first + n - 1 for first, n in zip(firsts, lengths, strict=True)]
        episodes_or_0 = [episode_id or 0 for episode_id in numbered.episode_ids]
        keys = list(zip(chunks.column("task_id"), episodes_or_0, strict=True))
        added, distinct = cls(), set(keys)
        if len(distinct) == 1:
            held = [total for total in totals if total is not None]
            added.rollouts[keys[0]] = [
                sum(lengths), sum(held) if held else None, firsts[0], lasts[-1],
            ]  # fmt: skip
            return added
        sums = zip(lengths, totals, firsts, lasts, strict=True)
        for key, of_chunk in zip(keys, sums, strict=True):
            added._add(key, *of_chunk)
        return added

    @classmethod
    def of_rows(
        cls,
        task_ids: Iterable[str],
        episode_ids: Iterable[int | None],
        rewards: Iterable[float | None],
        seqs: Sequence[int],
    ) -> "AddedSteps":
        """Return the sums of rows, given as one value of each argument for each row."""
        added = cls()
        for task_id, episode_id, reward, seq in zip(
            task_ids, episode_ids, rewards, seqs, strict=True
        ):
            # NaN means that there is no reward.
            total = None if reward is None or reward != reward else within_range(reward)
            added._add((task_id, episode_id or 0), 1, total, seq, seq)
        return added

    def _add(
        self, key: tuple[str, int], n: int, total: float | None, first_seq: int, last_seq: int
    ) -> None:
        sums = self.rollouts.get(key)
        if sums is None:
            self.rollouts[key] = [n, total, first_seq, last_seq]
            return
        sums[0] += n
        if total is not None:
            sums[1] = total if sums[1] is None else sums[1] + total
        sums[2] = min(sums[2], first_seq)
        sums[3] = max(sums[3], last_seq)


def within_range(value: float) -> float:
    """Return a number, or an infinity in place of one that is too large to be added up."""
    return math.copysign(math.inf, value) if abs(value) > LARGEST else value


def totals_of_rewards(chunks: ChunkColumns) -> list[float | None]:
    """Return the sum of the rewards of each chunk; None if no step has one."""
    column = chunks.column("reward")
    if set(map(type, column)) == {np.ndarray}:
        starts = list(accumulate(map(len, column[:-1]), initial=0))
        with np.errstate(invalid="ignore", over="ignore"):
            totals: list[Any] = np.add.reduceat(np.concatenate(column), starts).tolist()
        if all(-LARGEST < total < LARGEST for total in totals):
            return totals
    return list(map(_total, column))


def _total(rewards: Any) -> float | None:
    """Return the sum of the rewards of a chunk; None if no step has one."""
    if rewards is None:
        return None
    values = np.array(rewards, np.float64)  # None is NaN
    with np.errstate(invalid="ignore"):  # one infinity minus another
        total = float(values.sum())
    if abs(total) < LARGEST:
        return total
    values = values[~np.isnan(values)]
    return sum(map(within_range, values.tolist())) if len(values) else None


# The same as in the triggers for plain SQL; SQLite stores null for NaN.
_SQLITE_ADD = """
ON CONFLICT (buffer_id, task_id, episode_id, part) DO UPDATE
SET length = length + excluded.length,
    "return" = CASE WHEN excluded."return" IS NULL THEN "return"
        ELSE coalesce("return", 0) + excluded."return" END,
    first_seq = min(first_seq, excluded.first_seq), last_seq = max(last_seq, excluded.last_seq)
"""


_SQLITE_ADD_EPISODE = f"""
INSERT INTO rollout_stats (buffer_id, task_id, episode_id, length, "return", first_seq, last_seq,
    group_id, reward, is_aborted)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, coalesce(group_id, task_id), reward, status = 'aborted'
FROM episodes WHERE id = ?3
{_SQLITE_ADD}
"""


def sqlite_add_chunks(connection: Connection, buffer_id: int, numbered: NumberedChunks) -> None:
    """Add the steps of chunks to their rollouts."""
    chunks, firsts = numbered.chunks, numbered.first_seqs
    tasks, lengths = chunks.column("task_id"), chunks.column("n_steps")
    if any(numbered.episode_ids) or len(set(tasks)) < len(tasks):
        sqlite_add_steps(connection, buffer_id, AddedSteps.of_chunks(numbered))
        return
    lasts = [first + n - 1 for first, n in zip(firsts, lengths, strict=True)]
    sums = (lengths, chunks.once(totals_of_rewards), firsts, lasts)
    _sqlite_add_tasks(connection, buffer_id, tasks, sums)


def sqlite_add_steps(connection: Connection, buffer_id: int, added: AddedSteps) -> None:
    """Add steps to their rollouts; triggers keep the groups."""
    of_tasks = {key: sums for key, sums in added.rollouts.items() if not key[1]}
    if of_tasks:
        sums = tuple(zip(*of_tasks.values(), strict=True))
        _sqlite_add_tasks(connection, buffer_id, [task for task, _ in of_tasks], sums)
    if len(of_tasks) < len(added.rollouts):
        of_episodes = [(buffer_id, *key, *sums) for key, sums in added.rollouts.items() if key[1]]
        driver_of(connection).executemany(_SQLITE_ADD_EPISODE, of_episodes)


def _sqlite_add_tasks(
    connection: Connection,
    buffer_id: int,
    tasks: Sequence[str],
    sums: tuple[Sequence[Any], ...],
) -> None:
    """Add steps without episodes, of different tasks; the sums as in `AddedSteps`."""
    lengths, returns, firsts, lasts = sums
    columns = {
        "buffer_id": [buffer_id] * len(tasks),
        "task_id": tasks,
        "episode_id": [0] * len(tasks),
        "length": lengths,
        '"return"': returns,
        "first_seq": firsts,
        "last_seq": lasts,
        "group_id": tasks,
    }
    insert_columns(connection, "rollout_stats", columns, 0, _SQLITE_ADD)


Rollout = tuple[str, int]  # the task, and the number of the episode or 0

_IS_ONE = (
    (_own.buffer_id == bindparam("of_buffer"))
    & (_own.task_id == bindparam("of_task"))
    & (_own.episode_id == bindparam("of_episode"))
)
_CHANGED = func.nullif(
    func.coalesce(_own["return"], 0.0) + bindparam("change", type_=Double()),
    literal_column("'NaN'"),
)
_CHANGE = update(rollout_stats).where(_IS_ONE).values({"return": _CHANGED})
_REMOVE = (
    update(rollout_stats)
    .where(_IS_ONE)
    .values(length=_own.length - bindparam("n", type_=BigInteger()))
)
_IS_OPEN = text(
    "NOT EXISTS (SELECT 1 FROM episodes p WHERE p.id = rollout_stats.episode_id "
    "AND p.status <> 'open')"
)
# An episode that has ended keeps its return, as in `episodes`.
_REMOVE_ALL = _REMOVE.values({"return": case((_IS_OPEN, _CHANGED), else_=_own["return"])})
_LEAVE = delete(rollout_stats).where(_IS_ONE, _own.length <= 0)
_FORGET = delete(rollout_stats).where(_IS_ONE)
# Sums over the held steps; steps of earlier rollouts that have left are unknown here.
_ADD_UP = text("""
INSERT INTO rollout_stats
    (buffer_id, task_id, episode_id, length, "return", first_seq, last_seq, group_id, reward,
     is_aborted)
SELECT :id, s.task_id, s.episode_id, s.length, s.total, n.first_seq, n.last_seq,
    coalesce(p.group_id, s.task_id), p.reward, coalesce(p.status = 'aborted', false)
FROM (
    SELECT task_id, coalesce(episode_id, 0) AS episode_id, sum(n_steps) AS length,
        sum(total_reward) AS total
    FROM step_sums WHERE buffer = (SELECT name FROM buffers WHERE id = :id) AND n_steps > 0
    GROUP BY task_id, coalesce(episode_id, 0)
) AS s
JOIN (
    SELECT task_id, coalesce(episode_id, 0) AS episode_id, min(seq) AS first_seq,
        max(seq) AS last_seq
    FROM step_numbers WHERE buffer_id = :id GROUP BY task_id, coalesce(episode_id, 0)
) AS n ON n.task_id = s.task_id AND n.episode_id = s.episode_id
LEFT JOIN episodes p ON p.id = s.episode_id
""")


def change_returns(
    connection: Connection, buffer_id: int, changes: Mapping[Rollout, Sequence[float]]
) -> None:
    """Add the changes of rewards by annotations to the returns of rollouts."""
    rows = [
        {**_key_of(buffer_id, rollout), "change": sum(map(within_range, changes_of_rollout))}
        for rollout, changes_of_rollout in sorted(changes.items())
    ]
    if rows:
        connection.execute(_CHANGE, rows)


def remove_steps(
    connection: Connection, buffer_id: int, removed: Mapping[Rollout, tuple[int, float | None]]
) -> None:
    """Subtract steps that a user deletes from their rollouts; ended episodes keep their returns.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        removed: For each rollout the number of steps, and the sum of their rewards.
    """
    rollouts = sorted(removed.items())
    if rollouts:
        with_rewards = [
            {**_key_of(buffer_id, rollout), "n": n, "change": within_range(-total)}
            for rollout, (n, total) in rollouts
            if total is not None
        ]
        without = [
            {**_key_of(buffer_id, rollout), "n": n}
            for rollout, (n, total) in rollouts
            if total is None
        ]
        for statement, rows in ((_REMOVE_ALL, with_rewards), (_REMOVE, without)):
            if len(rows) == len(rollouts) == 1:
                lengths = connection.execute(statement.returning(_own.length), rows[0]).scalars()
                if min(lengths, default=0) > 0:
                    return
            elif rows:
                connection.execute(statement, rows)
        connection.execute(_LEAVE, [_key_of(buffer_id, rollout) for rollout, _ in rollouts])


def forget_episode(connection: Connection, buffer_id: int, rollout: Rollout) -> None:
    """Delete the rollout of an episode that a user deletes."""
    connection.execute(_FORGET, _key_of(buffer_id, rollout))


def forget(connection: Connection, buffer_id: int, *others: Table) -> None:
    """Delete all rollouts of a buffer, and its rows of other tables."""
    # Groups first: then rollouts are not subtracted from them.
    _delete_of(
        connection, buffer_id, (group_stats, rollout_stats, group_changes, queue_groups, *others)
    )


def _delete_of_sqlite(connection: Connection, buffer_id: int, tables: Sequence[Table]) -> None:
    for table in tables:
        driver_of(connection).execute(f"DELETE FROM {table.name} WHERE buffer_id = ?", (buffer_id,))


def _delete_of_postgresql(connection: Connection, buffer_id: int, tables: Sequence[Table]) -> None:
    # All in one message, which needs the text protocol and takes no parameters.
    deletes = [f"DELETE FROM {table.name} WHERE buffer_id = {buffer_id:d}" for table in tables]
    driver_of(connection).cursor().execute("; ".join(deletes), prepare=False, binary=False)


_delete_of = by_database(sqlite=_delete_of_sqlite, postgresql=_delete_of_postgresql)


def add_up(connection: Connection, buffer_id: int) -> None:
    """Compute the rollouts of a buffer from the steps that it holds."""
    forget(connection, buffer_id)
    connection.execute(_ADD_UP, {"id": buffer_id})


def _key_of(buffer_id: int, rollout: Rollout) -> dict[str, int | str]:
    task_id, episode_id = rollout
    return {"of_buffer": buffer_id, "of_task": task_id, "of_episode": episode_id}
