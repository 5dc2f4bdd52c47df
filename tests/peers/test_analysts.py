"""What analysts read the views with: DuckDB, pandas, polars, drivers of Arrow, and what a BI tool
sends.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import adbc_driver_postgresql.dbapi
import adbc_driver_sqlite.dbapi
import duckdb
import duckdb_extensions
import pandas as pd
import polars as pl
import pytest
from sqlalchemy import Engine, inspect, make_url, text

from tests.benchmarks.questions import LAYOUTS, fill
from tests.support.sql import is_sqlite, plain_engine, run
from tests.support.storage_hooks import VIEWS

N_STEPS = 240
MEAN_BY_VERSION = (
    "SELECT model_version, count(*) AS episodes, avg(episode_reward) AS mean FROM {} "
    "WHERE buffer = 'rows' GROUP BY model_version ORDER BY model_version"
)
# What DuckDB, pandas and polars read into.
KINDS_IN_DUCKDB = {
    "text": {"VARCHAR"},
    "integer": {"BIGINT", "INTEGER"},
    "real": {"DOUBLE"},
    "boolean": {"BOOLEAN"},
    "time": {"TIMESTAMP WITH TIME ZONE"},
    "JSON": {"JSON", "VARCHAR"},
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a database with a buffer of each layout, and something in most views."""
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path_factory.mktemp('analysts')}/replay.db"
        filled(found)
        yield found
        return
    server = request.getfixturevalue("postgres_server")
    found = server.create_database()
    filled(found)
    yield found
    server.drop_database(found)


