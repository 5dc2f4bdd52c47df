"""Fragments: 8 MB written and read beside a plain file, and chosen without their payloads."""

import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

FRAGMENT_BYTES = 8_000_000
# Written or read in one timing: on SQLite every fourth write is followed by a checkpoint.
AT_ONCE = 4
HELD = 32
MANY, FEW, CHOSEN = 4_800, 100, 64
WANTED = {"sqlite": 0.4, "postgresql": 0.3}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield from _transfers(bench)
    yield _choosing(bench)


def _transfers(bench: Bench) -> Iterator[Figure]:
    rng, numbers, times = random_numbers(), count(), bench.scale.times
    held = max(AT_ONCE, times(HELD))
    image = rng.integers(0, 256, FRAGMENT_BYTES - 160_000, np.uint8)
    state = {"obs": {"image": image, "x": rng.random(20_000)}, "step": 0}
    content = rng.bytes(FRAGMENT_BYTES)
    with bench.database() as url, tempfile.TemporaryDirectory() as name:
        folder, buffer = Path(name), ReplayBuffer(url, create=True)

        def write() -> None:
            for _ in range(AT_ONCE):
                buffer.add(state=state)

        def write_files() -> None:
            for _ in range(AT_ONCE):
                with (folder / str(next(numbers))).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())

        def read() -> None:
            for _ in range(AT_ONCE):
                (row,) = buffer.sample(1)
                assert len(row.exp_data.state["obs"]["image"]) == len(image)

        def read_files() -> None:
            for i in rng.integers(0, held, AT_ONCE):
                assert len(np.fromfile(folder / str(i), np.uint8)) == FRAGMENT_BYTES

        calls = {"write": write, "write_files": write_files, "read": read, "read_files": read_files}
        bench.say(f"writing and reading fragments of {FRAGMENT_BYTES // 10**6} MB")
        for _ in range(held // AT_ONCE):
            write()
            write_files()
        timings = in_turns({k: Timed(call) for k, call in calls.items()}, times(24), warmup=1)
        buffer.close()
    yield _transfer(bench, timings, "write", "written vs a plain file with fsync")
    yield _transfer(bench, timings, "read", "read vs a plain file")


def _transfer(bench: Bench, timings: Timings, call: str, what: str) -> Figure:
    files = f"{call}_files"
    spent = {name: timings.median(name) / AT_ONCE for name in (call, files)}
    shown = {
        name: f"{shown_time(seconds)}, {FRAGMENT_BYTES / seconds / 1e6:,.0f} MB/s"
        for name, seconds in spent.items()
    }
    return Figure(
        f"fragments of 8 MB {what}",
        bench.label,
        f"{shown[call]}; a file {shown[files]}",
        timings.ratio(files, call),
        WANTED[bench.kind],
    )


def _choosing(bench: Bench) -> Figure:
    times, many = bench.scale.times, max(FEW, bench.scale.times(MANY))
    with bench.database() as url, bench.database() as small_url:
        bench.say(f"filling two databases with fragments: {many:,} and {FEW}")
        large, small = _filled(url, many), _filled(small_url, FEW)
        timings = in_turns(
            {
                name: Timed(lambda b=buffer: b.sample(CHOSEN, fields=[]), repeat=times(20))
                for name, buffer in (("large", large), ("small", small))
            },
            times(16),
            warmup=times(2),
        )
        large.close()
        small.close()
    return Figure(
        f"choosing {CHOSEN} fragments without payloads of {MANY:,} vs of {FEW}",
        bench.label,
        f"{shown_time(timings.median('large'))}, {shown_time(timings.median('small'))}",
        timings.ratio("large", "small"),
        2,
        at_most=True,
    )


def _filled(url: str, n: int) -> ReplayBuffer:
    """Return a buffer of fragments in parts, which are zeros: they take no room."""
    buffer = ReplayBuffer(url, create=True, compression="zstd")
    state = {"image": np.zeros(1_100_000, np.uint8), "x": np.zeros(100)}
    for i in range(n):
        buffer.add(state=state, task_id=f"t{i}", reward=1.0)
    return buffer
