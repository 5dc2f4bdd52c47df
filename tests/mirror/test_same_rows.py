"""Where nothing is random, a mirror has the same batches as its buffer."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import FifoSampler, LatestSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from tests.support.episodes import EPISODES, FIELDS, empty, store
from tests.support.mirrors import assert_same_batches, every_row

ENDS = [FifoSampler(), LatestSampler()]


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=1_000) as buffer:
        yield buffer


def columns(n):
    t = np.arange(n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPISODES, st.integers(1, 3), st.sampled_from(ENDS))
def test_the_steps_at_one_end_are_those_of_the_buffer(
    buffer_url, buffer, episodes, n_step, sampler
):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, episodes)
    n_steps, n_transitions = len(buffer), len(every_row(buffer, "transition", n_step=n_step))
    with buffer.mirror() as mirror:
        for n in (1, n_steps):
            assert_same_batches(
                [buffer.sample_arrays(min(n, n_steps), sampler=sampler)],
                [mirror.sample_arrays(min(n, n_steps), sampler=sampler)],
            )
        for n in {1, n_transitions} - {0}:
            if n <= n_transitions:
                assert_same_batches(
                    [buffer.sample_transitions(n, n_step=n_step, sampler=sampler)],
                    [mirror.sample_transitions(n, n_step=n_step, sampler=sampler)],
                )


@pytest.mark.parametrize("sampler", ENDS)
def test_ends_pass_over_what_was_deleted_and_what_has_left(buffer, sampler):
    for number in range(30):
        buffer.store_episode(columns(50), episode_id=f"e{number}")
    buffer.delete(QueryBuilder().gt("exp_meta.step", 20).build())
    with buffer.mirror() as mirror:
        for n in (1, 70, 300):
            assert_same_batches(
                [buffer.sample_arrays(n, sampler=sampler)],
                [mirror.sample_arrays(n, sampler=sampler)],
            )
        with pytest.raises(InsufficientDataError, match=f"and {len(buffer)} match"):
            mirror.sample_arrays(len(buffer) + 1, sampler=sampler)
