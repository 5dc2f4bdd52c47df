"""The table of what ranks agree on."""

from sqlalchemy import Column, Table, Text

from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

rank_agreements = Table(
    "rank_agreements",
    metadata,
    buffer_key(),
    Column("topic", KEY, primary_key=True, comment="loader, or iteration, of several ranks"),
    Column("name", KEY, primary_key=True, comment="what they agree on"),
    Column("value", Text, nullable=False, comment="the value that all ranks use, as JSON"),
    Column(
        "agreed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was written or used last",
    ),
    info={"learner_may": "INSERT, UPDATE (value, agreed_at), DELETE"},
)
