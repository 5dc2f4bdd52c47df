"""How much room typed steps take: freshly written, and after the buffer was turned over."""

from collections.abc import Callable, Iterator
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks.arrays import EXTENDED, FIELDS, filled, steps
from tests.benchmarks.bench import Bench, file_of, random_numbers
from tests.benchmarks.lookups import PICTURES, pictures
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.report import Figure, shown_size
from tests.benchmarks.step_rows import record_type
from tests.support.sql import scalar
from tests.support.storage_hooks import close_pool

ENDS = 8 + 2  # the bytes of a reward and of two flags
OVER_RAW = {"sqlite": 1.35, "postgresql": 1.4}
TURNOVERS = 10
TURNED_OVER_PICTURES = 5_000
# All tables of the database with their indexes and large values.
_TABLES = "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables"


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _over_raw(bench)
    if bench.kind != "postgresql":  # SQLite uses the pages of evicted chunks again
        return
    n_pictures = max(100, bench.scale.times(TURNED_OVER_PICTURES))
    yield _turned_over(bench, "small steps", FIELDS, steps, bench.scale.capacity, EXTENDED)
    yield _turned_over(bench, "frames of 28 KB", PICTURES, pictures, n_pictures, 50)


def _over_raw(bench: Bench) -> Figure:
    n = bench.scale.rows
    raw = n * (record_type(FIELDS).itemsize + ENDS)
    with bench.database() as url:
        bench.say(f"{n:,} steps on disk")
        filled(url, n).close()
        size = _size_of(bench, url)
    return Figure(
        f"room on disk of small steps vs their raw bytes, {n:,} rows",
        bench.label,
        f"{shown_size(size)}, raw {shown_size(raw)}",
        ratio_of([size / raw]),
        OVER_RAW[bench.kind],
        at_most=True,
    )


def _turned_over(
    bench: Bench,
    what: str,
    fields: dict[str, Any],
    make: Callable[..., dict[str, Any]],
    capacity: int,
    batch: int,
) -> Figure:
    columns = make(random_numbers(), batch)

    def size_after(times: int, max_capacity: int | None) -> int:
        with bench.database() as url:
            with ReplayBuffer(url, create=True, fields=fields, max_capacity=max_capacity) as buffer:
                for _ in range(times * capacity // batch):
                    buffer.extend(columns)
            return _size_of(bench, url)

    bench.say(f"turning over {capacity:,} {what} {TURNOVERS} times")
    live, after = size_after(1, None), size_after(1 + TURNOVERS, capacity)
    return Figure(
        f"tables of {what} after {TURNOVERS} turnovers vs live, {capacity:,} rows",
        bench.label,
        f"{shown_size(after)}, freshly written {shown_size(live)}",
        ratio_of([after / live]),
        1.6,
        at_most=True,
    )


def _size_of(bench: Bench, url: str) -> int:
    """Return the bytes of the tables and their indexes, or of the file."""
    if bench.kind == "postgresql":
        return int(scalar(url, _TABLES))
    close_pool(url)  # which puts the journal into the file
    return file_of(url).stat().st_size
