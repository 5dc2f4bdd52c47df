"""What datasets and data loaders give: table 1.5 of memmap-replay-buffer's behaviour, row by row.

The figures were asked of memmap-replay-buffer 0.2.3.
"""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Subset, TensorDataset  # noqa: E402

from sqlbuffer.compat.memmap import (  # noqa: E402
    ReplayDatasetNStep,
    ReplayDatasetTimestep,
    ReplayDatasetTimeWindow,
    ReplayDatasetTrajectory,
)
from sqlbuffer.errors import InsufficientDataError  # noqa: E402
from tests.compat.memmap.loaded import fill, step  # noqa: E402


def first(loader):
    return next(iter(loader))


def listed(batch):
    return {name: value.tolist() for name, value in batch.items()}


def dtypes(batch):
    return {name: (value.dtype, tuple(value.shape)) for name, value in batch.items()}


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


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"n_steps": 1, "timestep_level": True}, ValueError, "n_steps and timestep_level"),
        ({"n_steps": 0, "timestep_level": True}, ValueError, "n_steps and timestep_level"),
        ({"n_steps": -1}, ValueError, "n_steps is at least 0"),
        ({"n_steps": 1.5}, TypeError, "n_steps is a whole number"),
        ({"n_steps": True}, TypeError, "n_steps is a whole number"),
        ({"fields": ["x"]}, TypeError, "tuple"),
        ({"fields": "x"}, TypeError, "tuple"),
        ({"fields": (1,)}, TypeError, "tuple"),
        ({"n_steps": 1, "next_fields": ["x"]}, TypeError, "tuple"),
        ({"fieldname_map": [("x", "y")]}, TypeError, "fieldname_map"),
        ({"fieldname_map": {"x": 1}}, TypeError, "fieldname_map"),
        ({"filter_meta": {"nope": 1}}, KeyError, "task"),
        ({"filter_meta": {"z": 1}}, ValueError, "scalar"),
        ({"filter_meta": {"task": None}}, TypeError, "one number"),
        ({"filter_meta": {"task": [0, 1]}}, TypeError, "one number"),
        ({"filter_meta": ["task"]}, TypeError, "filter_meta is a dict"),
        ({"filter_fields": {"done": True}}, ValueError, "filter_fields is only supported"),
        ({"filter_fields": {"v": 1.0}, "timestep_level": True}, ValueError, "scalar"),
        ({"filter_fields": {"nope": 1}, "timestep_level": True}, KeyError, "done"),
        ({"filter_field": {"done": 1}}, TypeError, "filter_fields"),
        ({"min_episode_len": -1}, ValueError, "min_episode_len"),
    ],
)
def test_parameters_that_cannot_be_are_refused(buffer, options, error, says):
    with pytest.raises(error, match=says):
        buffer.dataset(**options)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"n_steps": 1, "timestep_level": True}, ValueError, "n_steps and timestep_level"),
        ({"return_mask": True, "timestep_level": True}, ValueError, "return_mask"),
        ({"return_mask": True, "n_steps": 1}, ValueError, "return_mask"),
        ({"fields": ("x",), "to_named_tuple": ("x",)}, ValueError, "fields and to_named_tuple"),
        ({"to_named_tuple": ["x"]}, TypeError, "tuple"),
        ({"to_named_tuple": ("lens", "_lens")}, ValueError, "lens"),
        ({"to_named_tuple": ("no name",)}, ValueError, "no name"),
        ({"collate_fn": list}, TypeError, "collate_fn"),
        ({"dataset": [{"x": 1}]}, TypeError, "dataset"),
        ({"dataset_kwargs": {"return_indices": True}}, TypeError, "return_indices"),
        ({"device": "nowhere"}, ValueError, "device"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"shuffle": True, "sampler": [0]}, ValueError, "sampler"),
    ],
)
def test_parameters_of_a_loader_that_cannot_be_are_refused(buffer, options, error, says):
    with pytest.raises(error, match=says):
        buffer.dataloader(**{"batch_size": 2, **options})


@pytest.mark.parametrize("options", [{}, {"timestep_level": True}])
def test_an_unknown_field_is_a_key_error_when_an_item_is_read(buffer, options):
    dataset = buffer.dataset(fields=("nope",), **options)
    with pytest.raises(KeyError, match="choose of x, r, done, v"):
        dataset[0]
    with pytest.raises(KeyError, match="nope"):
        buffer.dataset(n_steps=1, sequence_fields=("nope",))[0]


