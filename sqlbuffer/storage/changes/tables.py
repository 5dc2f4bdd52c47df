"""The tables of the change log and of its followers."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Integer, Table, Text

from sqlbuffer.storage.schema.metadata import (
    SEQS,
    SERIAL,
    TIME,
    UUID,
    buffer_key,
    index_transactions,
    metadata,
    transaction_id,
)
from sqlbuffer.storage.schema.overlays import flag_column
from sqlbuffer.storage.schema.server_clock import utc_now

change_log = Table(
    "change_log",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="number of the entry"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="deleted, quarantined (or released), labelled, replaced, or priorities",
    ),
    transaction_id(),
    Column("origin", UUID, comment="random id of the opener that wrote it; null: plain SQL"),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the entry was written",
    ),
    Column("seqs", SEQS, comment="the rows; null: any, plain SQL deleted some (PostgreSQL)"),
    CheckConstraint(
        "kind IN ('deleted', 'quarantined', 'labelled', 'replaced', 'priorities')",
        name="kind_known",
    ),
    info={"learner_may": "INSERT", "is_vacuumed": True},
    # Numbers are unique, also after entries were trimmed.
    sqlite_autoincrement=True,
)
index_transactions(change_log)

# Where the log of a buffer begins. A follower that missed a trimmed entry starts again.
change_log_starts = Table(
    "change_log_starts",
    metadata,
    buffer_key(),
    Column("trimmed_id", BigInteger, comment="the last entry that was trimmed (SQLite)"),
    Column(
        "trimmed_snapshot", Text, comment="a snapshot that shows all trimmed entries (PostgreSQL)"
    ),
    Column(
        "next_snapshot",
        Text,
        comment="entries that this snapshot shows are trimmed next (PostgreSQL)",
    ),
    Column("noted_at", TIME, comment="time of next_snapshot (PostgreSQL)"),
)

followers = Table(
    "followers",
    metadata,
    buffer_key(),
    Column("follower_id", UUID, primary_key=True, comment="random id of the follower"),
    Column(
        "registered_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the registration",
    ),
    Column(
        "live_until",
        TIME,
        nullable=False,
        comment="the follower is removed unless it renews this in time",
    ),
    info={"learner_may": "INSERT, UPDATE (live_until), DELETE"},
)

flag_column("has_followers", "priorities, tasks and episodes that leave are logged as well")
