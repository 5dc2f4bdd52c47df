"""The tables of the schema itself."""

from sqlalchemy import Column, Table, Text

from sqlbuffer.storage.schema.metadata import TIME, metadata

# One row: it tells packages that are older than the schema if they may use it.
schema_info = Table(
    "schema_info",
    metadata,
    Column(
        "min_client",
        Text,
        primary_key=True,
        comment="the oldest revision whose package may use this schema",
    ),
)

maintenance = Table(
    "maintenance",
    metadata,
    Column("task", Text, primary_key=True, comment="task that one process at a time runs"),
    Column("holder", Text, comment="the process that ran it last"),
    Column("leased_until", TIME, comment="no other process starts it before this time"),
)
