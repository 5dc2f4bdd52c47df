"""Exports and imports take at most 300 MB above an interpreter with pyarrow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.benchmarks.arrays import filled

MOST_MB = 300
PROGRAM = """
import json, resource, sys
import pyarrow, pyarrow.parquet
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = used()
from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import export_jsonl, export_parquet, import_parquet
what, url, path = sys.argv[1:]
if what == "import":
    report = import_parquet(path, url, "copy")
else:
    export = export_parquet if what == "parquet" else export_jsonl
    with ReplayBuffer(url, create=False) as buffer:
        report = export(buffer, path)
print(json.dumps([report.n_steps, used() - before]))
"""


def grown(*arguments: object) -> tuple[int, float]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    n_steps, n_mb = json.loads(done.stdout.splitlines()[-1])
    return n_steps, n_mb


@pytest.mark.parametrize("kind", ["small", "images", "rows"])
def test_memory_is_bounded(
    buffer_url: str, kind: str, tmp_path: Path, record_property: Any
) -> None:
    if kind == "small":
        filled(buffer_url, 600_000).close()
        n = 600_000
    elif kind == "images":
        n = 12_000
        fields = {"frame": ("uint8", (84, 84, 4))}
        with ReplayBuffer(buffer_url, fields=fields, compression="zstd") as buffer:
            rng = np.random.default_rng(0)
            for e in range(12):
                # Frames that shrink to a hundredth: what is read is small, what it becomes is not.
                frames = np.repeat(rng.integers(0, 255, (1_000, 1, 1, 1), np.uint8), 84, 1)
                own = np.broadcast_to(frames, (1_000, 84, 84, 4))
                buffer.store_episode({"frame": own}, episode_id=f"e{e}")
    else:
        n = 60_000
        with ReplayBuffer(buffer_url) as buffer:
            for start in range(0, n, 10_000):
                states = [{"text": f"{start + i:08d} " * 100} for i in range(10_000)]
                buffer.extend({"state": states}, task_id=f"t{start}")
    out = tmp_path / "out"
    for what, url, path in (
        ("parquet", buffer_url, out),
        ("jsonl", buffer_url, tmp_path / "steps.jsonl"),
        ("import", buffer_url, out),
    ):
        if what == "jsonl" and kind == "images":
            continue  # a gigabyte of digits: slow, and no other than the rest
        n_steps, n_mb = grown(what, url, path)
        record_property(what, n_mb)
        assert n_steps == n
        assert n_mb < MOST_MB, f"{what} of {kind}: {n_mb:.0f} MB"
