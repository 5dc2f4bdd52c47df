"""The tables of rate limits: what each process sampled, and which calls wait."""

from sqlalchemy import BigInteger, Column, Double, Integer, Table, Text

from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

# What each process has sampled: a row of its own, so that no process waits for it. Rows of
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
    Column("decayed_at", TIME, comment="up to when these two are decayed"),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it last counted",
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
    Column("role", Text, nullable=False, comment="what it waits for: insert or sample"),
    Column("n_rows", BigInteger, nullable=False, comment="how many rows it is about"),
    Column(
        "waiting_since",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="since when it waits",
    ),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when it was last heard of",
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
