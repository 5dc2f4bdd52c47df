"""What typed fields cost: steps in columns and one at a time, batches of them, and n-step returns.

The step of a small control task: an observation and the one after it of 17 float32, an action of 6,
a reward and how it ended.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from sqlbuffer.encoding.columns import encode_columns
from sqlbuffer.encoding.packing import Layout
from tests.benchmarks.bench import LOAD_BATCH, Bench, random_numbers
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, in_turns, ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_rate, shown_time
from tests.support.sql import run_outside_transaction

FIELDS = {
    "obs": ("float32", (17,)),
    "action": ("float32", (6,)),
    "next_obs": ("float32", (17,)),
}
EPISODES = {name: FIELDS[name] for name in ("obs", "action")}
EXTENDED = 1_000
BATCH = 256
EPISODE = 1_000
APPENDED = 20_000
APPENDS_PER_S = 20_000


def steps(rng: np.random.Generator, n: int, fields: Mapping[str, Any] = FIELDS) -> dict[str, Any]:
    """Return n steps as columns; the last one ends the episode."""
    arrays = {
        name: rng.standard_normal((n, *shape), np.float32) for name, (_, shape) in fields.items()
    }
    last = np.arange(n) == n - 1
    return {**arrays, "reward": np.ones(n), "terminated": last, "truncated": np.zeros(n, bool)}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    yield _extending(bench)
    yield _appending(bench)
    yield from _reading(bench)


def _extending(bench: Bench) -> Figure:
    capacity, times, rng = bench.scale.capacity, bench.scale.times, random_numbers()
    with bench.database() as url, bench.database() as bare_url:
        full, other = (filled(one, capacity, max_capacity=capacity) for one in (url, bare_url))
        layout = Layout(full.fields)
        other.close()
        driver = bare(bare_url)
        columns = steps(rng, EXTENDED)
        bench.say(f"extend by {EXTENDED:,} steps beside the bare driver")
        timings = in_turns(
            {
                "bare": Timed(
                    driver.write, lambda: driver.prepared(encode_columns(layout, columns))
                ),
                "extend": Timed(full.extend, lambda: (columns,)),
                "encode": Timed(lambda: encode_columns(layout, columns)),
            },
            times(60),
            warmup=times(3),
        )
        driver.close()
        full.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    return Figure(
        f"`extend` of {EXTENDED:,} steps vs the bare driver",
        bench.label,
        f"{spent['extend']}, bare {spent['bare']}; of it encoding {spent['encode']}; "
        f"{shown_rate(EXTENDED / timings.median('extend'))}",
        timings.ratio("bare", "extend"),
        0.6,
    )


def _appending(bench: Bench) -> Figure:
    n = max(EPISODE // 10, bench.scale.times(APPENDED))
    columns = steps(random_numbers(), EPISODE, EPISODES)
    rows = [{name: values[i] for name, values in columns.items()} for i in range(EPISODE)]
    with bench.database() as url:
        buffer = ReplayBuffer(url, create=True, fields=EPISODES, max_capacity=bench.scale.capacity)

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
    return Figure(
        "`append` of one step after the other, until the last is stored: steps a second over "
        f"{APPENDS_PER_S:,}",
        bench.label,
        shown_rate(float(np.median(rates))).replace("rows", "steps"),
        ratio_of([rate / APPENDS_PER_S for rate in rates]),
        1,
    )


def _reading(bench: Bench) -> Iterator[Figure]:
    n, times, rng = bench.scale.rows, bench.scale.times, random_numbers()
    with bench.database() as url, bench.database() as episodes_url:
        bench.say(f"filling a database with {n:,} transitions and one with {n:,} steps")
        whole = filled(url, n)
        episodes = ReplayBuffer(episodes_url, create=True, fields=EPISODES)
        for _ in range(max(1, n // EPISODE)):
            episodes.store_episode(
                steps(rng, EPISODE, EPISODES), final={"obs": np.zeros(17, np.float32)}
            )
        if bench.kind == "postgresql":
            run_outside_transaction(url, "ANALYZE")  # or the bare driver's statement scans
        driver, record = bare(url), Layout(whole.fields).record
        held = len(whole)

        def look_up(keys: list[int]) -> None:
            blobs = driver.arrays_of(keys)
            found = np.frombuffer(b"".join(blobs), record)
            batch = {name: np.ascontiguousarray(found[name]) for name in FIELDS}
            assert len(batch["obs"]) == len(set(keys))

        bench.say("sampling arrays and transitions")
        repeat = times(20)
        timings = in_turns(
            {
                "bare": Timed(
                    look_up, lambda: (rng.integers(1, held + 1, BATCH).tolist(),), repeat
                ),
                "arrays": Timed(lambda: whole.sample_arrays(BATCH), repeat=repeat),
                "whole": Timed(lambda: whole.sample_transitions(BATCH), repeat=repeat),
                **{
                    f"n={k}": Timed(
                        lambda k=k: episodes.sample_transitions(BATCH, n_step=k), repeat=repeat
                    )
                    for k in (1, 5)
                },
            },
            times(16),
            warmup=times(2),
        )
        driver.close()
        whole.close()
        episodes.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    yield Figure(
        f"`sample_arrays({BATCH})` at {n:,} rows vs a lookup of {BATCH} keys by the bare driver",
        bench.label,
        f"{spent['arrays']}, bare {spent['bare']}",
        timings.ratio("bare", "arrays"),
        0.6,
    )
    yield Figure(
        f"`sample_transitions({BATCH}, n_step=5)` vs one step with `next_obs` stored",
        bench.label,
        f"{spent['n=5']}, {spent['whole']}; one step without `next_obs` {spent['n=1']}",
        timings.ratio("n=5", "whole"),
        3,
        at_most=True,
    )


def filled(url: str, n_rows: int, **settings: Any) -> ReplayBuffer:
    buffer, rng = ReplayBuffer(url, create=True, fields=FIELDS, **settings), random_numbers()
    for start in range(0, n_rows, LOAD_BATCH):
        buffer.extend(steps(rng, min(LOAD_BATCH, n_rows - start)))
    return buffer
