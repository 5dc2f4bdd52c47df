"""`sqlbuffer.compat.memmap` beside memmap-replay-buffer itself, where that is installed.

Both are called the same way, with their defaults: the step of a small control task, an observation
of 17 floats, an action of 6, a reward and whether the episode ended.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import sqlbuffer
from sqlbuffer.compat.memmap import ReplayBuffer
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

FIELDS = {"obs": ("float", 17), "action": ("float", 6), "reward": "float", "done": "bool"}
EPISODE = 1_000
STORED = EPISODE
N_STEP = 5
NAMES = "vs memmap-replay-buffer"
STORE_EPISODE = {"sqlite": 0.4, "postgresql": 0.2}
READ_FIRST = {"sqlite": 0.4, "postgresql": 0.2}
FIRST_PASS = "trajectories, batches of 4, first pass"
LATER_PASSES = "trajectories, batches of 4, later passes"


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    times = bench.scale.times
    n_episodes = max(2, times(100))
    with bench.database() as url, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sqlbuffer.ReplayBuffer(url, create=True).close()  # which makes the tables
        buffers: dict[str, Any] = {"ours": _opened(ReplayBuffer, url, n_episodes)}
        stack.callback(buffers["ours"].close)
        if (peer := _peer()) is not None:
            buffers["peer"] = _opened(peer, Path(folder) / "memmap", n_episodes)
        bench.say(f"storing {n_episodes} episodes of {EPISODE:,} steps in {', '.join(buffers)}")
        episode = _episode()
        for buffer in buffers.values():
            for _ in range(n_episodes):
                buffer.store_episode(**episode)
            buffer.flush()
        for what, calls, rounds, target in _calls(bench.kind, buffers, episode):
            timings = in_turns(calls, times(rounds), warmup=times(2))
            yield _figure(bench, what, timings, target)


def _calls(
    kind: str, buffers: dict[str, Any], episode: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Timed], int, float]]:
    rows = [{name: values[i] for name, values in episode.items()} for i in range(STORED)]

    def store(buffer: Any) -> Callable[[], Any]:
        def write() -> None:
            with buffer.one_episode():
                for row in rows:
                    buffer.store(**row)

        return write

    yield (
        f"`store` of {STORED:,} steps, an episode, {NAMES}",
        {name: Timed(store(buffer)) for name, buffer in buffers.items()},
        12,
        5,
    )
    yield (
        f"`store_episode` of {EPISODE:,} steps {NAMES}",
        {
            name: Timed(lambda buffer=buffer: buffer.store_episode(**episode))
            for name, buffer in buffers.items()
        },
        20,
        STORE_EPISODE[kind],
    )
    for what, n, options in (
        (FIRST_PASS, 4, {}),
        (LATER_PASSES, 4, {}),
        ("steps, batches of 256", 256, {"timestep_level": True}),
        (
            f"{N_STEP}-step transitions, batches of 256",
            256,
            {
                "n_steps": N_STEP,
                "current_fields": ("obs", "action"),
                "next_fields": ("obs",),
                "sequence_fields": ("reward",),
            },
        ),
    ):
        read = dict(buffers)
        if what == FIRST_PASS:
            read["ours"] = _without_cache(buffers["ours"])
        if what == LATER_PASSES:
            for _ in read["ours"].dataloader(n):
                pass
        yield (
            f"`dataloader`: {what}, {NAMES}",
            {name: Timed(_drawn(buffer, n, options), repeat=5) for name, buffer in read.items()},
            16,
            READ_FIRST[kind] if what == FIRST_PASS else 0.5,
        )
        if read["ours"] is not buffers["ours"]:
            read["ours"].close()


def _without_cache(buffer: ReplayBuffer) -> ReplayBuffer:
    """Return a buffer that reads every episode as if for the first time."""
    return ReplayBuffer.from_folder(buffer.folder, read_only=True, cache_bytes=0)


def _drawn(buffer: Any, n: int, options: dict[str, Any]) -> Callable[[], Any]:
    """Return what draws the next batch of a shuffled loader, pass after pass."""
    loader = buffer.dataloader(n, shuffle=True, drop_last=n > 4, **options)
    batches = (batch for _ in count() for batch in loader)
    return lambda: next(batches)


def _figure(bench: Bench, what: str, timings: Timings, target: float) -> Figure:
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    if "peer" not in spent:
        absolute = f"{spent['ours']}; memmap-replay-buffer is not installed"
        return Figure(what, bench.label, absolute)
    absolute = f"{spent['ours']}, memmap-replay-buffer {spent['peer']}"
    return Figure(what, bench.label, absolute, timings.ratio("peer", "ours"), target)


def _opened(cls: Any, where: Any, n_episodes: int) -> Any:
    return cls(
        where,
        max_episodes=n_episodes,
        max_timesteps=EPISODE,
        fields=FIELDS,
        circular=True,
    )


def _peer() -> Any:
    try:
        from memmap_replay_buffer import ReplayBuffer as Peer
    except ImportError:
        return None
    return Peer


def _episode() -> dict[str, Any]:
    rng = random_numbers()
    return {
        "obs": rng.standard_normal((EPISODE, 17), "f4"),
        "action": rng.standard_normal((EPISODE, 6), "f4"),
        "reward": rng.standard_normal(EPISODE, "f4"),
        "done": rng.random(EPISODE) < 0,
    }
