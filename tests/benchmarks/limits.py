"""What limits cost: batches that are counted as they are drawn, beside those that are not."""

from collections.abc import Iterator

from tests.benchmarks.arrays import BATCH, filled
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_time

# Never reached: what is left to draw stays the same.
MAX_USE = 1_000_000
MAX_STALENESS = 10


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n, times = bench.scale.rows, bench.scale.times
    with bench.database() as url, bench.database() as limited_url, bench.database() as aged_url:
        bench.say(f"filling three databases with {n:,} steps")
        free = filled(url, n)
        limited = filled(limited_url, n, max_use=MAX_USE)
        aged = filled(aged_url, n, max_staleness=MAX_STALENESS)
        aged.set_clock(1)
        bench.say("sampling with limits")
        repeat = times(20)
        timings = in_turns(
            {
                "free": Timed(lambda: free.sample_arrays(BATCH), repeat=repeat),
                "limited": Timed(lambda: limited.sample_arrays(BATCH), repeat=repeat),
                "aged": Timed(lambda: aged.sample_arrays(BATCH), repeat=repeat),
            },
            times(16),
            warmup=times(2),
        )
        for buffer in (free, limited, aged):
            buffer.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    yield Figure(
        f"`sample_arrays({BATCH})` with `max_use` vs without, {n:,} rows",
        bench.label,
        f"{spent['limited']}, without {spent['free']}",
        timings.ratio("free", "limited"),
        0.5,
    )
    yield Figure(
        f"`sample_arrays({BATCH})` with `max_staleness` vs without, {n:,} rows",
        bench.label,
        f"{spent['aged']}, without {spent['free']}",
        timings.ratio("free", "aged"),
    )
