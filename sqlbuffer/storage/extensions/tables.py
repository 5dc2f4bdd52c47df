"""The table of rings, which only `compat` needs."""

from sqlalchemy import BigInteger, Column, Table, Text, text

from sqlbuffer.storage.schema.metadata import JSON, buffer_key, metadata

# The layouts, as `buffers.layout` names them: of compat.memmap, compat.ding and compat.minestudio.
SLOTS, RING, FRAGMENTS = "slots", "ring", "fragments"

# Counters of a ring of items, where a buffer is one: those of compat.ding.
item_rings = Table(
    "item_rings",
    metadata,
    buffer_key(),
    Column("kind", Text, nullable=False, comment="what it is used as: naive, advanced, .."),
    Column(
        "push_count",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="items pushed, those that left included",
    ),
    Column(
        "tail",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="the place of the next item, below the capacity",
    ),
    Column("state", JSON, comment="what else the kind keeps"),
)
