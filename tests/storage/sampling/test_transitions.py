"""Transitions are what a plain reference over the same episodes says."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    ReplayBuffer,
)
from sqlbuffer.batches.forms import TransitionForm
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.steps import n_step_returns
from tests.storage.sampling.readers import reader_of
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


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    for n_step in (0, -1, 1.5, True, 10**6 + 1, 2**63):
        with pytest.raises(ValueError, match="n_step is an integer from 1 to 1000000, got"):
            buffer.sample_transitions(4, n_step=n_step)
    for sampler in (None, RandomSampler(replace=True), PrioritizedSampler(stratified=True)):
        with pytest.raises(
            ValueError, match="from 1 to 10000000, in a batch that is drawn with replacement"
        ):
            buffer.sample_transitions(10**9, sampler=sampler)
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


def sequences(buffer, n, n_step, names):
    reader = reader_of(buffer, TransitionForm, n_step, sequence_fields=names)
    sampler = RandomSampler(replace=True)
    return buffer._store.draws.draw(
        EVERYTHING, lambda found: reader.draw(found, sampler, n), reader.columns
    )


def test_sequences_are_the_fields_of_each_step_and_zeros_behind_the_last(buffer):
    fill(buffer, [(5, "terminated", True), (2, "truncated", True)])
    batch = sequences(buffer, 60, 3, ["action", "reward", "obs"])
    assert batch.seq_action.shape == (60, 3)
    assert batch.seq_obs.shape == (60, 3, 2)
    for i in range(60):
        episode, t = int(batch.info["episode"][i][1:]), int(batch.info["t"][i])
        m = min(3, (5, 2)[episode] - t)
        assert batch.info["n_steps"][i] == m
        steps = [t + k for k in range(m)]
        np.testing.assert_array_equal(batch.seq_action[i], [*steps, 0, 0][:3])
        rewards = [np.float32(reward(episode, s)) for s in steps]
        np.testing.assert_array_equal(batch.seq_reward[i], [*rewards, 0, 0][:3])
        observed = [observation(episode, s) for s in steps] + [np.zeros(2)] * 2
        np.testing.assert_array_equal(batch.seq_obs[i], observed[:3])


def test_fields_that_cannot_be_sequences_say_so(buffer_url):
    fields = {**FIELDS, "tokens": ("int32", (-1,)), "seq_action": "int64"}
    with ReplayBuffer(buffer_url, name="odd", fields=fields) as buffer:
        for names, message in (
            (["speed"], "sequence_fields: unknown field 'speed'"),
            (["action"], "field 'seq_action' is declared; rename it"),
            ("obs", r"sequence_fields is a list of names such as .*, got 'obs'"),
        ):
            with pytest.raises(FieldError, match=message):
                sequences(buffer, 1, 2, names)


def test_a_field_tells_where_an_episode_terminated(buffer_url):
    for name, dtype in (("as_bool", "bool"), ("as_float", "float32")):
        with ReplayBuffer(buffer_url, name=name, fields={**FIELDS, "done": dtype}) as buffer:
            arrays = make_arrays(0, 5, "cut", done=np.arange(5) == 4)
            del arrays["terminated"], arrays["truncated"]
            buffer.store_episode(arrays, episode_id="e0")
            with pytest.raises(FieldError, match="pass terminal_field='done'"):
                buffer.sample_transitions(4)
            batch = buffer.sample_transitions(60, n_step=2, gamma=0.5, terminal_field="done")
            assert set(batch.info["t"]) == set(range(5))
            ends = batch.info["t"] >= 3
            np.testing.assert_array_equal(batch.terminated, ends)
            np.testing.assert_array_equal(batch.discount, np.where(ends, 0.0, 0.25))
            np.testing.assert_array_equal(batch.next_obs[ends], 0)
            for field in ("obs", "speed"):
                with pytest.raises(FieldError, match="terminal_field"):
                    buffer.sample_transitions(4, terminal_field=field)


def test_a_done_field_beside_stored_ends_is_a_field_like_any_other(buffer_url):
    with ReplayBuffer(buffer_url, name="both", fields={**FIELDS, "done": "bool"}) as buffer:
        buffer.store_episode(make_arrays(0, 4, "terminated", done=np.ones(4, bool)))
        batch = buffer.sample_transitions(20)
        np.testing.assert_array_equal(batch.terminated, batch.info["t"] == 3)
        assert batch.done.all()


def test_fields_that_only_begin_like_a_next_observation_stay(buffer_url):
    fields = {**FIELDS, "next_action": "int64"}
    with ReplayBuffer(buffer_url, name="named", fields=fields) as buffer:
        buffer.store_episode(make_arrays(0, 4, "terminated", next_action=np.arange(4) + 1))
        batch = buffer.sample_transitions(20)
        np.testing.assert_array_equal(batch.next_action, batch.action + 1)
        assert sorted(buffer.sample_transitions(2, fields=["next_obs", "discount"])) == [
            "discount", "next_obs", "reward", "terminated",
        ]  # fmt: skip
        named = buffer.sample_transitions(20, fields=["truncated", "action"])
        assert not named.truncated.any()


def test_aborted_episodes_are_never_drawn_and_open_ones_are(buffer, buffer_url):
    fill(buffer, [(4, "cut", False), (4, "terminated", True), (4, "cut", True)])
    run(buffer_url, "UPDATE episodes SET status = 'aborted' WHERE key = 'e1'")
    run(
        buffer_url,
        "UPDATE episodes SET status = 'open', length = NULL, final_arrays = NULL WHERE key = 'e2'",
    )
    for sampler in (RandomSampler(replace=True), RandomSampler(replace=True, seed=2)):
        batch = buffer.sample_transitions(200, sampler=sampler)
        places = set(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
        assert places == {(e, t) for e in ("e0", "e2") for t in range(3)}


def test_samplers_without_replacement_give_each_first_step_once(buffer):
    fill(buffer, [(6, "truncated", False), (6, "truncated", False), (6, "cut", False)])
    for sampler in (RandomSampler(), RandomSampler(seed=3), FifoSampler(), LatestSampler()):
        batch = buffer.sample_transitions(15, sampler=sampler)
        assert len(set(batch.info["seq"])) == 15
        with pytest.raises(InsufficientDataError, match="asked for 16, and 15 match"):
            buffer.sample_transitions(16, sampler=sampler)
    assert buffer.sample_transitions(3, sampler=FifoSampler()).info["seq"].tolist() == [1, 2, 3]
    newest = buffer.sample_transitions(6, sampler=LatestSampler()).info["seq"].tolist()
    assert newest == [17, 16, 15, 14, 13, 11]


def test_first_steps_are_drawn_alike_where_some_are_rejected(buffer):
    fill(buffer, [(9, "truncated", False), (3, "terminated", True), (7, "cut", False)])
    sampler = RandomSampler(replace=True, seed=6)
    batch = buffer.sample_transitions(1_900, n_step=3, sampler=sampler)
    counts = np.unique(batch.info["seq"], return_counts=True)
    assert counts[0].tolist() == [*range(1, 7), *range(10, 13), *range(13, 17)]
    assert chisquare(counts[1]).pvalue > 0.001


def test_rewards_that_no_column_holds_are_summed_as_they_are(buffer):
    arrays = make_arrays(0, 4, "terminated")
    arrays["reward"] = [1.0, np.nan, -0.0, np.inf]
    buffer.store_episode(arrays, episode_id="e0")
    batch = buffer.sample_transitions(60, n_step=2, gamma=0.5)
    expected = np.array([np.nan, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(batch.reward, expected[batch.info["t"]])


def test_compressed_rows_are_expanded_in_every_reader(buffer_url):
    with ReplayBuffer(buffer_url, name="zstd", fields=FIELDS, compression="zstd") as buffer:
        fill(buffer, [(8, "terminated", True), (5, "truncated", True)])
        batch = buffer.sample_transitions(40, n_step=2, stack={"obs": 3})
        np.testing.assert_array_equal(batch.obs[:, -1, 1], batch.info["t"])
        assert (batch.next_obs[:, -1, 1] >= 1).all()


@pytest.mark.parametrize("shape", [(1,), (4_500,)], ids=["small steps", "large steps"])
def test_a_transition_reaches_over_the_end_of_a_chunk(buffer_url, shape):
    n = 600 if shape == (1,) else 60
    ts = np.arange(n).reshape(n, *[1] * len(shape))
    with ReplayBuffer(buffer_url, fields={"obs": ("uint16", shape)}) as buffer:
        buffer.store_episode(
            {
                "obs": np.broadcast_to(ts, (n, *shape)).astype("uint16"),
                "reward": np.ones(n),
                "terminated": np.arange(n) == n - 1,
            }
        )
        batch = buffer.sample_transitions(2 * n, n_step=7, gamma=1.0)
    t, steps = batch.info["t"], np.minimum(7, n - batch.info["t"])
    np.testing.assert_array_equal(batch.obs, np.broadcast_to(t[:, None], batch.obs.shape))
    after = np.where(t + 7 < n, t + 7, 0)
    np.testing.assert_array_equal(
        batch.next_obs, np.broadcast_to(after[:, None], batch.next_obs.shape)
    )
    np.testing.assert_array_equal(batch.reward, steps)
    np.testing.assert_array_equal(batch.terminated, t + 7 >= n)
