"""The tables of the schema itself."""

from sqlalchemy import Column, Table, Text

from sqlbuffer.storage.schema.metadata import TIME, metadata

# One row: it tells packages that are older than the schema whether they may use it.
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
    Column("task", Text, primary_key=True, comment="what one process at a time does"),
    Column("holder", Text, comment="the process that did it last"),
    Column("leased_until", TIME, comment="no other process begins it before"),
)
