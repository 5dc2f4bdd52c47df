"""The tables of rollouts and of groups of them. Triggers keep the groups."""

from sqlalchemy import BigInteger, Column, Double, Index, Table

from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata

# Before rollout_stats: a buffer that is dropped leaves it first, so that nothing is subtracted.
group_stats = Table(
    "group_stats",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rollouts", BigInteger, nullable=False, comment="rollouts of the task"),
    Column("n_returns", BigInteger, nullable=False, comment="of them, those with a finite return"),
    Column("mean", Double, comment="mean of these returns"),
    Column("m2", Double, nullable=False, comment="sum of their squared differences from the mean"),
    Column("min", Double, comment="least of them"),
    Column("max", Double, comment="greatest of them"),
    Column("spread", Double, comment="greatest less least"),
    info={"is_vacuumed": True, "learner_may": "DELETE"},
)
Index(None, group_stats.c.buffer_id, group_stats.c.spread, group_stats.c.task_id)

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
        comment="number of the episode; 0: the steps of the task that name none",
    ),
    Column("length", BigInteger, nullable=False, comment="steps written, evicted ones too"),
    Column(
        "return",
        Double,
        comment="sum of their rewards, annotations applied; null: none has a reward",
    ),
    Column("first_seq", BigInteger, nullable=False, comment="seq of the first step"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last step"),
    info={
        "is_vacuumed": True,
        "learner_may": 'UPDATE (length, "return"), DELETE',
    },
)
_own = rollout_stats.c
# Where a page of them goes on: each ends with a column that no two rollouts share.
Index(None, _own.buffer_id, _own.first_seq)
Index(None, _own.buffer_id, _own.length, _own.first_seq)
Index(None, _own.buffer_id, _own["return"], _own.first_seq)
Index(None, _own.buffer_id, _own.task_id, _own["return"])
