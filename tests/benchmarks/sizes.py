"""How the time of a draw depends on the size of the buffer."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from tests.benchmarks.arrays import BATCH, filled
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_time

PARTS = (100, 10, 1)  # of the rows of the large buffer


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database: buffers of all sizes are drawn from in turns."""
    sizes = sorted({max(BATCH, bench.scale.rows // part) for part in PARTS})
    small, large = sizes[0], sizes[-1]
    calls = {}
    with bench.database() as url, ExitStack() as stack:
        for n in sizes:
            bench.say(f"filling a buffer with {n:,} steps")
            buffer = filled(url, n, name=f"steps-{n}")
            stack.callback(buffer.close)
            mirror = stack.enter_context(buffer.mirror(refresh_s=3_600))
            calls[f"buffer {n}"] = Timed(partial(buffer.sample_arrays, BATCH), repeat=5)
            calls[f"mirror {n}"] = Timed(partial(mirror.sample_arrays, BATCH), repeat=50)
        bench.say("drawing from buffers of three sizes")
        timings = in_turns(calls, bench.scale.times(40), warmup=bench.scale.times(10))
    for source, call in (("buffer", "sample_arrays"), ("mirror", "mirror.sample_arrays")):
        yield Figure(
            f"`{call}({BATCH})` at {large:,} rows vs at {small:,}, and between",
            bench.label,
            "; ".join(
                f"{n:,}: {shown_time(timings.median(f'{source} {n}'))}, "
                f"{timings.ratio(f'{source} {n}', f'{source} {small}').value:.2f} times"
                for n in sizes
            ),
            timings.ratio(f"{source} {large}", f"{source} {small}"),
        )
