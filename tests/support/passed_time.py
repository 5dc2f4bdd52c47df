"""Time that passes for a buffer, and clocks that are set, without a wait: stored times change."""

from tests.support.sql import is_sqlite, run

_LATER = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', inserted_at, :seconds || ' seconds')",
    "postgresql": "inserted_at + make_interval(secs => :seconds)",
}


def let_pass(url: str, seconds: float) -> None:
    """Have everything be as it is after so many seconds."""
    set_clock(url, seconds)
    for table in ("clock_looks", "retention_states"):
        run(url, f"UPDATE {table} SET clock_s = clock_s - :seconds", seconds=seconds)


def set_clock(url: str, seconds: float) -> None:
    """Have the database's clock show so many seconds more: what is stored seems to be older."""
    run(url, "UPDATE time_marks SET at = at - :seconds", seconds=seconds)
    run(url, "UPDATE clock_looks SET at = at - :seconds", seconds=seconds)
    run(
        url,
        "UPDATE retention_states SET looked_at = looked_at - :seconds, "
        "clock_at = clock_at - :seconds",
        seconds=seconds,
    )
    later = _LATER["sqlite" if is_sqlite(url) else "postgresql"]
    for table in ("experiences", "chunks"):
        run(url, f"UPDATE {table} SET inserted_at = {later}", seconds=-seconds)


def evicted(url: str, name: str = "default") -> dict[str, int]:
    """Return how many steps left a buffer, by reason."""
    statement = "SELECT reason, sum(steps) FROM v_evictions WHERE buffer = :name GROUP BY reason"
    return {reason: int(n) for reason, n in run(url, statement, name=name)}
