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


@pytest.mark.thorough
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


STACKS = [None, {"obs": 1}, {"obs": 3}]
WINDOWS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 4),
        "burn_in": st.integers(0, 3),
        "stride": st.integers(1, 3),
        "stack": st.sampled_from(STACKS),
    }
)
N_STEPS = st.fixed_dictionaries({"n_step": st.integers(1, 3), "stack": st.sampled_from(STACKS)})
MODES = st.one_of(
    st.tuples(st.just("step"), st.just({})),
    st.tuples(st.just("transition"), N_STEPS),
    st.tuples(
        st.just("n_step"), N_STEPS.map(lambda given: {**given, "sequence_fields": ["action"]})
    ),
    st.tuples(st.just("window"), WINDOWS),
    st.tuples(st.just("trajectory"), st.fixed_dictionaries({"include_partial": st.booleans()})),
)
ORDERS = st.sampled_from(
    [{"shuffle": False}, {"shuffle": False, "drop_last": True}, {"seed": 3}, {"fields": ["obs"]}]
)


@settings(max_examples=24, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPISODES, MODES, ORDERS, st.sampled_from([2, 64]), st.sets(st.integers(0, 11), max_size=2))
def test_passes_are_those_of_the_buffer(
    buffer_url, buffer, episodes, mode, order, batch_size, barred
):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, episodes)
    seqs = sorted(every_row(buffer, "step"))
    buffer.quarantine([seqs[i] for i in barred if i < len(seqs)])
    name, options = mode
    given = {"seed": 0, "epochs": 1, **options, **order}
    with buffer.mirror() as mirror:
        theirs, own = (each.loader(name, batch_size, **given) for each in (buffer, mirror))
        assert len(own) == len(theirs)
        assert_same_batches(theirs, own)


OF_EACH_MODE = [
    ("step", {}),
    ("transition", {"n_step": 3}),
    ("window", {"length": 7, "burn_in": 3, "stride": 2, "stack": {"obs": 2}}),
    ("trajectory", {}),
    ("trajectory", {"include_partial": True}),
]


def assert_same_passes(buffer, mirror):
    for mode, options in OF_EACH_MODE:
        given = {"epochs": 1, "seed": 2, **options}
        assert_same_batches(buffer.loader(mode, 32, **given), mirror.loader(mode, 32, **given))


@pytest.mark.thorough
def test_episodes_that_lose_steps_at_both_ends_stay_the_same(buffer):
    """Episodes in pieces that others' steps lie between; a capacity that cuts into the oldest."""
    open_ones = [buffer.episode(episode_id=f"o{i}") for i in range(3)]
    with buffer.mirror() as mirror:
        for round_ in range(8):
            for episode in open_ones:
                for _ in range(17):
                    episode.append(obs=[0, round_], action=round_, reward=1.0)
                buffer.flush()
            buffer.store_episode({**columns(90)}, episode_id=f"e{round_}", final={"obs": [7, 7]})
            if round_ % 3 == 2:
                buffer.delete(QueryBuilder().eq("exp_meta.step", 10 + round_).build())
                mirror.refresh()
                assert_same_passes(buffer, mirror)
        for episode in open_ones:
            episode.end()
        mirror.refresh()
        assert_same_passes(buffer, mirror)


def test_late_rewards_change_the_returns_of_episodes(buffer):
    for number in range(3):
        buffer.store_episode(columns(5), episode_id=f"e{number}", episode_reward=number / 2)
    with buffer.mirror() as mirror:
        assert_same_passes(buffer, mirror)
        buffer.annotate([6, 7], reward_t=100.0)
        mirror.refresh()
        found = next(iter(mirror.loader("trajectory", 3, shuffle=False)))
        assert found.info["return"].tolist() == [10.0, 209.0, 10.0]
        assert_same_passes(buffer, mirror)


@pytest.mark.thorough
def test_an_attached_mirror_has_the_same_rows(buffer):
    buffer.store_episode(columns(90), episode_id="first", episode_reward=2.0)
    with buffer.mirror(shared=True), buffer.mirror(shared=True) as attached:
        for number in range(20):
            buffer.store_episode(columns(60), episode_id=f"e{number}", final={"obs": [7, 7]})
            if number % 5 == 4:
                attached.refresh()
                assert_same_passes(buffer, attached)
                for sampler in ENDS:
                    assert_same_batches(
                        [buffer.sample_arrays(100, sampler=sampler)],
                        [attached.sample_arrays(100, sampler=sampler)],
                    )
