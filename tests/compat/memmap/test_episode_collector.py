"""`EpisodeCollector`: table 1.9 of memmap-replay-buffer's behaviour, row by row."""

import numpy as np
import pytest

from sqlbuffer.compat.memmap.episode_collector import EpisodeCollector
from tests.compat.memmap.datasets.loaded import SHAPE, LoadedModel

torch = pytest.importorskip("torch")

G = 3


@pytest.fixture
def collector():
    return EpisodeCollector(LoadedModel(**SHAPE), G)


@pytest.fixture
def storing(new_buffer):
    """Return a collector for the model, and for each database."""
    return EpisodeCollector(new_buffer(), G)


def collect(collector, steps=2):
    """Add steps; the reward is 10 * step + group."""
    for step in range(steps):
        collector.append(
            x=np.full((G, 2), step, np.float32),
            r=np.arange(G, dtype=np.float32) + 10 * step,
            done=np.full(G, step == steps - 1),
        )
    return collector


def test_steps_are_read_back_by_group_and_by_time(collector):
    collect(collector)
    assert collector.step_count == len(collector) == 2
    assert collector.time_major("r").tolist() == [[0, 1, 2], [10, 11, 12]]
    assert collector.env_major("r").tolist() == [[0, 10], [1, 11], [2, 12]]
    assert [part.tolist() for part in collector.groups("r")] == [[0, 10], [1, 11], [2, 12]]
    assert collector.time_major("x").shape == (2, G, 2)
    found = collector.all_data()
    assert {name: value.shape for name, value in found.items()} == {
        "x": (G, 2, 2),
        "r": (G, 2),
        "done": (G, 2),
    }
    assert set(collector.all_data(("r",))) == {"r"}


def test_an_axis_of_one_between_group_and_value_is_dropped(collector):
    collector.append(r=np.ones((G, 1)), x=np.ones((G, 1, 2)), v=np.ones((G, 1, 1)))
    assert collector.time_major("r").shape == (1, G)
    assert collector.time_major("x").shape == (1, G, 2)
    assert collector.time_major("v").shape == (1, G, 1)


def test_tensors_come_back_as_tensors_and_arrays_as_arrays(collector):
    grown = torch.ones(G, requires_grad=True)
    collector.append(r=grown * 2, x=np.zeros((G, 2)))
    assert collector.time_major("r").tolist() == [[2.0] * G]
    assert not collector.time_major("r").requires_grad
    assert isinstance(collector.time_major("x"), np.ndarray)
    assert collector.all_data(device="meta")["r"].device.type == "meta"


