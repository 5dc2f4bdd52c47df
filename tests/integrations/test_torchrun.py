"""Two ranks, as torchrun starts them, divide the passes over a buffer."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.markdown import ROOT
from tests.support.processes import wait_until

N_ROWS, EPOCHS = 20_000, 2


def torchrun(url, folder):
    """Start two ranks of the example."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(ROOT / "docs" / "examples" / "ddp_returns.py"), "--url", url]
    command += ["--folder", str(folder), "--rows", str(N_ROWS), "--epochs", str(EPOCHS)]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(process):
    """Kill the agent of torchrun and its ranks, which are in sessions of their own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)


def test_ranks_read_each_row_once_and_go_on_after_a_kill(postgres_url, tmp_path):
    pytest.importorskip("torch")
    killed = torchrun(postgres_url, tmp_path)
    try:
        wait_until(lambda: len(list(tmp_path.glob("step-*-rank-*.pt"))) > 1, "a checkpoint", 90)
    finally:
        kill(killed)
    assert not list(tmp_path.glob("seen-*.json"))
    with ReplayBuffer(postgres_url, name="ddp") as buffer:
        buffer.extend({"obs": [[0.0] * 8] * 40, "target": [0.0] * 40})
    again = torchrun(postgres_url, tmp_path)
    printed, _ = again.communicate(timeout=120)
    assert again.returncode == 0, printed
    assert printed.count("goes on behind batch") == 2, printed
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    # The first pass has the rows of its start, and the second one all of them.
    counts = np.bincount(seen[0] + seen[1])[1:]
    assert counts.tolist() == [EPOCHS] * N_ROWS + [EPOCHS - 1] * 40
    lines = [line for line in printed.splitlines() if " batches, loss " in line]
    assert {line.partition(" read ")[2].partition(",")[0] for line in lines} == {
        f"{N_ROWS + 20} rows in {-(-N_ROWS // 64) + -(-(N_ROWS + 40) // 64)} batches"
    }
