"""What the page asks of PostgreSQL alone."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text

from sqlbuffer.storage.schema.metadata import metadata

# Not that of the database: others may have tables in it.
_SIZE = text(
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "WHERE c.relname = ANY (:names) AND c.relkind = 'r' AND c.relnamespace = "
    "(SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)"
)


def size_bytes(connection: Connection) -> int:
    """Return what the tables and their indexes take on disk."""
    names = {"names": list(metadata.tables)}
    return int(connection.execute(_SIZE, names).scalar_one())


@contextmanager
def in_order(connection: Connection) -> Iterator[None]:
    """Have statements with an ORDER BY and a LIMIT walk an index: with statistics of another buffer
    the planner would rather sort all rows of this one.
    """
    connection.exec_driver_sql("SET LOCAL enable_sort = off")
    yield
    connection.exec_driver_sql("SET LOCAL enable_sort = on")
