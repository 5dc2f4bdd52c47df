"""Batches drawn without end."""

import pickle

import numpy as np
import pytest
import torch
from scipy import stats

from sqlbuffer import Batch, FifoSampler, QueryBuilder, RandomSampler, ReplayBuffer, Sampler
from sqlbuffer.errors import ConditionError, FieldError, InsufficientDataError, MissingExtraError
from sqlbuffer.loading.loader import Output
from sqlbuffer.steps import as_tensor
from tests.loading.rows import FIELDS, actions, fill, flat


def take(loader, n):
    """Return the next n batches of a new iteration."""
    batches = iter(loader)
    return [next(batches) for _ in range(n)]


def test_batches_are_full_without_replacement_and_go_on_without_end(buffer):
    fill(buffer, 20)
    found = actions(take(buffer.loader("step", 16), 5))
    assert all(len(set(batch)) == 16 for batch in found)
    assert len({tuple(batch) for batch in found}) == 5


def test_drawing_with_replacement_needs_one_row(buffer):
    fill(buffer, 1)
    assert actions(take(buffer.loader("step", 3, replace=True), 1)) == [[0, 0, 0]]
    with pytest.raises(InsufficientDataError, match="asked for 3, and 1 match"):
        take(buffer.loader("step", 3), 1)


@pytest.mark.thorough
def test_each_row_is_as_likely(buffer):
    fill(buffer, 40)
    drawn = flat(take(buffer.loader("step", 10, seed=1), 200))
    counts = np.bincount(drawn, minlength=40)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_a_seed_repeats_the_batches_on_both_databases(both_urls):
    found = []
    for url in both_urls.values():
        with ReplayBuffer(url, fields=FIELDS) as buffer:
            fill(buffer, 30)
            loader = buffer.loader("step", 8, seed=11)
            found.append((actions(take(loader, 3)), actions(take(loader, 3))))
    assert found[0] == found[1]
    first, second = found[0]
    assert first != second  # the next iteration goes on with other batches


def test_without_a_seed_each_loader_draws_its_own(buffer):
    fill(buffer, 1000)
    first, second = (actions(take(buffer.loader("step", 8), 1)) for _ in range(2))
    assert first != second


def test_a_sampler_draws_and_its_seed_counts(buffer):
    fill(buffer, 30)
    assert actions(take(buffer.loader("step", 4, sampler=FifoSampler()), 2)) == [[0, 1, 2, 3]] * 2
    sampler = RandomSampler(seed=5)
    first, second = (actions(take(buffer.loader("step", 8, sampler=sampler), 2)) for _ in range(2))
    assert first == second
    assert first[0] != first[1]
    # Its own sequence is where it was.
    fresh = RandomSampler(seed=5)
    drawn = [buffer.sample_arrays(8, sampler=one).action.tolist() for one in (sampler, fresh)]
    assert drawn[0] == drawn[1]


def test_a_sampler_with_a_memory_keeps_it(buffer):
    class Following(Sampler):
        place = 0

        def choose(self, candidates, batch_size):
            found = candidates.page(self.place, batch_size)
            self.place += batch_size
            return found

    fill(buffer, 12)
    sampler = Following()
    assert actions(take(buffer.loader("step", 4, sampler=sampler), 3)) == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11],
    ]  # fmt: skip
    assert sampler.place == 12


def test_a_condition_and_fields_choose_what_is_read(buffer):
    fill(buffer, 30)
    few = QueryBuilder().lt("exp_meta.step", 5).build()
    (batch,) = take(buffer.loader("step", 5, condition=few, fields=["action"]), 1)
    assert sorted(batch) == ["action"]
    assert sorted(batch.action) == [0, 1, 2, 3, 4]
    assert sorted(batch.info["step"]) == [0, 1, 2, 3, 4]


def test_a_condition_on_a_field_and_compressed_arrays_are_read(buffer_url):
    fields = {"obs": ("float32", (2,)), "action": {"dtype": "int64", "column": True}}
    with ReplayBuffer(buffer_url, name="small", fields=fields, compression="zstd") as buffer:
        fill(buffer, 30)
        few = QueryBuilder().lt("action", 5).build()
        (batch,) = buffer.loader("step", 5, condition=few, epochs=1)
        assert sorted(batch.action) == [0, 1, 2, 3, 4]
        assert sorted(take(buffer.loader("step", 5, condition=few), 1)[0].action) == [0, 1, 2, 3, 4]


