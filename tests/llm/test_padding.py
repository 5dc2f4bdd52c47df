"""Rollouts as padded arrays and tensors."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta
from sqlbuffer.errors import ArgumentError
from sqlbuffer.llm import padded, rollouts


def made(*completions, reward=1.0, versions=None, task="t"):
    """Return rollouts of one turn each."""
    rows = [
        DataRow(
            ExpMeta(task, model_version=None if versions is None else versions[i]),
            Experience(reward_t=reward),
            fields={
                "prompt_ids": [1, 2],
                "completion_ids": list(ids),
                "logprobs": [-1.0] * len(ids),
            },
        )
        for i, ids in enumerate(completions)
    ]
    return rollouts([rows])


def test_dtypes_and_shapes_are_those_that_a_loss_takes() -> None:
    batch = padded(made([3], [4, 5, 6]))
    kinds = {name: (str(array.dtype), array.shape) for name, array in batch.items()}
    assert kinds == {
        **dict.fromkeys(
            ("input_ids", "attention_mask", "position_ids", "versions"), ("int64", (2, 5))
        ),
        "loss_mask": ("bool", (2, 5)),
        "logprobs": ("float32", (2, 5)),
        **dict.fromkeys(("reward", "advantage"), ("float32", (2,))),
        **dict.fromkeys(("rollout", "group"), ("int64", (2,))),
    }
    assert {name: len(values) for name, values in batch.info.items()} == dict.fromkeys(
        ("task_id", "group_id", "episode_id", "agent_id", "n_cut", "is_made"), 2
    )


def test_a_sequence_that_is_too_long_is_an_error_by_default() -> None:
    with pytest.raises(ArgumentError, match="a sequence of 5 tokens is longer than max_length=4"):
        padded(made([3], [4, 5, 6]), 4)
    assert padded(made([3], [4, 5, 6]), 5).n_rows == 2


def test_what_is_cut_or_dropped_is_counted() -> None:
    group = made([3], [4, 5, 6])
    left, right, dropped = (padded(group, 4, how) for how in ("left", "right", "drop"))
    assert left.input_ids.tolist() == [[1, 2, 3, 0], [2, 4, 5, 6]]
    first = padded(group, 2, "left")  # nothing predicts the first token that is left
    assert first.input_ids.tolist() == [[2, 3], [5, 6]]
    assert first.loss_mask.tolist() == [[False, True], [False, True]]
    assert first.logprobs.tolist() == [[0, -1], [0, -1]]
    assert (first.n_cut, first.n_lost) == (2, 2)
    assert repr(first).startswith("TokenBatch(input_ids: int64[2, 2]")
    assert repr(first).endswith("n_cut=2, n_lost=2)")
    assert (left.n_cut, left.n_dropped, left.n_lost) == (1, 0, 0)
    assert left.info["n_cut"].tolist() == [0, 1]
    assert right.input_ids.tolist() == [[1, 2, 3, 0], [1, 2, 4, 5]]
    assert (right.n_cut, right.n_dropped, right.n_lost) == (1, 0, 1)
    assert dropped.input_ids.tolist() == [[1, 2, 3]]
    assert (dropped.n_cut, dropped.n_dropped, dropped.n_lost) == (0, 1, 3)


def test_advantages_count_rollouts_whose_sequences_are_dropped() -> None:
    first, second = made([3], [4, 5, 6])
    batch = padded([replace(first, reward=0.0), second], 4, "drop", scale=None)
    assert batch.advantage.tolist() == [-0.5]


def test_tokens_of_old_versions_are_masked_and_counted() -> None:
    group = made([3], [4, 5], [6], [7], versions=[1, 2, 3, None])
    batch = padded(group, max_token_staleness=1, current_version=3)
    assert batch.loss_mask.sum(1).tolist() == [0, 2, 1, 1]
    assert batch.logprobs.sum(1).tolist() == [0, -2, -1, -1]
    assert batch.versions.max(1).tolist() == [-1, 2, 3, -1]
    assert (batch.n_stale, batch.n_lost) == (1, 0)
    with pytest.raises(ArgumentError, match=r"current_version=buffer\.clock"):
        padded(group, max_token_staleness=1)


def test_rollouts_without_a_finite_reward_have_none() -> None:
    for reward in (None, np.nan, np.inf):
        batch = padded(made([3], [4], reward=reward))
        assert np.isnan(batch.reward).all()
        assert np.isnan(batch.advantage).all()


def test_no_rollouts_make_empty_arrays() -> None:
    batch = padded([])
    assert batch.input_ids.shape == (0, 0)
    assert batch.reward.shape == (0,)
    assert batch.n_rows == 0


def test_tensors_have_the_same_values_and_counts() -> None:
    torch = pytest.importorskip("torch")
    group = made([3], [4, 5, 6])
    arrays, tensors = padded(group, 4, "left"), padded(group, 4, "left", device="cpu")
    for name, tensor in tensors.items():
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])
    assert tensors.n_cut == arrays.n_cut == arrays.to_torch().n_cut == 1
    again = pickle.loads(pickle.dumps(tensors))
    assert again.n_cut == 1
    assert torch.equal(again.input_ids, tensors.input_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncation": "middle"}, "truncation"),
        ({"padding_side": "both"}, "padding_side"),
        ({"max_length": 0}, "max_length"),
        ({"pad_token_id": -1}, "pad_token_id"),
        ({"baseline": "median"}, "baseline"),
        ({"max_token_staleness": -1, "current_version": 1}, "max_token_staleness"),
        ({"device": "abacus"}, "device"),
    ],
)
def test_mistakes_are_named(options, message) -> None:
    if "device" in options:
        pytest.importorskip("torch")
    with pytest.raises(ArgumentError, match=message):
        padded(made([3]), **options)
