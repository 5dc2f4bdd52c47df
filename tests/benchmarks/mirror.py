"""What draws from a mirror cost, and what it takes to fill one and to keep it in step."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from tests.benchmarks import following, frames
from tests.benchmarks.arrays import BATCH, EPISODE, FIELDS, steps
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import Timed, Timings, in_turns, percentile, ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_rate, shown_time

# A million steps in at most 1 s and 3 s.
FILLED_PER_S = {"sqlite": 1_000_000, "postgresql": 333_333}
FILLS = 6
FRAMES, EPISODE_OF_FRAMES = 20_000, 500
GB_PER_S = 2
LEARNS_FOR_S, WRITTEN_EVERY_S = 8, 0.5


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    with bench.database() as url:
        buffer = _filled(bench, url)
        yield _filling(bench, buffer)
        with buffer.mirror(refresh_s=3_600) as mirror:
            bench.say("drawing from the mirror, from the buffer and from arrays")
            timings = in_turns(
                {
                    "mirror": Timed(partial(mirror.sample_arrays, BATCH), repeat=50),
                    "buffer": Timed(partial(buffer.sample_arrays, BATCH), repeat=3),
                    "arrays": Timed(_gather(buffer, mirror), repeat=50),
                    **{
                        f"n={n}": Timed(
                            partial(mirror.sample_transitions, BATCH, n_step=n), repeat=50
                        )
                        for n in (1, 5)
                    },
                },
                bench.scale.times(30),
                warmup=bench.scale.times(12),
            )
        followed = list(following.measure(bench, url, buffer))
        buffer.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    yield Figure(
        f"`mirror.sample_arrays({BATCH})`: times faster than from the buffer",
        bench.label,
        f"{spent['mirror']}, buffer {spent['buffer']}",
        timings.ratio("buffer", "mirror"),
    )
    yield Figure(
        f"`mirror.sample_arrays({BATCH})` vs numpy's gather of the same arrays",
        bench.label,
        f"{spent['mirror']}, numpy {spent['arrays']}",
        timings.ratio("mirror", "arrays"),
    )
    yield Figure(
        f"`mirror.sample_transitions({BATCH}, n_step=5)` vs numpy's gather of one step's arrays",
        bench.label,
        f"{spent['n=5']}, numpy {spent['arrays']}; one step {spent['n=1']}",
        timings.ratio("n=5", "arrays"),
    )
    yield from followed
    yield from _by_priority(bench)
    yield _stacks(bench)


def _stacks(bench: Bench) -> Figure:
    n, rng = max(64, bench.scale.times(FRAMES)), random_numbers()
    length = min(EPISODE_OF_FRAMES, n)
    with bench.database() as url:
        bench.say(f"filling a database with {n:,} frames")
        buffer = ReplayBuffer(url, create=True, fields=frames.FIELDS)
        for _ in range(max(1, n // length)):
            buffer.store_episode(frames.frames(rng, length))
        columns = np.zeros((n, 84, 84), np.uint8)
        columns[:] = 1  # or all its pages would be the one of zeros
        before = np.arange(1 - frames.STACK, 1)

        def gather() -> list[Any]:
            last = rng.integers(frames.STACK, n - 1, frames.BATCH)[:, None] + before
            return [columns.take(last, axis=0), columns.take(last + 1, axis=0)]

        bench.say("drawing stacks of frames from a mirror and from an array")
        with buffer.mirror(refresh_s=3_600) as mirror:
            draw = partial(mirror.sample_transitions, frames.BATCH, stack={"obs": frames.STACK})
            timings = in_turns(
                {"mirror": Timed(draw, repeat=20), "array": Timed(gather, repeat=20)},
                bench.scale.times(30),
                warmup=bench.scale.times(3),
            )
        buffer.close()
    n_bytes = 2 * frames.BATCH * frames.STACK * 84 * 84
    spent = {name: timings.median(name) for name in timings.rounds}
    shown = {name: f"{shown_time(s)}, {n_bytes / s / 1e9:.1f} GB/s" for name, s in spent.items()}
    ratio = timings.ratio("mirror", "array").value
    return Figure(
        f"{frames.BATCH} stacks of {frames.STACK} (84, 84) frames and those after them from a "
        f"mirror: GB a second over {GB_PER_S}",
        bench.label,
        f"{shown['mirror']}; numpy's gather {shown['array']}, {ratio:.1f} times as fast",
        ratio_of([n_bytes / seconds / 1e9 / GB_PER_S for seconds in timings.all("mirror")]),
        1,
    )


def _filled(bench: Bench, url: str) -> ReplayBuffer:
    n, rng = bench.scale.rows, random_numbers()
    bench.say(f"filling a database with {n:,} steps of episodes")
    buffer = ReplayBuffer(url, create=True, fields=FIELDS, max_capacity=n)
    for _ in range(max(1, n // EPISODE)):
        buffer.store_episode(steps(rng, EPISODE))
    return buffer


def _by_priority(bench: Bench) -> Iterator[Figure]:
    """Yield how a draw by priority and new priorities for it compare to the buffer's own, and how
    long they take while new priorities are written.
    """
    n, rng = bench.scale.rows, random_numbers()
    bench.say(f"filling a database with {n:,} steps with priorities")
    sampler = PrioritizedSampler()

    def learn(source: Any, errors: Any) -> None:
        source.update_priorities(source.sample_arrays(BATCH, sampler=sampler).seq, errors)

    def timed(source: Any, repeat: int) -> Timings:
        call = Timed(learn, lambda: (source, np.abs(rng.standard_normal(BATCH))), repeat)
        return in_turns({"all": call}, bench.scale.times(30), warmup=bench.scale.times(4))

    with (
        bench.database() as url,
        ReplayBuffer(
            url, create=True, fields=FIELDS, max_capacity=n, priorities=True, alpha=0.6
        ) as buffer,
    ):
        for _ in range(max(1, n // EPISODE)):
            priority = np.abs(rng.standard_normal(EPISODE))
            buffer.store_episode(steps(rng, EPISODE), priority=priority)
        bench.say("drawing by priority from the buffer and from a mirror")
        theirs = timed(buffer, 2)
        with buffer.mirror(refresh_s=3_600) as mirror:
            ours = timed(mirror, 50)
        bench.say("drawing by priority while a mirror writes new priorities")
        with buffer.mirror(refresh_s=WRITTEN_EVERY_S) as mirror:
            calls = [np.abs(rng.standard_normal(BATCH)) for _ in range(256)]
            learn(mirror, calls[0])
            waits, until = [], time.monotonic() + bench.scale.times(LEARNS_FOR_S)
            while time.monotonic() < until:
                waits += [seconds_of(learn, mirror, errors) for errors in calls]
    rounds = zip(theirs.rounds["all"], ours.rounds["all"], strict=True)
    yield Figure(
        f"{BATCH} by priority from a mirror, and their new priorities: times faster than in the "
        f"buffer",
        bench.label,
        f"{shown_time(ours.median('all'))}, buffer {shown_time(theirs.median('all'))}",
        ratio_of([float(np.median(slow) / np.median(quick)) for slow, quick in rounds]),
    )
    p99 = percentile(waits, 0.99)
    yield Figure(
        f"{BATCH} by priority from a mirror, and their new priorities, while those are written "
        f"(`refresh_s={WRITTEN_EVERY_S}`): p99, over 1 ms",
        bench.label,
        f"{shown_time(p99)}, median {shown_time(float(np.median(waits)))}, longest "
        f"{shown_time(max(waits))}",
        ratio_of([p99 / 1e-3]),
        1,
        at_most=True,
    )


def _filling(bench: Bench, buffer: ReplayBuffer) -> Figure:
    bench.say("reading the buffer into memory")
    rates = []
    for _ in range(bench.scale.times(FILLS)):
        began_at = time.perf_counter()
        with buffer.mirror(refresh_s=3_600) as mirror:
            rates.append(len(mirror) / (time.perf_counter() - began_at))
    per_s = FILLED_PER_S[bench.kind]
    return Figure(
        f"first fill of a mirror: steps a second over {per_s:,}",
        bench.label,
        shown_rate(float(np.median(rates))).replace("rows", "steps"),
        ratio_of([rate / per_s for rate in rates]),
        1,
    )


def _gather(buffer: ReplayBuffer, mirror: Any) -> Any:
    """Return a draw from arrays in memory, which is all that a buffer without a database does."""
    rng, n = np.random.default_rng(0), len(mirror)
    dtypes = {name: spec.dtype for name, spec in buffer.fields.items()}
    columns = [np.zeros((n, *buffer.fields[name].shape), dtype) for name, dtype in dtypes.items()]
    columns += [np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool)]

    def draw() -> list[Any]:
        drawn = rng.integers(0, n, BATCH)
        return [column.take(drawn, axis=0) for column in columns]

    return draw
