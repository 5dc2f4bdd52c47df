"""Parameters of datasets and data loaders: what is refused, filters and names of fields."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from tests.compat.memmap.datasets.loaded import first  # noqa: E402


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
