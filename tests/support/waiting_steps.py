"""Steps that wait to be stored: without a timer, and refused by the database."""

from contextlib import contextmanager

from tests.support.sql import connected, is_sqlite, run

NEVER_S = 1_000.0  # the timer has no part in the test


@contextmanager
def refusing_inserts(url):
    """Have the database refuse rows and chunks, whatever the role."""
    body = (
        "BEGIN SELECT RAISE(ABORT, 'no rows today'); END"
        if is_sqlite(url)
        else "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    with connected(url) as connection:
        if not is_sqlite(url):
            connection.exec_driver_sql(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN RAISE EXCEPTION 'no rows today'; END $$"
            )
        for table in ("experiences", "chunks"):
            connection.exec_driver_sql(
                f"CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} {body}"
            )
    try:
        yield
    finally:
        for table in ("experiences", "chunks"):
            on_table = "" if is_sqlite(url) else f" ON {table}"
            run(url, f"DROP TRIGGER refuse_{table}{on_table}")
