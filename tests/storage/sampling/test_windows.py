"""Windows are those of a plain reference, however episodes end and whatever was deleted."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.batches.forms import WindowForm
from sqlbuffer.errors import FieldError
from sqlbuffer.query.tree import check
from tests.storage.sampling.readers import reader_of
from tests.support.episodes import EPISODES, FIELDS, Made, empty, observation, reward, store


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def draw(buffer, n, *args, condition=None, **options):
    reader = reader_of(buffer, WindowForm, *args, **options)
    sampler = RandomSampler(replace=True)
    return buffer._store.draws.draw(
        check(condition), lambda found: reader.draw(found, sampler, n), reader.columns
    )


def reference(made, t, length, burn_in, stride, k):
    """Return the steps of a window from its first place on, None for those that are padded; or None
    where there is no window.
    """
    if made.status == "aborted" or t % stride or not made.held(t):
        return None

    def frames(t):
        return all(made.held(max(t - j, 0)) for j in range(k))

    is_ended = made.is_ended or (made.end != "cut" and made.held(made.n - 1))
    learnt = [t + j if t + j < made.n else None for j in range(length)]
    if None in learnt and not is_ended:
        return None
    if not all(made.held(s) and frames(s) for s in learnt if s is not None):
        return None
    before = []
    for s in range(t - 1, t - 1 - burn_in, -1):
        if not made.held(s) or not frames(s):
            break
        before.insert(0, s)
    return [None] * (burn_in - len(before)) + before + learnt


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=EPISODES,
    length=st.integers(1, 4),
    burn_in=st.integers(0, 3),
    stride=st.integers(1, 3),
    k=st.integers(1, 3),
)
def test_every_window_is_that_of_the_reference(
    buffer, buffer_url, made, length, burn_in, stride, k
):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, made)
    expected = {
        (f"e{i}", t): found
        for i, episode in enumerate(made)
        for t in range(episode.n)
        if (found := reference(episode, t, length, burn_in, stride, k)) is not None
    }
    n = 400 if expected else 4
    batch = draw(buffer, n, length, burn_in, stride, stack={"obs": k})
    assert batch.n_rows == (n if expected else 0)
    places = list(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
    # 24 at most: one is missed by 400 draws with a chance of 4e-8.
    assert set(places) == set(expected)
    assert batch.obs.shape == (batch.n_rows, burn_in + length, k, 2)
    for place in set(places):
        drawn = [i for i, other in enumerate(places) if other == place]
        number, steps = int(place[0][1:]), expected[place]
        for j, s in enumerate(steps):
            obs = [observation(number, max((s or 0) - b, 0)) for b in range(k - 1, -1, -1)]
            is_last = s is not None and s == made[number].n - 1
            shown = np.array(obs) if s is not None else np.zeros((k, 2))
            np.testing.assert_array_equal(batch.obs[drawn, j], [shown] * len(drawn))
            assert set(batch.mask[drawn, j]) == {s is not None}
            assert set(batch.action[drawn, j]) == {s or 0}
            assert set(batch.reward[drawn, j]) == {
                np.float32(0 if s is None else reward(number, s))
            }
            ends = is_last and made[number].end
            assert set(batch.terminated[drawn, j]) == {ends == "terminated"}
            assert set(batch.truncated[drawn, j]) == {ends == "truncated"}
    assert batch.info["burn_in"].tolist() == [burn_in] * batch.n_rows


def test_windows_are_drawn_alike(buffer, buffer_url):
    from scipy.stats import chisquare

    store(buffer, buffer_url, [Made(9), Made(4), Made(7, gone={3}), Made(5, status="open", end="")])
    reader = reader_of(buffer, WindowForm, 2, 1, 2)
    sampler = RandomSampler(replace=True, seed=2)
    batch = buffer._store.draws.draw(
        check(None), lambda found: reader.draw(found, sampler, 1_100), reader.columns
    )
    places = list(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
    expected = [("e0", t) for t in (0, 2, 4, 6, 8)] + [("e1", 0), ("e1", 2)]
    expected += [("e2", 0), ("e2", 4), ("e2", 6), ("e3", 0), ("e3", 2)]
    assert set(places) == set(expected)
    assert chisquare([places.count(place) for place in expected]).pvalue > 0.001


def test_keys_that_no_window_is_laid_at_are_left_out(buffer, buffer_url):
    store(buffer, buffer_url, [Made(4), Made(3, status="aborted")])
    buffer.extend({"obs": np.zeros((1, 2)), "action": [0]})
    reader = reader_of(buffer, WindowForm, 2, stride=2)
    with buffer._store.source.candidates(check(None), reader.columns) as candidates:
        assert reader.keys(candidates) is None
        assert reader.read(candidates, [3, 2, 1, 5, 8, 3]).info["seq"].tolist() == [3, 1, 3]
        assert reader.read(candidates, np.array([], np.int64)).n_rows == 0


def test_a_condition_is_on_the_step_that_a_window_is_laid_at(buffer, buffer_url):
    store(buffer, buffer_url, [Made(6)])
    condition = QueryBuilder().eq("exp_meta.step", 3).build()
    batch = draw(buffer, 5, 2, 2, condition=condition, names=["action", "truncated"])
    assert batch.action.tolist() == [[1, 2, 3, 4]] * 5
    assert sorted(batch) == ["action", "mask", "truncated"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "length is an integer from 1 to 1000000, got 0"),
        ((True,), "length is an integer from 1 to 1000000, got True"),
        ((1.5,), "got 1.5"),
        ((None,), "got None"),
        ((2**40,), "length is an integer from 1 to 1000000"),
        ((1, -1), "burn_in is an integer from 0 to 1000000, got -1"),
        ((1, 0, 0), "stride is an integer from 1 to 1000000, got 0"),
        ((1, 0, float("nan")), "stride is an integer from 1 to 1000000, got nan"),
    ],
)
def test_windows_that_cannot_be_say_so(buffer, arguments, message):
    with pytest.raises(ValueError, match=message):
        WindowForm.of(buffer._store.info.config.fields, *arguments)


def test_unknown_fields_of_windows_are_named(buffer):
    with pytest.raises(FieldError, match="unknown field 'speed'; windows have obs, action, reward"):
        WindowForm.of(buffer._store.info.config.fields, 2, names=["speed"])
    with pytest.raises(FieldError, match=r"fields is a list of names such as .*, got 'obs'"):
        WindowForm.of(buffer._store.info.config.fields, 2, names="obs")
