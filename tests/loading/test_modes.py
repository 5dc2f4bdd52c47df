"""Each mode: passes have each thing once, draws are full, and states resume."""

import json

import numpy as np
import pytest
from torch.utils.data import DataLoader

from sqlbuffer import QueryBuilder, ReplayBuffer, mix
from sqlbuffer.errors import FieldError, InsufficientDataError
from sqlbuffer.torch import Dataset, IterableDataset
from tests.support.episodes import FIELDS, Made, store
from tests.support.statements import selects

# Episode e1 was cut without a final observation, e3 is open, e4 aborted, and e5 has lost a step.
EPISODES = [
    Made(5, "terminated"),
    Made(4, "truncated"),
    Made(6, "truncated", final=True),
    Made(4, "cut", status="open"),
    Made(3, "cut", status="aborted"),
    Made(6, "terminated", gone=frozenset({2})),
]
STEPS = {(f"e{e}", t) for e, made in enumerate(EPISODES) for t in range(made.n) if made.held(t)}
READABLE = {(episode, t) for episode, t in STEPS if episode != "e4"}
NO_SUCCESSOR = {("e1", 3), ("e3", 3), ("e5", 1)}
# Of two steps, laid at every other one.
WINDOWS = {(e, t) for e, t in READABLE if t % 2 == 0}

MODES = {
    "transition": ({}, READABLE - NO_SUCCESSOR),
    "n_step": (
        {"n_step": 2, "sequence_fields": ["action"]},
        READABLE - NO_SUCCESSOR - {("e1", 2), ("e3", 2), ("e5", 0)},
    ),
    "window": ({"length": 2, "stride": 2}, WINDOWS),
    "trajectory": ({}, {("e0", 0), ("e1", 0), ("e2", 0)}),
}


@pytest.fixture
def stored(buffer_url):
    """Return a buffer that holds the episodes."""
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        store(buffer, buffer_url, EPISODES)
        yield buffer


