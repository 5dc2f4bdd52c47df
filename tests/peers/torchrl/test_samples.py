"""Draws equal those of TorchRL's own buffer, of the same steps."""

import numpy as np
import pytest
import torch
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.data.postprocs import MultiStep
from torchrl.envs.transforms import Compose, DoubleToFloat, RenameTransform, RewardScaling

from sqlbuffer.integrations.torchrl import SQLReplayBuffer
from tests.peers.torchrl.steps import KINDS, Envs, assert_equal
from tests.support.sql import run


class Pair:
    """A buffer of TorchRL and one of ours, with the same steps."""

    def __init__(self, url, *, sampler=None, transform=lambda: None, **options):
        self.theirs = TensorDictReplayBuffer(
            storage=LazyTensorStorage(2_000), sampler=sampler, transform=transform()
        )
        self.ours = SQLReplayBuffer(url, transform=transform(), **options)
        self.places = {}

    def extend(self, data):
        flat = data.reshape(-1).clone()
        seqs, places = self.ours.extend(data), self.theirs.extend(flat)
        assert seqs.shape == (data.numel(),)
        self.places.update(zip(seqs.tolist(), places.tolist(), strict=True))
        return seqs

    def places_of(self, drawn):
        return torch.tensor([self.places[seq] for seq in drawn["index"].reshape(-1).tolist()])

    def check(self, n_batches, n=32):
        """Compare draws of ours with theirs at the same indices; return all numbers drawn."""
        found = set()
        for _ in range(n_batches):
            ours = self.ours.sample(n)
            theirs = self.theirs[self.places_of(ours)]
            found.update(ours["index"].tolist())
            assert_equal(ours.exclude("index"), theirs.exclude("index"))
        return found


