"""The change log on PostgreSQL. Snapshots show which entries a transaction sees."""

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of

# A snapshot shows all that an earlier one shows. It is not earlier if it ends before, or if it does
# not show a transaction that was over in the other one. A snapshot that ends after all of this
# server's transactions was restored from another server.
_IS_TRIMMED = """
SELECT pg_snapshot_xmax(t.trimmed) <= pg_snapshot_xmax(pg_current_snapshot()) AND (
    pg_snapshot_xmax(t.trimmed) > pg_snapshot_xmax(p.seen) OR EXISTS (
        SELECT FROM pg_snapshot_xip(p.seen) AS x WHERE pg_visible_in_snapshot(x, t.trimmed)))
FROM (SELECT %s::pg_snapshot AS seen) AS p, (
    SELECT trimmed_snapshot::pg_snapshot AS trimmed FROM change_log_starts WHERE buffer_id = %s
) AS t
"""


def log_position(connection: Connection) -> str:
    """Return the snapshot of this transaction."""
    ((snapshot,),) = driver_of(connection).execute("SELECT pg_current_snapshot()::text")
    return str(snapshot)


def is_trimmed(connection: Connection, buffer_id: int, position: str) -> bool:
    """Return True if an entry was trimmed that is not part of a position."""
    oldest, _, running = position.split(":")
    if running.startswith("?"):
        position = f"{oldest}:{oldest}:"  # on a standby; see `following.postgresql`
    found = driver_of(connection).execute(_IS_TRIMMED, (position, buffer_id)).fetchone()
    return found is not None and bool(found[0])
