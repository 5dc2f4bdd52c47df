"""The tables of chunks of fragments, which only `compat.minestudio` needs."""

from sqlalchemy import BigInteger, Column, Index, Integer, Table, text

from sqlbuffer.storage.schema.metadata import JSON, KEY, SEQS, TIME, buffer_key, metadata
from sqlbuffer.storage.schema.server_clock import utc_now

# Chunks of fragments, where a buffer has some: those of compat.minestudio.
fragment_pools = Table(
    "fragment_pools",
    metadata,
    buffer_key(),
    Column("config", JSON, nullable=False, comment="what the buffer was made with"),
    Column("session", KEY, nullable=False, comment="the session now"),
    Column(
        "version",
        BigInteger,
        nullable=False,
        server_default=text("-1"),
        comment="the model version now",
    ),
    Column(
        "n_chunks",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="chunks that may be fetched: their places are 0 to n_chunks - 1",
    ),
    Column(
        "n_bytes",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="bytes of their payloads",
    ),
    Column(
        "next_chunk",
        BigInteger,
        nullable=False,
        server_default=text("1"),
        comment="number of the next chunk",
    ),
    Column(
        "low_chunk",
        BigInteger,
        nullable=False,
        server_default=text("0"),
        comment="no chunk up to this one may be fetched",
    ),
    Column("counts", JSON, nullable=False, comment="what was added and what left"),
)

chunks = Table(
    "chunks",
    metadata,
    buffer_key(),
    Column(
        "chunk",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="number in the order of insertion",
    ),
    Column("place", Integer, comment="place among those that may be fetched; null: it has left"),
    Column("worker_uuid", KEY, nullable=False, comment="who made it: task_id of its fragments"),
    Column("first_fid", BigInteger, nullable=False, comment="step of its first fragment"),
    Column("session", KEY, nullable=False, comment="session of its first fragment"),
    Column("model_version", BigInteger, nullable=False, comment="version of its first fragment"),
    Column("oldest_version", BigInteger, nullable=False, comment="no fragment of it is older"),
    Column("n_bytes", BigInteger, nullable=False, comment="bytes of its payloads"),
    Column(
        "use_count",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="how often it was fetched",
    ),
    Column(
        "n_pins",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="prepared lists that hold it",
    ),
    Column("seqs", SEQS, nullable=False, comment="its fragments, in order"),
    Column(
        "inserted_at", TIME, nullable=False, server_default=utc_now(), comment="when it was whole"
    ),
)
Index(
    "ix_chunks_place",
    chunks.c.buffer_id,
    chunks.c.place,
    sqlite_where=chunks.c.place.is_not(None),
    postgresql_where=chunks.c.place.is_not(None),
)
Index(
    "ix_chunks_oldest_version",
    chunks.c.buffer_id,
    chunks.c.oldest_version,
    sqlite_where=chunks.c.place.is_not(None),
    postgresql_where=chunks.c.place.is_not(None),
)

# Those that no process holds any more.
Index(
    "ix_chunks_left",
    chunks.c.buffer_id,
    chunks.c.chunk,
    sqlite_where=text("place IS NULL AND n_pins = 0"),
    postgresql_where=text("place IS NULL AND n_pins = 0"),
)

fragment_workers = Table(
    "fragment_workers",
    metadata,
    buffer_key(),
    Column("worker_uuid", KEY, primary_key=True, comment="the worker"),
    Column("last_fid", BigInteger, nullable=False, comment="number of its last fragment"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of its last fragment"),
    Column("session", KEY, nullable=False, comment="session of that"),
    Column(
        "waiting",
        JSON,
        nullable=False,
        comment="fragments that are no chunk yet: [seq, model_version, bytes] of each",
    ),
    Column("oldest_waiting", BigInteger, comment="the oldest version of those; null: none"),
    Column("seen_at", TIME, nullable=False, server_default=utc_now(), comment="when it last wrote"),
)
Index(
    "ix_fragment_workers_waiting",
    fragment_workers.c.buffer_id,
    fragment_workers.c.oldest_waiting,
    sqlite_where=fragment_workers.c.oldest_waiting.is_not(None),
    postgresql_where=fragment_workers.c.oldest_waiting.is_not(None),
)

prepared_lists = Table(
    "prepared_lists",
    metadata,
    buffer_key(),
    Column("consumer", KEY, primary_key=True, comment="whose list; empty: that of all"),
    Column("token", KEY, nullable=False, comment="the call that fetched it"),
    Column("chunks", JSON, nullable=False, comment="its chunks, in order"),
    Column(
        "fragments",
        JSON,
        nullable=False,
        comment="its fragments, in order: [worker_uuid, fid_in_worker, id] of each",
    ),
    Column(
        "fetched_at", TIME, nullable=False, server_default=utc_now(), comment="when it was fetched"
    ),
)
