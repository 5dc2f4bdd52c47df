"""The table of the parts of payloads."""

from sqlalchemy import Column, Integer

from sqlbuffer.storage.schema.metadata import BYTES
from sqlbuffer.storage.schema.overlays import overlay_table

payload_parts = overlay_table(
    "payload_parts",
    Column("part", Integer, primary_key=True, autoincrement=False, comment="order of the part"),
    Column("bytes", BYTES, nullable=False, comment="content of the part"),
    flag="has_parts",
    flag_comment="rows may have rows in payload_parts",
    writer_may="INSERT",
    learner_may="INSERT",
)