def places(batches):
    """Return (episode, t) of what the batches hold, in order."""
    return [
        (str(episode), int(t))
        for batch in batches
        for episode, t in zip(batch.info["episode"], batch.info["t"], strict=True)
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_a_pass_has_each_thing_once_in_full_batches(stored, mode):
    options, expected = MODES[mode]
    for shuffle in (True, False):
        batches = list(stored.loader(mode, 4, epochs=1, seed=1, shuffle=shuffle, **options))
        found = places(batches)
        assert len(found) == len(set(found))
        assert set(found) == expected
        sizes = [batch.n_rows for batch in batches]
        assert sizes[:-1] == [4] * (len(sizes) - 1)
    assert found == sorted(found)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
def test_draws_are_of_the_same_things_and_repeat_with_a_seed(stored, mode):
    options, expected = MODES[mode]
    batches = iter(stored.loader(mode, 16, replace=True, seed=3, **options))
    drawn = [next(batches) for _ in range(6)]
    assert {batch.n_rows for batch in drawn} == {16}
    assert set(places(drawn)) <= expected
    assert len(set(places(drawn))) > len(expected) // 2
    again = iter(stored.loader(mode, 16, replace=True, seed=3, **options))
    assert places(next(again) for _ in range(6)) == places(drawn)
    with pytest.raises(InsufficientDataError, match=f"asked for 64, and {len(expected)} match"):
        next(iter(stored.loader(mode, 64, **options)))


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("epochs", [None, 2])
def test_a_state_goes_on_in_each_mode(stored, mode, epochs):
    options = {"epochs": epochs, "seed": 2, **MODES[mode][0]}
    loader = stored.loader(mode, 3, prefetch=2, **options)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    n = 3 if epochs is None else 100
    rest = places(batch for batch, _ in zip(batches, range(n), strict=False))
    batches.close()
    again = stored.loader(mode, 3, **options)
    again.load_state_dict(state)
    assert places(batch for batch, _ in zip(again, range(n), strict=False)) == rest


def test_compressed_arrays_are_read_in_each_mode(buffer_url):
    with ReplayBuffer(buffer_url, name="small", fields=FIELDS, compression="zstd") as buffer:
        store(buffer, buffer_url, EPISODES)
        for mode, (options, expected) in MODES.items():
            (batch,) = buffer.loader(mode, 64, epochs=1, shuffle=False, **options)
            assert set(places([batch])) == expected, mode
            obs = batch.obs if mode in ("transition", "n_step") else batch.obs[:, 0]
            assert obs[:, 1].tolist() == batch.info["t"].tolist(), mode


def test_a_condition_is_on_the_first_step_of_what_a_pass_visits(stored):
    even = QueryBuilder().in_("exp_meta.step", [0, 4]).build()
    for mode, (options, expected) in MODES.items():
        loader = stored.loader(mode, 4, epochs=1, condition=even, **options)
        assert set(places(loader)) == {place for place in expected if place[1] in (0, 4)}, mode


def test_each_batch_of_a_pass_takes_two_statements(stored):
    for mode, (options, _) in MODES.items():
        loader = stored.loader(mode, 2, epochs=1, shuffle=False, **options)
        batches = iter(loader)
        next(batches)  # which fixes the range
        with selects(stored) as seen:
            next(batches)
        assert len(seen) <= 3, mode  # with a round for what is rejected


def test_trajectories_are_padded_to_the_longest_of_their_own_batch(stored):
    batches = list(stored.loader("trajectory", 2, epochs=1, shuffle=False))
    assert [batch.obs.shape for batch in batches] == [(2, 5, 2), (1, 6, 2)]
    assert batches[0].lens.tolist() == [5, 4]
    partial = stored.loader("trajectory", 10, epochs=1, shuffle=False, include_partial=True)
    assert places(partial) == [(f"e{e}", 0) for e in (0, 1, 2, 3, 5)]


def test_sequences_stacks_and_windows_have_their_shapes(stored):
    loader = stored.loader("n_step", 4, n_step=3, sequence_fields=["obs"], replace=True)
    first = next(iter(loader))
    assert first.seq_obs.shape == (4, 3, 2)
    first = next(iter(stored.loader("transition", 4, stack={"obs": 3}, replace=True)))
    assert first.obs.shape == first.next_obs.shape == (4, 3, 2)
    first = next(iter(stored.loader("window", 4, length=3, burn_in=2, replace=True)))
    assert first.obs.shape == (4, 5, 2)
    assert first.mask.shape == (4, 5)


@pytest.mark.thorough
@pytest.mark.slow
def test_datasets_of_torch_take_each_mode(stored):
    for mode, (options, expected) in MODES.items():
        dataset = Dataset(stored, mode, info=["episode", "t"], **options)
        found = [
            (str(episode), int(t))
            for batch in DataLoader(dataset, batch_size=5)
            for episode, t in zip(batch["episode"], batch["t"], strict=True)
        ]
        assert len(found) == len(set(found))
        assert set(found) == expected, mode
        loader = IterableDataset(stored.loader(mode, 4, epochs=1, **options))
        workers = DataLoader(
            loader, None, num_workers=2, multiprocessing_context="fork", timeout=60
        )
        keys = [seq for batch in workers for seq in batch["info"]["seq"].tolist()]
        assert len(keys) == len(set(keys)) == len(expected), mode


def test_trajectories_of_a_mixture_are_padded_to_the_longest_of_all(stored, buffer_url):
    with ReplayBuffer(buffer_url, name="other", fields=FIELDS) as other:
        other.store_episode({"obs": np.ones((9, 2)), "action": np.ones(9, int)}, episode_id="e9")
        batch = next(iter(mix({stored: 1, other: 1}).loader("trajectory", 2)))
        assert batch.obs.shape == (2, 9, 2)
        assert batch.mask.sum(axis=1).tolist() == batch.lens.tolist()
        assert batch.info["source"].tolist() == ["default", "other"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mode": "window"}, ValueError, "length is an integer from 1"),
        ({"mode": "window", "length": 0}, ValueError, "length is an integer from 1"),
        ({"mode": "window", "length": 2, "stride": 0}, ValueError, "stride is an integer from 1"),
        ({"mode": "window", "length": 2, "burn_in": -1}, ValueError, "burn_in is an integer"),
        ({"mode": "window", "length": 2, "n_step": 3}, ValueError, "mode 'window' takes no n_step"),
        ({"mode": "trajectory", "length": 2}, ValueError, "mode 'trajectory' takes no length"),
        ({"mode": "trajectory", "include_partial": 1}, TypeError, "include_partial is True or"),
        ({"sequence_fields": ["obs"]}, ValueError, "takes no sequence_fields, .* goes with n_step"),
        ({"mode": "n_step", "sequence_fields": ["no"]}, FieldError, "unknown field 'no'"),
        ({"stack": {"obs": 0}}, FieldError, "number of frames from 1 to 1000, got 0"),
        ({"stack": {"obs": 1_001}}, FieldError, "number of frames from 1 to 1000, got 1001"),
        ({"terminal_field": "done"}, FieldError, "terminal_field: unknown field 'done'"),
        ({"mode": "step", "fields": ["discount"]}, FieldError, "unknown field 'discount'"),
        ({"mode": "trajectory", "fields": ["no"]}, FieldError, "unknown field 'no'"),
    ],
)
def test_options_that_a_mode_does_not_take_are_refused_at_the_door(options, error, message):
    with (
        ReplayBuffer("sqlite://", fields=FIELDS) as buffer,
        pytest.raises(error, match=message),
    ):
        buffer.loader(**options)
