"""The tables of rows: what was stored, in one wide row a step."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, Table, Text

from sqlbuffer.storage.schema.functions import utc_now
from sqlbuffer.storage.schema.metadata import BYTES, JSON, KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.overlays import overlay_table

experiences = Table(
    "experiences",
    metadata,
    buffer_key(),
    Column(
        "seq",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="insert order within the buffer",
    ),
    Column("id", KEY, comment="the user's id, unique within the buffer"),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("task_name", KEY, comment="readable name of the task"),
    Column("agent_id", KEY, nullable=False, comment="the agent"),
    Column("pre_agent", KEY, comment="the agent that acted before"),
    Column("step", BigInteger, nullable=False, comment="step within the task"),
    Column("execute_time", Double, comment="Unix time in seconds"),
    Column("episode_id", BigInteger, comment="key of the episode in episodes"),
    Column("t", Integer, comment="step within the episode"),
    Column("session_id", Integer, comment="key of the session in sessions"),
    Column("state", JSON, comment="observation"),
    Column("actions", JSON, comment="what was done"),
    Column("messages", JSON, comment="conversation of an LLM agent"),
    Column("extra", JSON, comment="anything else"),
    Column("fields", JSON, comment="declared fields that conditions can use"),
    Column("reward_t", Double, comment="reward of the step"),
    Column("adv_t", Double, comment="advantage"),
    Column("v_t", Double, comment="value estimate"),
    Column("terminated", Boolean, comment="the episode ended in a terminal state"),
    Column("truncated", Boolean, comment="the episode was cut here"),
    Column("model_version", BigInteger, comment="version of the model that acted"),
    Column("initial_priority", Double, comment="priority that the row began with"),
    Column("arrays", BYTES, comment="bytes of arrays that the JSON refers to"),
    Column(
        "payload_bytes",
        BigInteger,
        comment="how many bytes of arrays there are, where payload_parts has them",
    ),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the row was written",
    ),
)
Index(
    None, experiences.c.buffer_id, experiences.c.task_id, experiences.c.agent_id, experiences.c.step
)
Index(
    "uq_experiences_buffer_id_id",
    experiences.c.buffer_id,
    experiences.c.id,
    unique=True,
    sqlite_where=experiences.c.id.is_not(None),
    postgresql_where=experiences.c.id.is_not(None),
)
Index(
    "ix_experiences_buffer_id_episode_id_t",
    experiences.c.buffer_id,
    experiences.c.episode_id,
    experiences.c.t,
    sqlite_where=experiences.c.episode_id.is_not(None),
    postgresql_where=experiences.c.episode_id.is_not(None),
)

payload_parts = overlay_table(
    "payload_parts",
    Column("part", Integer, primary_key=True, autoincrement=False, comment="order of the part"),
    Column("bytes", BYTES, nullable=False, comment="content of the part"),
    flag="has_parts",
    flag_comment="rows may have rows in payload_parts",
    writer_may="INSERT",
    learner_may="INSERT",
)

# What became of rows that were changed after they were written (`replace_payload`).
payload_changes = overlay_table(
    "payload_changes",
    Column("fields", Text, nullable=False, comment="which fields the last change wrote"),
    Column("n_changes", Integer, nullable=False, comment="how often the row was changed"),
    Column("changed_at", TIME, nullable=False, server_default=utc_now(), comment="when, last"),
    flag="has_changes",
    flag_comment="rows may have a row in payload_changes",
)
