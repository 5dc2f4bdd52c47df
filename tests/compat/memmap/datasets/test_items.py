"""What datasets and data loaders give: table 1.5 of memmap-replay-buffer's behaviour, row by row.

The figures were asked of memmap-replay-buffer 0.2.3.
"""

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

torch = pytest.importorskip("torch")


from tests.compat.memmap.datasets.loaded import dtypes, first, listed  # noqa: E402


def test_a_trajectory_has_its_fields_its_values_and_its_length(buffer):
    item = buffer.dataset(return_indices=True)[1]
    assert dtypes(item) == {
        "x": (torch.float32, (1, 2)),
        "r": (torch.float32, (1,)),
        "done": (torch.bool, (1,)),
        "v": (torch.float32, (1, 1)),
        "task": (torch.int32, ()),
        "z": (torch.float32, (2,)),
        "_lens": (torch.int64, ()),
        "_index": (torch.int64, ()),
    }
    assert listed(item) == {
        "x": [[3.0, 3.5]],
        "r": [3.0],
        "done": [True],
        "v": [[3.0]],
        "task": 1,
        "z": [1.0, 1.0],
        "_lens": 1,
        "_index": 1,
    }


def test_trajectories_are_padded_with_zeros_to_the_longest_of_their_batch(buffer):
    batch = first(buffer.dataloader(2, return_mask=True, return_indices=True))
    assert batch["x"].shape == (2, 3, 2)
    assert batch["x"][1].tolist() == [[3.0, 3.5], [0.0, 0.0], [0.0, 0.0]]
    assert batch["_lens"].tolist() == [3, 1]
    assert batch["_lens"].dtype == batch["_index"].dtype == torch.int64
    assert batch["_index"].tolist() == [0, 1]
    assert batch["_mask"].tolist() == [[True, True, True], [True, False, False]]
    assert list(batch)[:6] == ["x", "r", "done", "v", "task", "z"]


