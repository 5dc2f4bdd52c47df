"""What labels cost: batches of a buffer of which some rows were annotated, beside one without."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.measure import Timed, Timings, in_turns
from tests.benchmarks.report import Figure, shown_time

BATCH = 256
ANNOTATED_EACH = 100  # one row in so many
MOST = 1.3


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    calls: dict[str, tuple[Callable[..., ReplayBuffer], Callable[[ReplayBuffer], Any]]] = {
        "sample": (filled, lambda buffer: buffer.sample(BATCH)),
        "sample_arrays": (arrays.filled, lambda buffer: buffer.sample_arrays(BATCH)),
    }
    for name, (fill, call) in calls.items():
        for size, n in (("", bench.scale.rows), ("fewer: ", bench.scale.small_rows)):
            timings = _timed(bench, n, fill, call)
            spent = {which: shown_time(timings.median(which)) for which in timings.rounds}
            yield Figure(
                f"`{name}({BATCH})` with 1 % of the rows annotated vs none, {size}{n:,} rows",
                bench.label,
                f"{spent['labelled']}, none {spent['plain']}",
                timings.ratio("labelled", "plain"),
                MOST,
                at_most=True,
            )


def _timed(
    bench: Bench,
    n: int,
    fill: Callable[..., ReplayBuffer],
    call: Callable[[ReplayBuffer], Any],
) -> Timings:
    times = bench.scale.times
    with bench.database() as url, bench.database() as labelled_url:
        bench.say(f"filling two databases with {n:,} rows, and annotating every hundredth of one")
        plain, labelled = fill(url, n), fill(labelled_url, n)
        seqs = np.arange(1, n + 1, ANNOTATED_EACH)
        assert labelled.annotate(seqs, reward=seqs * 1.0, extra={"judge": "a"}) == len(seqs)
        bench.say("sampling")
        timings = in_turns(
            {
                "plain": Timed(partial(call, plain), repeat=times(20)),
                "labelled": Timed(partial(call, labelled), repeat=times(20)),
            },
            times(16),
            warmup=times(2),
        )
        plain.close()
        labelled.close()
    return timings
