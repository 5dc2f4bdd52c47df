"""Observations and actions of spaces with parts, in every call that returns arrays."""

import pickle
from contextlib import closing

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sqlbuffer import Batch, PrioritizedSampler, QueryBuilder, ReplayBuffer, mix
from sqlbuffer.errors import FieldError
from sqlbuffer.spaces import Structure

OBSERVATION = spaces.Dict(
    {
        "front camera": spaces.Box(0, 255, (2, 2), np.uint8),
        "arm": spaces.Tuple([spaces.Box(-9, 9, (3,)), spaces.Text(5)]),
        "mol": spaces.Graph(spaces.Box(0, 9, (2,)), None),
    }
)
ACTION = spaces.Tuple([spaces.Discrete(9), spaces.Dict({"go": spaces.Box(-9, 9, ())})])
SPACES = {"observation": OBSERVATION, "action": ACTION}
OBSERVED = {
    "obs_front_camera": ("uint8", (2, 2)),
    "obs_arm_0": ("float32", (3,)),
    "obs_arm_1": "U5",
    "obs_mol_nodes": ("float32", (-1, 2)),
}
FIELDS = {**OBSERVED, "action_0": "int64", "action_1_go": "float32", "logp": "float32"}
SETTINGS = {
    "fields": FIELDS, "observation_fields": list(OBSERVED), "spaces": SPACES,
    "priorities": True, "track_samples": True,
}  # fmt: skip


def columns(n):
    t = np.arange(n)
    return {
        "obs_front_camera": np.broadcast_to(t[:, None, None], (n, 2, 2)),
        "obs_arm_0": np.stack([t, t, t], 1),
        "obs_arm_1": [f"at {i}" for i in t],
        "obs_mol_nodes": [np.full((i % 3, 2), i) for i in t],
        "action_0": t % 9,
        "action_1_go": t / 8,
        "logp": -t,
        "reward": t.astype(float),
    }


def fill(buffer):
    for number in range(3):
        final = {name: column[5] for name, column in columns(6).items() if name in OBSERVED}
        buffer.store_episode(columns(5), episode_id=f"e{number}", final=final)


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, **SETTINGS) as buffer:
        fill(buffer)
        yield buffer


def nested(batch, prefix=""):
    """Return what `obs` is, by hand."""
    return {
        "front camera": batch[f"{prefix}obs_front_camera"],
        "arm": (batch[f"{prefix}obs_arm_0"], batch[f"{prefix}obs_arm_1"]),
        "mol": {"nodes": batch[f"{prefix}obs_mol_nodes"]},
    }