def test_transitions_are_the_default(buffer):
    buffer.store_episode(
        {"obs": np.arange(8).reshape(4, 2), "action": range(4), "reward": np.ones(4)},
        final={"obs": [8, 9]},
    )
    (batch,) = take(buffer.loader(batch_size=4, n_step=2, gamma=0.5), 1)
    last = batch.action == 3
    assert batch.reward.tolist() == np.where(last, 1.0, 1.5).tolist()
    assert batch.next_obs.shape == (4, 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "transitions"}, ValueError, "did you mean transition?"),
        ({"mode": None}, ValueError, "mode is one of step, transition, n_step, window, traj"),
        ({"mode": "step", "n_step": 3}, ValueError, "mode 'step' takes no n_step, got n_step=3"),
        ({"mode": "step", "stack": {"obs": 4}}, ValueError, "mode 'step' takes no stack"),
        ({"length": 4}, ValueError, "mode 'transition' takes no length, .* goes with window"),
        ({"batch_size": 0}, ValueError, "batch_size is an integer from 1 on, got 0"),
        ({"batch_size": -1}, ValueError, "batch_size is an integer from 1 on, got -1"),
        ({"batch_size": True}, TypeError, "batch_size is an integer"),
        ({"batch_size": 2.0}, TypeError, "batch_size is an integer"),
        ({"batch_size": None}, TypeError, "batch_size is an integer"),
        ({"batch_size": 10**8, "replace": True}, ValueError, "from 1 to 10000000, in a batch"),
        ({"n_step": 0}, ValueError, "n_step is an integer from 1 to 1000000, got 0"),
        ({"n_step": 2**63}, ValueError, "n_step is an integer from 1 to 1000000, got 9223372"),
        ({"gamma": float("nan")}, ValueError, "gamma is a number from 0 to 1"),
        ({"epochs": 0}, ValueError, "epochs is an integer from 1 on, or None, got 0"),
        ({"epochs": True}, ValueError, "epochs is an integer from 1 on, or None, got True"),
        ({"epochs": 1.5}, ValueError, "epochs is an integer from 1 on, or None, got 1.5"),
        ({"prefetch": -1}, ValueError, "prefetch is an integer from 0 on, got -1"),
        ({"prefetch": None}, ValueError, "prefetch is an integer from 0 on, got None"),
        ({"seed": -1}, ValueError, "seed is an integer from 0 to"),
        ({"seed": "x"}, ValueError, "seed is an integer from 0 to"),
        ({"shuffle": None}, TypeError, "shuffle is True or False, got None"),
        ({"drop_last": 1}, TypeError, "drop_last is True or False, got 1"),
        ({"sampler": 3}, TypeError, "sampler is a Sampler of rows, .* got 3"),
        ({"sampler": FifoSampler(), "epochs": 1}, ValueError, "epochs visits each row once"),
        ({"replace": True, "shuffle": False}, ValueError, "leave out replace=True"),
        ({"sampler": FifoSampler(), "seed": 1}, ValueError, "give seed to it"),
        ({"sampler": FifoSampler(), "replace": True}, ValueError, "give replace to it"),
        ({"fields": "obs"}, FieldError, "fields is a list of names such as .*, got 'obs'"),
        ({"fields": [None]}, FieldError, r"fields is a list of names .* got \[None\]"),
        ({"fields": ["höhe"]}, FieldError, "unknown field 'höhe'"),
        ({"condition": 3}, ConditionError, "a condition is a dict"),
    ],
)
def test_what_cannot_be_asked_for_says_so_at_the_door(options, error, message):
    with (
        ReplayBuffer("sqlite://", fields=FIELDS) as buffer,
        pytest.raises(error, match=message),
    ):
        buffer.loader(**options)


# Batches under other names, as named tuples, on a device.


BATCH = Batch(
    {"obs": np.ones((2, 3), np.float32), "action": np.arange(2), "mask": np.ones(2, bool)},
    {"seq": np.array([4, 5]), "task_id": np.array(["a", "b"], object)},
)


def test_named_tuples_have_the_parts_asked_for_in_order():
    made = Output(to_named_tuple=("action", "obs"))(BATCH)
    assert type(made).__name__ == "Batch"
    assert made._fields == ("action", "obs")
    action, obs = made
    assert action is BATCH["action"]
    assert obs is BATCH["obs"]
    assert made.action is action


def test_leading_underscores_are_stripped_and_info_can_be_a_part():
    made = Output(to_named_tuple=["_mask", "info"])(BATCH)
    assert made._fields == ("mask", "info")
    assert made.mask is BATCH["mask"]
    assert made.info["seq"].tolist() == [4, 5]


def test_named_tuples_can_be_pickled():
    made = Output(to_named_tuple=("action", "info"))(BATCH)
    copied = pickle.loads(pickle.dumps(made))
    assert type(copied) is type(made)
    assert copied.action.tolist() == [0, 1]


