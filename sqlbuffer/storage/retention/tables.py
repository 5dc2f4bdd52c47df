"""The table of tasks, for buffers that evict by task."""

from sqlalchemy import BigInteger, Column, Index, Table

from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata

# Kept by triggers, for buffers that evict by task.
tasks = Table(
    "tasks",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rows", BigInteger, nullable=False, comment="rows held"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last write"),
)
Index(None, tasks.c.buffer_id, tasks.c.last_seq)
