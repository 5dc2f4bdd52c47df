"""How many rows a second several writers store together, and how long the slowest batch waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench, filled, random_numbers
from tests.benchmarks.chunk_driver import again, bare_chunks
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.processes import Open, Written, json_rows, write_at_once
from tests.benchmarks.report import Figure, shown_rate, shown_time

COUNTS = (1, 2, 4, 8)
STEP_COUNTS = (1, 2, 4, 8, 16)
WRITERS = 8
BATCH = 64
SECONDS, ROUNDS = 2.0, 4
APPENDED = 1_000
OF_BARE = {"sqlite": 0.7, "postgresql": 0.5}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _counts(bench, "row", COUNTS, filled, json_rows)
    yield _counts(bench, "step", STEP_COUNTS, arrays.filled, extended)
    yield _beside_bare(bench)
    yield _appended(bench)


def _counts(
    bench: Bench,
    unit: str,
    counts: tuple[int, ...],
    fill: Callable[..., ReplayBuffer],
    opened: Open,
) -> Figure:
    """Compare a number of writers with the best one."""
    rates: dict[int, list[float]] = {n: [] for n in counts}
    waits: dict[int, list[float]] = {n: [] for n in counts}
    capacity = bench.scale.capacity
    with bench.database() as url:
        fill(url, capacity, max_capacity=capacity).close()
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{', '.join(map(str, counts))} writers of {unit}s, round {number + 1}")
            for n in counts:
                written = _for_a_while(bench, url, n, BATCH, opened)
                rates[n].append(sum(writer.rows_per_s for writer in written))
                waits[n].append(max(writer.p99 for writer in written))
    best = max(counts, key=lambda n: median(rates[n]))
    return Figure(
        f"{WRITERS} writers of {BATCH}-{unit} batches vs the best of {counts}",
        bench.label,
        "; ".join(
            f"{n}: {shown_rate(median(rates[n]))}, p99 {shown_time(median(waits[n]))}"
            for n in counts
        ),
        ratio_of([a / b for a, b in zip(rates[WRITERS], rates[best], strict=True)]),
        0.8,
    )


def _beside_bare(bench: Bench) -> Figure:
    capacity, n = bench.scale.capacity, arrays.EXTENDED
    ours: list[float] = []
    others: list[float] = []
    with bench.database() as url, bench.database() as bare_url:
        for one in (url, bare_url):
            arrays.filled(one, capacity, max_capacity=capacity).close()
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{WRITERS} writers beside {WRITERS} bare drivers, round {number + 1}")
            for rates, where, opened in ((ours, url, extended), (others, bare_url, copied)):
                written = _for_a_while(bench, where, WRITERS, n, opened)
                rates.append(sum(writer.rows_per_s for writer in written))
    return Figure(
        f"`extend` of {n:,} steps by {WRITERS} writers vs {WRITERS} bare drivers",
        bench.label,
        f"{shown_rate(median(ours))}, bare {shown_rate(median(others))}",
        ratio_of([a / b for a, b in zip(ours, others, strict=True)]),
        OF_BARE[bench.kind],
    )


def _appended(bench: Bench) -> Figure:
    rates = []
    with bench.database() as url:
        arrays.filled(url, 1, max_capacity=bench.scale.capacity).close()
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{WRITERS} writers of one step after the other, round {number + 1}")
            written = _for_a_while(bench, url, WRITERS, APPENDED, appended)
            rates.append(sum(writer.rows_per_s for writer in written))
    return Figure(
        f"`append` of one step after the other by {WRITERS} writers: steps a second over "
        f"{arrays.APPENDS_PER_S:,}",
        bench.label,
        shown_rate(median(rates)),
        ratio_of([rate / arrays.APPENDS_PER_S for rate in rates]),
        1,
    )


def _for_a_while(bench: Bench, url: str, n: int, batch: int, opened: Open) -> list[Written]:
    return write_at_once(url, n, batch, seconds=bench.scale.seconds(SECONDS), opened=opened)


@contextmanager
def extended(url: str, number: int, batch: int) -> Iterator[Any]:
    """Store steps in columns, by the library."""
    columns = arrays.steps(random_numbers(number), batch)
    with ReplayBuffer(url) as buffer:
        len(buffer)  # the connection is open before the start
        yield tuple, partial(buffer.extend, columns, task_id=f"task-{number}")


@contextmanager
def appended(url: str, number: int, batch: int) -> Iterator[Any]:
    """Store episodes step by step, each until its last step is stored."""
    columns = arrays.steps(random_numbers(number), batch)
    rows = [{name: values[i] for name, values in columns.items()} for i in range(batch)]
    with ReplayBuffer(url) as buffer:
        len(buffer)

        def write() -> None:
            episode = buffer.episode()
            for row in rows:
                episode.append(**row)
            episode.finish()
            buffer.flush()

        yield tuple, write


@contextmanager
def copied(url: str, number: int, batch: int) -> Iterator[Any]:
    """Store the newest steps again, by the bare driver."""
    driver = bare_chunks(bare(url))
    stored = driver.newest(batch)
    yield partial(again, stored), driver.write
    driver.close()
