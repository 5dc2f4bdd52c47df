"""Writers as processes of their own."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks.measure import percentile
from tests.benchmarks.rows import RowMaker
from tests.support.processes import running

POOL = 1_024  # rows that a writer sends again and again under new ids
FAR_APART = 10**9
LONGEST_S = 1_800.0
# Opens a database for the writer of a number, which writes batches of a size. Yields what makes the
# arguments of the next write, and what writes.
Opened = AbstractContextManager[tuple[Callable[[], tuple[Any, ...]], Callable[..., Any]]]
Open = Callable[[str, int, int], Opened]


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


@contextmanager
def json_rows(url: str, number: int, batch: int) -> Iterator[Any]:
    """Store JSON rows by the library."""
    maker = RowMaker((number + 1) * FAR_APART)
    batches = cycle([maker.batch(batch) for _ in range(max(POOL // batch, 1))])
    with ReplayBuffer(url) as buffer:
        len(buffer)  # the connection is open before the start
        yield lambda: (maker.renumber(next(batches)),), buffer.store_batch


def write_at_once(
    url: str,
    n_writers: int,
    batch: int,
    *,
    seconds: float | None = None,
    n_rows: int | None = None,
    opened: Open = json_rows,
) -> list[Written]:
    """Let processes write from the same moment on, for a time or until each has written n rows."""
    start = multiprocessing.get_context("fork").Barrier(n_writers)
    calls = [
        (_write, url, number, batch, seconds, n_rows, start, opened) for number in range(n_writers)
    ]
    with running(calls) as workers:
        return workers.results(LONGEST_S)


def _write(
    url: str,
    number: int,
    batch: int,
    seconds: float | None,
    n_rows: int | None,
    start: Any,
    opened: Open,
) -> Written:
    written, latencies = 0, []
    with opened(url, number, batch) as (prepare, write):
        start.wait()
        started = time.perf_counter()
        end = started + (seconds or float("inf"))
        while (now := time.perf_counter()) < end and (n_rows is None or written < n_rows):
            arguments = prepare()
            before = time.perf_counter()
            write(*arguments)
            latencies.append(time.perf_counter() - before)
            written += batch
        now = time.perf_counter()
    return Written(written, now - started, latencies)
