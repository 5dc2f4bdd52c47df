"""The tables of what decides when rows leave: tasks and the quarantine."""

from sqlalchemy import BigInteger, Column, Index, Table, Text

from sqlbuffer.storage.schema.functions import utc_now
from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.overlays import overlay_table

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

quarantine = overlay_table(
    "quarantine",
    Column("reason", Text, comment="why it is not sampled"),
    Column("quarantined_at", TIME, nullable=False, server_default=utc_now(), comment="since when"),
    flag="has_quarantine",
    flag_comment="rows may have a row in quarantine",
    learner_may="INSERT, DELETE",
    learner_sets_flag=True,
)
