"""Exports and imports take at most 300 MB above an interpreter with pyarrow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.benchmarks.arrays import filled

MOST_MB = 300
PROGRAM = """
import json, sys
import pyarrow, pyarrow.parquet
def used():
    # Not getrusage: its figure includes that of the process which started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024
before = used()
from sqlbuffer import ReplayBuffer
from sqlbuffer.interchange import (
    export_jsonl, export_parquet, export_rollouts, import_parquet, insert_jsonl,
)
what, url, path = sys.argv[1:]
if what == "import":
    report = import_parquet(path, url, "copy")
elif what == "insert":
    report = insert_jsonl(path, url, "lines")
else:
    with ReplayBuffer(url, create=False) as buffer:
        if what == "parquet":
            report = export_parquet(buffer, path)
        elif what == "jsonl":
            report = export_jsonl(buffer, path)
        else:
            report = export_rollouts(buffer, path, what)
print(json.dumps([report.n_steps, used() - before]))
"""


def grown(*arguments: object) -> tuple[int, float]:
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    n_steps, n_mb = json.loads(done.stdout.splitlines()[-1])
    return n_steps, n_mb


@pytest.mark.each_value
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
    out, lines = tmp_path / "out", tmp_path / "steps.jsonl"
    actions = [("parquet", out), ("import", out)]
    if kind != "images":  # a gigabyte of digits: slow, and no other than the rest
        actions.append(("jsonl", lines))
    if kind == "rows":
        actions.append(("insert", lines))
    for what, path in actions:
        n_steps, n_mb = grown(what, buffer_url, path)
        record_property(what, n_mb)
        print(what, n_mb)
        assert n_steps == n
        assert n_mb < MOST_MB, f"{what} of {kind}: {n_mb:.0f} MB"


# On PostgreSQL, where a driver may keep what it reads.
def test_memory_is_bounded_while_all_rollouts_are_open(
    make_database_url: Any, tmp_path: Path, record_property: Any
) -> None:
    buffer_url = make_database_url("postgresql", schema=True)
    n_tasks = 6_000
    with ReplayBuffer(buffer_url) as buffer:
        # No flag and no episode: only a number that does not rise ends the first rollout of a task,
        # and nothing ends the second one.
        for step, reward in ((0, 1.0), (0, 0.0), (1, 0.0), (2, 0.0)):
            for start in range(0, n_tasks, 1_000):
                rows = [
                    DataRow(
                        ExpMeta(f"task-{i}", step=step),
                        Experience(
                            messages=["?"], actions=f"{i} {reward} " * 1_300, reward_t=reward
                        ),
                    )
                    for i in range(start, start + 1_000)
                ]
                buffer.store_batch(rows)
    for what, n_read in (("conversations", 4 * n_tasks), ("preference", 4 * n_tasks)):
        n_steps, n_mb = grown(what, buffer_url, tmp_path / what)
        record_property(what, n_mb)
        print(what, n_mb)
        assert n_steps == n_read
        assert n_mb < MOST_MB, f"{what}: {n_mb:.0f} MB"
        table = pq.read_table(tmp_path / what / "train-00000.parquet")
        assert len(table) == (n_tasks if what == "preference" else 2 * n_tasks)
