"""What it takes to export a buffer of typed steps to Parquet, and to restore it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import export_parquet, import_parquet
from tests.benchmarks import arrays
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.report import Figure

ROUNDS = 4
LEAST_OUT, LEAST_IN = 200_000, 100_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n_rows = bench.scale.rows
    out: list[float] = []
    back: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="sqlbuffer-bench-") as folder,
        bench.database() as url,
        arrays.filled(url, n_rows) as buffer,
    ):
        for number in range(bench.scale.times(ROUNDS)):
            bench.say(f"{n_rows:,} steps to Parquet and back, round {number + 1}")
            path = Path(folder) / "out"
            report = export_parquet(buffer, path, overwrite=True)
            out.append(report.n_steps / report.seconds)
            with bench.database() as copy:
                ReplayBuffer(copy, "other", create=True).close()
                restored = import_parquet(path, copy, "copy")
                back.append(restored.n_stored / restored.seconds)
    yield _figure(bench, "a buffer to Parquet", out, LEAST_OUT)
    yield _figure(bench, "a buffer restored from Parquet", back, LEAST_IN)


def _figure(bench: Bench, what: str, rates: list[float], least: int) -> Figure:
    found = ratio_of([rate / least for rate in rates])
    rate = f"{found.value * least:,.0f} steps/s"
    return Figure(f"{what}: steps a second over {least:,}", bench.label, rate, found, 1)
