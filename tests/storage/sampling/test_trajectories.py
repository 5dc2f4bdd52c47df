"""Trajectories are those of a plain reference, on every way to draw them."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import FifoSampler, LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer, Sampler
from sqlbuffer.batches.forms import TrajectoryForm
from sqlbuffer.query.tree import check
from sqlbuffer.storage.sampling import form_reader
from tests.storage.sampling.readers import reader_of
from tests.support.episodes import (
    EPISODES,
    FIELDS,
    FINAL_T,
    Made,
    empty,
    observation,
    reward,
    store,
)


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def draw(buffer, n, *, sampler=None, condition=None, form=None, **options):
    form = form or TrajectoryForm.of(buffer._store.info.config.fields, **options)
    reader = reader_of(buffer, form)
    sampler = sampler or RandomSampler(replace=True)
    return buffer._store.draws.draw(
        check(condition),
        lambda candidates: reader.draw(candidates, sampler, n),
        reader.columns,
    )


def reference(made, partial):
    """Return (first t, steps) of an episode, or None where it is no trajectory."""
    held = [t for t in range(made.n) if made.held(t)]
    if made.status == "aborted" or not held:
        return None
    if not partial:
        whole = made.status == "complete" and len(held) == made.n
        return (0, made.n) if whole else None
    n = 0
    while made.held(held[0] + n):
        n += 1
    return held[0], n


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=EPISODES, partial=st.booleans(), replace=st.booleans())
def test_every_trajectory_is_that_of_the_reference(buffer, buffer_url, made, partial, replace):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, made)
    expected = {
        f"e{i}": found
        for i, episode in enumerate(made)
        if (found := reference(episode, partial)) is not None
    }
    n = 60 if replace else 4
    batch = draw(buffer, n, sampler=RandomSampler(replace=replace), include_partial=partial)
    assert batch.n_rows == (n if replace and expected else 0 if replace else len(expected))
    assert set(batch.info["episode"]) == set(expected)
    assert replace or len(set(batch.info["episode"])) == batch.n_rows
    longest = max((batch.lens.max(initial=0), 0))
    assert batch.obs.shape == (batch.n_rows, longest, 2)
    for i, key in enumerate(batch.info["episode"]):
        number = int(key[1:])
        t, n_steps = expected[key]
        episode = made[number]
        obs, rewards = np.zeros((longest, 2)), np.zeros(longest, np.float32)
        obs[:n_steps] = [observation(number, t + j) for j in range(n_steps)]
        rewards[:n_steps] = [reward(number, t + j) for j in range(n_steps)]
        np.testing.assert_array_equal(batch.obs[i], obs)
        np.testing.assert_array_equal(batch.reward[i], rewards)
        np.testing.assert_array_equal(batch.mask[i], np.arange(longest) < n_steps)
        assert batch.lens[i] == n_steps
        assert batch.info["t"][i] == t
        is_last = np.arange(longest) == episode.n - 1 - t
        is_last &= batch.mask[i]
        np.testing.assert_array_equal(batch.terminated[i], is_last & (episode.end == "terminated"))
        np.testing.assert_array_equal(batch.truncated[i], is_last & (episode.end == "truncated"))
        has_final = episode.final and episode.is_ended and t + n_steps == episode.n
        assert batch.has_final[i] == has_final
        after = observation(number, FINAL_T) if has_final else np.zeros(2)
        np.testing.assert_array_equal(batch.final_obs[i], after)


WAYS = {"picked": 2**62, "looked up": 0}
EVEN = [Made(3 + i % 5) for i in range(40)]


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    monkeypatch.setattr(form_reader, "FEW_KEYS_SPAN", WAYS[request.param])
    return request.param


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
def test_episodes_long_and_short_are_drawn_alike(buffer, buffer_url, way, replace):
    from scipy.stats import chisquare

    lengths = [1, 2, 40, 3, 1, 30, 5, 8, 1, 60]
    store(buffer, buffer_url, [Made(n) for n in [*lengths, 7]])
    sampler = RandomSampler(replace=replace, seed=3)
    drawn = [key for _ in range(60) for key in draw(buffer, 5, sampler=sampler).info["episode"]]
    counts = [drawn.count(f"e{i}") for i in range(11)]
    assert sum(counts) == 300
    assert chisquare(counts).pvalue > 0.001


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("replace", [False, True])
def test_a_seed_repeats_its_episodes_on_both_databases(both_urls, way, replace):
    drawn = []
    for url in [*both_urls.values(), both_urls["sqlite"]]:
        with ReplayBuffer(url, fields=FIELDS) as buffer:
            if not len(buffer):
                store(buffer, url, EVEN)
            sampler = RandomSampler(replace=replace, seed=5)
            batches = [draw(buffer, 6, sampler=sampler) for _ in range(3)]
            drawn.append([batch.info["seq"].tolist() for batch in batches])
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(map(tuple, drawn[0]))) == 3


def test_other_samplers_choose_among_episodes(buffer, buffer_url):
    store(buffer, buffer_url, [Made(2), Made(3, status="aborted"), Made(4), Made(1, gone={0})])
    for partial in (False, True):
        newest = draw(buffer, 1, sampler=LatestSampler(), include_partial=partial)
        oldest = draw(buffer, 5, sampler=FifoSampler(), include_partial=partial)
        assert newest.info["episode"].tolist() == ["e2"]
        assert oldest.info["episode"].tolist() == ["e0", "e2"]


def test_a_condition_is_on_the_first_step(buffer, buffer_url):
    store(buffer, buffer_url, [Made(2), Made(3), Made(4)])
    for partial in (False, True):
        condition = QueryBuilder().eq("exp_meta.episode_id", "e1").build()
        batch = draw(buffer, 3, condition=condition, include_partial=partial)
        assert batch.info["episode"].tolist() == ["e1"] * 3
        later = QueryBuilder().eq("exp_meta.step", 1).build()
        assert draw(buffer, 3, condition=later, include_partial=partial).n_rows == 0


def test_keys_are_those_of_the_episodes_and_read_in_their_order(buffer, buffer_url):
    store(buffer, buffer_url, [Made(2), Made(3, status="open"), Made(4, gone={0, 2}), Made(1)])
    for partial, expected in ((False, [0, 3]), (True, [0, 1, 2, 3])):
        reader = reader_of(buffer, TrajectoryForm, include_partial=partial)
        with buffer._store.source.candidates(check(None), reader.columns) as candidates:
            keys = reader.keys(candidates)
            assert keys.tolist() == sorted(keys.tolist())
            batch = reader.read(candidates, [*keys.tolist()[::-1], 999, keys[0], 4])
        episodes = [int(key[1:]) for key in batch.info["episode"]]
        assert episodes == [*expected[::-1], 0]
        assert batch.info["seq"].tolist() == [
            k for k in [*keys.tolist()[::-1], keys[0]] if k in batch.info["seq"]
        ]


class Asks(Sampler):
    """Chooses all keys, and notes what it was told of them."""

    def choose(self, candidates, batch_size):
        keys = candidates.keys().tolist()
        self.told = (
            candidates.page(1, 2),
            candidates.tasks(),
            candidates.first_of_tasks([keys[-1], keys[0]]),
        )
        return keys[:batch_size]


@pytest.mark.parametrize("partial", [False, True])
def test_a_sampler_is_told_of_episodes(buffer, buffer_url, partial):
    store(buffer, buffer_url, [Made(2), Made(3), Made(4)])
    sampler = Asks()
    keys = draw(buffer, 3, sampler=sampler, include_partial=partial).info["seq"].tolist()
    firsts = {keys[0]: sampler.told[1][0], keys[-1]: sampler.told[1][-1]}
    assert sampler.told == (keys[1:], list(dict.fromkeys(sampler.told[1])), firsts)
    assert len(sampler.told[1]) == 3


def test_numbers_that_have_left_are_no_first_rows(buffer_url):
    class Told(Sampler):
        def choose(self, candidates, batch_size):
            self.told = candidates.first_of_tasks(range(1, 9))
            return candidates.oldest(batch_size)

    with ReplayBuffer(buffer_url, "small", fields=FIELDS, max_capacity=5) as small:
        small.extend({"obs": np.zeros((8, 2)), "action": np.zeros(8, int)}, task_id="t")
        sampler = Told()
        (first,) = small.sample_arrays(1, sampler=sampler).info["seq"].tolist()
        assert sampler.told == {first: "t"}


def test_what_was_asked_for_is_what_comes(buffer, buffer_url):
    store(buffer, buffer_url, [Made(2)])
    batch = draw(buffer, 2, names=["reward", "action"])
    assert sorted(batch) == ["action", "lens", "mask", "reward"]
    assert sorted(draw(buffer, 0)) == sorted(draw(buffer, 2))
    assert draw(buffer, 0).n_rows == 0
