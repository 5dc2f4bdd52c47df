"""The overlay tables: narrow ones, by seq, for changes after a row was inserted.

A capability declares its overlay in its `tables.py`. Tests read `OVERLAYS` to check that eviction
and deletion leave no row of an overlay behind. Roles, vacuum, `doctor` and dropping a buffer read
the metadata, which has the overlays among the other tables.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Boolean, Column, Connection, Table, delete, false

from sqlbuffer.storage.schema.metadata import metadata, seq_key


@dataclass(frozen=True)
class Overlay:
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


OVERLAYS: dict[str, Overlay] = {}


def overlay_table(
    name: str,
    *columns: Column[Any],
    flag: str,
    flag_comment: str | None = None,
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
        flag_comment: Comment of the flag's column, if this table adds it; None if another overlay
            does.
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
    if flag_comment is not None:
        flag_column(flag, flag_comment)
    OVERLAYS[name] = Overlay(table, flag, leaves_late, learner_sets_flag)
    return table


def flag_column(name: str, comment: str) -> None:
    """Add a column to `buffers` that is true if a buffer may have rows in some table."""
    metadata.tables["buffers"].append_column(
        Column(name, Boolean, nullable=False, server_default=false(), comment=comment)
    )


def delete_range(
    connection: Connection, table: Table, buffer_id: int, above: int, up_to: int
) -> None:
    """Delete the rows of an overlay between two numbers, which eviction left behind."""
    own = table.c
    gone = (own.buffer_id == buffer_id) & (own.seq > above) & (own.seq <= up_to)
    connection.execute(delete(table).where(gone))
