"""Draws by priority of all that batches are made of, through loaders and torch; and what they cost
in statements.
"""

import json

import numpy as np
import pytest
from scipy.stats import chisquare
from torch.utils.data import DataLoader

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer, mix
from sqlbuffer.errors import ArgumentError, InsufficientDataError
from sqlbuffer.loading.loader import Loader
from sqlbuffer.torch import IterableDataset
from tests.support.priorities import assert_shares, filled, set_priorities, summarize_all
from tests.support.sql import run
from tests.support.statements import selects
from tests.support.storage_hooks import keep_blocks

ARRAYS = {"weights", "probabilities", "priorities", "seq"}
N_EPISODES, LENGTH = 12, 10


@pytest.fixture
def buffer(buffer_url):
    """Yield 12 episodes of 10 steps whose priorities are 1 to 120."""
    fields = {"obs": ("float32", (2,))}
    with ReplayBuffer(buffer_url, fields=fields, priorities=True) as buffer:
        for _ in range(N_EPISODES):
            columns = {"obs": np.ones((LENGTH, 2)), "reward": np.ones(LENGTH)}
            buffer.store_episode(columns, final={"obs": np.ones(2)})
        set_priorities(buffer_url, {seq: float(seq) for seq in range(1, 121)})
        yield buffer


def first_weights(seqs):
    return {seq: float(seq) ** 0.6 for seq in seqs}


MODES = {
    "step": {},
    "transition": {},
    "n_step": {"n_step": 3, "sequence_fields": ["obs"]},
    "window": {"length": 4},
    "trajectory": {},
}


def loader(buffer, mode, n=32, **options) -> Loader:
    return buffer.loader(mode, n, sampler=PrioritizedSampler(seed=2), **MODES[mode], **options)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_first_steps_are_drawn_by_their_priorities(buffer, mode):
    batches = [batch for batch, _ in zip(loader(buffer, mode, 64), range(12), strict=False)]
    keys = range(1, 121, LENGTH) if mode == "trajectory" else range(1, 121)
    weights, total = first_weights(keys), sum(first_weights(keys).values())
    drawn = [seq for batch in batches for seq in batch.seq.tolist()]
    if mode == "window":  # those near the end of an episode are shorter, or not there
        weights = {seq: w for seq, w in weights.items() if seq in set(drawn)}
    assert_shares(drawn, weights)
    for batch in batches:
        assert set(batch) >= ARRAYS
        np.testing.assert_array_equal(batch.seq, batch.info["seq"])
        np.testing.assert_array_equal(batch.priorities, batch.seq)
        np.testing.assert_allclose(batch.probabilities, batch.priorities**0.6 / total)
        expected = (batch.priorities / batch.priorities.min()) ** (-0.4 * 0.6)
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)


def test_transitions_carry_the_priority_of_their_first_step(buffer):
    batch = buffer.sample_transitions(32, n_step=3, sampler=PrioritizedSampler(seed=1))
    np.testing.assert_array_equal(batch.priorities, batch.info["seq"])
    assert batch.next_obs.shape == (32, 2)


def test_rejected_steps_leave_the_ratios_of_the_others(buffer_url):
    """Steps of an open episode have no successor at its end."""
    fields = {"obs": ("float32", (1,))}
    with ReplayBuffer(buffer_url, fields=fields, priorities=True) as buffer:
        episode = buffer.episode("t")
        for _ in range(10):
            episode.append(obs=np.ones(1), reward=1.0)
        buffer.flush()
        set_priorities(buffer_url, {seq: 1.0 + 99.0 * (seq > 7) for seq in range(1, 11)})
        for replace in (True, False):
            sampler = PrioritizedSampler(seed=1, replace=replace)
            batch = buffer.sample_transitions(5, n_step=3, sampler=sampler)
            assert set(batch.seq.tolist()) <= set(range(1, 8))
            assert batch.n_rows == 5


def test_a_condition_on_trajectories_leaves_out_probabilities_unless_exact(buffer):
    condition = QueryBuilder().eq("exp_data.reward_t", 1.0).build()
    given = loader(buffer, "trajectory", 4, condition=condition)
    assert next(iter(given)).probabilities is None
    exact = PrioritizedSampler(seed=1, exact=True)
    batch = next(iter(buffer.loader("trajectory", 4, sampler=exact, condition=condition)))
    total = sum(first_weights(range(1, 121, LENGTH)).values())
    np.testing.assert_allclose(batch.probabilities, batch.priorities**0.6 / total)


def annealed(seed: int | None = 3) -> PrioritizedSampler:
    return PrioritizedSampler(beta=0.2, beta_anneal_steps=6, seed=seed)


