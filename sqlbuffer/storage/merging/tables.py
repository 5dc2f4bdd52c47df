"""The table of merges: what of another buffer is in this one."""

from sqlalchemy import BigInteger, Column, Table, Text

from sqlbuffer.storage.schema.expressions import utc_now
from sqlbuffer.storage.schema.metadata import JSON, KEY, TIME, UUID, buffer_key, metadata

merges = Table(
    "merges",
    metadata,
    buffer_key(),
    Column("source", UUID, primary_key=True, comment="uuid of the buffer that is merged"),
    Column("prefix", KEY, primary_key=True, comment="text before the ids of its steps"),
    Column("source_database", Text, nullable=False, comment="URL of the source, no password"),
    Column("source_buffer", KEY, nullable=False, comment="name of the buffer that is merged"),
    Column("condition", Text, comment="condition of the merged steps; null: all"),
    Column("merged_seq", BigInteger, nullable=False, comment="steps up to this seq are merged"),
    Column("high_seq", BigInteger, nullable=False, comment="no step above this seq is merged"),
    Column("newest", JSON, comment="seq and mark of the newest step of the source at that time"),
    Column("n_steps", BigInteger, nullable=False, comment="steps merged so far"),
    Column("n_skipped", BigInteger, nullable=False, comment="steps left out, as their ids exist"),
    Column(
        "episodes",
        JSON,
        nullable=False,
        comment="episodes that were open, that have ended since, and that are left out",
    ),
    Column("merged_at", TIME, nullable=False, server_default=utc_now(), comment="last change"),
    info={"writer_may": "INSERT, UPDATE", "learner_may": "INSERT, UPDATE, DELETE"},
)
