"""What `store_batch` costs beside the bare driver, and what a full buffer costs beside an unlimited
one.
"""

from collections.abc import Iterator

from sqlbuffer.encoding.records import encode_rows
from tests.benchmarks.bench import Bench, filled
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_rate, shown_time
from tests.benchmarks.rows import RowMaker

BATCH = 1_000
OTHER_BATCHES = (1, 64, 10_000)


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    capacity, times, maker = bench.scale.capacity, bench.scale.times, RowMaker()
    with bench.database() as url, bench.database() as bare_url, bench.database() as unlimited_url:
        bench.say(f"filling 3 databases to {capacity:,} rows")
        full = filled(url, capacity, maker=maker, max_capacity=capacity)
        filled(bare_url, capacity, maker=maker, max_capacity=capacity).close()
        unlimited = filled(unlimited_url, capacity, maker=maker)
        driver = bare(bare_url)
        target = 0.5 if bench.kind == "sqlite" else 0.4

        def rows(n: int = BATCH):
            return lambda: (maker.batch(n),)

        bench.say(f"store_batch of {BATCH:,} rows beside the bare driver")
        timings = in_turns(
            {
                "bare": Timed(driver.write, lambda: driver.prepared(encode_rows(*rows()()))),
                "full": Timed(full.store_batch, rows()),
                "unlimited": Timed(unlimited.store_batch, rows()),
                "build": Timed(maker.batch, lambda: (BATCH,)),
                "encode": Timed(encode_rows, rows()),
            },
            times(60),
            warmup=times(3),
        )
        driver.close()
        spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
        yield Figure(
            "`store_batch` of 1,000 rows vs the bare driver",
            bench.label,
            f"{spent['full']}, bare {spent['bare']}; of it encoding {spent['encode']}; "
            f"building the rows beforehand {spent['build']}",
            timings.ratio("bare", "full"),
            target,
        )
        yield Figure(
            "inserting at full capacity vs unlimited",
            bench.label,
            f"{spent['full']}, unlimited {spent['unlimited']}",
            timings.ratio("unlimited", "full"),
            0.5,
        )
        sizes = [n for n in OTHER_BATCHES if n <= capacity]
        timings = in_turns(
            {
                str(n): Timed(full.store_batch, rows(n), 1 if n > BATCH else times(10))
                for n in sizes
            },
            times(8),
            warmup=1,
        )
        yield Figure(
            "`store_batch` at full capacity by rows a batch",
            bench.label,
            "; ".join(f"{n:,}: {shown_rate(n / timings.median(str(n)))}" for n in sizes),
        )
