"""Page queries that only PostgreSQL needs."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from sqlbuffer.storage.schema.metadata import metadata

# Not the size of the database: others may have tables in it.
_SIZE = text(
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "WHERE c.relname = ANY (:names) AND c.relkind = 'r' AND c.relnamespace = "
    "(SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)"
)


def size_bytes(connection: Connection) -> int:
    """Return the size of the tables and their indexes on disk."""
    names = {"names": list(metadata.tables)}
    return int(connection.execute(_SIZE, names).scalar_one())


@contextmanager
def in_order(connection: Connection) -> Iterator[None]:
    """Make statements with an ORDER BY and a LIMIT walk an index.

    With statistics of another buffer the planner would rather sort all rows of this one.
    """
    connection.exec_driver_sql("SET LOCAL enable_sort = off")
    yield
    connection.exec_driver_sql("SET LOCAL enable_sort = on")
