"""Shared by all tables: the metadata, the types of columns, and columns that many of them have."""

from typing import Any

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    literal,
)
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.schema.parameters import (
    BooleanList,
    IntegerList,
    RealList,
    TransactionId,
    current_transaction_id,
)

# The `info` of a table names the rights that the script of roles grants in addition to reading:
# `writer_may` and `learner_may`. It also marks tables whose rows die often: `is_vacuumed`.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# Byte order everywhere, with any locale of the database.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
JSON = Text().with_variant(postgresql.JSONB(), "postgresql")
UUID = Text().with_variant(postgresql.UUID(as_uuid=False), "postgresql")
TIME = Text().with_variant(postgresql.TIMESTAMP(timezone=True), "postgresql")
# SQLite counts row ids only for a column declared INTEGER.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")
XID = BigInteger().with_variant(TransactionId(), "postgresql")
BYTES = LargeBinary()
SEQS = IntegerList()
REALS = RealList()
FLAGS = BooleanList()


def buffer_key() -> Column[int]:
    """Return the column of the buffer, which is part of the primary key."""
    return Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer")


def vacuumed_tables() -> list[str]:
    """Return the tables whose `info` marks that their rows die often."""
    return [name for name, table in metadata.tables.items() if table.info.get("is_vacuumed")]


def seq_key() -> tuple[Column[int], Column[int]]:
    """Return the two columns that identify a row."""
    return buffer_key(), Column(
        "seq", BigInteger, primary_key=True, autoincrement=False, comment="the experience"
    )


def transaction_id() -> Column[int]:
    """Return the column of the transaction that wrote a row; see `index_transactions`.

    A follower compares it with snapshots. SQLite does not need it: it has one writer at a time.
    """
    return Column(
        "xid",
        XID,
        server_default=current_transaction_id(),
        comment="transaction that wrote it (PostgreSQL; null on SQLite)",
    )


def index_transactions(table: Table) -> None:
    """Give a table with `transaction_id` the index that followers of a buffer read.

    On SQLite the index is empty: otherwise it would cost a page for each row.
    """
    own = table.c
    name = f"ix_{table.name}_buffer_id_xid"
    Index(name, own.buffer_id, own.xid, sqlite_where=own.xid.is_not(None))


def json_parameter(name: str) -> Any:
    """Return the parameter for a JSON column that is given as text."""
    return cast(bindparam(name, type_=Text()), JSON)


def json_literal(value: Any) -> Any:
    """Return a value as the expression of a JSON column."""
    return cast(literal(orjson.dumps(value).decode(), Text()), JSON)
