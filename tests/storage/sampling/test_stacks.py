"""Frame stacks are those of a plain reference, however episodes end and whatever was deleted."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import RandomSampler, ReplayBuffer
from sqlbuffer.batches.forms import TrajectoryForm, WindowForm
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.query.tree import EVERYTHING
from tests.storage.sampling.readers import reader_of
from tests.support.episodes import (
    EPISODES,
    FIELDS,
    FINAL_T,
    Made,
    arrays_of,
    empty,
    observation,
    reward,
    store,
)
from tests.support.sql import run


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def reference(number, made, t, n_step, k):
    """Return (frames, next frames, reward, m) of a step, or None where it cannot be trained on."""
    if made.status == "aborted" or not made.held(t):
        return None
    ends_at = None  # how many steps the episode has, as far as the rows and the episode tell
    if made.is_ended or (made.end != "cut" and made.held(made.n - 1)):
        ends_at = made.n
    m = n_step if ends_at is None else min(n_step, ends_at - t)
    if not all(made.held(t + j) for j in range(m)):
        return None
    frames = [max(t - j, 0) for j in range(k - 1, -1, -1)]
    older = [max(t + m - j, 0) for j in range(k - 1, 0, -1)]
    zeros = False
    if ends_at == t + m:
        last = FINAL_T if made.final and made.is_ended else None
        told = made.end == "terminated"
        if last is None and not told:
            return None
        zeros = last is None
    else:
        if not made.held(t + m):
            return None
        last = t + m
    needed = frames if zeros else [*frames, *older]
    if k > 1 and not all(made.held(s) for s in needed):
        return None
    after = np.zeros((k, 2)) if zeros else [observation(number, s) for s in [*older, last]]
    total = sum(0.9**j * reward(number, t + j) for j in range(m))
    return [observation(number, s) for s in frames], after, total, m


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=EPISODES, n_step=st.integers(1, 4), k=st.integers(1, 4))
def test_every_stack_is_that_of_the_reference(buffer, buffer_url, made, n_step, k):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, made)
    expected = {
        (f"e{i}", t): found
        for i, episode in enumerate(made)
        for t in range(episode.n)
        if (found := reference(i, episode, t, n_step, k)) is not None
    }
    if not expected:
        with pytest.raises(InsufficientDataError):
            buffer.sample_transitions(4, n_step=n_step, stack={"obs": k})
        return
    batch = buffer.sample_transitions(400, n_step=n_step, gamma=0.9, stack={"obs": k})
    assert batch.obs.shape == batch.next_obs.shape == (400, k, 2)
    places = list(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
    # 24 steps at most: one is missed by 400 draws with a chance of 4e-8.
    assert set(places) == set(expected)
    frames, after, totals, n_steps = zip(*(expected[place] for place in places), strict=True)
    np.testing.assert_array_equal(batch.obs, frames)
    np.testing.assert_array_equal(batch.next_obs, after)
    np.testing.assert_allclose(batch.reward, totals, rtol=1e-6)
    assert batch.info["n_steps"].tolist() == list(n_steps)


def test_an_unstacked_field_keeps_its_shape_beside_a_stacked_one(buffer, buffer_url):
    store(buffer, buffer_url, [Made(6)])
    batch = buffer.sample_transitions(8, stack={"obs": 3})
    assert batch.action.shape == (8,)
    np.testing.assert_array_equal(batch.action, batch.obs[:, -1, 1])
    batch = buffer.sample_transitions(8, stack={"obs": 3, "action": 2}, fields=["action"])
    assert "obs" not in batch
    assert batch.action.shape == (8, 2)
    np.testing.assert_array_equal(batch.action[:, 0], np.maximum(batch.action[:, 1] - 1, 0))


def test_a_declared_next_observation_is_the_last_frame_of_the_next_stack(buffer_url):
    fields = {**FIELDS, "next_obs": ("float32", (2,))}
    with ReplayBuffer(buffer_url, name="declared", fields=fields) as buffer:
        after = np.stack([observation(0, 50 + t) for t in range(5)])
        buffer.store_episode(arrays_of(0, Made(5), next_obs=after), episode_id="e0")
        batch = buffer.sample_transitions(60, n_step=2, stack={"obs": 3})
        assert set(batch.info["t"]) == set(range(5))
        for t, frames in zip(batch.info["t"].tolist(), batch.next_obs[:, :, 1], strict=True):
            m = min(2, 5 - t)
            assert frames.tolist() == [max(t + m - 2, 0), t + m - 1, 50 + t + m - 1]


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ({"speed": 2}, "stack: unknown field 'speed'; the buffer has obs, action"),
        ({"obs": 0}, "stack: field 'obs' needs a number of frames from 1 to 1000, got 0"),
        ({"obs": 2**63}, "needs a number of frames from 1 to 1000, got 9223372036854775808"),
        ({"obs": -1}, "got -1"),
        ({"obs": True}, "got True"),
        ({"obs": 2.0}, r"got 2\.0"),
        ({"obs": None}, "got None"),
        (4, "stack is a dict such as"),
        ("obs", "stack is a dict such as"),
    ],
)
def test_a_stack_that_cannot_be_says_so(buffer, stack, message):
    with pytest.raises(FieldError, match=message):
        buffer.sample_transitions(1, stack=stack)


def test_a_stack_of_values_of_varying_length_is_refused(buffer_url):
    fields = {**FIELDS, "tokens": ("int32", (-1,))}
    with (
        ReplayBuffer(buffer_url, name="tokens", fields=fields) as buffer,
        pytest.raises(FieldError, match="stack: field 'tokens' has a length that varies"),
    ):
        buffer.sample_transitions(1, stack={"tokens": 2})


def test_steps_behind_the_window_are_gone_though_they_are_still_in_the_table(buffer, buffer_url):
    store(buffer, buffer_url, [Made(8)])
    run(buffer_url, "UPDATE buffers SET low_seq = 3")
    stacked = buffer.sample_transitions(60, stack={"obs": 3})
    assert set(stacked.info["t"]) == {5, 6, 7}
    fields = buffer._store.info.config.fields

    def draw(form):
        reader = reader_of(buffer, form)
        sampler = RandomSampler(replace=True)
        return buffer._store.draws.draw(
            EVERYTHING, lambda found: reader.draw(found, sampler, 60), reader.columns
        )

    windows = draw(WindowForm.of(fields, 1, 2))
    assert set(windows.info["t"]) == {3, 4, 5, 6, 7}
    np.testing.assert_array_equal(
        windows.mask[:, :2].sum(axis=1), np.minimum(windows.info["t"] - 3, 2)
    )
    partial = draw(TrajectoryForm.of(fields, include_partial=True))
    assert set(partial.info["t"]) == {3}
    assert set(partial.lens) == {5}
    assert draw(TrajectoryForm.of(fields)).n_rows == 0
