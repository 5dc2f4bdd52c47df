"""Writers as processes of their own."""

import multiprocessing
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks.measure import percentile
from tests.benchmarks.rows import RowMaker
from tests.support.processes import running

POOL = 1_024  # rows that a writer sends again and again under new ids
FAR_APART = 10**9
LONGEST_S = 1_800.0


@dataclass(frozen=True)
class Written:
    """What one writer did."""

    rows: int
    seconds: float
    latencies: list[float]

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @cached_property
    def p99(self) -> float:
        return percentile(self.latencies, 0.99)


def write_at_once(
    url: str,
    n_writers: int,
    batch: int,
    *,
    seconds: float | None = None,
    n_rows: int | None = None,
) -> list[Written]:
    """Let processes write from the same moment on, for a time or until each has written n rows."""
    start = multiprocessing.get_context("fork").Barrier(n_writers)
    calls = [(_write, url, number, batch, seconds, n_rows, start) for number in range(n_writers)]
    with running(calls) as workers:
        return workers.results(LONGEST_S)


def _write(
    url: str, number: int, batch: int, seconds: float | None, n_rows: int | None, start: Any
) -> Written:
    maker = RowMaker((number + 1) * FAR_APART)
    batches = [maker.batch(batch) for _ in range(max(POOL // batch, 1))]
    written, latencies = 0, []
    with ReplayBuffer(url) as buffer:
        len(buffer)  # the connection is open before the start
        start.wait()
        started = time.perf_counter()
        end = started + (seconds or float("inf"))
        while (now := time.perf_counter()) < end and (n_rows is None or written < n_rows):
            rows = maker.renumber(batches[len(latencies) % len(batches)])
            before = time.perf_counter()
            buffer.store_batch(rows)
            latencies.append(time.perf_counter() - before)
            written += batch
        now = time.perf_counter()
    return Written(written, now - started, latencies)