def test_fields_are_chosen_by_name_and_values_of_episodes_left_out(buffer):
    assert set(buffer.dataset(fields=("r",))[0]) == {"r", "task", "z", "_lens"}
    assert set(buffer.dataset(fields=(), include_metadata=False)[0]) == {"_lens"}
    loader = buffer.dataloader(
        2, fields=("v",), timestep_level=True, dataset_kwargs={"include_metadata": False}
    )
    assert set(first(loader)) == {"v"}


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ({"filter_meta": {"task": 1}}, [3]),
        ({"filter_meta": {"task": 0}}, [0, 1, 2, 4, 5, 6, 7, 8]),
        ({"filter_meta": {"task": True}}, [3]),
        ({"filter_meta": {"task": np.int64(1)}}, [3]),
        ({"filter_meta": {"episode_lens": 3}}, [0, 1, 2]),
        ({"filter_fields": {"done": True}}, [2, 3, 8]),
        ({"filter_fields": {"done": True, "r": 3.0}}, [3]),
        ({"filter_fields": {"r": False}}, [0]),
        ({"filter_fields": {"r": True, "done": False}}, [1, 4, 5, 6, 7]),
        ({"filter_fields": {"done": True}, "filter_meta": {"task": 0}}, [2, 8]),
        ({"filter_meta": {"task": 9}}, []),
        ({"min_episode_len": 3}, [0, 1, 2, 4, 5, 6, 7, 8]),
        ({"filter_fields": {"done": False}, "n_steps": 2}, [0, 1, 4, 5, 6, 7]),
        ({"filter_fields": {"r": 5.0}, "n_steps": 2}, [5]),
        ({"min_episode_len": 4, "n_steps": 1}, [4, 5, 6, 7]),
    ],
)
def test_filters_choose_by_equality(buffer, options, numbers):
    options = {"timestep_level": "n_steps" not in options, **options}
    dataset = buffer.dataset(**options)
    assert [int(dataset[i]["r"]) for i in range(len(dataset))] == numbers


def test_filters_of_episodes_choose_trajectories(buffer):
    dataset = buffer.dataset(filter_meta={"task": 0})
    assert [item["r"][0].item() for item in dataset] == [0.0, 4.0]
    assert [len(buffer.dataset(min_episode_len=n)) for n in (0, 1, 2, 5, 6)] == [3, 3, 2, 1, 0]


def test_a_filter_that_nothing_passes_gives_no_batches(buffer):
    assert list(buffer.dataloader(2, filter_meta={"task": 9})) == []


def test_unknown_parameters_are_ignored_as_they_were(buffer):
    assert len(buffer.dataset(nonsense=1)) == 3


def test_names_are_changed_but_those_with_an_underscore(buffer):
    names = {"r": "rew", "task": "T", "_lens": "L", "next_r": "nr", "seq_r": "rs"}
    names["n_step_lens"] = "m"
    batch = first(buffer.dataloader(2, fieldname_map=names))
    assert list(batch) == ["x", "rew", "done", "v", "T", "z", "_lens"]
    batch = first(
        buffer.dataloader(
            2,
            n_steps=2,
            current_fields=("r",),
            next_fields=("r",),
            sequence_fields=("r",),
            return_indices=True,
            fieldname_map=names,
        )
    )
    assert list(batch) == ["rew", "nr", "rs", "m", "T", "z", "_indices"]


def test_of_two_with_one_name_the_latter_stays(buffer):
    batch = first(buffer.dataloader(2, fields=("x", "r"), fieldname_map={"x": "r"}))
    assert batch["r"].tolist() == [[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]
    swapped = first(
        buffer.dataloader(2, fields=("r", "done"), fieldname_map={"r": "done", "done": "r"})
    )
    assert swapped["r"].dtype == torch.bool


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
        with pytest.raises(InsufficientDataError, match="anew"):
            dataset[2]


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
    with pytest.raises(InsufficientDataError, match="anew"):
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


def test_a_mask_needs_the_lengths(buffer):
    loader = buffer.dataloader(2, return_mask=True, dataset_kwargs={"return_episode_lens": False})
    with pytest.raises(KeyError, match="_lens"):
        first(loader)


def test_episodes_without_steps_count_in_all_data_alone(new_buffer):
    buffer = new_buffer()
    buffer.advance_episode(2)
    fill(buffer, (2,))
    found = buffer.get_all_data()
    assert found["r"].tolist() == [[0, 0], [0, 0], [0, 1]]
    assert found["episode_lens"].tolist() == [0, 0, 2]
    assert (len(buffer), len(buffer.dataset())) == (1, 1)


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
