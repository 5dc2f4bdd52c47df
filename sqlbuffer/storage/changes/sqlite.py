"""The change log on SQLite. Entries become visible in the order of their numbers."""

from sqlalchemy import Connection


def log_position(connection: Connection) -> str:
    """Return the number of the last entry that this transaction sees."""
    last = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'change_log'"
    return str(connection.exec_driver_sql(last).scalar_one())


def is_trimmed(connection: Connection, buffer_id: int, position: str) -> bool:
    """Return True if an entry was trimmed that is not part of a position."""
    query = "SELECT trimmed_id > ? FROM change_log_starts WHERE buffer_id = ?"
    return bool(connection.exec_driver_sql(query, (int(position), buffer_id)).scalar())
