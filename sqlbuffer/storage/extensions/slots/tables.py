"""The tables of slots, which only `compat.memmap` needs."""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, text

from sqlbuffer.storage.schema.metadata import BYTES, JSON, KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

# Numbered places that each show one episode, where a buffer has some: those of compat.memmap.
slot_rings = Table(
    "slot_rings",
    metadata,
    buffer_key(),
    Column("config", JSON, nullable=False, comment="what the buffer was made with"),
    Column(
        "next_turn",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the slot that is next, counted on through every lap",
    ),
    Column(
        "num_episodes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="episodes finished; at most one a slot",
    ),
    Column(
        "changes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="how often stored steps were changed or deleted in place",
    ),
)

slots = Table(
    "slots",
    metadata,
    buffer_key(),
    Column("slot", Integer, primary_key=True, autoincrement=False, comment="the place"),
    Column(
        "turn",
        BigInteger,
        nullable=False,
        comment="its last use: slot + lap * number of slots; -1: it is free",
    ),
    Column("holder", KEY, comment="the writer that has it; null: none has"),
    Column("episode_id", BigInteger, comment="key of the episode that it shows"),
    Column("length", Integer, comment="its length; null while it is written"),
    Column("meta", BYTES, comment="its values of the meta fields, packed"),
    Column("tail", BYTES, comment="values of steps that have no row, packed"),
)

# Those of the lap that goes on: a few, of any number.
Index(None, slots.c.buffer_id, slots.c.turn)
Index(
    "ix_slots_held",
    slots.c.buffer_id,
    slots.c.slot,
    sqlite_where=slots.c.holder.is_not(None),
    postgresql_where=slots.c.holder.is_not(None),
)

slot_writers = Table(
    "slot_writers",
    metadata,
    buffer_key(),
    Column("holder", KEY, primary_key=True, comment="the process: host, pid and a random part"),
    Column("seen_at", TIME, nullable=False, server_default=utc_now(), comment="when it last wrote"),
)
