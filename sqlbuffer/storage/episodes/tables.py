"""The table of episodes."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from sqlbuffer.storage.schema.metadata import BYTES, JSON, KEY, SERIAL, TIME, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

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
    UniqueConstraint("buffer_id", "key", "task_id"),
    CheckConstraint("status IN ('open', 'complete', 'aborted')", name="status_known"),
    # Numbers are unique: readers depend on them.
    sqlite_autoincrement=True,
)
Index(None, episodes.c.buffer_id, episodes.c.id)

# Finds the oldest held episode behind any number of those whose steps have left.
Index(
    "ix_episodes_held",
    episodes.c.buffer_id,
    episodes.c.id,
    sqlite_where=episodes.c.n_rows > 0,
    postgresql_where=episodes.c.n_rows > 0,
)

# Finds the episodes with held steps, without those whose steps have left.
Index(None, episodes.c.buffer_id, episodes.c.last_seq)
