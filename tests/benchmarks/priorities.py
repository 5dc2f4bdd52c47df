"""What priorities cost: inserting with them, and updating them beside the bare driver."""

from collections.abc import Iterator

import numpy as np

from tests.benchmarks.bench import LOAD_BATCH, Bench, filled, random_numbers
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_time
from tests.benchmarks.rows import RowMaker
from tests.benchmarks.writing import BATCH
from tests.support.sql import run_outside_transaction, scalar
from tests.support.storage_hooks import summarize_blocks

UPDATED = 256


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _inserting(bench)
    yield _updating(bench)


def _inserting(bench: Bench) -> Figure:
    capacity, times, maker = bench.scale.capacity, bench.scale.times, RowMaker()
    with bench.database() as url, bench.database() as plain_url:
        bench.say(f"filling 2 databases to {capacity:,} rows, one with priorities")
        prioritized = filled(url, capacity, maker=maker, max_capacity=capacity, priorities=True)
        plain = filled(plain_url, capacity, maker=maker, max_capacity=capacity)

        def rows():
            return (maker.batch(BATCH),)

        timings = in_turns(
            {
                "with": Timed(prioritized.store_batch, rows),
                "without": Timed(plain.store_batch, rows),
            },
            times(60),
            warmup=times(3),
        )
    return Figure(
        "`store_batch` of 1,000 rows with priorities vs without",
        bench.label,
        f"{shown_time(timings.median('with'))}, {shown_time(timings.median('without'))}",
        timings.ratio("without", "with"),
        0.6,
    )


def _updating(bench: Bench) -> Figure:
    n, times, numbers = bench.scale.rows, bench.scale.times, random_numbers()
    with bench.database() as url:
        bench.say(f"filling a database with {n:,} rows that have priorities")
        buffer = filled(url, n, max_capacity=n, priorities=True)
        # The driver updates rows that are there.
        for first in range(1, n + 1, LOAD_BATCH):
            seqs = np.arange(first, min(first + LOAD_BATCH, n + 1))
            buffer.update_priorities(seqs, np.abs(numbers.standard_normal(len(seqs))))
        summarize_blocks(buffer, n // scalar(url, "SELECT block_size FROM buffers") + 1)
        if bench.kind == "postgresql":
            run_outside_transaction(url, "ANALYZE")  # or the bare driver's statement scans
        driver = bare(url)

        def errors():
            seqs = numbers.choice(n, UPDATED, replace=False) + 1
            return seqs, np.abs(numbers.standard_normal(UPDATED))

        timings = in_turns(
            {
                "bare": Timed(driver.set_priorities, errors, repeat=times(20)),
                "update": Timed(buffer.update_priorities, errors, repeat=times(20)),
            },
            times(16),
            warmup=times(2),
        )
        driver.close()
    return Figure(
        f"`update_priorities` of {UPDATED} at {n:,} rows vs the bare driver's update",
        bench.label,
        f"{shown_time(timings.median('update'))}, bare {shown_time(timings.median('bare'))}",
        timings.ratio("update", "bare"),
        3,
        at_most=True,
    )
