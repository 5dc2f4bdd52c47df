"""Batches as tensors of torch and as tables of pandas."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch

from sqlbuffer import Batch, PrioritizedSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import MissingExtraError

FIELDS = {"obs": ("float32", (2, 3)), "tokens": ("int32", (-1,)), "n": "int16", "word": "U3"}
BATCH = Batch({"obs": np.zeros((2, 3), np.float32)}, {"seq": np.array([1, 2])})


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        for episode in range(3):
            n = episode + 3
            buffer.store_episode(
                {
                    "obs": np.arange(n * 6, dtype=np.float32).reshape(n, 2, 3),
                    "tokens": [list(range(i)) for i in range(n)],
                    "n": np.arange(n),
                    "word": ["ab"] * n,
                    "reward": np.arange(n, dtype=np.float32),
                },
                episode_id=f"e{episode}",
                final={"obs": np.zeros((2, 3))},
            )
        yield buffer


FORMS = {
    "steps": lambda buffer: buffer.sample_arrays(8),
    "weighted": lambda buffer: buffer.sample_arrays(
        4, sampler=PrioritizedSampler(seed=1), condition=QueryBuilder().gt("step", 0).build()
    ),
    "transitions": lambda buffer: buffer.sample_transitions(4, n_step=2),
    "windows": lambda buffer: next(iter(buffer.loader("window", 4, length=2))),
    "trajectories": lambda buffer: next(iter(buffer.loader("trajectory", 3))),
}
forms = pytest.mark.parametrize("draw", FORMS.values(), ids=FORMS.keys())


@forms
def test_a_batch_becomes_tensors_of_the_same_values(buffer, draw):
    batch = draw(buffer)
    made = batch.to_torch()
    assert isinstance(made, Batch)
    assert list(made) == list(batch)
    assert made.n_rows == batch.n_rows
    for name, array in batch.items():
        if name == "word" or array is None:
            assert made[name] is array
        else:
            assert made[name].device.type == "cpu"
            assert made[name].numpy().dtype == array.dtype
            np.testing.assert_array_equal(made[name].numpy(), array)
    assert made.info.keys() == batch.info.keys()
    assert all(made.info[name] is batch.info[name] for name in batch.info)


@pytest.mark.thorough
@forms
def test_a_batch_becomes_a_table_that_holds_all_its_values(buffer, draw):
    batch = draw(buffer)
    for table in (batch.to_pandas(), batch.to_torch().to_pandas()):
        assert isinstance(table, pd.DataFrame)
        assert len(table) == batch.n_rows
        for name, array in batch.items():
            if array is None:
                assert table[name].isna().all()
            else:
                np.testing.assert_array_equal(np.stack(table[name]), array)
                if array.ndim == 1 and array.dtype.kind in "biuf":
                    assert table[name].dtype == array.dtype
        for name, array in batch.info.items():
            column = table[f"info.{name}" if name in batch else name]
            np.testing.assert_array_equal(column.to_numpy(array.dtype), array)


def test_values_of_varying_length_keep_their_lengths_in_a_table(buffer):
    table = buffer.sample_arrays(64).to_pandas()
    for _, row in table.iterrows():
        assert row["tokens"][: row["tokens_lens"]].tolist() == list(range(row["n"]))


def test_an_array_that_is_named_like_the_info_does_not_hide_it():
    batch = Batch({"seq": np.array([7.5])}, {"seq": np.array([1]), "step": np.array([2])})
    assert batch.to_pandas().to_dict("records") == [{"info.seq": 1, "step": 2, "seq": 7.5}]


def test_an_empty_batch_becomes_an_empty_table_with_its_columns():
    batch = Batch({"obs": np.zeros((0, 3)), "p": None}, {"seq": np.zeros(0, np.int64)})
    table = batch.to_pandas()
    assert (len(table), list(table)) == (0, ["seq", "obs", "p"])


def test_tensors_of_a_batch_move_to_another_device():
    there = BATCH.to_torch().to("meta")
    assert there.obs.device.type == "meta"
    assert there.obs.shape == (2, 3)
    assert BATCH.to(torch.device("meta")).obs.device.type == "meta"


def test_tensors_on_the_cpu_share_the_memory_of_the_batch():
    batch = Batch({"obs": np.zeros((2, 3), np.float32)}, {})
    batch.to_torch().obs[0, 0] = 5.0
    assert batch.obs[0, 0] == 5.0


@pytest.mark.parametrize("device", ["gpu?", 1.5, ""])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(ValueError, match="device is one of torch, such as 'cpu'"):
        BATCH.to(device)


@pytest.mark.parametrize(
    ("library", "convert"),
    [("torch", lambda: BATCH.to("cpu")), ("torch", BATCH.to_torch), ("pandas", BATCH.to_pandas)],
)
def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, library, convert):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"pip install '\.\[{library}\]'"):
        convert()


def test_tensordict_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensordict", None)
    with pytest.raises(MissingExtraError, match="run `pip install tensordict`"):
        BATCH.to_tensordict()
