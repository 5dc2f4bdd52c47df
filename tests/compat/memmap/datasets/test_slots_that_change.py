"""Datasets of slots whose episodes change after the dataset was made."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from sqlbuffer.compat.memmap import (  # noqa: E402
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTimeWindow,
    ReplayDatasetTrajectory,
)
from sqlbuffer.errors import InsufficientDataError  # noqa: E402
from tests.compat.memmap.datasets.loaded import fill, first, step  # noqa: E402


def test_an_empty_buffer_has_no_dataset(new_buffer):
    buffer = new_buffer()
    for call in (buffer.dataset, lambda: buffer.dataloader(2)):
        with pytest.raises(ValueError, match="replay buffer is empty"):
            call()
    assert buffer.get_all_data() == {}
    assert len(ReplayDatasetTrajectory(buffer)) == 0
    assert len(ReplayDatasetTimeWindow(buffer, 2)) == 0


def test_episodes_of_one_step_have_no_transitions(new_buffer):
    buffer = fill(new_buffer(), (1, 1))
    assert list(buffer.dataloader(2, n_steps=2)) == []


def test_the_open_episode_is_read_but_not_counted(new_buffer):
    buffer = new_buffer()
    with buffer.one_episode(task=1):
        for number in range(3):
            buffer.store(**step(number))
        assert (buffer.num_episodes, len(buffer)) == (0, 1)
        assert buffer.dataset()[0]["r"].tolist() == [0.0, 1.0, 2.0]
        assert buffer.get_all_data() == {}
        grown = buffer.dataset(n_steps=2)
        buffer.store(**step(3))
        assert grown[1]["next_r"] == 3.0, "lengths are those of now"
        assert len(grown) == 2
    assert (buffer.num_episodes, len(buffer)) == (1, 1)


def test_items_of_an_overwritten_slot_are_of_its_new_episode_or_left_out(new_buffer):
    buffer = fill(new_buffer(circular=True), (5, 2, 2, 3))
    steps = buffer.dataset(timestep_level=True, return_indices=True)
    transitions = buffer.dataset(n_steps=3, return_indices=True)
    whole = buffer.dataset()
    fill(buffer, (2,), first=100)  # slot 0, shorter
    assert [item["r"].item() for item in steps.__getitems__(range(6))] == [100, 101, 5]
    found = first(DataLoader(transitions, batch_size=5))
    assert found["_indices"].tolist() == [[0, 0], [1, 0]]
    assert found["n_step_lens"].tolist() == [1, 1]
    assert found["next_r"].tolist() == [101.0, 6.0]
    assert whole[0]["r"].tolist() == [100.0, 101.0]
    for dataset in (steps, transitions):
        with pytest.raises(InsufficientDataError, match="make a new dataset"):
            dataset[2]


@pytest.mark.thorough
def test_items_of_an_overwritten_slot_pass_the_filters_or_are_left_out(new_buffer):
    buffer = fill(new_buffer(circular=True), (3, 3, 3, 3))  # tasks 0, 1, 0, 1
    of_task = buffer.dataset(timestep_level=True, filter_meta={"task": 1})
    last = buffer.dataset(timestep_level=True, filter_fields={"done": True})
    episodes = buffer.dataset(filter_meta={"task": 1})
    longer = buffer.dataset(timestep_level=True, min_episode_len=3)
    fill(buffer, (2, 4), first=100)  # tasks 0 and 1 in slots 0 and 1
    assert [item["r"].item() for item in last.__getitems__(range(4))] == [8, 11]
    assert [item["r"].item() for item in longer.__getitems__(range(4))] == [102]
    fill(buffer, (3, 3), first=200)  # tasks 0 and 1 in slots 2 and 3
    fill(buffer, (6,), first=300)  # task 0 in slot 0
    fill(buffer, (6,), first=400)  # task 0 in slot 1
    assert [item["r"].item() for item in of_task.__getitems__(range(6))] == [203, 204, 205]
    assert [item["r"][0].item() for item in episodes.__getitems__(range(2))] == [203]
    with pytest.raises(InsufficientDataError, match="make a new dataset"):
        episodes[0]


def test_values_that_change_in_place_are_read_as_they_are(new_buffer):
    buffer = fill(new_buffer(), (3,))
    dataset = buffer.dataset(timestep_level=True, filter_fields={"done": False})
    buffer.data["done"][0, :3] = True
    buffer.data["r"][0, 0] = 9.0
    assert [item["r"].item() for item in dataset] == [9.0, 1.0]
    assert dataset[0]["done"]


def test_tensors_have_the_types_that_were_declared(new_buffer):
    buffer = new_buffer(
        fields={"f": "float", "i": "int", "b": "bool", "u": ("uint8", 2)}, meta_fields={"m": "int"}
    )
    with buffer.one_episode(m=3):
        for t in range(3):
            buffer.store(f=t, i=t, b=bool(t), u=np.full(2, t, np.uint8))
    types = {"f": torch.float32, "i": torch.int32, "b": torch.bool, "u": torch.uint8}
    types["m"] = torch.int32
    for options, more in (
        ({"return_mask": True}, {"_lens": torch.int64, "_mask": torch.bool}),
        ({"return_indices": True}, {"_lens": torch.int64, "_index": torch.int64}),
        ({"timestep_level": True, "return_indices": True}, {"_indices": torch.int64}),
        (
            {"n_steps": 1, "next_fields": ("u",), "sequence_fields": ("b",)},
            {"next_u": torch.uint8, "seq_b": torch.bool, "n_step_lens": torch.int64},
        ),
    ):
        batch = first(buffer.dataloader(2, **options))
        assert {name: value.dtype for name, value in batch.items()} == {**types, **more}
    found = {name: value.dtype for name, value in buffer.get_all_data().items()}
    assert found == {**types, "episode_lens": torch.int32}


def test_the_order_is_that_of_slots_after_the_ring_has_wrapped_around(new_buffer):
    buffer = fill(new_buffer(circular=True), (1, 2, 1, 1, 2))
    batch = first(buffer.dataloader(9, timestep_level=True, return_indices=True))
    assert batch["r"].tolist() == [5, 6, 1, 2, 3, 4]
    assert batch["_indices"].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [3, 0]]


@pytest.mark.thorough
def test_a_dataset_opens_a_folder_or_a_url(make, buffer_url, tmp_path):
    for folder in (buffer_url, tmp_path / "replay"):
        buffer = make(folder=folder)
        buffer.store_episode(r=[1.0, 2.0], task=3)
        buffer.close()
        for given in (str(folder), folder):
            opened = [
                ReplayDatasetTrajectory(given, fields=("r",)),
                ReplayDatasetTimestep(given, fields=("r",), filter_meta={"task": 3}),
                ReplayDatasetNStep(given, 1, current_fields=("r",)),
                ReplayDatasetTimeWindow(given, 2, fields=("r",)),
            ]
            assert [dataset[0]["r"].tolist() for dataset in opened] == [[1, 2], 1, 1, [1, 2]]
            for dataset in opened:
                assert dataset.replay_buffer.read_only
                dataset.replay_buffer.close()
    with pytest.raises(ValueError, match="there is no replay buffer in"):
        ReplayDatasetTrajectory(tmp_path / "missing")
