"""The tables of priorities and of their sums."""

from sqlalchemy import BigInteger, Boolean, Column, Double, Integer, Table, false

from sqlbuffer.storage.schema.metadata import buffer_key, metadata
from sqlbuffer.storage.schema.overlays import overlay_table

priorities = overlay_table(
    "priorities",
    Column("priority", Double, nullable=False, comment="priority since the first update"),
    flag="has_priorities",
    flag_comment="rows may have a row in priorities",
    leaves_late=True,
)

# Values of the rows from block * block_size on. A block has no row here before it is summarized,
# nor while its sum is unknown.
priority_blocks = Table(
    "priority_blocks",
    metadata,
    buffer_key(),
    Column("block", BigInteger, primary_key=True, autoincrement=False, comment="seq / block_size"),
    Column("n_rows", Integer, nullable=False, comment="rows"),
    Column("weight_sum", Double, nullable=False, comment="sum of priority ^ alpha"),
    Column("max_priority", Double, nullable=False, comment="upper bound of the priorities"),
    Column(
        "min_priority",
        Double,
        comment="lower bound of the positive priorities; null if none is positive",
    ),
    Column(
        "max_is_upper_bound",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all priorities may be smaller than max_priority",
    ),
    Column(
        "min_is_lower_bound",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="all positive priorities may be larger than min_priority",
    ),
    sqlite_with_rowid=False,  # all of them are read for a batch: in half the time
)
