"""What it takes to export a buffer of typed steps to Parquet, and to restore it; and to import flat
arrays of whole episodes, next to storing the same episodes one by one.
"""

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import export_parquet, import_arrays, import_parquet
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, in_turns, ratio_of
from tests.benchmarks.report import Figure, shown_rate

ROUNDS = 4
LEAST_OUT, LEAST_IN = 200_000, 100_000
EPISODE = 1_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield from _parquet(bench)
    yield from _flat_arrays(bench)


def _parquet(bench: Bench) -> Iterator[Figure]:
    n_rows = bench.scale.rows
    out: list[float] = []
    back: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="sqlbuffer-bench-") as folder,
        bench.database() as url,
        arrays.filled(url, n_rows) as buffer,
    ):
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{n_rows:,} steps to Parquet and back, round {number + 1}")
            path = Path(folder) / "out"
            report = export_parquet(buffer, path, overwrite=True)
            out.append(report.n_steps / report.seconds)
            with bench.database() as copy:
                ReplayBuffer(copy, "other", create=True).close()
                restored = import_parquet(path, copy, "copy")
                back.append(restored.n_stored / restored.seconds)
    yield _figure(bench, "a buffer to Parquet", out, LEAST_OUT)
    yield _figure(bench, "a buffer restored from Parquet", back, LEAST_IN)


def _figure(bench: Bench, what: str, rates: list[float], least: int) -> Figure:
    found = ratio_of([rate / least for rate in rates])
    rate = f"{found.value * least:,.0f} steps/s"
    return Figure(f"{what}: steps a second over {least:,}", bench.label, rate, found, 1)


def _flat_arrays(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of flat arrays, with next observations, next to `store_episode`."""
    flat, number = flat_arrays(max(EPISODE, bench.scale.rows // 10)), count()
    n_rows = len(flat["rewards"])
    with (
        tempfile.TemporaryDirectory(prefix="sqlbuffer-bench-") as folder,
        bench.database() as url,
        ReplayBuffer(url, "stored", create=True, fields=arrays.EPISODES) as buffer,
    ):
        np.savez(f"{folder}/data.npz", **flat)

        def new() -> tuple[str]:
            return (f"run-{next(number)}/",)

        def store(prefix: str) -> None:
            for start in range(0, n_rows, EPISODE):
                rows = slice(start, start + EPISODE)
                columns = {
                    "obs": flat["observations"][rows],
                    "action": flat["actions"][rows],
                    "reward": flat["rewards"][rows],
                    "terminated": flat["terminals"][rows],
                    "truncated": flat["timeouts"][rows],
                }
                final = {"obs": flat["next_observations"][rows][-1]}
                name = f"{prefix}{start}"
                buffer.store_episode(columns, final=final, episode_id=name, task_id="default")

        bench.say(f"{n_rows:,} steps in flat arrays, and by store_episode")
        timings = in_turns(
            {
                "stored": Timed(store, new),
                "dict": Timed(lambda prefix: import_arrays(url, flat, "dict", prefix=prefix), new),
                "npz": Timed(
                    lambda prefix: import_arrays(url, f"{folder}/data.npz", "npz", prefix=prefix),
                    new,
                ),
            },
            bench.scale.times(8),
            warmup=1,
        )
    rates = {name: shown_rate(n_rows / timings.median(name)) for name in timings.rounds}
    for name, what in (("dict", "a dict of arrays"), ("npz", "an `.npz` file")):
        yield Figure(
            f"`import_arrays` of {what} vs `store_episode`, episodes of {EPISODE:,} steps",
            bench.label,
            f"{rates[name]}, store_episode {rates['stored']}".replace("rows", "steps"),
            timings.ratio("stored", name),
            0.7,
        )


def flat_arrays(n_rows: int) -> dict[str, Any]:
    """Return whole episodes of a small control task, in the form of D4RL."""
    rng, n = random_numbers(), n_rows // EPISODE * EPISODE
    columns = arrays.steps(rng, n, arrays.EPISODES)
    ends = np.arange(n) % EPISODE == EPISODE - 1
    following = np.roll(columns["obs"], -1, axis=0)
    following[ends] = rng.standard_normal((int(ends.sum()), 17), np.float32)
    return {
        "observations": columns["obs"],
        "actions": columns["action"],
        "rewards": columns["reward"],
        "terminals": np.zeros(n, bool),
        "timeouts": ends,
        "next_observations": following,
    }
