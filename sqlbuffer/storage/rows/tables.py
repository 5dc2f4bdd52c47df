"""The tables of payloads: their parts, and their changes."""

from sqlalchemy import Column, Integer, Text

from sqlbuffer.storage.schema.metadata import BYTES, TIME
from sqlbuffer.storage.schema.overlays import overlay_table
from sqlbuffer.storage.schema.server_clock import utc_now

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
