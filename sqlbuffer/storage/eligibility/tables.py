"""The overlays that decide which rows may be sampled: use counts and the quarantine."""

from sqlalchemy import Column, Integer, Text

from sqlbuffer.storage.schema.metadata import TIME
from sqlbuffer.storage.schema.overlays import overlay_table
from sqlbuffer.storage.schema.server_clock import utc_now

uses = overlay_table(
    "uses",
    Column("n_uses", Integer, nullable=False, comment="number of times that it was sampled"),
    flag="has_uses",
    flag_comment="rows may have a row in uses",
    leaves_late=True,
    learner_may="INSERT, UPDATE (n_uses), DELETE",
    # A batch of random rows reads a page for each: half as many in one tree as in two.
    sqlite_with_rowid=False,
)

quarantine = overlay_table(
    "quarantine",
    Column("reason", Text, comment="reason why it is not sampled"),
    Column(
        "quarantined_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the quarantine",
    ),
    flag="has_quarantine",
    flag_comment="rows may have a row in quarantine",
    learner_may="INSERT, DELETE",
    learner_sets_flag=True,
    sqlite_with_rowid=False,
)
