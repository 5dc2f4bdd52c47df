"""Operations are chosen by the database of a connection or an engine."""

import pytest
from sqlalchemy import create_engine

from sqlbuffer.storage.dialects import by_database


def name_sqlite(database, *, suffix=""):
    return f"sqlite{suffix}"


def name_postgresql(database, *, suffix=""):
    return f"postgresql{suffix}"


name = by_database(sqlite=name_sqlite, postgresql=name_postgresql)


def test_an_operation_is_that_of_its_connection():
    with create_engine("sqlite://").connect() as connection:
        assert name(connection, suffix="!") == "sqlite!"


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql+psycopg"])
def test_an_operation_is_that_of_its_engine(scheme):
    assert name(create_engine(f"{scheme}://")) == scheme.partition("+")[0]
