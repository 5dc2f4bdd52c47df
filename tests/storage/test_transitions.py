"""Transitions are what a plain reference over the same episodes says."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.n_step import n_step_returns
from tests.support.sql import run

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}


def observation(episode, t):
    return np.array([episode, t], np.float32)


def make_arrays(episode, n, end, **more):
    return {
        "obs": np.stack([observation(episode, t) for t in range(n)]),
        "action": np.arange(n),
        "reward": reward(episode, np.arange(n)),
        "terminated": [end == "terminated" and t == n - 1 for t in range(n)],
        "truncated": [end == "truncated" and t == n - 1 for t in range(n)],
        **more,
    }


def reward(episode, t):
    return 1.0 + episode + 0.1 * np.asarray(t, float)


def reference(episode, n, end, final, t, n_step, gamma):
    """Return (reward, discount, next_obs, m) of a step, or None where it cannot be trained on."""
    m = min(n_step, n - t)
    total = sum(gamma**k * reward(episode, t + k) for k in range(m))
    if t + m < n:
        return total, gamma**m, observation(episode, t + m), m
    if final:
        after = observation(episode, 1_000)
    elif end == "terminated":
        after = np.zeros(2)
    else:
        return None
    return total, 0.0 if end == "terminated" else gamma**m, after, m


EPISODES = st.lists(
    st.tuples(
        st.integers(1, 6), st.sampled_from(["terminated", "truncated", "cut"]), st.booleans()
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def fill(buffer, made):
    for episode, (n, end, final) in enumerate(made):
        observed = {"obs": observation(episode, 1_000)} if final else None
        buffer.store_episode(make_arrays(episode, n, end), episode_id=f"e{episode}", final=observed)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=EPISODES, n_step=st.integers(1, 4), gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_every_transition_is_that_of_the_reference(buffer_url, buffer, made, n_step, gamma):
    buffer.clear()
    run(buffer_url, "DELETE FROM episodes")
    fill(buffer, made)
    expected = {
        (f"e{e}", t): found
        for e, (n, end, final) in enumerate(made)
        for t in range(n)
        if (found := reference(e, n, end, final, t, n_step, gamma)) is not None
    }
    if not expected:
        with pytest.raises(InsufficientDataError):
            buffer.sample_transitions(8, n_step=n_step, gamma=gamma)
        return
    batch = buffer.sample_transitions(64, n_step=n_step, gamma=gamma)
    assert batch.n_rows == 64
    places = list(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
    assert set(places) <= set(expected)
    for i, place in enumerate(places):
        total, discount, after, m = expected[place]
        episode, t = int(place[0][1:]), place[1]
        np.testing.assert_array_equal(batch.obs[i], observation(episode, t))
        np.testing.assert_allclose(batch.reward[i], total, rtol=1e-6)
        np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-6)
        np.testing.assert_array_equal(batch.next_obs[i], after)
        assert batch.info["n_steps"][i] == m
        assert batch.action[i] == t
        assert batch.terminated[i] == (
            made[episode][1] == "terminated" and t + m == made[episode][0]
        )


def test_all_trainable_steps_are_drawn_and_no_others(buffer):
    fill(buffer, [(4, "truncated", False), (3, "terminated", False), (2, "truncated", True)])
    batch = buffer.sample_transitions(400, n_step=2)
    places = set(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
    assert places == {("e0", 0), ("e0", 1), *(("e1", t) for t in range(3)), ("e2", 0), ("e2", 1)}


def test_a_declared_next_observation_is_used_as_it_is(buffer_url):
    with ReplayBuffer(
        buffer_url, name="declared", fields={**FIELDS, "next_obs": ("float32", (2,))}
    ) as buffer:
        after = np.stack([observation(9, 10 + t) for t in range(4)])
        buffer.store_episode(make_arrays(0, 4, "truncated", next_obs=after), episode_id="e")
        batch = buffer.sample_transitions(60, n_step=3)
        last = np.minimum(batch.info["t"] + 2, 3)
        np.testing.assert_array_equal(batch.next_obs, after[last])
        assert set(batch.info["t"]) == {0, 1, 2, 3}
        # Rows of no episode are transitions by themselves.
        buffer.extend(make_arrays(1, 3, "cut", next_obs=after[:3]), task_id="alone")
        alone = QueryBuilder().eq("exp_meta.task_id", "alone").build()
        batch = buffer.sample_transitions(20, condition=alone)
        np.testing.assert_array_equal(batch.next_obs, after[batch.info["step"]])
        np.testing.assert_allclose(batch.discount, 0.99)


def test_steps_whose_successors_were_deleted_are_not_drawn(buffer):
    fill(buffer, [(6, "terminated", False)])
    buffer.delete(QueryBuilder().eq("exp_meta.step", 3).build())
    batch = buffer.sample_transitions(200, n_step=2)
    assert set(batch.info["t"]) == {0, 4, 5}


def test_only_what_was_asked_for_is_read(buffer):
    fill(buffer, [(5, "terminated", True)])
    batch = buffer.sample_transitions(8, fields=["action"])
    assert sorted(batch) == ["action", "discount", "reward", "terminated"]
    batch = buffer.sample_transitions(8, fields=["obs"])
    assert sorted(batch) == ["discount", "next_obs", "obs", "reward", "terminated"]


def test_a_seed_repeats_the_batches(buffer):
    fill(buffer, [(6, "terminated", True), (5, "truncated", True)])
    first, second = (
        [buffer.sample_transitions(9, sampler=sampler).info["seq"].tolist() for _ in range(3)]
        for sampler in (RandomSampler(replace=True, seed=4), RandomSampler(replace=True, seed=4))
    )
    assert first == second


def test_what_cannot_be_asked_for_says_so(buffer_url, buffer):
    with pytest.raises(InsufficientDataError, match="asked for 4, and 0 match"):
        buffer.sample_transitions(4)
    assert buffer.sample_transitions(0).n_rows == 0
    for n_step in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="n_step is an integer from 1 on"):
            buffer.sample_transitions(4, n_step=n_step)
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="gamma is a number from 0 to 1"):
            buffer.sample_transitions(4, gamma=gamma)
    with pytest.raises(TypeError, match="gamma is a number from 0 to 1, got '1'"):
        buffer.sample_transitions(4, gamma="1")
    fill(buffer, [(2, "terminated", False)])
    with pytest.raises(FieldError, match="unknown field 'speed'"):
        buffer.sample_transitions(4, fields=["speed"])
    with (
        ReplayBuffer(buffer_url, name="plain", fields={"x": "float32"}) as plain,
        pytest.raises(FieldError, match="transitions need an observation field"),
    ):
        plain.sample_transitions(4)


def test_returns_are_those_of_the_formula():
    rewards = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, np.nan, np.nan]])
    terminated = np.array([[False, True, False], [False] * 3, [False] * 3])
    ended = np.array([[False] * 3, [False] * 3, [True, False, False]])
    known = np.array([[True, True, False], [True] * 3, [True, False, False]])
    found = n_step_returns(rewards, terminated, ended, known, 0.5)
    np.testing.assert_allclose(found.reward, [2.0, 2.75, 1.0])
    np.testing.assert_allclose(found.discount, [0.0, 0.125, 0.5])
    assert found.m.tolist() == [2, 3, 1]
    assert found.terminated.tolist() == [True, False, False]
    assert found.complete.all()
    missing = n_step_returns(rewards, terminated & False, ended, known, 0.5)
    assert missing.complete.tolist() == [False, True, True]
