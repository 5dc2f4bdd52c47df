"""Batches of arrays beside a lookup by the bare driver, in the layout of one row for each step.

Small steps and pictures, plain and compressed.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import ReplayBuffer
from tests.benchmarks.arrays import BATCH, FIELDS, steps
from tests.benchmarks.bench import LOAD_BATCH, Bench, random_numbers
from tests.benchmarks.driver import Bare, bare
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_time
from tests.benchmarks.step_rows import batch_of, record_type, step_records
from tests.support.sql import run_outside_transaction

PICTURES = {"obs": ("uint8", (84, 84, 4))}
PICTURES_PER_ROW = 200  # 28 KB each: a two-hundredth of the small steps takes as much room
SQUARE = 12  # a picture has squares of one shade, as those of games have; noise does not compress
COMPRESSIONS = (None, "zstd")
# How fast the library read such rows beside the bare driver, before there were chunks.
READ_ROWS = {"sqlite": 0.49, "postgresql": 0.66}


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n = bench.scale.rows
    n_pictures = max(BATCH, n // PICTURES_PER_ROW)
    for compression in COMPRESSIONS:
        yield _compared(bench, "small steps", n, FIELDS, steps, LOAD_BATCH, compression)
    for compression in COMPRESSIONS:
        what = "frames of 28 KB"
        yield _compared(bench, what, n_pictures, PICTURES, pictures, 100, compression)


def pictures(rng: np.random.Generator, n: int) -> dict[str, NDArray[Any]]:
    """Return n steps with a picture each."""
    squares = rng.integers(0, 256, (n, 84 // SQUARE, 84 // SQUARE, 4), np.uint8)
    obs = squares.repeat(SQUARE, axis=1).repeat(SQUARE, axis=2)
    ended = np.zeros(n, bool)
    return {"obs": obs, "reward": np.ones(n), "terminated": ended, "truncated": ended}


def _compared(
    bench: Bench,
    what: str,
    n: int,
    fields: dict[str, Any],
    make: Callable[[np.random.Generator, int], dict[str, Any]],
    load: int,
    compression: str | None,
) -> Figure:
    times, rng, record = bench.scale.times, random_numbers(), record_type(fields)
    if compression:
        what += f", {compression},"
    with bench.database() as url, bench.database() as rows_url:
        bench.say(f"filling a database with chunks and one with rows: {what}")
        buffer = ReplayBuffer(url, create=True, fields=fields, compression=compression)
        ReplayBuffer(rows_url, create=True).close()
        driver = bare(rows_url)
        for start in range(0, n, load):
            columns = make(rng, min(load, n - start))
            buffer.extend(columns)
            _write_rows(driver, columns, record, compression)
        if bench.kind == "postgresql":
            run_outside_transaction(rows_url, "ANALYZE")  # or the bare driver's statement scans

        def look_up(keys: list[int]) -> None:
            batch = batch_of(driver.arrays_of(keys), record, compression)
            assert len(batch["obs"]) == len(set(keys))

        bench.say("sampling arrays")
        repeat = times(20)
        timings = in_turns(
            {
                "bare": Timed(look_up, lambda: (rng.integers(1, n + 1, BATCH).tolist(),), repeat),
                "arrays": Timed(partial(buffer.sample_arrays, BATCH), repeat=repeat),
            },
            times(16),
            warmup=times(2),
        )
        driver.close()
        buffer.close()
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    return Figure(
        f"`sample_arrays({BATCH})` of {what} vs the bare driver's lookup of rows, {n:,} rows",
        bench.label,
        f"{spent['arrays']}, bare {spent['bare']}",
        timings.ratio("bare", "arrays"),
        READ_ROWS[bench.kind],
    )


def _write_rows(
    driver: Bare, columns: dict[str, Any], record: np.dtype[Any], compression: str | None
) -> None:
    records = step_records(columns, record, compression=compression)
    driver.write(*driver.prepared(records))  # type: ignore[arg-type]