def test_names_are_mapped_before_they_are_chosen():
    mapped = Output(fieldname_map={"obs": "state", "action": "obs"})(BATCH)
    assert list(mapped) == ["state", "obs", "mask"]
    assert mapped.state is BATCH["obs"]
    assert mapped.info["seq"] is BATCH.info["seq"]
    made = Output({"obs": "state"}, ("state",))(BATCH)
    assert made.state is BATCH["obs"]


def test_tensors_share_the_memory_of_arrays_on_the_cpu():
    made = Output(device="cpu")(BATCH)
    assert isinstance(made, Batch)
    assert made.obs.dtype == torch.float32
    assert made.n_rows == 2
    assert "obs: torch.float32[2, 3]" in repr(made)
    made.obs[0, 0] = 7.0
    assert BATCH["obs"][0, 0] == 7.0
    BATCH["obs"][0, 0] = 1.0
    assert isinstance(made.info["seq"], np.ndarray)
    assert isinstance(Output(None, ("mask",), torch.device("cpu"))(BATCH).mask, torch.Tensor)


def test_arrays_that_torch_has_no_tensors_for_stay_arrays():
    for array in (
        np.array(["a"]), np.array([b"a"]), np.array([None]), np.array([1.0], np.longdouble),
    ):  # fmt: skip
        assert as_tensor(array, "cpu") is array
    for array in (
        np.arange(3, dtype=">i4"), np.arange(3)[::-1], np.broadcast_to(np.arange(3), (2, 3)),
        np.arange(3, dtype=np.uint16), np.array(3.5), np.ones((0, 2)), np.array([1j]),
    ):  # fmt: skip
        tensor = as_tensor(array, "cpu")
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "fieldname_map is a dict such as"),
        (({"a": 3},), "a dict of names, got 3"),
        (({"a": ""},), "a dict of names, got ''"),
        (({"a": "info"},), "'info' is a part of every batch"),
        (({"a": "x", "b": "x"},), "two fields the same name"),
        ((None, "obs"), "a list of"),
        ((None, ()), "a list of"),
        ((None, ("obs", 3)), "to_named_tuple is a list of names .* 3"),
        ((None, ("class",)), "'class' cannot be the name of a part"),
        ((None, ("_",)), "'_' cannot be the name of a part"),
        ((None, ("a b",)), "'a b' cannot be the name of a part"),
        ((None, ("mask", "_mask")), "two parts named 'mask'"),
    ],
)
def test_names_that_cannot_be_are_refused_at_the_door(arguments, message):
    with pytest.raises(FieldError, match=message):
        Output(*arguments)


def test_names_that_a_batch_has_not_are_named_with_those_it_has():
    with pytest.raises(FieldError, match="names 'speed', and the batch has obs, action, mask"):
        Output({"speed": "x"})(BATCH)
    with pytest.raises(FieldError, match="gives obs and action the same name 'action'"):
        Output({"obs": "action"})(BATCH)
    with pytest.raises(FieldError, match=r"names 'speed', and the batch has .* and info"):
        Output(to_named_tuple=("obs", "speed"))(BATCH)


@pytest.mark.parametrize("device", ["gpu?", 1.5, "", "nowhere:0"])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(ValueError, match="device is one of torch, such as 'cpu'"):
        Output(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="allowed: this machine has CUDA")
def test_a_machine_without_cuda_says_so():
    with pytest.raises(ValueError, match="device is 'cpu' here, where torch finds no CUDA"):
        Output(device="cuda:0")


def test_without_torch_a_device_names_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[torch\]'"):
        Output(device="cpu")


def test_a_loader_hands_out_what_was_asked_for(buffer):
    fill(buffer, 8)
    options = {"device": "cpu", "to_named_tuple": ("state", "action", "info"), "epochs": 1}
    for prefetch in (0, 2):
        (batch,) = buffer.loader(
            "step", 8, fieldname_map={"obs": "state"}, prefetch=prefetch, **options
        )
        assert torch.equal(batch.state[:, 0].long(), batch.action)
        assert batch.info["step"].tolist() == batch.action.tolist()


def test_texts_come_beside_tensors(buffer_url):
    with ReplayBuffer(buffer_url, name="texts", fields={**FIELDS, "who": "U8"}) as buffer:
        obs, who = np.zeros((2, 2)), ["ä", "日本"]
        buffer.extend({"obs": obs, "action": [0, 1], "who": who})
        (batch,) = buffer.loader("step", 2, device="cpu", epochs=1, shuffle=False)
        assert batch.who.tolist() == who
        assert isinstance(batch.action, torch.Tensor)
