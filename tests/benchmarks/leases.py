"""How many batches a second several consumers lease and acknowledge together."""

import multiprocessing
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.processes import LONGEST_S
from tests.benchmarks.report import Figure
from tests.support.processes import running

COUNTS = (1, 4, 8)
N_ITEMS, MOST_ROWS = 8, 20_000
SECONDS, ROUNDS = 3.0, 4


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    if bench.kind != "postgresql":
        return
    n_rows = min(MOST_ROWS, bench.scale.rows)
    rates: dict[int, list[float]] = {n: [] for n in COUNTS}
    with bench.database() as url:
        filled(url, n_rows, leases=True).close()
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{', '.join(map(str, COUNTS))} consumers, round {number + 1}")
            for n in COUNTS:
                rates[n].append(_claims_per_s(url, n, bench.scale.seconds(SECONDS)))
    shown = "; ".join(f"{n}: {median(rates[n]):,.0f}/s" for n in COUNTS)
    fewer = max(COUNTS[:-1], key=lambda n: median(rates[n]))
    yield Figure(
        f"{COUNTS[-1]} consumers that lease {N_ITEMS} of {MOST_ROWS:,} rows vs the best of "
        f"{COUNTS[:-1]}",
        bench.label,
        f"claimed and acknowledged, {shown}",
        ratio_of([a / b for a, b in zip(rates[COUNTS[-1]], rates[fewer], strict=True)]),
        1.0,
    )


def _claims_per_s(url: str, n_consumers: int, seconds: float) -> float:
    start = multiprocessing.get_context("fork").Barrier(n_consumers)
    with running([(_consume, url, seconds, start)] * n_consumers) as workers:
        return sum(workers.results(LONGEST_S))


def _consume(url: str, seconds: float, start: Any) -> float:
    claims = 0
    with ReplayBuffer(url) as buffer:
        len(buffer)  # the connection is open before the start
        start.wait()
        started = time.perf_counter()
        while (now := time.perf_counter()) < started + seconds:
            with buffer.lease(N_ITEMS):
                claims += 1
    return claims / (now - started)
