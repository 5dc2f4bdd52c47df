"""What a draw costs in a loop that records and draws in one process."""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Ratio, ratio_of
from tests.benchmarks.report import Figure, shown_time
from tests.support.sql import scalar

DRAWN = 64
STEPS = 2_000
ROUNDS = 4
LEAST_IN_CHUNK = 32
RARELY = 4  # steps before a draw


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    often: list[float] = []
    rarely: list[float] = []
    n = bench.scale.times(STEPS)
    with bench.database() as url, arrays.filled(url, bench.scale.capacity) as buffer:
        before = _n_chunks(url)
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"a draw of {DRAWN} after each step, round {number + 1}")
            rarely.append(_median_draw(buffer, n, RARELY))
            often.append(_median_draw(buffer, n, 1))
        buffer.flush()
        steps = len(buffer) - bench.scale.capacity
        per_chunk = steps / (_n_chunks(url) - before)
    yield Figure(
        f"a draw of {DRAWN} after each step vs after each {RARELY}th",
        bench.label,
        f"{shown_time(median(often))}, {shown_time(median(rarely))}",
        ratio_of([a / b for a, b in zip(often, rarely, strict=True)]),
        1.3,
        at_most=True,
    )
    yield Figure(
        f"steps in a chunk of that loop over {LEAST_IN_CHUNK}",
        bench.label,
        f"{per_chunk:.0f} steps",
        Ratio(*[per_chunk / LEAST_IN_CHUNK] * 3),
        1,
    )


def _n_chunks(url: str) -> int:
    return int(scalar(url, "SELECT count(*) FROM chunks"))


def _median_draw(buffer: ReplayBuffer, n: int, steps: int) -> float:
    """Return the median of the draws of an episode of n steps."""
    columns = arrays.steps(random_numbers(), n)
    found = []
    with buffer.episode() as episode:
        for t in range(n):
            episode.append(**_step(columns, t))
            if t % steps == 0:
                found.append(_timed(partial(buffer.sample_arrays, DRAWN)))
    return median(found)


def _step(columns: dict[str, Any], t: int) -> dict[str, Any]:
    return {name: values[t] for name, values in columns.items()}


def _timed(call: partial[Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
