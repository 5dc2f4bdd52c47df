"""Two ranks, as torchrun starts them."""

import subprocess
import sys

import pytest

from sqlbuffer import ReplayBuffer

RANK = """
import os, sys
from torch.utils.data import DataLoader
from sqlbuffer import ReplayBuffer
from sqlbuffer.torch import IterableDataset

with ReplayBuffer(sys.argv[1]) as buffer:
    dataset = IterableDataset(buffer.loader("step", 4, epochs=1, seed=1))
    rows = sum(len(batch["x"]) for batch in DataLoader(dataset, batch_size=None))
    print(f"rank {os.environ['RANK']} read {rows} rows", flush=True)
"""


def test_each_rank_is_warned_that_it_reads_all_rows(tmp_path):
    pytest.importorskip("torch")
    url = f"sqlite:///{tmp_path}/replay.db"
    with ReplayBuffer(url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(8)})
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, script, url], capture_output=True, text=True, timeout=120, check=True
    )
    # The lines of two processes may run into each other.
    assert [done.stdout.count(f"rank {n} read 8 rows") for n in (0, 1)] == [1, 1]
    assert done.stderr.count("RanksWarning: WORLD_SIZE is 2") == 2
