"""What a batch by priority costs: beside a race over all rows in SQL, and as the buffer grows."""

from collections.abc import Iterator

import numpy as np

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from tests.benchmarks.bench import LOAD_BATCH, Bench, filled, random_numbers
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

BATCH = 256


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n, n_small = bench.scale.rows, bench.scale.small_rows
    with bench.database() as url, bench.database() as small_url:
        bench.say(f"filling a database with {n:,} rows that have priorities, one with {n_small:,}")
        large, small = prioritized(url, n), prioritized(small_url, n_small)
        timings = _timed(bench, large, small, url)
    yield from _figures(bench, timings)


def prioritized(url: str, n: int) -> ReplayBuffer:
    """Return a buffer of n rows with priorities like those of errors."""
    numbers = random_numbers()
    buffer = filled(url, n, max_capacity=n, priorities=True)
    for first in range(1, n + 1, LOAD_BATCH):
        seqs = np.arange(first, min(first + LOAD_BATCH, n + 1))
        buffer.update_priorities(seqs, np.abs(numbers.standard_normal(len(seqs))))
    buffer.sample(1, sampler=PrioritizedSampler())  # adds the blocks up
    return buffer


def _timed(bench: Bench, large: ReplayBuffer, small: ReplayBuffer, url: str) -> Timings:
    driver, times, sampler = bare(url), bench.scale.times, PrioritizedSampler()
    timings = in_turns(
        {
            "race": Timed(lambda: driver.race(BATCH, 0.6)),
            "large": Timed(lambda: large.sample(BATCH, sampler=sampler), repeat=times(20)),
            "small": Timed(lambda: small.sample(BATCH, sampler=sampler), repeat=times(20)),
            "arrays": Timed(lambda: large.sample_arrays(BATCH, sampler=sampler), repeat=times(20)),
            "few arrays": Timed(
                lambda: small.sample_arrays(BATCH, sampler=sampler), repeat=times(20)
            ),
            "uniform": Timed(lambda: large.sample(BATCH), repeat=times(20)),
        },
        times(16),
        warmup=times(2),
    )
    driver.close()
    return timings


def _figures(bench: Bench, timings: Timings) -> Iterator[Figure]:
    n, n_small = bench.scale.rows, bench.scale.small_rows
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    yield Figure(
        f"`sample({BATCH})` by priority at {n:,} rows: times faster than a race in SQL",
        bench.label,
        f"{spent['large']}, race {spent['race']}; uniform {spent['uniform']}; "
        f"arrays {spent['arrays']}",
        timings.ratio("race", "large"),
        20,
    )
    yield Figure(
        f"`sample({BATCH})` by priority at {n:,} rows vs at {n_small:,}",
        bench.label,
        f"{spent['large']}, {spent['small']}; arrays {spent['arrays']}, {spent['few arrays']}",
        timings.ratio("large", "small"),
        3,
        at_most=True,
    )
