"""Batches under other names, as named tuples, on a device."""

import pickle

import numpy as np
import pytest
import torch

from sqlbuffer import Batch, ReplayBuffer
from sqlbuffer.errors import FieldError, MissingExtraError
from sqlbuffer.loading.loader import Output
from sqlbuffer.steps import as_tensor
from tests.loading.rows import FIELDS, fill

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
