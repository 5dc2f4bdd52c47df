"""Elastic, sequence and episode buffers."""

import logging
from collections import Counter

import pytest

from sqlbuffer.compat.ding import ReplayConfigError, ReplayError, create_buffer
from sqlbuffer.compat.ding.naive_buffer import window_starts
from tests.compat.ding.conftest import held


def test_an_elastic_buffer_draws_among_its_newest_items_across_the_wrap(make):
    buffer = make("elastic", size=10, set_buffer_size=lambda envstep: 2 + envstep)
    buffer.push(list(range(14)), 0)
    assert buffer.sample(3, 0) is None
    assert sorted(buffer.sample(2, 0)) == [12, 13]
    assert set(buffer.sample(9, 0, replace=True)) <= {12, 13}
    buffer.update(3)
    assert sorted(buffer.sample(5, 0)) == [9, 10, 11, 12, 13]
    assert (buffer.count(), buffer.replay_buffer_size) == (10, 10)
    buffer.update(1000)
    assert sorted(buffer.sample(10, 0)) == list(range(4, 14))
    assert buffer.sample(0, 0) == []
    with pytest.raises(AssertionError, match="leave sample_range out"):
        buffer.sample(1, 0, sample_range=slice(0, 1))


def test_an_elastic_buffer_without_a_function_draws_among_all(make):
    buffer = make("elastic")
    assert buffer.sample(1, 0) is None
    buffer.push([1, 2, 3], 0)
    assert sorted(buffer.sample(3, 0)) == [1, 2, 3]


@pytest.mark.parametrize("size", [0, -1, None, "4", float("nan"), True])
def test_a_size_that_is_none_is_refused(size):
    config = {"type": "elastic", "set_buffer_size": lambda _: size}
    with pytest.raises(ReplayConfigError, match=r"set_buffer_size\(0\) is to return"):
        create_buffer(config)


@pytest.mark.thorough
def test_a_window_never_leaves_its_episode_after_the_ring_has_wrapped(make):
    buffer = make("sequence", size=12, episode_length=4, seed=3)
    buffer.push([(episode, t) for episode in range(5) for t in range(4)], 0)
    seen = Counter()
    for _ in range(40):
        for window in buffer.sample(4, 3, 0):
            (episode,) = {episode for episode, _ in window}
            assert [t for _, t in window] in ([0, 1, 2], [1, 2, 3])
            seen[episode, window[0][1]] += 1
    assert set(seen) == {(episode, t) for episode in (2, 3, 4) for t in (0, 1)}


def test_windows_of_an_episode_that_is_cut_by_either_end_are_drawn(make):
    buffer = make("sequence", size=10, episode_length=4)
    buffer.push(list(range(15)), 0)
    starts = {window[0] for window in buffer.sample(40, 3, 0, replace=True)}
    # Of 5..14: the rest of one episode, one whole, and the beginning of one.
    assert starts == {5, 8, 9, 12}
    assert len({tuple(window) for window in buffer.sample(3, 3, 0)}) == 3


def test_too_few_items_or_windows_are_none_and_never_a_loop(make):
    buffer = make("sequence", size=12, episode_length=4)
    assert buffer.sample(1, 2, 0) is None
    buffer.push(list(range(3)), 0)
    assert buffer.sample(2, 2, 0) is None
    assert buffer.sample(1, 4, 0) is None
    assert len(buffer.sample(5, 2, 0, replace=True)) == 5
    assert buffer.sample(0, 2, 0) == []
    with pytest.raises(NotImplementedError, match="no sample_range"):
        buffer.sample(1, 2, 0, sample_range=slice(0, 2))
    for sequence in (0, 5):
        with pytest.raises(ReplayError, match="from 1 to 4 items"):
            buffer.sample(1, sequence, 0)


@pytest.mark.parametrize("n", [0, 1, 4, 9])
@pytest.mark.parametrize("sequence", [1, 2, 4])
def test_window_starts_are_those_that_lie_within_an_episode(n, sequence):
    push_count, length = 11, 4
    pushed = range(push_count - n, push_count)
    expected = [
        age
        for age in range(n - sequence + 1)
        if len({pushed[age + i] // length for i in range(sequence)}) == 1
    ]
    assert window_starts(n, push_count, sequence, length).tolist() == expected


def test_the_length_of_episodes_is_known_before_the_ring_is_full(make):
    buffer = make("episode", size=3)
    assert buffer.episode_len == []
    buffer.push([[{"t": 1}, {"t": 2}], [{"t": 3}]], 0)
    assert buffer.episode_len == [2, 1]
    buffer.push([[{"t": t} for t in range(4)], []], 0)
    assert buffer.episode_len == [1, 4, 0]
    assert sorted(map(len, buffer.sample(3, 0))) == [0, 1, 4]
    again = make("episode", size=3, name="again")
    again.load_state_dict(buffer.state_dict())
    assert (again.episode_len, held(again)) == ([1, 4, 0], held(buffer))


def test_steps_that_are_pushed_as_episodes_are_stored_and_said_so_once(make, caplog):
    buffer = make("episode")
    with caplog.at_level(logging.WARNING, "sqlbuffer"):
        buffer.push([{"t": 1}, {"t": 2, "x": 3}], 0)
        buffer.push([{"t": 1}], 0)
    assert len(caplog.records) == 1
    assert buffer.episode_len == [1, 2, 1]
    buffer.push(3, 0)
    with pytest.raises(TypeError, match="item 3 is not an episode"):
        _ = buffer.episode_len
