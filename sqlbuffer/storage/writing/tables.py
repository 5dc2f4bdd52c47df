"""The table of the ids of the latest writes."""

from sqlalchemy import Column, Table

from sqlbuffer.storage.schema.metadata import TIME, UUID, buffer_key, metadata

# The ids of the latest writes, so that a call whose connection was lost finds out whether its write
# was applied. Only PostgreSQL has rows here: a connection to a file is not lost.
applied_writes = Table(
    "applied_writes",
    metadata,
    buffer_key(),
    Column(
        "write_id",
        UUID,
        primary_key=True,
        comment="random id of the write",
    ),
    Column("kept_until", TIME, nullable=False, comment="no call asks for it after this"),
)
