"""The tables of rollouts and of groups of them, which compare the episodes of a task.

Triggers keep the groups. On PostgreSQL one transaction at a time does so for a buffer. Transactions
that find it busy leave their changes in `group_changes`, for the next one.
"""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, Table, text

from sqlbuffer.storage.schema.metadata import KEY, SERIAL, buffer_key, metadata

# Before rollout_stats: rows of a dropped buffer are deleted here first, so that no trigger
# subtracts from them.
group_stats = Table(
    "group_stats",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rollouts", BigInteger, nullable=False, comment="episodes of the task"),
    Column("n_returns", BigInteger, nullable=False, comment="episodes with a finite return"),
    Column("mean", Double, comment="mean of these returns"),
    Column("m2", Double, nullable=False, comment="sum of their squared differences from the mean"),
    Column("min", Double, comment="smallest of them"),
    Column("max", Double, comment="largest of them"),
    Column("spread", Double, comment="largest minus smallest"),
    info={"is_vacuumed": True, "learner_may": "DELETE"},
)
Index(None, group_stats.c.buffer_id, group_stats.c.spread, group_stats.c.task_id)

# Here no writer waits for another one.
group_changes = Table(
    "group_changes",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="key of the change"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column(
        "n_rollouts",
        Integer,
        nullable=False,
        comment="1: an episode is new; -1: an episode has left",
    ),
    Column("was", Double, comment="its return before; null if it had none"),
    Column("now", Double, comment="its return now; null if it has none"),
    info={"is_vacuumed": True, "learner_may": "DELETE"},
)
Index(None, group_changes.c.buffer_id, group_changes.c.task_id)

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
    info={
        "is_vacuumed": True,
        "learner_may": 'UPDATE (length, "return"), DELETE',
    },
)
_own = rollout_stats.c
# Pages continue by these indexes: each ends with a column that is unique to a rollout.
Index(None, _own.buffer_id, _own.first_seq)
Index(None, _own.buffer_id, _own.length, _own.first_seq)
Index(None, _own.buffer_id, _own["return"], _own.first_seq)
Index(None, _own.buffer_id, _own.task_id, _own["return"], _own.first_seq)