def filled(url: str) -> None:
    for name, settings in LAYOUTS.items():
        fill(url, N_STEPS, name, **settings)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = plain_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def attached(url: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield DuckDB with the database as `replay`."""
    kind = "sqlite" if is_sqlite(url) else "postgres"
    connection = duckdb.connect()
    duckdb_extensions.import_extension(f"{kind}_scanner", con=connection)
    place = make_url(url).database if is_sqlite(url) else url
    connection.execute(f"ATTACH '{place}' AS replay (TYPE {kind}, READ_ONLY)")
    yield connection
    connection.close()


def expected(url: str, statement: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in run(url, statement)]


def relation(url: str, view: str) -> str:
    """Return how DuckDB reads a view. It rewrites the SQL of the views of an attached SQLite file,
    and SQLite does not understand some of that; `sqlite_scan` leaves the view to SQLite.
    """
    if is_sqlite(url):
        return f"sqlite_scan('{make_url(url).database}', '{view}')"
    return f"replay.{view}"


def test_duckdb_reads_every_view(url: str, attached: duckdb.DuckDBPyConnection) -> None:
    for view, described in VIEWS.items():
        named = relation(url, view)
        found = attached.execute(f"SELECT * FROM {named} LIMIT 1000").to_arrow_table()
        assert found.column_names == list(described.columns), view
        ((n,),) = run(url, f"SELECT count(*) FROM {view}")
        assert attached.execute(f"SELECT count(*) FROM {named}").fetchall() == [(n,)], view
    assert run(url, "SELECT count(*) FROM v_experiences") == [(2 * N_STEPS,)]


def test_duckdb_computes_what_the_database_computes(
    url: str, attached: duckdb.DuckDBPyConnection
) -> None:
    found = attached.execute(MEAN_BY_VERSION.format("replay.v_episodes")).fetchall()
    assert found == expected(url, MEAN_BY_VERSION.format("v_episodes"))
    assert len(found) > 10


@pytest.mark.parametrize("name", LAYOUTS)
def test_duckdb_sends_a_statement_to_the_database(
    url: str, attached: duckdb.DuckDBPyConnection, name: str
) -> None:
    steps = (
        f"SELECT sum(reward) AS sum, max(seq) AS last FROM v_experiences WHERE buffer = '{name}'"
    )
    send = "sqlite_query" if is_sqlite(url) else "postgres_query"
    found = attached.execute(f"SELECT * FROM {send}('replay', $${steps}$$)").fetchall()
    assert [tuple(map(float, row)) for row in found] == expected(url, steps)


def test_duckdb_has_a_type_for_each_column_on_postgresql(
    url: str, attached: duckdb.DuckDBPyConnection
) -> None:
    if is_sqlite(url):
        pytest.skip("allowed: SQLite gives computed columns of views no type")
    for view, described in VIEWS.items():
        types = attached.execute(f"DESCRIBE replay.{view}").fetchall()
        for name, kind, *_ in types:
            assert kind in KINDS_IN_DUCKDB[described.columns[name][0]], (view, name)


def test_pandas_and_polars_read_what_the_database_computes(url: str, engine: Engine) -> None:
    statement = MEAN_BY_VERSION.format("v_episodes")
    by_pandas = pd.read_sql(statement, engine)
    with engine.connect() as connection:
        by_polars = pl.read_database(statement, connection)
    rows = expected(url, statement)
    assert [tuple(row) for row in by_pandas.itertuples(index=False)] == by_polars.rows() == rows
    assert by_pandas.dtypes.map(str).tolist() == ["int64", "int64", "float64"]
    assert by_polars.dtypes == [pl.Int64, pl.Int64, pl.Float64]


def test_pandas_reads_every_view(engine: Engine) -> None:
    for view, described in VIEWS.items():
        with engine.connect() as connection:
            assert list(pd.read_sql(text(f"SELECT * FROM {view}"), connection).columns) == list(
                described.columns
            )


def test_polars_reads_by_connectorx(url: str) -> None:
    address = url if is_sqlite(url) else make_url(url).set(drivername="postgresql")
    if not is_sqlite(url) and "host" in make_url(url).query:
        pytest.skip("allowed: connectorx does not connect by a socket")
    statement = MEAN_BY_VERSION.format("v_episodes")
    assert pl.read_database_uri(statement, str(address)).rows() == expected(url, statement)


def test_arrow_drivers_read_every_view(url: str) -> None:
    connect: Callable[[str], Any] = adbc_driver_postgresql.dbapi.connect
    place = url
    if is_sqlite(url):
        connect, place = adbc_driver_sqlite.dbapi.connect, str(Path(make_url(url).database or ""))
    with connect(place) as connection, connection.cursor() as cursor:
        for view, described in VIEWS.items():
            cursor.execute(f"SELECT * FROM {view} LIMIT 100")
            assert cursor.fetch_arrow_table().column_names == list(described.columns), view


def test_a_tool_lists_the_views_and_their_columns(url: str, engine: Engine) -> None:
    assert set(VIEWS) <= set(inspect(engine).get_view_names())
    columns = (
        "SELECT name FROM pragma_table_info('{}')"
        if is_sqlite(url)
        else "SELECT column_name FROM information_schema.columns WHERE table_name = '{}' "
        "AND table_schema = current_schema() ORDER BY ordinal_position"
    )
    for view, described in VIEWS.items():
        assert [name for (name,) in run(url, columns.format(view))] == list(described.columns)
    if not is_sqlite(url):
        types = (
            "SELECT DISTINCT data_type FROM information_schema.columns "
            "WHERE table_name LIKE 'v\\_%' AND table_schema = current_schema()"
        )
        assert {kind for (kind,) in run(url, types)} <= {
            "text", "bigint", "integer", "double precision", "boolean",
            "timestamp with time zone", "jsonb", "json",
        }  # fmt: skip


def test_a_tool_looks_at_each_view(url: str) -> None:
    for view in VIEWS:
        first = run(url, f"SELECT * FROM {view} LIMIT 5")
        ((n,),) = run(url, f"SELECT COUNT(*) FROM {view}")
        assert len(first) == min(n, 5), view
        page = run(url, f"SELECT * FROM (SELECT * FROM {view}) AS x LIMIT 2 OFFSET 1")
        assert len(page) == max(0, min(n - 1, 2)), view
