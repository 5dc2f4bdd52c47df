"""Steps by their place. No database."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.steps.episode_steps import EpisodeSteps, frame_times

NUMBERS = st.integers(-(2**40), 2**40)
PLACES = st.tuples(st.sampled_from([-7, 1, 2, 2**40]) | NUMBERS, st.integers(0, 5))


def table_of(places, has_arrays=None):
    """Return the table of steps whose rewards are their positions in `places`."""
    n = len(places)
    blobs = [b"%d" % i if has_arrays is None or has_arrays[i] else None for i in range(n)]
    no = np.zeros(n, bool)
    return EpisodeSteps(
        [e for e, _ in places], [t for _, t in places], range(n), no, no, blobs, range(n)
    )


@pytest.mark.slow
@given(st.lists(st.tuples(PLACES, st.booleans()), max_size=20), st.lists(PLACES, max_size=20))
def test_a_step_is_found_where_it_is_and_nowhere_else(given_steps, others):
    places = [place for place, _ in given_steps]
    table = table_of(places, [has for _, has in given_steps])
    wanted = [*places, *others, (1, -1), (1, 2**31), (2**62, 0)]
    found = table.find([e for e, _ in wanted], [t for _, t in wanted])
    for place, index in zip(wanted, found.tolist(), strict=True):
        if place in places:
            assert (table.episode[index], table.t[index]) == place
            # One that has its arrays, if any has.
            with_arrays = [i for i, (p, has) in enumerate(given_steps) if p == place and has]
            assert bool(table.has_arrays[index]) == bool(with_arrays)
            assert (table.blobs[index] is None) == (not with_arrays)
        else:
            assert index == -1
    assert len(table) == len(set(places))
    assert list(zip(table.episode, table.t, strict=True)) == sorted(set(places))


def test_places_are_broadcast():
    table = table_of([(1, 0), (1, 1), (1, 3), (2, 0)])
    found = table.find(np.array([[1], [2]]), np.array([0]) + np.arange(4))
    assert found.tolist() == [[0, 1, -1, 2], [3, -1, -1, -1]]
    assert table.find([], []).shape == (0,)


def test_what_is_missing_has_no_reward_no_flag_and_no_arrays():
    table = EpisodeSteps(
        [1, 1], [0, 1], [0.5, np.nan], [True, False], [False, True], [b"x", None], [1, 2]
    )
    index = np.array([0, 1, -1])
    np.testing.assert_array_equal(table.rewards(index), [0.5, np.nan, np.nan])
    assert table.flags(table.terminated, index).tolist() == [True, False, False]
    assert table.flags(table.truncated, index).tolist() == [False, True, False]
    assert table.with_arrays(index).tolist() == [0, -1, -1]
    empty = table_of([])
    assert empty.find([1], [0]).tolist() == [-1]
    assert np.isnan(empty.rewards(np.array([-1]))).all()


def test_frames_before_an_episode_are_its_first():
    assert frame_times([0, 2, 7], 4).tolist() == [[0, 0, 0, 0], [0, 0, 1, 2], [4, 5, 6, 7]]
    assert frame_times([3], 1).tolist() == [[3]]
