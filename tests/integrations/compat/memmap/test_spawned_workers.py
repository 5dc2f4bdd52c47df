"""A loader whose worker is spawned, and imports torch."""

import pytest

pytest.importorskip("torch")

from sqlbuffer.compat.memmap import ReplayBuffer
from tests.compat.memmap.datasets.loaded import SHAPE, fill


def test_spawned_workers_read_by_themselves(tmp_path):
    buffer = fill(ReplayBuffer(tmp_path, **SHAPE))
    loader = buffer.dataloader(
        9, timestep_level=True, num_workers=1, multiprocessing_context="spawn"
    )
    (batch,) = loader
    assert batch["r"].tolist() == list(range(9))
    buffer.close()
