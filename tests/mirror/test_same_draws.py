"""A mirror draws what the buffer itself draws."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from tests.support.episodes import EPISODES, FIELDS, Made, empty, store
from tests.support.mirrors import assert_same_draws, every_row

VARIED = {
    "obs": ("float32", (3,)),
    "image": ("uint8", (40, 40)),
    "tokens": ("int32", (-1,)),
    "logits": ("float64", (-1, 2)),
    "flag": "bool",
    "name": "U5",
}
NEXT = {"obs": ("float32", (2,)), "next_obs": ("float32", (2,))}


def varied(n):
    rng = np.random.default_rng(0)
    return {
        "obs": rng.random((n, 3), dtype=np.float32),
        "image": rng.integers(0, 256, (n, 40, 40), np.uint8),
        "tokens": [np.arange(i % 5, dtype=np.int32) for i in range(n)],
        "logits": [rng.random((i % 3, 2)) for i in range(n)],
        "flag": np.arange(n) % 2 == 0,
        "name": np.array([f"ä{i % 100}" for i in range(n)]),
        "reward": np.where(np.arange(n) % 7 == 3, np.nan, np.arange(n) / 3),
    }


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=1_000) as buffer:
        yield buffer


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(EPISODES, st.integers(1, 4), st.sampled_from([None, {"obs": 1}, {"obs": 3}]))
def test_random_episodes_have_the_same_transitions(buffer_url, buffer, episodes, n_step, stack):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, episodes)
    with buffer.mirror() as mirror:
        assert_same_draws(buffer, mirror, "step")
        assert_same_draws(buffer, mirror, "transition", n_step=n_step, stack=stack)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_fields_of_all_kinds_come_back(buffer_url, compression):
    with ReplayBuffer(buffer_url, fields=VARIED, compression=compression) as buffer:
        buffer.extend(varied(300), task_id=["a" if i % 3 else "ä" for i in range(300)])
        with buffer.mirror() as mirror:
            sampler = RandomSampler(replace=False)
            whole = mirror.sample_arrays(300, sampler=sampler)
            order = np.argsort(whole.info["seq"])
            own = buffer.sample_arrays(300, sampler=RandomSampler())
            others = np.argsort(own.info["seq"])
            for name, values in own.items():
                found = whole[name][order]
                assert (found.dtype, found.shape) == (values.dtype, values.shape)
                np.testing.assert_array_equal(found, values[others])
            for name, values in own.info.items():
                assert whole.info[name][order].tolist() == values[others].tolist()


def test_a_choice_of_fields_has_no_others(buffer):
    buffer.extend({"obs": np.zeros((9, 2)), "action": np.arange(9)})
    with buffer.mirror() as mirror:
        assert list(mirror.sample_arrays(4, fields=["reward", "action"])) == ["action", "reward"]
        with pytest.raises(FieldError, match="unknown field 'acton'"):
            mirror.sample_arrays(4, fields=["acton"])


def test_declared_next_observations_are_used_as_they_are(buffer_url):
    with ReplayBuffer(buffer_url, fields=NEXT) as buffer:
        numbers = np.arange(80, dtype=np.float32).reshape(40, 2)
        buffer.extend({"obs": numbers, "next_obs": numbers + 1})
        buffer.store_episode({"obs": numbers[:5], "next_obs": numbers[:5], "reward": np.ones(5)})
        with buffer.mirror() as mirror:
            for n_step in (1, 3):
                assert_same_draws(buffer, mirror, "transition", n_step=n_step)


def test_draws_are_uniform_after_wraps_and_deletions(buffer):
    for number in range(30):
        store_plain(buffer, number, 50)
    buffer.delete(QueryBuilder().lt("exp_meta.step", 20).build())
    expected = every_row(buffer, "step")
    with buffer.mirror() as mirror:
        drawn = mirror.sample_arrays(
            60 * len(expected), sampler=RandomSampler(replace=True, seed=3)
        )
    seqs, counts = np.unique(drawn.info["seq"], return_counts=True)
    assert seqs.tolist() == sorted(expected)
    assert chisquare(counts).pvalue > 1e-4


def store_plain(buffer, number, n):
    t = np.arange(n)
    arrays = {"obs": np.stack([np.full(n, number), t], 1), "action": t, "reward": t / 2}
    buffer.store_episode(arrays, episode_id=f"p{number}")


def test_a_seed_repeats_batches(buffer):
    store_plain(buffer, 0, 200)
    with buffer.mirror() as mirror:
        batches = [
            [mirror.sample_arrays(20, sampler=sampler).info["seq"].tolist() for _ in range(3)]
            for sampler in (RandomSampler(seed=5), RandomSampler(seed=5))
        ]
        assert batches[0] == batches[1]
        assert batches[0][0] != batches[0][1]


def test_draws_without_replacement_have_each_step_once(buffer):
    store_plain(buffer, 0, 50)
    with buffer.mirror() as mirror:
        drawn = mirror.sample_arrays(50, sampler=RandomSampler(replace=False))
        assert sorted(drawn.info["seq"].tolist()) == list(range(1, 51))
        with pytest.raises(InsufficientDataError, match="asked for 51, and 50 match"):
            mirror.sample_arrays(51, sampler=RandomSampler(replace=False))


def test_an_empty_buffer_says_so(buffer):
    with buffer.mirror() as mirror:
        with pytest.raises(InsufficientDataError, match="asked for 8, and 0 match"):
            mirror.sample_arrays(8)
        assert mirror.sample_arrays(0).n_rows == 0
        assert len(mirror) == 0


def test_fewer_than_min_size_are_not_drawn(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, min_size=10) as buffer, buffer.mirror() as mirror:
        store_plain(buffer, 0, 9)
        with pytest.raises(InsufficientDataError, match="holds 9 rows, and is sampled from 10 on"):
            mirror.sample_arrays(2)
        store_plain(buffer, 1, 1)
        assert mirror.sample_arrays(2).n_rows == 2


def test_a_field_done_without_flags_needs_a_terminal_field(buffer_url):
    fields = {**FIELDS, "done": "bool"}
    with ReplayBuffer(buffer_url, fields=fields) as buffer, buffer.mirror() as mirror:
        arrays = {"obs": np.zeros((6, 2)), "action": np.arange(6), "done": np.arange(6) == 5}
        buffer.store_episode(arrays)
        with pytest.raises(FieldError, match="pass terminal_field='done'"):
            mirror.sample_transitions(2)
        assert_same_draws(buffer, mirror, "transition", terminal_field="done", n_step=2)


@pytest.mark.parametrize("status", ["open", "aborted"])
def test_episodes_that_have_not_ended_well_are_as_in_the_buffer(buffer_url, buffer, status):
    store(buffer, buffer_url, [Made(6, "cut", status=status), Made(4, final=True)])
    with buffer.mirror() as mirror:
        assert_same_draws(buffer, mirror, "transition", n_step=2)
