"""Time that passes for a buffer, and clocks that are set, without a wait: stored times change."""

from sqlalchemy import text

from tests.support.sql import connected, is_sqlite, run

_LATER = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', inserted_at, -:seconds || ' seconds')",
    "postgresql": "inserted_at - make_interval(secs => :seconds)",
}


def let_pass(url: str, seconds: float) -> None:
    """Have everything be as it is after so many seconds."""
    counted = [(t, "counted_at") for t in ("retention_states", "clock_looks")]
    _change(url, seconds, ("clock_looks", "clock_s"), ("time_marks", "at"), *counted)


def set_clock(url: str, seconds: float) -> None:
    """Have the database's clock show so many seconds more: what is stored seems to be older."""
    _change(url, seconds)


def _change(url: str, seconds: float, *more: tuple[str, str]) -> None:
    """Subtract seconds from all stored times, in one transaction: other threads may look."""
    # A look of the library locks retention_states first.
    columns = [("retention_states", "looked_at"), ("clock_looks", "at"), *more]
    later = _LATER["sqlite" if is_sqlite(url) else "postgresql"]
    with connected(url) as connection:
        for table, column in columns:
            statement = f"UPDATE {table} SET {column} = {column} - :seconds"
            connection.execute(text(statement), {"seconds": seconds})
        for table in ("experiences", "chunks"):
            statement = f"UPDATE {table} SET inserted_at = {later}"
            connection.execute(text(statement), {"seconds": seconds})


def evicted(url: str, name: str = "default") -> dict[str, int]:
    """Return how many steps left a buffer, by reason."""
    statement = "SELECT reason, sum(steps) FROM v_evictions WHERE buffer = :name GROUP BY reason"
    return {reason: int(n) for reason, n in run(url, statement, name=name)}
