"""How many batches a second several consumers lease and acknowledge together, and how soon one that
waits has what another process has committed.
"""

import multiprocessing
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.measure import percentile, ratio_of
from tests.benchmarks.processes import LONGEST_S
from tests.benchmarks.report import Figure, shown_time
from tests.support.processes import running

COUNTS = (1, 4, 8)
N_ITEMS, MOST_ROWS = 8, 20_000
SECONDS, ROUNDS = 3.0, 4
# Commits at so many moments of the quarter of a second from one look to the next.
WAKE_UPS, LOOKS_APART_S, FIRST_COMMIT_S = 60, 0.25, 0.3
WAKE_UP_TARGET_S = 0.25


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _wake_up(bench)
    if bench.kind == "postgresql":
        yield _claims(bench)


def _wake_up(bench: Bench) -> Figure:
    n = bench.scale.times(WAKE_UPS)
    bench.say(f"{n} waits for a row")
    with bench.database() as url:
        ReplayBuffer(url, create=True, leases=True, max_use=1).close()
        ours, theirs = multiprocessing.get_context("fork").Pipe()
        with running([(_wait_for_rows, url, n + 1, theirs)]) as workers:
            committed = _commit_rows(url, n + 1, ours)
            (claimed,) = workers.results(LONGEST_S)
    waits = [b - a for a, b in zip(committed, claimed, strict=True)][1:]
    p95 = percentile(waits, 0.95)
    target = shown_time(WAKE_UP_TARGET_S)
    return Figure(
        f"from a commit to its batch, p95 of {n} leases that wait, vs {target}",
        bench.label,
        f"p50 {shown_time(median(waits))}, p95 {shown_time(p95)}, longest {shown_time(max(waits))}",
        ratio_of([p95 / WAKE_UP_TARGET_S]),
        1.0,
        at_most=True,
    )


def _wait_for_rows(url: str, n: int, pipe: Any) -> list[float]:
    claimed = []
    with ReplayBuffer(url) as buffer:
        for _ in range(n):
            lease = buffer.lease(1, timeout_s=LONGEST_S)
            pipe.send(time.monotonic())
            with lease:
                claimed.append(time.monotonic())
    return claimed


def _commit_rows(url: str, n: int, pipe: Any) -> list[float]:
    committed = []
    with ReplayBuffer(url) as buffer:
        for number in range(n):
            began = pipe.recv()
            due = began + FIRST_COMMIT_S + LOOKS_APART_S * number / n
            time.sleep(max(0.0, due - time.monotonic()))
            buffer.add(state=number, reward=1.0)
            committed.append(time.monotonic())
    return committed


def _claims(bench: Bench) -> Figure:
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
    return Figure(
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
