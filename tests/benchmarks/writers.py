"""How many rows a second several writers store together, and how long the slowest batch waits."""

from collections.abc import Iterator
from statistics import median

from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.processes import write_at_once
from tests.benchmarks.report import Figure, shown_rate, shown_time

COUNTS = (1, 2, 4, 8)
BATCH = 64
SECONDS, ROUNDS = 4.0, 4


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    capacity = bench.scale.capacity
    rates: dict[int, list[float]] = {n: [] for n in COUNTS}
    waits: dict[int, list[float]] = {n: [] for n in COUNTS}
    with bench.database() as url:
        filled(url, capacity, max_capacity=capacity).close()
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{', '.join(map(str, COUNTS))} writers, round {number + 1}")
            for n in COUNTS:
                written = write_at_once(url, n, BATCH, seconds=bench.scale.seconds(SECONDS))
                rates[n].append(sum(writer.rows_per_s for writer in written))
                waits[n].append(max(writer.p99 for writer in written))
    best = max(COUNTS, key=lambda n: median(rates[n]))
    yield Figure(
        f"{COUNTS[-1]} writers of {BATCH}-row batches vs the best of {COUNTS}",
        bench.label,
        "; ".join(
            f"{n}: {shown_rate(median(rates[n]))}, p99 {shown_time(median(waits[n]))}"
            for n in COUNTS
        ),
        ratio_of([a / b for a, b in zip(rates[COUNTS[-1]], rates[best], strict=True)]),
        0.8,
    )