@pytest.mark.combinations
@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("n_envs", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_equal_theirs(schema_url, kind, n_envs, with_ids):
    pair, envs = Pair(schema_url), Envs(kind, n_envs, with_ids=with_ids)
    for length in (30, 1, 20):
        pair.extend(envs.steps(length))
    assert len(pair.ours) == 51 * max(n_envs, 1)
    assert len(pair.check(40)) > 0.9 * len(pair.ours)
    everything = pair.ours[:]
    assert_equal(everything, pair.ours[torch.tensor(sorted(pair.places))])
    again = SQLReplayBuffer(schema_url, mirror=False)  # another process, by SQL
    drawn = again.sample(16)
    assert_equal(drawn.exclude("index"), pair.theirs[pair.places_of(drawn)].exclude("index"))


def test_draws_of_single_steps_equal_theirs(schema_url):
    pair, envs = Pair(schema_url), Envs("nested", 2)
    for data in envs.steps(20).unbind(1):
        seqs, places = pair.ours.add(data), pair.theirs.extend(data.clone())
        pair.places.update(zip(seqs.tolist(), places.tolist(), strict=True))
    assert len(pair.check(20)) == 40
    alone = Envs("flat").steps(1)[0]
    assert isinstance(SQLReplayBuffer(schema_url, "alone").add(alone), int)


def test_transforms_apply_as_theirs_do(schema_url):
    def transform():
        return Compose(
            RewardScaling(1.0, 10.0, in_keys=[("next", "reward")]),
            RenameTransform(["observation"], ["obs"]),
            DoubleToFloat(in_keys=["extra"], in_keys_inv=[]),
        )

    def steps(envs, n):
        data = envs.steps(n)
        data["extra"] = torch.rand(*data.batch_size, 2).double()
        return data

    pair, envs = Pair(schema_url, transform=transform), Envs("flat", 2)
    pair.extend(steps(envs, 30))
    for buffer in (pair.ours, pair.theirs):
        buffer.append_transform(lambda data: data.set("twice", data["next", "reward"] * 2))
    assert pair.check(20)
    drawn = pair.ours.sample(4)
    assert drawn["extra"].dtype == torch.float32
    assert "obs" in set(drawn.keys())


@pytest.mark.parametrize("kind", ["flat", "recurrent", "doubles"])
def test_transitions_of_several_steps_equal_theirs(schema_url, kind):
    pair, envs = Pair(schema_url, n_steps=3, gamma=0.9), Envs(kind, 2, seed=3)
    data = envs.steps(60)
    seqs = pair.ours.extend(data).tolist()
    stepped = MultiStep(gamma=0.9, n_steps=3)(data.clone()).reshape(-1)
    at = {seq: i for i, seq in enumerate(seqs)}
    flat = data.reshape(-1)
    found = set()
    for _ in range(40):
        ours = pair.ours.sample(32)
        places = torch.tensor([at[seq] for seq in ours["index"].tolist()])
        theirs, m = stepped[places], ours["steps_to_next_obs"]
        found.update(places.tolist())
        assert torch.allclose(ours["next", "reward"], theirs["next", "reward"], rtol=1e-6)
        # TorchRL leaves the flags of the first step, and its loss does not see the end.
        for name in ("done", "terminated", "truncated"):
            assert torch.equal(ours["next", name], flat["next", name][places + m - 1])
        same = [("next", name) for name in ("reward", "done", "terminated", "truncated")]
        ours, theirs = ours.exclude("index", *same), theirs.exclude("index", *same)
        assert torch.allclose(ours["gamma"], theirs["gamma"])
        assert_equal(ours.exclude("gamma"), theirs.exclude("gamma"))
    # The last steps of open episodes wait for those that follow.
    assert len(found) >= 110


def test_slices_equal_theirs(schema_url):
    sampler = SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    pair, envs = Pair(schema_url, sampler=sampler, slice_len=5, batch_size=20), Envs("flat", 3)
    for _ in range(3):
        pair.extend(envs.steps(40))
    by_traj = {}
    stored = pair.theirs[:]
    for i, traj in enumerate(stored["collector", "traj_ids"].tolist()):
        by_traj.setdefault(traj, []).append(i)
    for _ in range(50):
        ours = pair.ours.sample()
        firsts = pair.places_of(ours)[::5].tolist()
        trajs = [by_traj[int(stored["collector", "traj_ids"][first])] for first in firsts]
        places = [
            traj[traj.index(first) + k]
            for traj, first in zip(trajs, firsts, strict=True)
            for k in range(5)
        ]
        theirs = stored[torch.tensor(places)]
        flags = [("next", "truncated"), ("next", "done"), ("next", "terminated")]
        assert_equal(ours.exclude("index", *flags), theirs.exclude("index", *flags))
        ends = torch.arange(20).reshape(20, 1) % 5 == 4
        assert torch.equal(ours["next", "truncated"], ends)
        assert torch.equal(ours["next", "done"], theirs["next", "done"] | ends)
        assert torch.equal(ours["next", "terminated"], theirs["next", "terminated"])
    expected = pair.theirs.sample(20)
    assert set(map(str, ours.keys(True))) == set(map(str, expected.keys(True)))


@pytest.mark.parametrize("mirror", [True, False])
def test_weights_of_priorities_are_those_of_their_formula(schema_url, mirror):
    # The wheel of TorchRL 0.14.1 has no segment tree for this version of torch.
    ours = SQLReplayBuffer(schema_url, alpha=0.7, beta=0.5, mirror=mirror)
    seqs = ours.extend(Envs("flat").steps(50))
    ours.sample(1)
    priorities = torch.rand(50, generator=torch.Generator().manual_seed(0)) + 0.01
    ours.update_priority(seqs, priorities)
    raised = (priorities + 1e-8) ** 0.7
    expected_weights = dict(
        zip(seqs.tolist(), ((raised / raised.min()) ** -0.5).tolist(), strict=True)
    )
    counts = dict.fromkeys(seqs.tolist(), 0)
    for _ in range(30):
        drawn = ours.sample(64)
        assert drawn["priority_weight"].dtype == torch.float32
        numbers = drawn["index"].tolist()
        for seq, weight in zip(numbers, drawn["priority_weight"].tolist(), strict=True):
            counts[seq] += 1
            assert weight == pytest.approx(expected_weights[seq], rel=1e-4)
    found = np.array([counts[seq] for seq in seqs.tolist()])
    expected = (raised / raised.sum()).numpy() * found.sum()
    assert ((found - expected) ** 2 / expected).sum() < 86  # p = 0.0008 for 49 degrees


def test_priorities_come_from_the_entry_of_a_loss(schema_url):
    ours = SQLReplayBuffer(schema_url, alpha=1.0, beta=1.0, batch_size=50)
    ours.extend(Envs("flat").steps(20))
    drawn = ours.sample()
    drawn["td_error"] = torch.where(drawn["index"] % 2 == 0, 0.0, 2.0).reshape(50, 1)
    assert len(set(drawn["index"].tolist())) > 15
    ours.update_tensordict_priority(drawn)
    ours.close()
    sql = "SELECT seq, priority FROM v_priorities ORDER BY seq"
    by_seq = dict(run(schema_url, sql))
    for seq in drawn["index"].tolist():
        assert by_seq[seq] == pytest.approx(1e-8 if seq % 2 == 0 else 2.0)


def test_steps_come_with_their_priority(schema_url):
    ours = SQLReplayBuffer(schema_url, alpha=1.0, beta=1.0)
    data = Envs("flat").steps(4)
    data["td_error"] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    ours.extend(data)
    ours.extend(data, update_priority=False)
    found = [p for _, p in run(schema_url, "SELECT seq, priority FROM v_priorities ORDER BY seq")]
    assert found == pytest.approx([1e-8, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0])
