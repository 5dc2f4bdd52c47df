"""Pictures: batches of stacked frames; and whole episodes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.benchmarks.arrays import EPISODES, steps
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, in_turns, ratio_of
from tests.benchmarks.report import Figure, shown_time

FIELDS = {"obs": ("uint8", (84, 84)), "action": "int64"}
ROWS = 100_000
EPISODE = 1_000
BATCH = 32
STACK = 4
TRAJECTORIES, TRAJECTORY = 16, 500
MB_PER_S = {"sqlite": 300, "postgresql": 150}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _stacks(bench)
    yield _trajectories(bench)


def frames(rng: np.random.Generator, n: int) -> dict[str, np.ndarray]:
    """Return the columns of an episode of frames."""
    return {
        "obs": rng.integers(0, 256, (n, 84, 84), np.uint8),
        "action": np.zeros(n, np.int64),
        "reward": np.ones(n),
        "terminated": np.arange(n) == n - 1,
    }


def _stacks(bench: Bench) -> Figure:
    n, rng = max(2 * BATCH, bench.scale.times(ROWS)), random_numbers()
    length = min(EPISODE, n)
    with bench.database() as url:
        bench.say(f"filling a database with {n:,} frames")
        buffer = ReplayBuffer(url, create=True, fields=FIELDS)
        for _ in range(n // length):
            buffer.store_episode(frames(rng, length))
        bench.say("sampling stacks of frames")
        timings = in_turns(
            {
                "stacks": Timed(
                    lambda: buffer.sample_transitions(BATCH, stack={"obs": STACK}),
                    repeat=bench.scale.times(10),
                )
            },
            bench.scale.times(8),
            warmup=1,
        )
        buffer.close()
    seconds = timings.median("stacks")
    size = 2 * BATCH * STACK * 84 * 84
    return Figure(
        f"transitions of {STACK} stacked (84, 84) frames, batch {BATCH}, of {n:,} rows",
        bench.label,
        f"{shown_time(seconds)}, {size / seconds / 1e6:,.0f} MB/s",
    )


def _trajectories(bench: Bench) -> Figure:
    n, rng = max(2 * TRAJECTORIES, bench.scale.times(10 * TRAJECTORIES)), random_numbers()
    with bench.database() as url, tempfile.TemporaryDirectory() as folder:
        bench.say(f"filling a database with {n} episodes of {TRAJECTORY} steps")
        buffer = ReplayBuffer(url, create=True, fields=EPISODES)
        path = Path(folder) / "steps.bin"
        with path.open("wb") as file:
            for _ in range(n):
                columns = steps(rng, TRAJECTORY, EPISODES)
                buffer.store_episode(columns, final={"obs": columns["obs"][-1]})
                file.write(columns["obs"].tobytes() + columns["action"].tobytes())
        size = path.stat().st_size // n
        loader = iter(buffer.loader("trajectory", TRAJECTORIES))

        def read_file() -> None:
            with path.open("rb") as file:
                for i in rng.integers(0, n, TRAJECTORIES):
                    file.seek(int(i) * size)
                    assert len(np.frombuffer(file.read(size), np.float32)) * 4 == size

        bench.say("reading trajectories")
        repeat = bench.scale.times(5)
        timings = in_turns(
            {
                "loader": Timed(lambda: next(loader), repeat=repeat),
                "file": Timed(read_file, repeat=repeat),
            },
            bench.scale.times(8),
            warmup=1,
        )
        buffer.close()
    n_bytes, target = TRAJECTORIES * size, MB_PER_S[bench.kind]
    spent = {name: timings.median(name) for name in timings.rounds}
    return Figure(
        f"trajectories, a batch of {TRAJECTORIES} x {TRAJECTORY} steps: MB a second over {target}",
        bench.label,
        f"{shown_time(spent['loader'])}, {n_bytes / spent['loader'] / 1e6:,.0f} MB/s; "
        f"a plain file {shown_time(spent['file'])}, {n_bytes / spent['file'] / 1e6:,.0f} MB/s",
        ratio_of([n_bytes / seconds / 1e6 / target for seconds in timings.all("loader")]),
        1,
    )
