"""The tables of leases: the rows that wait for them, and the leases."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, Table, false, text

from sqlbuffer.storage.schema.expressions import utc_now
from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata, overlay_table

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
        comment="reached max_use: the row leaves",
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
    flag_comment="rows may have a row in queue_items",
    learner_may="UPDATE (n_uses, used_up, lease_id, leased_until, group_seq), DELETE",
)
Index(None, queue_items.c.buffer_id, queue_items.c.task_id)
Index(None, queue_items.c.buffer_id, queue_items.c.group_id)

# Only for statements that ask for unused rows: without statistics PostgreSQL otherwise uses this
# index in place of the primary key.
Index(
    "ix_queue_items_freshness",
    queue_items.c.buffer_id,
    queue_items.c.freshness,
    queue_items.c.seq,
    sqlite_where=text("used_up = 0"),
    postgresql_where=text("NOT used_up"),
)
Index(
    "ix_queue_items_buffer_id_episode_id",
    queue_items.c.buffer_id,
    queue_items.c.episode_id,
    sqlite_where=queue_items.c.episode_id.is_not(None),
    postgresql_where=queue_items.c.episode_id.is_not(None),
)
Index(
    "ix_queue_items_used_up",
    queue_items.c.buffer_id,
    queue_items.c.seq,
    sqlite_where=text("used_up = 1"),
    postgresql_where=text("used_up"),
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
    Column("leased_until", TIME, nullable=False, comment="time when it runs out"),
    Column(
        "acknowledged",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true after its uses were counted",
    ),
)
