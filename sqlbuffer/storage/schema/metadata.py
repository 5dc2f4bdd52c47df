"""Shared by all tables: the metadata, types of columns, columns that many have, overlays and roles.

An overlay is a narrow table, by seq, for changes after a row was inserted. A capability declares
its overlay next to its other tables. Tests read `overlays` to check that eviction and deletion
leave no row of an overlay behind. Roles, vacuum, `doctor` and dropping a buffer read the metadata,
which has the overlays among the other tables.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module, resources
from typing import Any, NamedTuple

import orjson
import sqlalchemy
from sqlalchemy import (
    TIMESTAMP,
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TextClause,
    bindparam,
    cast,
    delete,
    literal,
)

from sqlbuffer.storage.schema.expressions import (
    BooleanList,
    IdList,
    IntegerList,
    Json,
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

_WITH_TABLES = (
    "agreements",
    "buffers.tables",
    "changes",
    "chunks.tables",
    "copies.tables",
    "eligibility",
    "episodes",
    "flow",
    "holds",
    "labels.tables",
    "leases.tables",
    "merging.tables",
    "priorities.blocks",
    "retention.eviction",
    "rollout_stats",
    "rows.payload_parts",
    "sample_log",
    "work",
)


def whole_metadata() -> MetaData:
    """Return the metadata with the tables of all capabilities, as `metadata` alone need not be:
    whoever opens a buffer does not import all of them.
    """
    for name in _WITH_TABLES:
        import_module(f"sqlbuffer.storage.{name}")
    return metadata


_WHERE = "sqlbuffer_where"


def ddl_metadata() -> MetaData:
    """Return the whole metadata for who makes or compares tables: indexes have their conditions.

    SQLAlchemy takes a condition for each database, and imports its dialect for that.
    """
    for table in whole_metadata().tables.values():
        for index in table.indexes:
            if _WHERE in index.info:
                for dialect in ("sqlite", "postgresql"):
                    index.dialect_options[dialect]["where"] = index.info[_WHERE]
    return metadata


# Byte order everywhere, with any locale of the database.
KEY = Text().with_variant(Text(collation="C"), "postgresql")
JSON = Json()
JSON_TEXT = Text().with_variant(sqlalchemy.JSON(), "postgresql")
UUID = Text().with_variant(sqlalchemy.UUID(as_uuid=False), "postgresql")
TIME = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")
# SQLite counts row ids only for a column declared INTEGER.
SERIAL = BigInteger().with_variant(Integer(), "sqlite")
XID = BigInteger().with_variant(TransactionId(), "postgresql")
BYTES = LargeBinary()
SEQS = IntegerList()
IDS = IdList()
REALS = RealList()
FLAGS = BooleanList()


def buffer_key() -> Column[int]:
    """Return the column of the buffer, which is part of the primary key."""
    return Column("buffer_id", Integer, primary_key=True, autoincrement=False, comment="the buffer")


def vacuumed_tables() -> list[str]:
    """Return the tables whose `info` marks that their rows die often."""
    tables = whole_metadata().sorted_tables
    return [table.name for table in tables if table.info.get("is_vacuumed")]


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
    column = table.c
    name = f"ix_{table.name}_buffer_id_xid"
    Index(name, column.buffer_id, column.xid, sqlite_where=column.xid.is_not(None))


def partial_index(
    name: str, *columns: Column[Any], where: ColumnElement[bool] | TextClause, unique: bool = False
) -> None:
    """Add an index of the rows for which a condition is true; see `ddl_metadata`."""
    Index(name, *columns, unique=unique, info={_WHERE: where})


def json_parameter(name: str) -> Any:
    """Return the parameter for a JSON column that is given as text."""
    return cast(bindparam(name, type_=Text()), JSON)


def json_literal(value: Any) -> Any:
    """Return a value as the expression of a JSON column."""
    return cast(literal(orjson.dumps(value).decode(), Text()), JSON)


# One row: it tells packages that are older than the schema if they may use it.
schema_info = Table(
    "schema_info",
    metadata,
    Column(
        "min_client",
        Text,
        primary_key=True,
        comment="the oldest revision whose package may use this schema",
    ),
)

maintenance = Table(
    "maintenance",
    metadata,
    Column("task", Text, primary_key=True, comment="task that one process at a time runs"),
    Column("holder", Text, comment="the process that ran it last"),
    Column("leased_until", TIME, comment="no other process starts it before this time"),
)


class Overlay(NamedTuple):
    """A table whose rows belong to rows of `experiences`.

    Attributes:
        table: The table.
        flag: The column of `buffers` that is true if a buffer may have rows in it.
        leaves_late: Eviction by row leaves its rows behind, below the window, and `delete_range`
            removes them later: writers do not wait for learners. The rows of other overlays leave
            with the row of `experiences`.
        learner_sets_flag: Learners set `flag`; otherwise it is set with the rights of the owner, or
            when the buffer is created.
    """

    table: Table
    flag: str
    leaves_late: bool
    learner_sets_flag: bool


_overlays: dict[str, Overlay] = {}


def overlays() -> Mapping[str, Overlay]:
    """Return the overlays of all capabilities, by name."""
    whole_metadata()
    return dict(sorted(_overlays.items()))


def overlay_table(
    name: str,
    *columns: Column[Any],
    flag: str,
    leaves_late: bool = False,
    writer_may: str = "",
    learner_may: str = "",
    learner_sets_flag: bool = False,
    integer_key: bool = False,
    **options: Any,
) -> Table:
    """Return a new overlay table, and register it.

    Args:
        name: Its name.
        columns: Its columns without the two of the key.
        flag: See `Overlay`.
        leaves_late: See `Overlay`.
        writer_may: Rights of writers in addition to reading.
        learner_may: Rights of learners in addition to reading.
        learner_sets_flag: See `Overlay`.
        integer_key: Its key on SQLite is one integer; see `number_keys`.
        options: Options of the table.
    """
    info = {
        "writer_may": writer_may,
        "learner_may": learner_may,
        "is_vacuumed": True,
    }
    key = {"integer_key": "seq"} if integer_key else {}
    table = Table(name, metadata, *seq_key(), *columns, info=info | key, **options)
    _overlays[name] = Overlay(table, flag, leaves_late, learner_sets_flag)
    return table


def delete_range(
    connection: Connection, table: Table, buffer_id: int, above: int, up_to: int
) -> None:
    """Delete the rows of an overlay between two numbers, which eviction left behind."""
    row = table.c
    gone = (row.buffer_id == buffer_id) & (row.seq > above) & (row.seq <= up_to)
    connection.execute(delete(table).where(gone))


def roles_script() -> str:
    """Return the SQL that creates the roles, each with the least rights."""
    script = resources.files("sqlbuffer.storage.schema") / "roles.sql"
    flags = {overlay.flag: None for overlay in overlays().values() if overlay.learner_sets_flag}
    return script.read_text(encoding="utf-8").format(
        tables=", ".join(table.name for table in whole_metadata().sorted_tables),
        vacuumed=", ".join(vacuumed_tables()),
        flags=", ".join(flags),
        grants="\n".join(_grants()),
    )


def _grants() -> Iterator[str]:
    for table in whole_metadata().sorted_tables:
        for role in ("writer", "learner"):
            if rights := table.info.get(f"{role}_may"):
                yield f"GRANT {rights} ON {table.name} TO sqlbuffer_{role};"