def plain(batch):
    return batch.seq.tolist(), batch.weights.tolist()


@pytest.mark.parametrize("how", ["sql", "mirror"])
def test_a_sampler_goes_on_from_its_state_with_the_same_draws_and_annealing(buffer, how):
    with buffer.mirror() as mirror:
        source = mirror if how == "mirror" else buffer
        first, again = annealed(), annealed()
        for _ in range(3):
            source.sample_transitions(8, sampler=first)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert again.beta == first.beta == pytest.approx(0.6)
        for _ in range(5):
            batches = [source.sample_transitions(8, sampler=s) for s in (first, again)]
            assert plain(batches[0]) == plain(batches[1])
        assert again.beta == 1.0
    unseeded = annealed(seed=None)
    with pytest.raises(ArgumentError, match="seed=3, and here it is None"):
        unseeded.load_state_dict(first.state_dict())
    unseeded.load_state_dict({**first.state_dict(), "seed": None})
    assert unseeded.beta == 1.0


@pytest.mark.parametrize("how", ["sql", "mirror", "mixture"])
def test_a_loader_goes_on_with_the_draws_and_the_annealing_of_its_sampler(buffer, how):
    with buffer.mirror() as mirror:
        source = {"sql": buffer, "mirror": mirror, "mixture": mix({buffer: 1.0})}[how]

        def opened(sampler: PrioritizedSampler, state=None, prefetch=0):
            loader = source.loader("transition", 8, sampler=sampler, prefetch=prefetch)
            if state is not None:
                loader.load_state_dict(json.loads(state))
            return loader

        first = opened(annealed(), prefetch=2)
        batches = iter(first)
        states = [json.dumps(first.state_dict())]
        drawn = []
        for _ in range(8):
            drawn.append(plain(next(batches)))
            states.append(json.dumps(first.state_dict()))
        batches.close()
        for n_seen in (0, 2, 5):
            sampler = annealed()
            again = iter(opened(sampler, states[n_seen]))
            assert sampler.beta == pytest.approx(min(1.0, 0.2 + n_seen * 0.8 / 6))
            assert [plain(next(again)) for _ in range(8 - n_seen)] == drawn[n_seen:]
        with pytest.raises(ArgumentError, match="seed=3, and here it is 4"):
            opened(annealed(seed=4), states[2])
        damaged = {**json.loads(states[2]), "sampler": None}
        with pytest.raises(ArgumentError, match="state"):
            opened(annealed(), json.dumps(damaged))


def test_loaders_share_the_annealing_of_their_sampler(buffer):
    sampler = PrioritizedSampler(beta=0.0, beta_anneal_steps=10, seed=1)
    for _, _ in zip(range(5), buffer.loader("step", 8, sampler=sampler), strict=False):
        pass
    assert sampler.beta == 0.5


def test_tensors_named_tuples_and_renamed_arrays_have_them(buffer):
    options = {
        "fieldname_map": {"weights": "is_weights"},
        "to_named_tuple": ("obs", "is_weights", "probabilities", "seq"),
        "device": "cpu",
    }
    batch = next(iter(loader(buffer, "transition", 8, **options)))
    assert batch.is_weights.shape == batch.seq.shape == (8,)
    assert str(batch.seq.dtype) == "torch.int64"
    condition = QueryBuilder().eq("exp_data.reward_t", 1.0)
    batch = next(iter(loader(buffer, "transition", 8, condition=condition, **options)))
    assert batch.probabilities is None


@pytest.mark.thorough
def test_torch_datasets_carry_them(buffer_url, buffer):
    dataset = IterableDataset(loader(buffer, "transition", 8))
    item = next(iter(DataLoader(dataset, batch_size=None)))
    assert item["weights"].shape == item["priorities"].shape == (8,)
    condition = QueryBuilder().eq("exp_data.reward_t", 1.0)
    dataset = IterableDataset(loader(buffer, "transition", 8, condition=condition))
    assert next(iter(DataLoader(dataset, batch_size=None)))["probabilities"] is None


@pytest.mark.thorough
def test_a_batch_costs_four_or_five_statements(buffer_url):
    with filled(buffer_url, np.linspace(1.0, 3.0, 32 * 16 + 5)) as buffer:
        keep_blocks(buffer)
        assert summarize_all(buffer) == 32
        run_of = {
            "window, blocks, rows of the last block, candidates, payloads": PrioritizedSampler(),
            "not replaced": PrioritizedSampler(replace=False, seed=1),
        }
        for name, sampler in run_of.items():
            with selects(buffer) as noted:
                buffer.sample_arrays(8, sampler=sampler)
            assert len(noted) == 5, name
        with selects(buffer) as noted:
            buffer.sample_arrays(8, sampler=PrioritizedSampler(normalize="buffer"))
        assert len(noted) == 6