def test_arrays_that_are_written_to_afterwards_do_not_change_what_was_collected(collector):
    r, trajectory = np.zeros(G), torch.zeros(2, G, 1)
    collector.append(r=r)
    r += 1
    collector.append(r=r)
    collector.extend(v=trajectory)
    trajectory += 1
    assert collector.env_major("r")[0].tolist() == [0.0, 1.0]
    assert collector.env_major("v").sum() == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"r": 1.0}, "per-step group-batched"),
        ({"r": np.zeros(G + 1)}, "per-step group-batched"),
        ({"x": np.zeros((G, 5))}, r"per-group shape \(5,\)"),
        ({"x": np.zeros((G, 2, 1))}, "per-group shape"),
        ({"r": np.zeros(G), "x": np.zeros((G, 3))}, "field x"),
        ({"task": np.zeros(G + 1)}, "meta field task"),
        ({"z": np.zeros(2), "task": np.zeros(G + 1)}, "meta field task"),
        ({"v": np.zeros((G, 1))}, "the steps before have done, r, x"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_whole(collector, values, says):
    collect(collector)
    with pytest.raises(AssertionError, match=says):
        collector.append(**values)
    with pytest.raises(ValueError, match=says):
        collector.append(**values)
    assert len(collector) == 2
    assert set(collector.all_data()) == {"x", "r", "done"}
    with pytest.raises(ValueError, match="no z"):
        collector.groups("z")
    collect(collector, 1)
    assert collector.time_major("r").shape == (3, G)


def test_unknown_names_raise_or_are_ignored():
    strict = EpisodeCollector(LoadedModel(**SHAPE), G)
    for call in (
        lambda: strict.append(r=np.zeros(G), nope=1),
        lambda: strict.extend(nope=np.zeros((1, G))),
        lambda: strict.groups("nope"),
        lambda: strict.field_kind("nope"),
        lambda: strict.field_shape("nope"),
        lambda: strict.per_group("nope", np.zeros(G)),
        lambda: EpisodeCollector(LoadedModel(**SHAPE), G, fieldnames=("nope",)),
        lambda: EpisodeCollector(LoadedModel(**SHAPE), G, meta_fieldnames=("nope",)),
    ):
        with pytest.raises(KeyError, match="nope"):
            call()
    assert len(strict) == 0
    loose = EpisodeCollector(LoadedModel(**SHAPE), G, strict=False)
    loose.append(r=np.zeros(G), nope=1)
    assert set(loose.all_data()) == {"r"}
    few = EpisodeCollector(LoadedModel(**SHAPE), G, fieldnames=("x",), meta_fieldnames=())
    with pytest.raises(KeyError, match=r"valid fields are \['x'\]"):
        few.append(r=np.zeros(G))


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_there_is_at_least_one_group(n, error):
    with pytest.raises(error, match="num_groups"):
        EpisodeCollector(LoadedModel(**SHAPE), n)


def test_names_are_given_in_a_tuple():
    with pytest.raises(TypeError, match="tuple"):
        EpisodeCollector(LoadedModel(**SHAPE), G, ["x"])


def test_fields_say_what_they_are(collector):
    assert [collector.field_kind(name) for name in ("x", "task")] == ["data", "meta"]
    assert [collector.field_shape(name) for name in ("x", "r", "z")] == [(2,), (), (2,)]
    assert [int(part) for part in collector.per_group("task", np.arange(G))] == [0, 1, 2]
    assert collector.per_group("z", np.ones((G, 1, 2)))[0].tolist() == [1.0, 1.0]
    with pytest.raises(AssertionError, match="group"):
        collector.per_group("task", 5)


def test_extend_adds_whole_trajectories_of_the_steps_collected(collector):
    collect(collector)
    collector.extend(v=torch.arange(6.0).reshape(2, G, 1))
    assert collector.env_major("v").tolist() == [[[0], [3]], [[1], [4]], [[2], [5]]]
    assert len(collector) == 2


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"v": np.zeros((1, G, 1))}, "does not match the 2 collected"),
        ({"v": np.zeros((2, G + 1, 1))}, "time-major"),
        ({"v": np.zeros((2, G))}, "feature shape"),
        ({"v": np.zeros(2)}, "time-major"),
        ({"v": np.zeros((0, G, 1))}, "time-major"),
        ({"r": np.zeros((2, G))}, "already"),
    ],
)
def test_trajectories_that_do_not_fit_are_refused(collector, values, says):
    collect(collector)
    with pytest.raises(AssertionError, match=says):
        collector.extend(**values)
    assert set(collector.all_data()) == {"x", "r", "done"}


def test_trajectories_alone_are_episodes_too(storing):
    with pytest.raises(AssertionError, match="does not match"):
        storing.extend(r=np.zeros((2, G)), v=np.zeros((3, G, 1)))
    storing.extend(r=np.zeros((2, G)))
    assert len(storing) == 2
    with pytest.raises(AssertionError, match="extend"):
        storing.append(r=np.zeros(G))
    storing.store()
    assert storing.replay_buffer.episode_lens[:3].tolist() == [2, 2, 2]


