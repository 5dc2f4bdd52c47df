"""What a draw costs of the few typed steps that match a condition."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.benchmarks.arrays import BATCH, FIELDS, steps
from tests.benchmarks.bench import LOAD_BATCH, Bench, random_numbers
from tests.benchmarks.measure import Timed, in_turns, ratio_of, seconds_of
from tests.benchmarks.report import Figure, shown_time

ONE_IN = 1_000
# A draw should take 50 ms at most, of 10 million steps too: `--rows 10000000`.
DRAWS_PER_S = 20


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n, rng = bench.scale.rows, random_numbers()
    rare = QueryBuilder().eq("kind", 1).build()
    with bench.database() as url:
        bench.say(f"filling a database with {n:,} steps, of which one in {ONE_IN:,} matches")
        fields = {**FIELDS, "kind": {"dtype": "int32", "column": True}}
        with ReplayBuffer(url, create=True, fields=fields) as buffer:
            for start in range(0, n, LOAD_BATCH):
                columns = steps(rng, min(LOAD_BATCH, n - start))
                kinds = rng.integers(0, ONE_IN, len(columns["reward"]), np.int32)
                buffer.extend({**columns, "kind": kinds})
            draw = partial(buffer.sample_arrays, BATCH, condition=rare)
            first_s = seconds_of(draw)
            timings = in_turns({"draw": Timed(draw)}, bench.scale.times(20), warmup=0)
    yield Figure(
        f"`sample_arrays({BATCH})` of one step in {ONE_IN:,} from the second draw on: draws a "
        f"second over {DRAWS_PER_S}, {n:,} steps",
        bench.label,
        f"{shown_time(timings.median('draw'))}, the first draw {shown_time(first_s)}",
        ratio_of([1 / seconds / DRAWS_PER_S for seconds in timings.all("draw")]),
        1,
    )
