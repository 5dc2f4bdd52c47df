"""The tables that only `compat` needs: data of buffers with a layout, in addition to their rows.

Changes after the insert of a row are in an overlay: `payload_changes`.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Index, Integer, Table, Text, text

from sqlbuffer.storage.schema.metadata import BYTES, JSON, KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.overlays import overlay_table
from sqlbuffer.storage.schema.server_clock import utc_now

# The layout by its name in `buffers.layout`: of compat.memmap.
SLOTS = "slots"
# The role of participants that write to slots.
WRITER = "writer"


def _counter(name: str, comment: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"), comment=comment)


def _layout_table(name: str, *columns: Column[Any], **rights: Any) -> Table:
    return Table(name, metadata, buffer_key(), *columns, info=rights)


buffer_layouts = _layout_table(
    "buffer_layouts",
    Column("config", JSON, nullable=False, comment="configuration of the buffer"),
    _counter("next_number", "number of the next item or slot, counted on through every lap"),
    _counter("next_place", "place of the next item"),
    _counter("n_held", "episodes that slots show"),
    _counter("changes", "how often stored steps were changed or deleted in place"),
    Column("state", JSON, comment="further state of the layout"),
    writer_may="INSERT, UPDATE (next_number, next_place, state)",
    learner_may="INSERT, UPDATE, DELETE",
)

participants = _layout_table(
    "participants",
    Column("role", Text, primary_key=True, comment="writer, worker or consumer"),
    Column(
        "name",
        KEY,
        primary_key=True,
        comment="name of the participant; empty: all that have the role",
    ),
    Column("state", JSON, comment="state of the participant, or the list prepared for it"),
    Column("oldest_version", BigInteger, comment="oldest waiting version; null if nothing waits"),
    Column(
        "seen_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the last activity",
    ),
    learner_may="INSERT, UPDATE, DELETE",
)
Index(
    "ix_participants_waiting",
    participants.c.buffer_id,
    participants.c.oldest_version,
    sqlite_where=participants.c.oldest_version.is_not(None),
    postgresql_where=participants.c.oldest_version.is_not(None),
)

# Numbered places that each show one episode.
slots = _layout_table(
    "slots",
    Column("slot", Integer, primary_key=True, autoincrement=False, comment="the place"),
    Column(
        "turn",
        BigInteger,
        nullable=False,
        comment="its last use: slot + lap * number of slots; -1: it is free",
    ),
    Column("holder", KEY, comment="the writer that has it; null if none has"),
    Column("episode_id", BigInteger, comment="key of the episode in it"),
    Column("length", Integer, comment="its length; null while it is written"),
    Column("meta", BYTES, comment="its values of the meta fields, packed"),
    Column("tail", BYTES, comment="values of steps that have no row, packed"),
    learner_may="INSERT, UPDATE, DELETE",
    is_vacuumed=True,
)
# Slots of the current lap: a few, of any number.
Index(None, slots.c.buffer_id, slots.c.turn)
Index(
    "ix_slots_held",
    slots.c.buffer_id,
    slots.c.slot,
    sqlite_where=slots.c.holder.is_not(None),
    postgresql_where=slots.c.holder.is_not(None),
)

# Records of rows that were changed after they were written (`replace_payload`).
payload_changes = overlay_table(
    "payload_changes",
    Column("fields", Text, nullable=False, comment="fields that the last change wrote"),
    Column("n_changes", Integer, nullable=False, comment="number of changes of the row"),
    Column(
        "changed_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the last change",
    ),
    flag="has_changes",
    flag_comment="rows may have a row in payload_changes",
)
