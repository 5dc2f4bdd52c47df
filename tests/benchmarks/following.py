"""What it takes to keep a mirror in step with a buffer that another process writes to."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.benchmarks.arrays import BATCH, steps
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import percentile, ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_time
from tests.support.processes import running

STEPS_PER_S, STEPS_A_WRITE = 5_000, 50
REFRESH_S = 0.5
FULL_S, ROUNDS = 8.0, 3


def measure(bench: Bench, url: str, buffer: ReplayBuffer) -> Iterator[Figure]:
    """Yield the figures of a buffer that is filled.

    Args:
        bench: What is measured.
        url: Where the buffer is.
        buffer: The buffer.
    """
    seconds = FULL_S if bench.scale.full else 1.5
    bench.say(f"following a writer of {STEPS_PER_S:,} steps a second")
    with buffer.mirror(refresh_s=REFRESH_S) as mirror:
        alone = [burst(mirror) for _ in range(100)]
        shares, delays, beside = [], [], []
        for _ in range(ROUNDS):
            with running([(write, url, seconds)], "forkserver") as writers:
                used, began = time.process_time(), time.monotonic()
                time.sleep(seconds / 2)
                shares.append((time.process_time() - used) / (time.monotonic() - began))
                seen, drawn = watched(mirror, began + seconds)
                beside += drawn
                (written,) = writers.results()
            delays += delays_of(written, seen)
    p99 = percentile(delays, 0.99)
    yield Figure(
        f"commit by another process to drawable from a mirror, p99, over 1 s "
        f"(`refresh_s={REFRESH_S}`)",
        bench.label,
        f"{shown_time(p99)}, median {shown_time(float(np.median(delays)))}",
        ratio_of([p99]),
        1,
        at_most=True,
    )
    yield Figure(
        f"a mirror next to {STEPS_PER_S:,} steps a second: share of a core",
        bench.label,
        ", ".join(f"{share:.2%}" for share in shares),
        ratio_of(shares),
        0.1,
        at_most=True,
    )
    ratio = ratio_of([float(np.median(beside)) / float(np.median(alone))])
    yield Figure(
        f"`mirror.sample_arrays({BATCH})` next to that writer vs alone",
        bench.label,
        f"{shown_time(float(np.median(beside)))}, alone {shown_time(float(np.median(alone)))}",
        ratio,
    )


def write(url: str, seconds: float) -> list[tuple[float, int]]:
    """Store steps at a steady rate; return when each write was committed, and its newest step."""
    rows, written = steps(random_numbers(), STEPS_A_WRITE), []
    with ReplayBuffer(url) as buffer:
        began = time.monotonic()
        for number in range(int(seconds * STEPS_PER_S / STEPS_A_WRITE)):
            time.sleep(max(0.0, began + number * STEPS_A_WRITE / STEPS_PER_S - time.monotonic()))
            seqs = buffer.extend(rows).seqs
            written.append((time.monotonic(), int(seqs[-1])))
    return written


def watched(mirror: Any, until: float) -> tuple[list[tuple[float, int]], list[float]]:
    """Draw now and then; return which step was the newest when, and what each draw took."""
    seen, drawn = [], []
    while time.monotonic() < until:
        drawn.append(burst(mirror))
        seen.append((time.monotonic(), mirror.lag().high))
        time.sleep(0.005)
    return seen, drawn


def burst(mirror: Any) -> float:
    """Return what a draw takes, of some that follow each other."""
    return float(np.median([seconds_of(mirror.sample_arrays, BATCH) for _ in range(20)]))


def delays_of(written: list[tuple[float, int]], seen: list[tuple[float, int]]) -> list[float]:
    """Return how long after its commit each write was first seen, of those while it was watched."""
    times, highs = np.array([at for at, _ in seen]), np.array([high for _, high in seen])
    found = []
    for committed_at, seq in written:
        place = int(np.searchsorted(highs, seq))
        if times[0] <= committed_at and place < len(times):
            found.append(max(0.0, float(times[place]) - committed_at))
    return found