def test_all_steps_of_a_slot_are_there_if_they_are_not_cut(buffer):
    loader = buffer.dataloader(3, return_mask=True, dataset_kwargs={"slice_by_episode_len": False})
    batch = first(loader)
    assert batch["x"].shape == (3, 6, 2)
    assert batch["x"][1, 1:].unique().tolist() == [-1.0], "the default lies behind the end"
    assert batch["r"][1].tolist() == [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert batch["_mask"].shape == (3, 5), "as wide as the longest, not as the data"


def test_lengths_can_be_left_out_but_not_of_slots_that_are_not_cut(buffer):
    assert "_lens" not in buffer.dataset(return_episode_lens=False)[0]
    with pytest.raises(ValueError, match="cannot turn off return_episode_lens"):
        buffer.dataset(return_episode_lens=False, slice_by_episode_len=False)
    without = buffer.dataloader(2, return_mask=True, dataset_kwargs={"return_episode_lens": False})
    with pytest.raises(KeyError, match="_lens"):
        first(without)


def test_single_steps_come_in_the_order_of_slots_then_of_time(buffer):
    dataset = buffer.dataset(timestep_level=True, return_indices=True)
    assert len(dataset) == 9
    assert dataset.timepoints.tolist()[2:5] == [[0, 2], [1, 0], [2, 0]]
    assert dataset.indices.tolist() == [0, 1, 2]
    assert listed(dataset[3]) == {
        "x": [3.0, 3.5],
        "r": 3.0,
        "done": True,
        "v": [3.0],
        "task": 1,
        "z": [1.0, 1.0],
        "_indices": [1, 0],
    }
    batches = list(buffer.dataloader(4, timestep_level=True, drop_last=True))
    assert [batch["r"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[0]["v"].shape == (4, 1)


def test_n_steps_reach_ahead_as_far_as_the_last_stored_step(buffer):
    batch = first(
        buffer.dataloader(
            9,
            n_steps=2,
            current_fields=("r",),
            next_fields=("r", "done"),
            sequence_fields=("r", "done", "x"),
            return_indices=True,
        )
    )
    assert list(batch) == [
        "r",
        "next_r",
        "next_done",
        "seq_r",
        "seq_done",
        "seq_x",
        "n_step_lens",
        "task",
        "z",
        "_indices",
    ]
    assert batch["r"].tolist() == [0, 1, 4, 5, 6, 7]
    assert batch["next_r"].tolist() == [2, 2, 6, 7, 8, 8]
    assert batch["n_step_lens"].tolist() == [2, 1, 2, 2, 2, 1]
    assert batch["n_step_lens"].dtype == torch.int64
    assert batch["seq_r"].tolist() == [[0, 1], [1, 0], [4, 5], [5, 6], [6, 7], [7, 0]]
    assert batch["seq_x"].shape == (6, 2, 2)
    assert batch["_indices"].tolist() == [[0, 0], [0, 1], [2, 0], [2, 1], [2, 2], [2, 3]]
    # What is stored at the last step is found as next, never in a sequence.
    assert not batch["seq_done"].any()
    assert batch["next_done"].tolist() == [True, True, False, False, True, True]


def test_n_steps_have_all_fields_now_and_next_and_no_sequences_by_default(buffer):
    item = buffer.dataset(n_steps=1)[1]
    names = ["x", "r", "done", "v"]
    assert list(item) == [
        *names,
        *[f"next_{name}" for name in names],
        "n_step_lens",
        "task",
        "z",
    ]
    assert item["next_x"].tolist() == [2.0, 2.5]


def test_no_steps_ahead_is_where_one_stands(buffer):
    item = buffer.dataset(n_steps=0, sequence_fields=("r",))[1]
    assert item["next_r"] == item["r"] == 1.0
    assert item["seq_r"].shape == (0,)
    assert item["n_step_lens"] == 0


def test_fields_of_n_steps_are_those_named_for_them(buffer):
    item = buffer.dataset(n_steps=1, fields=("r",), current_fields=("v",), next_fields=())[0]
    assert set(item) == {"v", "n_step_lens", "task", "z"}


def test_items_are_found_from_the_end_and_not_beyond_it(buffer):
    dataset = buffer.dataset()
    assert dataset[-1]["r"].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0]
    assert dataset[torch.tensor(2)]["_lens"] == 5
    several = dataset.__getitems__([0, 1])
    assert [item["x"].shape for item in several] == [(3, 2), (1, 2)], "no item is padded"
    assert [item["_lens"].item() for item in several[::-1]] == [1, 3]
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 items"):
            dataset[index]


def test_items_are_of_their_own(buffer):
    dataset = buffer.dataset()
    dataset[0]["r"].zero_()
    assert dataset[0]["r"].tolist() == [0.0, 1.0, 2.0]
    batch = first(buffer.dataloader(3))
    batch["r"].zero_()
    assert first(buffer.dataloader(3))["r"].sum() == 36


# Random windows of episodes.


from sqlbuffer.compat.memmap import (  # noqa: E402
    ReplayDatasetTimeWindow,
)


@pytest.mark.thorough
def test_windows_lie_within_their_episodes(buffer):
    dataset = ReplayDatasetTimeWindow(buffer, 2, return_indices=True)
    assert len(dataset) == 3
    np.random.seed(0)  # noqa: NPY002
    seen = [first(buffer.dataloader(3, dataset=dataset, return_mask=True)) for _ in range(60)]
    assert {tuple(batch["_start"].tolist()) for batch in seen} == {
        (a, 0, b) for a in range(2) for b in range(4)
    }
    for batch in seen:
        starts = batch["_start"].tolist()
        assert batch["r"].tolist() == [
            [starts[0], starts[0] + 1],
            [3, 0],
            [4 + starts[2], 5 + starts[2]],
        ]
        assert batch["_lens"].tolist() == [2, 1, 2]
        assert batch["_reaches_episode_end"].tolist() == [starts[0] == 1, True, starts[2] == 3]
        assert batch["_mask"].tolist() == [[True, True], [True, False], [True, True]]
    assert (batch["_index"].tolist(), batch["_index"].dtype) == ([0, 1, 2], torch.int64)


def test_windows_are_drawn_from_the_random_numbers_of_numpy(buffer):
    dataset = ReplayDatasetTimeWindow(buffer, 2, fields=("r",), return_indices=True)
    np.random.seed(5)  # noqa: NPY002
    expected = [np.random.randint(0, n) for n in (2, 1, 4, 2, 1, 4)]  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    assert [dataset[i % 3]["_start"].item() for i in range(6)] == expected
    assert list(dataset[0]) == [
        "r",
        "task",
        "z",
        "_lens",
        "_reaches_episode_end",
        "_index",
        "_start",
    ]
    chosen = ReplayDatasetTimeWindow(buffer, 9, filter_meta={"task": 1})
    assert [item["_lens"].item() for item in chosen] == [1]


@pytest.mark.parametrize(
    ("length", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_windows_have_a_length(buffer, length, error):
    with pytest.raises(error, match="window_length"):
        ReplayDatasetTimeWindow(buffer, length)


# Storing and collecting need no torch; what does says so.


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
