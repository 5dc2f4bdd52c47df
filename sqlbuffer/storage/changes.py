"""The log of changes after the insert, for followers of a buffer.

An entry names the changed rows and the kind of change, but no value: a follower reads the values in
the snapshot that shows it the entry. Eviction by row has no entries: the window shows it.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Integer,
    Table,
    Text,
    delete,
    exists,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.schema.expressions import in_seconds, utc_now
from sqlbuffer.storage.schema.metadata import (
    SEQS,
    SERIAL,
    TIME,
    UUID,
    buffer_key,
    index_transactions,
    metadata,
    transaction_id,
)

change_log = Table(
    "change_log",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="number of the entry"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column(
        "kind",
        Text,
        nullable=False,
        comment="deleted, quarantined (or released), labelled, replaced, priorities, or episodes",
    ),
    transaction_id(),
    Column("origin", UUID, comment="random id of the opener that wrote it; null: plain SQL"),
    Column(
        "inserted_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="when the entry was written",
    ),
    Column(
        "seqs",
        SEQS,
        comment=(
            "the rows; null: any, plain SQL deleted some (PostgreSQL); of kind episodes: their keys"
        ),
    ),
    CheckConstraint(
        "kind IN ('deleted', 'quarantined', 'labelled', 'replaced', 'priorities', 'episodes')",
        name="kind_known",
    ),
    info={"learner_may": "INSERT", "is_vacuumed": True},
    # Numbers are unique, also after entries were trimmed.
    sqlite_autoincrement=True,
)
index_transactions(change_log)

# Where the log of a buffer begins. A follower that missed a trimmed entry starts again.
change_log_starts = Table(
    "change_log_starts",
    metadata,
    buffer_key(),
    Column("trimmed_id", BigInteger, comment="the last entry that was trimmed (SQLite)"),
    Column(
        "trimmed_snapshot", Text, comment="a snapshot that shows all trimmed entries (PostgreSQL)"
    ),
    Column(
        "next_snapshot",
        Text,
        comment="entries that this snapshot shows are trimmed next (PostgreSQL)",
    ),
    Column("noted_at", TIME, comment="time of next_snapshot (PostgreSQL)"),
)

followers = Table(
    "followers",
    metadata,
    buffer_key(),
    Column("follower_id", UUID, primary_key=True, comment="random id of the follower"),
    Column(
        "registered_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of the registration",
    ),
    Column(
        "live_until",
        TIME,
        nullable=False,
        comment="the follower is removed unless it renews this in time",
    ),
    info={"learner_may": "INSERT, UPDATE (live_until), DELETE"},
)


def _sqlite_log_position(connection: Connection) -> str:
    """Return the number of the last entry that this transaction sees."""
    last = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"
    return str(connection.exec_driver_sql(last).scalar_one())


def _sqlite_is_trimmed(connection: Connection, buffer_id: int, position: str) -> bool:
    """Return True if an entry was trimmed that is not part of a position."""
    query = "SELECT trimmed_id > ? FROM change_log_starts WHERE buffer_id = ?"
    return bool(connection.exec_driver_sql(query, (int(position), buffer_id)).scalar())


_POSITION = (
    "SELECT pg_current_snapshot()::text || CASE WHEN pg_is_in_recovery() THEN '?' ELSE '' END"
)
# A snapshot shows all that an earlier one shows. It is not earlier if it ends before, or if it does
# not show a transaction that was over in the other one. A snapshot that ends after all of this
# server's transactions was restored from another server.
_POSTGRESQL_IS_TRIMMED = """
SELECT pg_snapshot_xmax(t.trimmed) <= pg_snapshot_xmax(pg_current_snapshot()) AND (
    pg_snapshot_xmax(t.trimmed) > pg_snapshot_xmax(p.seen) OR EXISTS (
        SELECT FROM pg_snapshot_xip(p.seen) AS x WHERE pg_visible_in_snapshot(x, t.trimmed)))
