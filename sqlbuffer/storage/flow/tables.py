"""The tables of rate limits: the sampled rows of each process, and the waiting calls."""

from sqlalchemy import BigInteger, Column, Double, Integer, Table, Text

from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

# Rows sampled by each process, in a separate row, so that no process waits for it. Rows of
# processes long gone are added up under the empty holder.
flow = Table(
    "flow",
    metadata,
    buffer_key(),
    Column("holder", KEY, primary_key=True, comment="the process: host, pid and a random part"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
    Column("n_limited", BigInteger, nullable=False, comment="rows sampled under a limiter"),
    Column("pushed", Double, nullable=False, comment="rows inserted, decayed (RatioWindow)"),
    Column("sampled", Double, nullable=False, comment="rows sampled, decayed (RatioWindow)"),
    Column("decayed_at", TIME, comment="Unix time up to which these two are decayed"),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of its last count",
    ),
)

# Calls that wait for the other side.
flow_waits = Table(
    "flow_waits",
    metadata,
    buffer_key(),
    Column("holder", KEY, primary_key=True, comment="the call: its process and a random part"),
    Column("host", Text, nullable=False, comment="machine"),
    Column("pid", Integer, nullable=False, comment="process id"),
    Column("role", Text, nullable=False, comment="operation it waits for: insert or sample"),
    Column("n_rows", BigInteger, nullable=False, comment="number of rows"),
    Column(
        "waiting_since",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="start of the wait",
    ),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of its last sign of life",
    ),
)

# Rows sampled in ten seconds, for rates; kept for an hour.
flow_history = Table(
    "flow_history",
    metadata,
    buffer_key(),
    Column(
        "bucket",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Unix time in seconds / 10",
    ),
    Column("holder", KEY, primary_key=True, comment="the process"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
)
