"""The column that says which transaction wrote a row."""

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, inspect, select

from sqlbuffer.storage.schema.expressions import TransactionId
from sqlbuffer.storage.schema.metadata import transaction_id
from tests.support.sql import connected, is_sqlite, scalar


@pytest.fixture
def notes(database_url):
    """Return a table with the column, in an empty database."""
    table = Table("notes", MetaData(), Column("n", Integer, primary_key=True), transaction_id())
    with connected(database_url) as connection:
        table.create(connection)
    return table


def ids_of(url, notes):
    with connected(url) as connection:
        return list(connection.scalars(select(notes.c.xid).order_by(notes.c.n)))


def test_rows_have_the_id_of_their_transaction_on_postgresql_alone(database_url, notes):
    with connected(database_url) as connection:
        connection.execute(notes.insert(), [{"n": 1}, {"n": 2}])
        own = None
        if not is_sqlite(database_url):
            own = int(connection.exec_driver_sql("SELECT pg_current_xact_id()").scalar_one())
    assert ids_of(database_url, notes) == [own, own]


def test_copy_without_the_column_and_a_savepoint_note_the_whole_transaction(make_database_url):
    url = make_database_url("postgresql")
    table = Table("notes", MetaData(), Column("n", Integer, primary_key=True), transaction_id())
    with connected(url) as connection:
        table.create(connection)
        driver = connection.connection.driver_connection
        with (
            connection.begin_nested(),
            driver.cursor() as cursor,
            cursor.copy("COPY notes (n) FROM STDIN") as copy,
        ):
            copy.write_row((1,))
        own = connection.exec_driver_sql("SELECT pg_current_xact_id()").scalar_one()
    assert ids_of(url, table) == [int(own)]


def test_restored_ids_are_those_of_the_server_that_was_dumped(make_database_url):
    """A dump names the column, so it is not the id of the transaction that restores. It may be
    larger than any id of this server: a follower looks below the end of its snapshot only.
    """
    url = make_database_url("postgresql")
    table = Table("notes", MetaData(), Column("n", Integer, primary_key=True), transaction_id())
    with connected(url) as connection:
        table.create(connection)
        connection.exec_driver_sql("INSERT INTO notes (n, xid) VALUES (1, '9000000000000')")
    assert ids_of(url, table) == [9_000_000_000_000]
    below = "SELECT count(*) FROM notes WHERE xid < pg_snapshot_xmax(pg_current_snapshot())"
    assert scalar(url, below) == 0


def test_the_type_is_found_again_in_a_database(make_database_url):
    url = make_database_url("postgresql")
    table = Table("notes", MetaData(), Column("n", Integer, primary_key=True), transaction_id())
    with connected(url) as connection:
        table.create(connection)
        (_, column) = inspect(connection).get_columns("notes")
    assert isinstance(column["type"], TransactionId)
    assert column["default"] == "pg_current_xact_id()"
