"""What typed fields cost: steps in columns and one at a time, steps of many tasks, n-step returns.

The step of a small control task: an observation and the one after it of 17 float32, an action of 6,
a reward and how it ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

from sqlbuffer import ReplayBuffer, fields_from_env
from tests.benchmarks.bench import LOAD_BATCH, Bench, random_numbers
from tests.benchmarks.chunk_driver import again, bare_chunks
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, in_turns, ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_rate, shown_time
from tests.benchmarks.step_rows import record_type, step_records
from tests.support.storage_hooks import open_store, store_records

FIELDS = {
    "obs": ("float32", (17,)),
    "action": ("float32", (6,)),
    "next_obs": ("float32", (17,)),
}
EPISODES = {name: FIELDS[name] for name in ("obs", "action")}
EXTENDED = 1_000
EXTENDED_PER_S = {"sqlite": 300_000, "postgresql": 180_000}
OF_BARE = {"sqlite": 0.6, "postgresql": 0.75}
ENVIRONMENTS = 64
BATCH = 256
EPISODE = 1_000
APPENDED = 20_000
APPENDS_PER_S = 60_000


def steps(rng: np.random.Generator, n: int, fields: Mapping[str, Any] = FIELDS) -> dict[str, Any]:
    """Return n steps as columns; the last one ends the episode."""
    arrays = {
        name: rng.standard_normal((n, *shape), np.float32) for name, (_, shape) in fields.items()
    }
    last = np.arange(n) == n - 1
    return {**arrays, "reward": np.ones(n), "terminated": last, "truncated": np.zeros(n, bool)}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield from _extending(bench)
    yield _different_tasks(bench)
    yield _appending(bench)
    yield _recording(bench)
    yield _transitions(bench)


def _extending(bench: Bench) -> Iterator[Figure]:
    capacity, times = bench.scale.capacity, bench.scale.times
    columns, target = steps(random_numbers(), EXTENDED), EXTENDED_PER_S[bench.kind]
    in_turn = [f"environment-{i % ENVIRONMENTS}" for i in range(EXTENDED)]
    with bench.database() as url, bench.database() as bare_url:
        full, other = (filled(one, capacity, max_capacity=capacity) for one in (url, bare_url))
        driver = bare_chunks(bare(bare_url))
        for whose, keys in (
            ("", {}),
            (f" of {ENVIRONMENTS} environments in turn", {"task_id": in_turn}),
        ):
            other.extend(columns, **keys)
            stored = driver.newest(EXTENDED)
            # The first call of a round comes after a collection of garbage, which empties the
            # caches of the processor. Those in a row show what a loop of writes takes.
            for how, repeat in (("", 1), (", ten in a row", 10)):
                what = f"`extend` of {EXTENDED:,} steps{whose}{how}"
                bench.say(f"{what}, beside the bare driver")
                timings = in_turns(
                    {
                        "bare": Timed(driver.write, partial(again, stored), repeat),
                        "extend": Timed(partial(full.extend, columns, **keys), repeat=repeat),
                    },
                    times(60),
                    warmup=times(3),
                )
                spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
                absolute = f"{spent['extend']}, bare {spent['bare']} for {len(stored[0])} chunks"
                rates = [EXTENDED / seconds for seconds in timings.all("extend")]
                yield Figure(
                    f"{what} vs the bare driver",
                    bench.label,
                    absolute,
                    timings.ratio("bare", "extend"),
                    OF_BARE[bench.kind],
                )
                yield _rate_over(target, what, bench, rates)
        for opened in (full, other, driver):
            opened.close()


def _rate_over(per_s: int, what: str, bench: Bench, rates: Sequence[float]) -> Figure:
    return Figure(
        f"{what}: steps a second over {per_s:,}",
        bench.label,
        shown_rate(float(np.median(rates))).replace("rows", "steps"),
        ratio_of([rate / per_s for rate in rates]),
        1,
    )


def _different_tasks(bench: Bench) -> Figure:
    capacity, times = bench.scale.capacity, bench.scale.times
    columns, number, record = steps(random_numbers(), EXTENDED), count(), record_type(FIELDS)

    def tasks() -> tuple[list[str]]:
        return ([f"task-{next(number)}" for _ in range(EXTENDED)],)

    with bench.database() as url, bench.database() as rows_url:
        buffer = filled(url, capacity, max_capacity=capacity)
        rows = open_store(rows_url, max_capacity=capacity)
        bench.say(f"{EXTENDED:,} steps of different tasks, in chunks and in rows")
        timings = in_turns(
            {
                "rows": Timed(
                    lambda tasks: store_records(rows, step_records(columns, record, tasks)), tasks
                ),
                "extend": Timed(lambda tasks: buffer.extend(columns, task_id=tasks), tasks),
            },
            times(60),
            warmup=max(times(3), min(times(100), capacity // EXTENDED)),
        )
        buffer.close()
        rows.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    return Figure(
        f"`extend` of {EXTENDED:,} steps that all have different tasks vs rows of the same steps",
        bench.label,
        f"{spent['extend']}, rows {spent['rows']}",
        timings.ratio("extend", "rows"),
        1.2,
        at_most=True,
    )


def _appending(bench: Bench) -> Figure:
    n = max(EPISODE // 10, bench.scale.times(APPENDED))
    columns = steps(random_numbers(), EPISODE)
    rows = [{name: values[i] for name, values in columns.items()} for i in range(EPISODE)]
    with bench.database() as url:
        buffer = ReplayBuffer(url, create=True, fields=FIELDS, max_capacity=bench.scale.capacity)

        def write() -> None:
            for start in range(0, n, EPISODE):
                episode = buffer.episode()
                for row in rows[: min(EPISODE, n - start)]:
                    episode.append(**row)
                episode.finish()
            buffer.flush()

        bench.say(f"{n:,} steps one at a time")
        write()
        rates = [n / seconds_of(write) for _ in range(bench.scale.times(8))]
        buffer.close()
    what = "`append` of one step after the other, until the last is stored"
    return _rate_over(APPENDS_PER_S, what, bench, rates)


def _recording(bench: Bench) -> Figure:
    n = max(2, bench.scale.times(APPENDED) // ENVIRONMENTS)
    with bench.database() as url:
        buffer = ReplayBuffer(
            url,
            create=True,
            max_capacity=bench.scale.capacity,
            **fields_from_env(_Still(), next_observation=True),
        )
        env = buffer.record(_Still())
        action = np.zeros((ENVIRONMENTS, 6), np.float32)

        def write() -> None:
            env.reset()
            for _ in range(n):
                env.step(action)
            env.reset()
            buffer.flush()

        bench.say(f"recording {ENVIRONMENTS} environments for {n:,} steps")
        write()
        rates = [n * ENVIRONMENTS / seconds_of(write) for _ in range(bench.scale.times(8))]
        env.close()
        buffer.close()
    what = f"`record` of {ENVIRONMENTS} parallel environments, until the last step is stored"
    return _rate_over(APPENDS_PER_S, what, bench, rates)


class _Still(gymnasium.vector.VectorEnv):  # type: ignore[misc]
    """Environments that cost nothing: what a step takes is what it takes to record it."""

    num_envs = ENVIRONMENTS
    single_observation_space = gymnasium.spaces.Box(-10.0, 10.0, FIELDS["obs"][1], np.float32)
    single_action_space = gymnasium.spaces.Box(-10.0, 10.0, FIELDS["action"][1], np.float32)
    observation_space = batch_space(single_observation_space, ENVIRONMENTS)
    action_space = batch_space(single_action_space, ENVIRONMENTS)
    metadata: ClassVar = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self) -> None:
        self._observed = np.zeros((ENVIRONMENTS, *FIELDS["obs"][1]), np.float32)
        self._rewards, self._ended = np.ones(ENVIRONMENTS), np.zeros(ENVIRONMENTS, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._observed, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._observed, self._rewards, self._ended, self._ended, {}


def _transitions(bench: Bench) -> Figure:
    n, times, rng = bench.scale.rows, bench.scale.times, random_numbers()
    with bench.database() as url:
        bench.say(f"filling a database with {n:,} steps of episodes")
        buffer = ReplayBuffer(url, create=True, fields=EPISODES)
        for _ in range(max(1, n // EPISODE)):
            buffer.store_episode(
                steps(rng, EPISODE, EPISODES), final={"obs": np.zeros(17, np.float32)}
            )
        bench.say("sampling arrays and transitions")
        repeat = times(20)
        timings = in_turns(
            {
                "arrays": Timed(lambda: buffer.sample_arrays(BATCH), repeat=repeat),
                **{
                    f"n={k}": Timed(
                        partial(buffer.sample_transitions, BATCH, n_step=k), repeat=repeat
                    )
                    for k in (1, 5)
                },
            },
            times(16),
            warmup=times(2),
        )
        buffer.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    return Figure(
        f"`sample_transitions({BATCH}, n_step=5)` vs `sample_arrays({BATCH})`",
        bench.label,
        f"{spent['n=5']}, {spent['arrays']}; one step {spent['n=1']}",
        timings.ratio("n=5", "arrays"),
        1.8,
        at_most=True,
    )


def filled(url: str, n_rows: int, **settings: Any) -> ReplayBuffer:
    """Return a new buffer that holds n steps of a small control task."""
    buffer, rng = ReplayBuffer(url, create=True, fields=FIELDS, **settings), random_numbers()
    for start in range(0, n_rows, LOAD_BATCH):
        buffer.extend(steps(rng, min(LOAD_BATCH, n_rows - start)))
    return buffer
