"""What an analyst's open snapshot does to those who write and sample."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_rate, shown_time
from tests.benchmarks.rows import RowMaker

WRITE_BATCH, SAMPLE_BATCH = 1_000, 256
HELD_S, MEASURED_S, PAIRS = 10.0, 5.0, 4


@dataclass
class Spent:
    """Seconds of each call in a window of time."""

    inserts: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)

    @property
    def rows_per_s(self) -> float:
        return WRITE_BATCH * len(self.inserts) / sum(self.inserts)

    @property
    def samples_per_s(self) -> float:
        return len(self.samples) / sum(self.samples)


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    capacity, maker = bench.scale.capacity, RowMaker()
    with bench.database() as url:
        buffer = filled(url, capacity, maker=maker, max_capacity=capacity)
        without, held = [], []
        pairs = bench.scale.times(PAIRS)
        for number in range(pairs):
            bench.say(f"writing and sampling without and with a snapshot, {number + 1} of {pairs}")
            without.append(_window(bench, buffer, maker))
            with _snapshot(url):
                held.append(_window(bench, buffer, maker))
    for what, of, shown in (
        ("insert", lambda spent: spent.rows_per_s, shown_rate),
        ("sample", lambda spent: spent.samples_per_s, lambda rate: shown_time(1 / rate)),
    ):
        with_rate, without_rate = (sum(map(of, side)) / pairs for side in (held, without))
        yield Figure(
            f"{what} behind a snapshot open for {bench.scale.seconds(HELD_S):g} s vs without",
            bench.label,
            f"{shown(with_rate)}, {shown(without_rate)}",
            ratio_of([of(a) / of(b) for a, b in zip(held, without, strict=True)]),
            0.8,
        )


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    with closing(bare(url)) as analyst:
        analyst.open_snapshot()
        yield


def _window(bench: Bench, buffer: ReplayBuffer, maker: RowMaker) -> Spent:
    """Write and sample for as long as a snapshot must be open, then for the measured time."""
    _run_for(bench.scale.seconds(HELD_S), buffer, maker)
    return _run_for(bench.scale.seconds(MEASURED_S), buffer, maker)


def _run_for(seconds: float, buffer: ReplayBuffer, maker: RowMaker) -> Spent:
    spent, end = Spent(), time.monotonic() + seconds
    rows = maker.batch(WRITE_BATCH)
    while True:
        spent.inserts.append(seconds_of(buffer.store_batch, maker.renumber(rows)))
        spent.samples.append(seconds_of(buffer.sample, SAMPLE_BATCH))
        if time.monotonic() > end:
            return spent