def test_of_values_of_episodes_the_last_is_kept_for_all_groups(collector):
    collect(collector)
    collector.append(
        x=np.zeros((G, 2)), r=np.zeros(G), done=np.zeros(G, bool), task=4, z=np.eye(G, 2)
    )
    collector.append(x=np.zeros((G, 2)), r=np.zeros(G), done=np.zeros(G, bool), task=5)
    assert [int(value) for value in collector.groups("task")] == [5, 5, 5]
    assert collector.time_major("task").tolist() == [5, 5, 5]
    assert [value.tolist() for value in collector.groups("z")] == [[1, 0], [0, 1], [0, 0]]


def test_store_makes_an_episode_of_each_group_and_forgets_them(storing):
    collect(storing, 3)
    storing.extend(v=np.arange(9.0).reshape(3, G, 1))
    storing.store(task=np.arange(G), z=np.array([5.0, 6.0]))
    buffer = storing.replay_buffer
    assert (buffer.num_episodes, len(storing)) == (G, 0)
    found = {name: value.tolist() for name, value in buffer.get_all_data().items()}
    assert found["r"] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert found["v"][1] == [[1.0], [4.0], [7.0]]
    assert found["done"][0] == [False, False, True]
    assert found["task"] == [0, 1, 2]
    assert found["z"] == [[5.0, 6.0]] * 3
    assert found["episode_lens"] == [3, 3, 3]
    with pytest.raises(ValueError, match="empty"):
        storing.store()
    assert collect(storing, 1).time_major("r").shape == (1, G)


def test_store_stores_nothing_where_not_all_groups_fit(storing):
    collect(storing).store()
    collect(storing)
    with pytest.raises(ValueError, match="3 episodes do not fit"):
        storing.store()
    assert storing.replay_buffer.num_episodes == G
    assert len(storing) == 2, "what was collected is kept"
    for values, error in (({"nope": 1}, KeyError), ({"r": 1}, KeyError), ({"z": 1}, ValueError)):
        with pytest.raises(error, match=r"nope|unknown field r|meta field z"):
            storing.store(**values)


def test_batches_come_from_memory(collector):
    collect(collector)
    loader = collector.dataloader(4)
    batch = next(iter(loader))
    assert batch["r"].tolist() == [0, 10, 1, 11], "by group, then by time"
    assert batch["x"].shape == (4, 2)
    assert [len(batch["r"]) for batch in loader] == [4, 2]
    assert collector.replay_buffer.num_episodes == 0
    (batch,) = collector.dataloader(9, ("x",), filter_fields={"r": 11.0})
    assert (set(batch), batch["x"].tolist()) == ({"x"}, [[1.0, 1.0]])
    (named,) = collector.dataloader(9, to_named_tuple=("done", "r"), filter_fields={"done": True})
    assert named._fields == ("done", "r")
    assert named.r.tolist() == [10, 11, 12]
    shuffled = torch.cat([batch["r"] for batch in collector.dataloader(2, shuffle=True)])
    assert sorted(shuffled.tolist()) == [0, 1, 2, 10, 11, 12]
    assert list(collector.dataloader(2, filter_fields={"r": 99.0})) == []


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"fields": ("nope",)}, KeyError, "nope"),
        ({"fields": "x"}, TypeError, "tuple"),
        ({"fields": ("v",)}, ValueError, "no v"),
        ({"filter_fields": {"nope": 1}}, KeyError, "nope"),
        ({"filter_fields": {"task": 1}}, KeyError, "task"),
        ({"filter_fields": {"x": 1}}, ValueError, "scalar"),
        ({"device": "nowhere"}, ValueError, "device"),
    ],
)
def test_batches_that_cannot_be_are_refused(collector, options, error, says):
    collect(collector)
    with pytest.raises(error, match=says):
        collector.dataloader(2, **options)


def test_nothing_collected_is_nothing_to_read(collector):
    for call in (
        collector.all_data,
        lambda: collector.dataloader(2),
        lambda: collector.groups("r"),
        lambda: collector.time_major("task"),
    ):
        with pytest.raises(ValueError, match=r"empty|no task"):
            call()
    collect(collector).clear()
    with pytest.raises(ValueError, match="empty"):
        collector.all_data()
