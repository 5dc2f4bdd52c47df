"""The tables of leases: the rows that wait for them, the leases, and the marks of checkpoints."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    Table,
    Text,
    false,
    literal_column,
    select,
    text,
)

from sqlbuffer.storage.schema.expressions import is_past, utc_now
from sqlbuffer.storage.schema.metadata import (
    KEY,
    SEQS,
    TIME,
    buffer_key,
    metadata,
    overlay_table,
    partial_index,
)

# The end of leases that were acknowledged, and that a mark of their consumer may still need.
KEPT_UNTIL = literal_column("'9999-01-01T00:00:00.000Z'", TIME)

queue_items = overlay_table(
    "queue_items",
    Column("task_id", KEY, nullable=False, comment="its task"),
    Column(
        "group_id",
        KEY,
        nullable=False,
        comment="its group: group_id of its episode, or else its task",
    ),
    Column("episode_id", BigInteger, comment="key of its episode"),
    Column("model_version", BigInteger, comment="version of the model that acted"),
    Column("session_id", Integer, comment="key of its session"),
    Column(
        "freshness",
        BigInteger,
        nullable=False,
        comment="model_version, or the smallest number if it has none",
    ),
    Column(
        "n_uses", Integer, nullable=False, server_default=text("0"), comment="acknowledged uses"
    ),
    Column(
        "used_up",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="reached max_use: the row leaves; or kept for a checkpoint",
    ),
    Column("lease_id", KEY, comment="the lease that holds it"),
    Column("leased_until", TIME, comment="when the lease runs out; null if it is free"),
    Column(
        "group_seq",
        BigInteger,
        comment="number of the group of its last claim; null if it was never claimed",
    ),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the row was written",
    ),
    flag="has_queue",
    learner_may="UPDATE (n_uses, used_up, lease_id, leased_until, group_seq), DELETE",
)
Index(None, queue_items.c.buffer_id, queue_items.c.task_id)
Index(None, queue_items.c.buffer_id, queue_items.c.group_id)

# Only for statements that ask for unused rows: without statistics PostgreSQL otherwise uses this
# index in place of the primary key.
partial_index(
    "ix_queue_items_freshness",
    queue_items.c.buffer_id,
    queue_items.c.freshness,
    queue_items.c.seq,
    where=~queue_items.c.used_up,
)
# For rows and groups that were used least.
partial_index(
    "ix_queue_items_uses",
    queue_items.c.buffer_id,
    queue_items.c.n_uses,
    queue_items.c.seq,
    where=~queue_items.c.used_up,
)
partial_index(
    "ix_queue_items_buffer_id_episode_id",
    queue_items.c.buffer_id,
    queue_items.c.episode_id,
    where=queue_items.c.episode_id.is_not(None),
)
partial_index(
    "ix_queue_items_used_up",
    queue_items.c.buffer_id,
    queue_items.c.seq,
    where=queue_items.c.used_up & queue_items.c.leased_until.is_(None),
)

# Batches on lease. Acknowledged ones are kept for a while, so that a call whose connection was lost
# finds out their state.
leases = Table(
    "leases",
    metadata,
    buffer_key(),
    Column("id", KEY, primary_key=True, comment="the lease"),
    Column("n_rows", BigInteger, nullable=False, comment="rows claimed"),
    Column(
        "claimed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the claim, or of the last renewal",
    ),
    Column(
        "leased_until",
        TIME,
        nullable=False,
        comment="time when it runs out; in 9999 if a checkpoint keeps its rows",
    ),
    Column(
        "acknowledged",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true after its uses were counted",
    ),
    Column("consumer", KEY, comment="who leased it, where a name was given"),
    Column("seqs", SEQS, nullable=False, comment="the rows, group by group"),
    Column("sizes", SEQS, comment="rows of each group; null where single rows are leased"),
    Column(
        "episodes", SEQS, comment="episodes that its acknowledgement was the first to use; if kept"
    ),
    Column("group_by", KEY, comment="what rows of a group share"),
    Column("batch_id", BigInteger, comment="its batch in the sample log"),
    Column(
        "checkpoint",
        BigInteger,
        comment="number of the first checkpoint after it was acknowledged",
    ),
)
partial_index(
    "ix_leases_consumer",
    leases.c.buffer_id,
    leases.c.consumer,
    where=leases.c.consumer.is_not(None),
)

# Marks of what consumers have acknowledged.
checkpoints = Table(
    "checkpoints",
    metadata,
    buffer_key(),
    Column("consumer", KEY, primary_key=True, comment="whose mark it is"),
    Column(
        "number", BigInteger, primary_key=True, autoincrement=False, comment="order of its marks"
    ),
    Column("name", KEY, nullable=False, comment="name of the mark"),
    Column("states", Text, nullable=False, comment="states of loaders and samplers, as JSON"),
    Column("created_at", TIME, nullable=False, server_default=utc_now(), comment="when"),
    info={"learner_may": "INSERT, UPDATE (number), DELETE"},
)
Index(
    "uq_checkpoints_name",
    checkpoints.c.buffer_id,
    checkpoints.c.consumer,
    checkpoints.c.name,
    unique=True,
)


def not_leased(buffer_id: int, steps: Any) -> Any:
    """Return the expression for a step of a table of steps without a lease."""
    leased = select(1).where(
        queue_items.c.buffer_id == buffer_id,
        queue_items.c.seq == steps.c.seq,
        ~is_past(queue_items.c.leased_until),
    )
    return ~leased.correlate(steps).offset(0).exists()
