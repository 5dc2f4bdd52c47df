"""Batches as TensorDicts of tensordict itself."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import NonTensorStack, TensorDict, is_leaf_nontensor

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer

OBSERVATION = spaces.Dict(
    {
        "front camera": spaces.Box(0, 255, (2, 2), np.uint8),
        "arm": spaces.Tuple([spaces.Box(-9, 9, (3,)), spaces.Text(5)]),
        "mol": spaces.Graph(spaces.Box(0, 9, (2,)), None),
        3: spaces.Discrete(9),
    }
)
SPACES = {"observation": OBSERVATION, "action": spaces.Discrete(9)}
OBSERVED = {
    "obs_front_camera": ("uint8", (2, 2)),
    "obs_arm_0": ("float32", (3,)),
    "obs_arm_1": "U5",
    "obs_mol_nodes": ("float32", (-1, 2)),
    "obs_3": "int64",
}
LEAVES = {
    "obs_front_camera": ("obs", "front camera"),
    "obs_arm_0": ("obs", "arm", "0"),
    "obs_arm_1": ("obs", "arm", "1"),
    "obs_mol_nodes": ("obs", "mol", "nodes"),
    "obs_3": ("obs", "3"),
}


def columns(n: int) -> dict[str, Any]:
    t = np.arange(n)
    return {
        "obs_front_camera": np.broadcast_to(t[:, None, None], (n, 2, 2)),
        "obs_arm_0": np.stack([t, t, t], 1),
        "obs_arm_1": [f"at {i}" for i in t],
        "obs_mol_nodes": [np.full((i % 3, 2), i) for i in t],
        "obs_3": t % 9,
        "action": t % 9,
        "reward": t.astype(float),
    }


@pytest.fixture
def buffer(database_url: str) -> Any:
    fields = {**OBSERVED, "action": "int64"}
    with ReplayBuffer(
        database_url, create=True, fields=fields, spaces=SPACES, observation_fields=[*OBSERVED],
        priorities=True,
    ) as buffer:  # fmt: skip
        for number in range(3):
            buffer.store_episode(columns(4 + number), episode_id=f"e{number}")
        yield buffer


def place(name: str) -> Any:
    for prefix in ("", "next_", "final_"):
        if name.startswith(prefix) and name.removeprefix(prefix) in LEAVES:
            root, *path = LEAVES[name.removeprefix(prefix)]
            return (f"{prefix}{root}", *path)
    return name


def check(batch: Any) -> TensorDict:
    made = batch.to_tensordict()
    assert isinstance(made, TensorDict)
    assert made.batch_size == torch.Size([batch.n_rows])
    expected = {place(name) for name, array in batch.items() if array is not None}
    assert set(made.keys(True, True, is_leaf=is_leaf_nontensor)) == expected
    for name, array in batch.items():
        if array is None:
            continue
        value = made[place(name)]
        if isinstance(array, np.ndarray) and array.dtype.kind == "U":
            assert made.get(place(name)).tolist() == array.tolist()
        else:
            assert value.shape == array.shape
            np.testing.assert_array_equal(np.asarray(value), np.asarray(array))
    return made


def test_every_kind_of_batch_becomes_one(buffer: ReplayBuffer) -> None:
    check(buffer.sample_arrays(5))
    transitions = check(buffer.sample_transitions(5, n_step=2))
    assert transitions["next_obs", "front camera"].dtype == torch.uint8
    assert transitions[1:3]["obs", "arm", "0"].shape == (2, 3)
    assert transitions[1]["next_obs", "arm", "1"].startswith("at ")
    check(buffer.sample_transitions(5).to_torch())
    check(next(iter(buffer.loader("window", 4, length=3))))
    check(next(iter(buffer.loader("trajectory", 2))))
    # Probabilities under a condition are unknown.
    condition = QueryBuilder().gt("reward", 1).build()
    check(buffer.sample_arrays(3, sampler=PrioritizedSampler(), condition=condition))


def test_texts_of_several_steps_are_stacked_by_row(buffer: ReplayBuffer) -> None:
    made = next(iter(buffer.loader("window", 4, length=3))).to_tensordict()
    assert isinstance(made.get(("obs", "arm", "1")), NonTensorStack)
    assert len(made[0].get(("obs", "arm", "1")).tolist()) == 3


def test_a_batch_without_rows_and_one_of_flat_fields_become_one(database_url: str) -> None:
    with ReplayBuffer(database_url, create=True, fields={"obs": "float32", "word": "U3"}) as flat:
        flat.extend({"obs": [1.0, 2.0], "word": ["a", "b"]})
        batch = flat.sample_arrays(2)
        made = batch.to_tensordict()
        assert set(made.keys()) == {"obs", "word", "reward", "terminated", "truncated"}
        none = type(batch)({name: array[:0] for name, array in batch.items()}, {})
        assert none.to_tensordict().batch_size == torch.Size([0])
        assert none.to_tensordict()["obs"].shape == (0,)
