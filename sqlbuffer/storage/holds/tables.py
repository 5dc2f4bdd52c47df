"""The table of holds."""

from sqlalchemy import BigInteger, Column, Table

from sqlbuffer.storage.schema.metadata import TIME, UUID, buffer_key, metadata
from sqlbuffer.storage.schema.overlays import flag_column

holds = Table(
    "holds",
    metadata,
    buffer_key(),
    Column("hold_id", UUID, primary_key=True, comment="random id of the hold"),
    Column("low_seq", BigInteger, nullable=False, comment="no step above this seq is evicted"),
    Column(
        "live_until", TIME, nullable=False, comment="end of the hold, unless it is extended in time"
    ),
    info={"learner_may": "INSERT, UPDATE (low_seq, live_until), DELETE"},
)

flag_column("has_holds", "there may be holds, which delay eviction")
