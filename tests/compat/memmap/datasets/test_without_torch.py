"""Storing and collecting need no torch; what does says so."""

import importlib
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

from sqlbuffer.compat import memmap
from sqlbuffer.compat.memmap import ConcatReplayBuffer, ReplayBuffer
from sqlbuffer.compat.memmap.replay_buffer import DATASETS, DATASETS_MODULE
from sqlbuffer.errors import MissingExtraError
from tests.compat.memmap.datasets.loaded import SHAPE, fill


@pytest.fixture
def no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, DATASETS_MODULE, raising=False)


@pytest.mark.slow
def test_importing_and_storing_import_no_torch(tmp_path):
    program = (
        "import sys; from sqlbuffer.compat.memmap import ReplayBuffer\n"
        f"buffer = ReplayBuffer({str(tmp_path)!r}, 2, 2, {{'x': 'float'}})\n"
        "buffer.store_episode(x=[1.0])\n"
        "assert buffer.data['x'][0, 0] == 1.0\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_loaders_say_that_they_need_torch(no_torch, tmp_path):
    buffer = fill(ReplayBuffer(tmp_path, **{**SHAPE, "max_episodes": 5}))
    both = ConcatReplayBuffer([tmp_path])
    collector = buffer.create_rollout_collector(2)
    collector.append(r=np.zeros(2))
    for call in (
        buffer.dataset,
        buffer.get_all_data,
        both.dataset,
        both.get_all_data,
        lambda: buffer.dataloader(2),
        lambda: both.dataloader(2),
        lambda: collector.dataloader(2),
        *(partial(getattr, memmap, name) for name in DATASETS),
        partial(importlib.import_module, DATASETS_MODULE),
    ):
        with pytest.raises(MissingExtraError, match=r"pip install '\.\[torch\]'"):
            call()
    collector.store(task=[3, 4])
    assert buffer.meta_data["task"][3:5].tolist() == [3, 4]
    for each in (both, buffer):
        each.close()