@pytest.mark.thorough
def test_updates_between_draws_count_at_once(buffer_url):
    with filled(buffer_url, np.ones(400)) as buffer, ReplayBuffer(buffer_url) as learner:
        assert summarize_all(buffer)
        sampler = PrioritizedSampler(seed=1)
        model = np.ones(401)
        rng = np.random.default_rng(0)
        for n_round in range(12):
            batch = buffer.sample_arrays(64, sampler=sampler)
            np.testing.assert_allclose(batch.priorities, model[batch.seq])
            weights = model[1:] ** 0.6
            np.testing.assert_allclose(
                batch.probabilities, model[batch.seq] ** 0.6 / weights.sum(), rtol=1e-9
            )
            seqs = rng.integers(1, 401, 40)
            values = 10.0 ** rng.uniform(-3, 3, 40)
            learner.update_priorities(seqs, values, eps=0)
            for seq, value in zip(seqs.tolist(), values.tolist(), strict=True):
                model[seq] = value
            if n_round == 6:
                summarize_all(buffer)
        drawn = [
            seq
            for _ in range(15)
            for seq in buffer.sample_arrays(200, sampler=sampler).seq.tolist()
        ]
        assert_shares(drawn, {seq: float(model[seq]) ** 0.6 for seq in range(1, 401)})


@pytest.mark.thorough
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_batch_of_several_sources_is_one_step_of_annealing(is_loaded):
    sources = {}
    for name in ("a", "b", "c"):
        source = ReplayBuffer("sqlite://", name=name, fields={"x": "float32"}, priorities=True)
        source.extend({"x": np.zeros(10)}, priority=np.arange(10.0) + 1)
        sources[source] = 1.0
    sampler = PrioritizedSampler(beta=0.0, beta_anneal_steps=10, seed=1)
    mixed = mix(sources)
    loader = iter(mixed.loader("step", 9, sampler=sampler))
    for n_done in range(4):
        assert sampler.beta == pytest.approx(n_done / 10)
        batch = next(loader) if is_loaded else mixed.sample_arrays(9, sampler=sampler)
        for source in sources:
            own = batch.info["source"] == source.name
            ratios = batch.priorities[own].min() / batch.priorities[own]
            expected = ratios ** (0.6 * n_done / 10)
            np.testing.assert_allclose(batch.weights[own], expected, rtol=1e-5)


class Outrun(PrioritizedSampler):
    """Another learner uses what is drawn first up."""

    url = ""

    def choose(self, candidates, batch_size):
        chosen = super().choose(candidates, batch_size)
        if self.url:
            used = f"SELECT id, {chosen[0]}, 9 FROM buffers"
            run(self.url, f"INSERT INTO uses (buffer_id, seq, n_uses) {used}")
            self.url = ""
        return chosen


@pytest.mark.parametrize("call", ["sample", "sample_arrays"])
def test_a_batch_that_is_drawn_anew_is_one_step_of_annealing(buffer_url, call):
    with ReplayBuffer(buffer_url, fields={"x": "float32"}, priorities=True, max_use=9) as buffer:
        buffer.extend({"x": np.zeros(16)})
        sampler = Outrun(beta=0.0, beta_anneal_steps=4, seed=1, replace=False)
        sampler.url = buffer_url
        getattr(buffer, call)(8, sampler=sampler)
        assert sampler.url == ""
        assert sampler.beta == 0.25
        with pytest.raises(InsufficientDataError):
            buffer.sample_arrays(999, sampler=sampler)
        assert sampler.beta == 0.25


@pytest.mark.thorough
def test_strata_of_transitions_are_as_often_of_old_steps_as_of_new_ones(buffer_url):
    with ReplayBuffer(buffer_url, fields={"obs": "float32"}, priorities=True) as buffer:
        for number in range(100):
            # Of the last step of an open episode no transition can be made, so it is drawn again.
            with buffer.episode(episode_id=f"e{number}") as episode:
                for t in range(10):
                    episode.append(obs=t, reward=1.0)
                buffer.flush()
        sampler = PrioritizedSampler(stratified=True, seed=0)
        drawn = [buffer.sample_transitions(64, sampler=sampler).seq for _ in range(150)]
    quarters, counts = np.unique((np.concatenate(drawn) - 1) // 250, return_counts=True)
    assert quarters.tolist() == [0, 1, 2, 3]
    assert chisquare(counts).pvalue > 1e-3