FROM (SELECT %s::pg_snapshot AS seen) AS p, (
    SELECT trimmed_snapshot::pg_snapshot AS trimmed FROM change_log_starts WHERE buffer_id = %s
) AS t
"""


def _postgresql_log_position(connection: Connection) -> str:
    """Return the snapshot of this transaction; on a standby with `STANDBY` behind it."""
    ((snapshot,),) = driver_of(connection).execute(_POSITION)
    return str(snapshot)


def _postgresql_is_trimmed(connection: Connection, buffer_id: int, position: str) -> bool:
    oldest, _, running = position.split(":")
    if running.startswith(STANDBY):
        position = f"{oldest}:{oldest}:"  # on a standby; see `following.postgresql`
    row = driver_of(connection).execute(_POSTGRESQL_IS_TRIMMED, (position, buffer_id)).fetchone()
    return row is not None and bool(row[0])


class ChangeEntry(NamedTuple):
    """An entry of the change log: the changed steps, and the kind of change."""

    kind: str
    origin: str | None
    seqs: Sequence[int] | None


def _sqlite_log_entries(
    connection: Connection, buffer_id: int, position: str, origin: str | None
) -> Iterator[ChangeEntry]:
    """Yield the entries of a buffer's change log that are not part of a position, without the
    numbers of priorities of one origin.
    """
    query = (
        "SELECT kind, origin, CASE WHEN kind = 'priorities' AND origin = ? THEN '[]' ELSE seqs END "
        "FROM change_log WHERE buffer_id = ? AND id > ? ORDER BY id"
    )
    rows = driver_of(connection).execute(query, (origin, buffer_id, int(position)))
    return (ChangeEntry(kind, origin, seqs and json.loads(seqs)) for kind, origin, seqs in rows)


# Stands for the running transactions in a position on a standby, before the chunks that were read.
STANDBY = "?"
# An empty list would imply the condition of every partial index: PostgreSQL takes any of them, and
# reads all chunks of the buffer.
NO_TRANSACTION = "{0}"
_ENTRIES = """
SELECT kind, origin::text,
    CASE WHEN kind = 'priorities' AND origin = %s::uuid THEN '{}' ELSE seqs END FROM (
    SELECT id, kind, origin, seqs FROM change_log
    WHERE buffer_id = %s AND xid = ANY (%s::text[]::xid8[])
    UNION ALL SELECT id, kind, origin, seqs FROM change_log
    WHERE buffer_id = %s AND xid >= %s::text::xid8
) e ORDER BY id
"""


def transactions_since(buffer_id: int, position: str) -> tuple[Any, ...]:
    """Return the parameters for what transactions that a position does not show have written:
    the buffer, those that ran then, the buffer, and the first later one (PostgreSQL).
    """
    oldest, end, running = position.split(":")
    if running.startswith(STANDBY):
        return (buffer_id, NO_TRANSACTION, buffer_id, oldest)
    return (buffer_id, f"{{{running}}}" if running else NO_TRANSACTION, buffer_id, end)


def _postgresql_log_entries(
    connection: Connection, buffer_id: int, position: str, origin: str | None
) -> Iterator[ChangeEntry]:
    parameters = (origin, *transactions_since(buffer_id, position))
    rows = driver_of(connection).execute(_ENTRIES, parameters)
    return map(ChangeEntry._make, rows)


Kind = Literal["deleted", "quarantined", "labelled", "replaced", "episodes"]

# Maximum number of rows that an entry names.
ROWS_AN_ENTRY = 10_000
_LOG = "INSERT INTO change_log (buffer_id, kind, origin, seqs) VALUES "


def _sqlite_log(
    connection: Connection, buffer_id: int, kind: Kind, origin: str | None, numbers: str
) -> None:
    parameters = (buffer_id, kind, origin, f"[{numbers}]")
    driver_of(connection).execute(f"{_LOG} (?, ?, ?, ?)", parameters)


def _postgresql_log(
    connection: Connection, buffer_id: int, kind: Kind, origin: str | None, numbers: str
) -> None:
    parameters = (buffer_id, kind, origin, f"{{{numbers}}}")
    driver_of(connection).execute(f"{_LOG} (%s, %s, %s::uuid, %s::bigint[])", parameters)


_log = by_database(sqlite=_sqlite_log, postgresql=_postgresql_log)


def log_change(
    connection: Connection,
    buffer_id: int,
    kind: Kind,
    seqs: Sequence[int],
    origin: str | None = None,
) -> None:
    """Log that rows, or episodes, were changed, in the transaction that changes them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        kind: Kind of change. Releases from quarantine are "quarantined" as well.
        seqs: The rows; may contain rows that the buffer does not hold. Of kind "episodes": the keys
            of episodes.
        origin: The opener that changes them; see `OpenBuffer.origin`.
    """
    for start in range(0, len(seqs), ROWS_AN_ENTRY):
        numbers = ",".join(map(str, seqs[start : start + ROWS_AN_ENTRY]))
        _log(connection, buffer_id, kind, origin, numbers)


# Position of a transaction in the change log: the text of its snapshot, or the last entry on
# SQLite.
log_position = by_database(sqlite=_sqlite_log_position, postgresql=_postgresql_log_position)
# Returns True if an entry was trimmed that is not part of a position.
is_trimmed = by_database(sqlite=_sqlite_is_trimmed, postgresql=_postgresql_is_trimmed)
# Yields the entries that are not part of a position.
_log_entries = by_database(sqlite=_sqlite_log_entries, postgresql=_postgresql_log_entries)


def changes_since(
    connection: Connection,
    buffer_id: int,
    before: str,
    now: str,
    most: int | None = None,
    origin: str | None = None,
) -> list[ChangeEntry] | None:
    """Return the entries that are not part of an earlier position; None if some may be missing.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        before: The earlier position.
        now: The position of the transaction.
        most: Return None if the entries name more steps than this.
        origin: Leave out the numbers of the priorities that this origin has set.
    """
    # Another server, or an older copy of a file, may have given lower numbers.
    if _end(now) < _end(before) or is_trimmed(connection, buffer_id, before):
        return None
    entries, n_steps = [], 0
    for entry in _log_entries(connection, buffer_id, before, origin):
        entries.append(entry)
        n_steps += len(entry.seqs or ())
        if most is not None and n_steps > most:
            return None
    return entries


def _end(position: str) -> int:
    """Return the last entry of a position, or the end of a snapshot."""
    return int(position.split(":")[1] if ":" in position else position)


class Follower:
    """Registers a follower of a buffer, so that all changes of the buffer are logged.

    The follower reads the buffer after `register`: from then on no change is missing in the log. A
    follower that does not renew its registration in time is removed.

    Args:
        buffer: The buffer.
        live_s: Duration of a registration in seconds.

    Attributes:
        id: Unique id of the follower.
    """

    def __init__(self, buffer: OpenBuffer, live_s: float = 60.0) -> None:
        self._buffer, self._live_s = buffer, live_s
        self.id = str(uuid4())

    def register(self) -> None:
        """Register the follower; it may be registered already."""

        def work(connection: Connection) -> None:
            # Writers that log only for followers hold this lock too, and have ended by then.
            self._buffer.lock(connection)
            connection.execute(delete(followers).where(self._is_own))
            connection.execute(
                insert(followers).values(
                    buffer_id=self._buffer.info.id,
                    follower_id=self.id,
                    live_until=self._live_until,
                )
            )
            self._flag(connection, True)

        self._buffer.write(work)

    def renew(self) -> bool:
        """Renew the registration; return False if it had ended.

        In that case changes may be missing in the log: register again, and read the buffer again.
        """
        later = update(followers).where(self._is_own).values(live_until=self._live_until)
        return self._buffer.write(lambda connection: connection.execute(later).rowcount == 1)

    def leave(self) -> None:
        """End the registration."""

        def work(connection: Connection) -> None:
            self._buffer.lock(connection)
            connection.execute(delete(followers).where(self._is_own))
            others = exists(select(1).where(followers.c.buffer_id == self._buffer.info.id))
            if not connection.execute(select(others)).scalar_one():
                self._flag(connection, False)

        self._buffer.write(work)

    @property
    def _is_own(self) -> ColumnElement[bool]:
        follower = followers.c
        return (follower.buffer_id == self._buffer.info.id) & (follower.follower_id == self.id)

    @property
    def _live_until(self) -> ColumnElement[Any]:
        return in_seconds(literal(self._live_s))

    def _flag(self, connection: Connection, value: bool) -> None:
        statement = update(buffers).where(buffers.c.id == self._buffer.info.id)
        connection.execute(
            statement.where(buffers.c.has_followers != value).values(has_followers=value)
        )
