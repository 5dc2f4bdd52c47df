"""How large PostgreSQL's table is after the buffer has been turned over many times."""

from collections.abc import Iterator

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.processes import write_at_once
from tests.benchmarks.report import Figure, shown_rate, shown_size
from tests.support.sql import run

TURNOVERS = 10
BATCH = 1_000
WRITERS = (1, 4)


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of PostgreSQL; SQLite uses the pages of evicted rows again."""
    if bench.kind != "postgresql":
        return
    for n_writers in WRITERS:
        # The same writers: keys that come in another order fill the pages of an index otherwise.
        live, _ = _written(bench, n_writers, None, 1)
        turned_over, rate = _written(bench, n_writers, bench.scale.capacity, 1 + TURNOVERS)
        yield Figure(
            f"table and indexes after {TURNOVERS} turnovers by {n_writers} "
            f"writer{'s' * (n_writers > 1)} vs the live size",
            bench.label,
            f"table {shown_size(turned_over[0])}, indexes {shown_size(turned_over[1])}; "
            f"freshly written {shown_size(live[0])}, {shown_size(live[1])}; {shown_rate(rate)}",
            ratio_of([sum(turned_over) / sum(live)]),
            1.6,
            at_most=True,
        )


def _written(
    bench: Bench, n_writers: int, max_capacity: int | None, times: int
) -> tuple[tuple[int, int], float]:
    """Return the sizes of table and indexes, and the rows a second, after the capacity was written
    so many times.
    """
    n_rows = times * bench.scale.capacity // n_writers
    with bench.database() as url:
        ReplayBuffer(url, create=True, max_capacity=max_capacity).close()
        bench.say(f"{times} times the capacity, writers at once: {n_writers}")
        written = write_at_once(url, n_writers, min(BATCH, n_rows), n_rows=n_rows)
        sizes = "SELECT pg_table_size('experiences'), pg_indexes_size('experiences')"
        ((table, indexes),) = run(url, sizes)
    return (int(table), int(indexes)), sum(writer.rows_per_s for writer in written)
