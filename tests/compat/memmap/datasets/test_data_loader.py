"""Batches of a data loader, and all data at once."""

import pickle

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Subset, TensorDataset  # noqa: E402

from tests.compat.memmap.datasets.loaded import fill, first, listed  # noqa: E402


def test_named_tuples_have_their_parts_in_order(buffer):
    batch = first(
        buffer.dataloader(
            2,
            return_mask=True,
            to_named_tuple=("r", "_mask", "T"),
            fieldname_map={"task": "T"},
        )
    )
    assert type(batch).__name__ == "Batch"
    assert batch._fields == ("r", "mask", "T")
    r, mask, task = batch
    assert r.shape == mask.shape == (2, 3)
    assert task.tolist() == [0, 1]
    assert pickle.loads(pickle.dumps(batch)).T.tolist() == [0, 1]


def test_a_part_that_the_batch_has_not_raises_when_it_is_made(buffer):
    loader = buffer.dataloader(2, to_named_tuple=("r", "nope"))
    with pytest.raises(ValueError, match="field `nope` not found in batch"):
        first(loader)


def test_shuffled_batches_hold_every_item_once(buffer):
    generator = torch.Generator().manual_seed(0)
    loader = buffer.dataloader(2, timestep_level=True, shuffle=True, generator=generator)
    orders = [torch.cat([batch["r"] for batch in loader]).tolist() for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(9))
    assert orders[0] != orders[1]


def test_tensors_are_moved_to_the_device(buffer):
    batch = first(buffer.dataloader(3, return_mask=True, device="cpu"))
    assert {value.device.type for value in batch.values()} == {"cpu"}
    moved = first(buffer.dataloader(2, return_indices=True, device=torch.device("meta")))
    assert {value.device.type for value in moved.values()} == {"meta"}


def test_a_dataset_that_is_given_is_read(buffer):
    steps = buffer.dataset(timestep_level=True)
    batch = first(buffer.dataloader(9, dataset=steps, filter_meta={"task": 9}))
    assert batch["r"].tolist() == list(range(9))
    batch = first(buffer.dataloader(2, dataset=Subset(steps, [8, 0])))
    assert batch["r"].tolist() == [8.0, 0.0]


def test_datasets_of_others_are_padded_as_well(buffer):
    class Ragged(TensorDataset):
        def __getitem__(self, index):
            return {"a": torch.ones(index + 1), "b": index}

    batch = first(buffer.dataloader(2, dataset=Ragged(torch.zeros(2))))
    assert listed(batch) == {"a": [[1.0, 0.0], [1.0, 1.0]], "b": [0, 1]}


def test_torch_collates_items_by_itself_too(buffer):
    batch = first(DataLoader(buffer.dataset(timestep_level=True), batch_size=4))
    assert batch["x"].shape == (4, 2)
    item = first(buffer.dataloader(None, to_named_tuple=("r",)))
    assert item.r.tolist() == [0.0, 1.0, 2.0]


def test_a_mask_needs_the_lengths(buffer):
    loader = buffer.dataloader(2, return_mask=True, dataset_kwargs={"return_episode_lens": False})
    with pytest.raises(KeyError, match="_lens"):
        first(loader)


def test_all_data_is_padded_with_defaults_and_has_lengths(buffer):
    found = buffer.get_all_data()
    assert set(found) == {"x", "r", "done", "v", "task", "z", "episode_lens"}
    assert found["x"].shape == (3, 5, 2)
    assert found["x"][1].tolist() == [[3.0, 3.5], *[[-1.0, -1.0]] * 4]
    assert found["episode_lens"].tolist() == [3, 1, 5]
    assert found["episode_lens"].dtype == torch.int32
    assert found["task"].tolist() == [0, 1, 0]


def test_all_data_has_nothing_of_what_was_not_asked_for(buffer):
    assert set(buffer.get_all_data(fields=("r",))) == {"r"}
    assert set(buffer.get_all_data(fields=["r", "v"])) == {"r", "v"}
    assert set(buffer.get_all_data(meta_fields=("task",))) == {"task"}
    assert buffer.get_all_data(fields=()) == {}
    both = buffer.get_all_data(("done",), ("episode_lens", "_initted"), "meta")
    assert {name: value.device.type for name, value in both.items()} == {
        "done": "meta",
        "episode_lens": "meta",
        "_initted": "meta",
    }
    for wrong in ({"fields": ("task",)}, {"meta_fields": ("r",)}):
        with pytest.raises(KeyError, match="choose of"):
            buffer.get_all_data(**wrong)
    with pytest.raises(TypeError, match="tuple"):
        buffer.get_all_data(fields="r")
    with pytest.raises(ValueError, match="device"):
        buffer.get_all_data(device="nowhere")


def test_episodes_without_steps_count_in_all_data_alone(new_buffer):
    buffer = new_buffer()
    buffer.advance_episode(2)
    fill(buffer, (2,))
    found = buffer.get_all_data()
    assert found["r"].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert found["episode_lens"].tolist() == [0, 0, 2]
    assert (len(buffer), len(buffer.dataset())) == (1, 1)
