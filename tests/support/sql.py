"""Plain SQL, as an analyst or another program types it: not through the library's connections."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, text

from sqlbuffer import ReplayBuffer

_STEP_COLUMNS = (
    "buffer_id, seq, id, task_id, episode_id, t, step, reward_t, terminated, truncated, "
    "model_version, extra"
)
# The steps of both layouts. `arrays` has the typed fields of a step of a chunk, and all bytes of a
# row; of buffers that do not compress.
STEPS = (
    f"(SELECT {_STEP_COLUMNS}, arrays FROM experiences "
    f"UNION ALL SELECT {_STEP_COLUMNS}, block FROM chunk_steps)"
)


def plain_engine(url: str) -> Engine:
    """Return an engine that keeps no connection open."""
    drivername = "sqlite" if is_sqlite(url) else "postgresql+psycopg"
    return create_engine(make_url(url).set(drivername=drivername), poolclass=NullPool)


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Yield a connection whose transaction is committed at the end."""
    engine = plain_engine(url)
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def run(url: str, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows, if it returns any."""
    with connected(url) as connection:
        result = connection.execute(text(statement), parameters)
        return [tuple(row) for row in result] if result.returns_rows else []


def run_outside_transaction(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement such as VACUUM and return its rows, if it returns any."""
    with plain_engine(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        result = connection.exec_driver_sql(statement)
        return [tuple(row) for row in result] if result.returns_rows else []


def scalar(url: str, statement: str, **parameters: Any) -> Any:
    ((value,),) = run(url, statement, **parameters)
    return value


def numbered(url: str, buffer: str, seq: str) -> tuple[str, str]:
    """Return the columns that number a row of `experiences`, and their values, as SQL."""
    if is_sqlite(url):
        return "key, buffer_id, seq", f"{buffer} << 40 | {seq}, {buffer}, {seq}"
    return "buffer_id, seq", f"{buffer}, {seq}"


def buffer_id(url: str, name: str = "default") -> int:
    number: int = scalar(url, "SELECT id FROM buffers WHERE name = :name", name=name)
    return number


def stored_rows(url: str, name: str = "default") -> int:
    """Return how many rows the table has of a buffer, inside its window or not."""
    n_rows: int = scalar(
        url, "SELECT count(*) FROM experiences WHERE buffer_id = :id", id=buffer_id(url, name)
    )
    return n_rows


def delete_steps(connection: Connection, where: str, **parameters: Any) -> None:
    """Delete rows, and steps of chunks, by plain SQL."""
    connection.execute(text(f"DELETE FROM experiences WHERE {where}"), parameters)
    delete = (
        "INSERT INTO deleted_steps (buffer_id, seq) SELECT buffer_id, seq"
        if connection.dialect.name == "sqlite"
        else "SELECT sqlbuffer_remove_v1(buffer_id, array_agg(seq))"
    )
    grouped = "" if connection.dialect.name == "sqlite" else " GROUP BY buffer_id"
    connection.execute(text(f"{delete} FROM chunk_steps WHERE {where}{grouped}"), parameters)


def delete_steps_by_hand(url: str, where: str, **parameters: Any) -> None:
    """Delete rows, and steps of chunks, by plain SQL in a transaction of its own."""
    with connected(url) as connection:
        delete_steps(connection, where, **parameters)


def fill(
    url: str, n_rows: int, *, rows_per_task: int = 100, name: str = "default", **settings: Any
) -> ReplayBuffer:
    """Return a buffer of `n_rows` rows with seq from 1, written by one statement.

    Row s has step s and belongs to task `t<(s - 1) // rows_per_task>`; its state is `{"mod": s %
    100}`.
    """
    buffer = ReplayBuffer(url, name=name, create=True, **settings)
    numbers = (
        "WITH RECURSIVE g(s) AS (SELECT 1 UNION ALL SELECT s + 1 FROM g WHERE s < :n)"
        if is_sqlite(url)
        else "WITH g AS (SELECT s FROM generate_series(1, CAST(:n AS integer)) s)"
    )
    state = (
        """'{"mod":' || (s % 100) || '}'"""
        if is_sqlite(url)
        else "jsonb_build_object('mod', s % 100)"
    )
    number = buffer_id(url, name)
    columns, values = numbered(url, str(number), "s")
    with connected(url) as connection:
        # Numbered by hand, or PostgreSQL would call a function for each row.
        connection.execute(
            text(
                f"INSERT INTO experiences ({columns}, id, task_id, agent_id, step, state, "
                f"reward_t) {numbers} SELECT {values}, 'id' || s, "
                f"'t' || ((s - 1) / :rows_per_task), 'a1', s, {state}, 0 FROM g"
            ),
            {"n": n_rows, "rows_per_task": rows_per_task},
        )
        if not is_sqlite(url):
            connection.execute(text(f"SELECT setval('sqlbuffer_seq_{number}', :n)"), {"n": n_rows})
    return buffer