def same(one, other):
    """Return True if two trees hold the same objects."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other


def check(batch, *prefixes):
    """An observation is nested, under each prefix, and so is the action."""
    # The order of a dict is that of the space, which sorts keys.
    for prefix in prefixes:
        tree = getattr(batch, f"{prefix}obs")
        assert set(tree) == set(OBSERVATION)
        assert same({key: tree[key] for key in nested(batch, prefix)}, nested(batch, prefix))
        assert f"{prefix}obs" in dir(batch)
        assert f"{prefix}obs" not in batch
    assert same(batch.action, (batch["action_0"], {"go": batch["action_1_go"]}))
    assert f"{prefixes[0]}obs_mol_nodes_lens" in batch


def test_every_call_nests_what_it_returns(buffer):
    check(buffer.sample_arrays(4), "")
    check(buffer.sample_arrays(4, sampler=PrioritizedSampler(seed=1)), "")
    condition = QueryBuilder().gt("reward", 1).build()
    check(buffer.sample_arrays(4, sampler=PrioritizedSampler(), condition=condition), "")
    check(buffer.sample_transitions(4, n_step=2), "", "next_")
    stacked = buffer.sample_transitions(4, stack={"obs_arm_0": 3})
    check(stacked, "", "next_")
    assert stacked.obs["arm"][0].shape == (4, 3, 3)
    fields = ("action_1_go", "obs_arm_1")
    sequences = next(iter(buffer.loader("n_step", 4, n_step=2, sequence_fields=fields)))
    check(sequences, "", "next_")
    assert same(sequences.seq_action, (None, {"go": sequences["seq_action_1_go"]}))
    assert same(sequences.seq_obs, {"arm": (None, sequences["seq_obs_arm_1"])})
    modes = {
        "step": [""],
        "transition": ["", "next_"],
        "window": [""],
        "trajectory": ["", "final_"],
    }
    for mode, prefixes in modes.items():
        options = {"length": 3, "stack": {"obs_arm_0": 2}} if mode == "window" else {}
        check(next(iter(buffer.loader(mode, 3, **options))), *prefixes)
        check(next(iter(buffer.loader(mode, 3, epochs=1, prefetch=1, **options))), *prefixes)
    with buffer.mirror() as mirror:
        check(mirror.sample_arrays(4), "")
        check(mirror.sample_transitions(4, n_step=2), "", "next_")
        check(next(iter(mirror.loader("window", 3, length=3, epochs=1))), "")
    with (
        buffer.mirror(shared=True, refresh_s=3_600) as one,
        buffer.mirror(shared=True) as other,
        buffer.mirror(fields=["obs_arm_1", "action_0"]) as part,
    ):
        for mirror in (one, other):
            check(mirror.sample_transitions(4), "", "next_")
        batch = part.sample_arrays(4)
        assert same(batch.obs, {"arm": (None, batch["obs_arm_1"])})
        assert same(batch.action, (batch["action_0"], None))
    logged = buffer.sample_arrays(4)
    check(buffer.batch(logged.info["batch_id"][0]).arrays(), "")


def test_batches_of_several_buffers_are_nested_alike(buffer_url, buffer):
    hand = {name: value for name, value in SETTINGS.items() if name != "spaces"}
    other = {"observation": OBSERVATION, "action": spaces.Dict({"0": ACTION[0], "1": ACTION[1]})}
    with (
        ReplayBuffer(buffer_url, "same", **SETTINGS) as same_spaces,
        ReplayBuffer(buffer_url, "hand", **hand) as by_hand,
        ReplayBuffer(buffer_url, "other", **{**SETTINGS, "spaces": other}) as others,
    ):
        for source in (same_spaces, by_hand, others):
            fill(source)
        check(mix({buffer: 1, same_spaces: 1}).sample_transitions(8), "", "next_")
        check(mix({buffer: 1, by_hand: 1}).sample_arrays(8), "")
        check(next(iter(mix({buffer: 1, same_spaces: 1}).loader("step", 8))), "")
        assert not hasattr(mix({buffer: 1, others: 1}).sample_arrays(8), "action")
        assert not hasattr(by_hand.sample_arrays(4), "obs")


def test_leased_rows_are_nested_in_their_arrays(buffer_url):
    with ReplayBuffer(buffer_url, **{**SETTINGS, "leases": True}) as buffer:
        fill(buffer)
        with buffer.lease(3) as leased:
            check(leased.arrays(), "")


def test_fields_that_were_not_asked_for_are_left_out(buffer):
    batch = buffer.sample_arrays(4, fields=["obs_arm_1", "obs_mol_nodes", "reward"])
    arm, nodes = batch["obs_arm_1"], batch["obs_mol_nodes"]
    assert set(batch.obs) == {"arm", "mol"}
    assert same(batch.obs["arm"], (None, arm))
    assert same(batch.obs["mol"], {"nodes": nodes})
    assert not hasattr(batch, "action")
    with pytest.raises(AttributeError, match="the batch has no 'action'; it has obs, obs_arm_1"):
        _ = batch.action
    assert not hasattr(buffer.sample_arrays(4, fields=["reward"]), "obs")


def test_other_forms_of_a_batch_are_nested_too(buffer):
    batch = buffer.sample_transitions(4)
    for made in (batch.to_torch(), batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        check(made, "", "next_")
    assert isinstance(batch.to_torch().next_obs["arm"][0], torch.Tensor)
    assert "obs_arm_0" in batch.to_pandas()
    assert list(batch) == [name for name in batch.to_pandas() if name not in batch.info]


def test_loaders_hand_out_nested_parts(buffer):
    options = {"batch_size": 4, "epochs": 1}
    parts = ("obs", "action", "reward", "next_obs", "info")
    named = next(iter(buffer.loader("transition", **options, to_named_tuple=parts)))
    assert named._fields == parts
    assert set(named.next_obs) == set(OBSERVATION)
    on_cpu = next(iter(buffer.loader("transition", **options, to_named_tuple=parts, device="cpu")))
    assert isinstance(on_cpu.obs["mol"]["nodes"], torch.Tensor)
    assert isinstance(on_cpu.reward, torch.Tensor)
    check(next(iter(buffer.loader("transition", **options, device="cpu"))), "", "next_")
    renamed = next(iter(buffer.loader("step", **options, fieldname_map={"obs_arm_0": "pose"})))
    assert renamed.obs["arm"][0] is None
    assert "pose" in renamed
    with pytest.raises(FieldError, match="to_named_tuple names 'next_obs', and the batch has obs,"):
        next(iter(buffer.loader("step", **options, to_named_tuple=("next_obs",))))
    with closing(iter(buffer.loader("trajectory", 2))) as batches:
        assert next(batches).final_obs["arm"][1].tolist() == ["at 5", "at 5"]


def test_an_array_comes_before_the_parts_of_that_name():
    structure = Structure({"obs": {"a": "obs_a"}})
    batch = Batch({"obs": np.zeros(2), "obs_a": np.ones(2)}, {}, structure)
    assert batch.obs.tolist() == [0, 0]
    assert "obs_a" in batch
