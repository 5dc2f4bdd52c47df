"""A state resumes a loader behind the last batch that was handed out."""

import json
import pickle

import pytest

from sqlbuffer import QueryBuilder, RandomSampler, ReplayBuffer
from tests.loading.rows import FIELDS, actions, delete_steps, fill, flat
from tests.support.processes import FRESH, run_at_once

HOW = {
    "draws": {"seed": 3},
    "draws without a seed": {},
    "draws of a sampler": {"sampler": RandomSampler(seed=5, replace=True)},
    "passes": {"seed": 3, "epochs": 3},
    "passes in order": {"shuffle": False, "epochs": 3},
    "passes without end": {"shuffle": False},
    "passes of a condition": {
        "epochs": 3,
        "condition": QueryBuilder().gte("exp_meta.step", 7).build(),
    },
}


def goes_on(url, options, state, n):
    with ReplayBuffer(url) as buffer:
        loader = buffer.loader("step", 8, **options)
        loader.load_state_dict(json.loads(state))
        batches = iter(loader)
        return actions(next(batches) for _ in range(n))


@pytest.mark.thorough
@pytest.mark.parametrize("how", HOW)
def test_another_loader_goes_on_with_the_batches_that_would_have_come(buffer, how):
    fill(buffer, 50)
    options = HOW[how]
    loader = buffer.loader("step", 8, prefetch=3, **options)
    batches = iter(loader)
    states, found = [json.dumps(loader.state_dict())], []
    for _ in range(12):
        found += actions([next(batches)])
        states.append(json.dumps(loader.state_dict()))
    for n_seen, prefetch in ((0, 0), (3, 2), (7, 0), (9, 1)):
        other = buffer.loader("step", 8, prefetch=prefetch, **options)
        other.load_state_dict(json.loads(states[n_seen]))
        again = iter(other)
        assert actions(next(again) for _ in range(12 - n_seen)) == found[n_seen:]
        assert json.dumps(other.state_dict()) == states[12]
        again.close()
    batches.close()


@pytest.mark.each_value
@pytest.mark.parametrize("how", ["draws", "passes"])
def test_another_process_goes_on(buffer_url, how):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        fill(buffer, 50)
        loader = buffer.loader("step", 8, **HOW[how])
        batches = iter(loader)
        next(batches)
        state = json.dumps(loader.state_dict())
        expected = actions(next(batches) for _ in range(3))
    assert run_at_once([(goes_on, buffer_url, HOW[how], state, 3)], FRESH) == [expected]


@pytest.mark.parametrize("condition", [None, QueryBuilder().gte("exp_meta.step", 0).build()])
def test_rows_that_left_between_saving_and_resuming_are_all_that_is_missing(buffer, condition):
    fill(buffer, 60)
    options = {"epochs": 1, "seed": 1, "condition": condition}
    loader = buffer.loader("step", 8, **options)
    batches = iter(loader)
    seen = flat([next(batches), next(batches)])
    state = loader.state_dict()
    rest = flat(batches)
    gone = rest[3::4] + seen[::2]
    delete_steps(buffer, gone)
    fill(buffer, 10, first=60)
    again = buffer.loader("step", 8, **options)
    again.load_state_dict(state)
    assert flat(again) == [action for action in rest if action not in gone]


def test_a_state_after_the_end_begins_the_next_iteration(buffer):
    fill(buffer, 10)
    loader = buffer.loader("step", 4, epochs=1, seed=1)
    first = flat(loader)
    after = loader.state_dict()
    second = flat(loader)
    other = buffer.loader("step", 4, epochs=1)
    other.load_state_dict(after)
    assert flat(other) == second != first
    assert flat(other) not in (first, second)


def test_a_state_at_the_last_batch_has_nothing_left(buffer):
    fill(buffer, 8)
    loader = buffer.loader("step", 4, epochs=1, seed=1)
    batches = iter(loader)
    next(batches)
    next(batches)
    other = buffer.loader("step", 4, epochs=1, seed=1)
    other.load_state_dict(loader.state_dict())
    assert flat(other) == []
    assert len(flat(other)) == 8


@pytest.mark.thorough
@pytest.mark.slow
def test_a_loader_pickles_without_data_and_goes_on(buffer):
    sizes = []
    for n in (10, 1000):
        fill(buffer, n)
        loader = buffer.loader("step", 4, epochs=1, prefetch=2, to_named_tuple=("action",))
        batches = iter(loader)
        next(batches)
        pickled = pickle.dumps(loader)
        sizes.append(len(pickled))
        loader.load_state_dict(loader.state_dict())
        copied = pickle.loads(pickle.dumps(loader))
        assert flat(copied) == flat(batches)
    assert abs(sizes[0] - sizes[1]) < 50


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 16}, "a loader with batch_size=8, and here it is 16"),
        ({"seed": 4}, "seed=3, and here it is 4"),
        ({"mode": "transition"}, "mode='step', and here it is 'transition'"),
        ({"epochs": 2}, "passes='', and here it is 'counted'"),
        ({"replace": True}, "replace=False, and here it is True"),
        ({"condition": QueryBuilder().eq("exp_meta.step", 1).build()}, "condition=None, and here"),
        ({"batch_size": 4, "seed": 4}, "batch_size=8, and here it is 4; seed=3, and here it is 4"),
    ],
)
def test_a_foreign_state_says_what_differs(buffer, options, message):
    state = buffer.loader("step", 8, seed=3).state_dict()
    own = buffer.loader(**{"mode": "step", "batch_size": 8, "seed": 3, **options})
    with pytest.raises(ValueError, match=message):
        own.load_state_dict(state)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"seed": None}, {"seed": -1}, {"run": True}, {"batch": "x"}, {"more": 1},
     {"loader": None}],
)  # fmt: skip
def test_a_damaged_state_is_refused(buffer, change):
    fill(buffer, 10)
    loader = buffer.loader("step", 8, seed=3)
    next(iter(loader))
    state = loader.state_dict()
    for wrong in ({**state, **change}, None, {}, [], "state"):
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(wrong)
    loader.load_state_dict(state)


def test_the_name_of_the_buffer_belongs_to_the_state(buffer, buffer_url):
    state = buffer.loader("step", 8).state_dict()
    with (
        ReplayBuffer(buffer_url, name="other", fields=FIELDS) as other,
        pytest.raises(ValueError, match="buffer='default', and here it is 'other'"),
    ):
        other.loader("step", 8).load_state_dict(state)
