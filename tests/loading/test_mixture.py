"""Batches from several buffers."""

import json
import math
import pickle
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url
from torch.utils.data import DataLoader

from sqlbuffer import FifoSampler, Mixture, QueryBuilder, RandomSampler, ReplayBuffer, mix
from sqlbuffer.errors import ArgumentError, FieldError, InsufficientDataError
from sqlbuffer.mixture import split
from sqlbuffer.torch import IterableDataset
from tests.loading.rows import FIELDS, fill


@pytest.fixture
def opened():
    """Open a buffer that is closed at the end: `opened(url, name, fields=FIELDS)`."""
    with ExitStack() as stack:
        yield lambda url, name, fields=FIELDS: stack.enter_context(
            ReplayBuffer(url, name=name, fields=fields)
        )


@pytest.fixture
def demo(opened, buffer_url):
    buffer = opened(buffer_url, "demo")
    fill(buffer, 20)
    return buffer


@pytest.fixture
def online(opened, buffer_url):
    buffer = opened(buffer_url, "online")
    fill(buffer, 50, first=100)
    return buffer


def take(loader, n):
    batches = iter(loader)
    return [next(batches) for _ in range(n)]


def counts(batches):
    """Return how many rows of each source each batch has."""
    return [
        {str(name): int(n) for name, n in zip(*np.unique(b.info["source"].astype(str),
         return_counts=True), strict=True)}
        for b in batches
    ]  # fmt: skip


def test_a_batch_holds_the_exact_share_of_each_source_grouped_in_their_order(demo, online):
    batch = mix({online: 3, demo: 1}).sample_arrays(40)
    assert batch.info["source"].tolist() == ["online"] * 30 + ["demo"] * 10
    assert (batch.action[:30] >= 100).all()
    assert (batch.action[30:] < 20).all()
    assert np.array_equal(batch.obs[:, 0], batch.action)
    assert len(set(batch.info["seq"][:30].tolist())) > 5


def test_rows_left_over_go_round(demo, online):
    mixture = mix({demo: 0.5, online: 0.5})
    drawn = counts(mixture.sample_arrays(3) for _ in range(4))
    assert drawn == [{"demo": 2, "online": 1}, {"demo": 1, "online": 2}] * 2
    drawn = counts(take(mixture.loader("step", 5, seed=1), 4))
    assert drawn == [{"demo": 3, "online": 2}, {"demo": 2, "online": 3}] * 2


@pytest.mark.thorough
@pytest.mark.slow
@given(
    weights=st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    n=st.integers(0, 70),
    n_batches=st.integers(1, 60),
)
def test_shares_are_exact_in_the_long_run_and_within_one_row_in_each_batch(weights, n, n_batches):
    shares = [weight / math.fsum(weights) for weight in weights]
    credits, total = [0.0] * len(shares), np.zeros(len(shares))
    for _ in range(n_batches):
        found, credits = split(n, shares, credits)
        assert sum(found) == n
        for share, own in zip(shares, found, strict=True):
            assert math.floor(n * share - 1e-6) <= own <= math.ceil(n * share + 1e-6)
        total += found
    # As many rows off as there are sources, however many batches.
    assert np.abs(total - n_batches * n * np.array(shares)).max() <= len(shares)


def test_transitions_and_loaders_take_what_those_of_a_buffer_take(demo, online):
    for buffer, value in ((demo, 1.0), (online, 2.0)):
        buffer.clear()
        rewards = np.full(4, value)
        buffer.store_episode(
            {"obs": np.zeros((4, 2)), "action": range(4), "reward": rewards}, final={"obs": [1, 1]}
        )
    mixture = mix({demo: 1, online: 1})
    batch = mixture.sample_transitions(8, n_step=4, gamma=1.0, fields=["action"])
    expected = np.repeat([1.0, 2.0], 4) * (4 - batch.action)
    assert batch.reward.tolist() == expected.tolist()
    last = QueryBuilder().eq("exp_meta.step", 3).build()
    (batch,) = take(mixture.loader(batch_size=2, condition=last, fieldname_map={"obs": "x"}), 1)
    assert batch.action.tolist() == [3, 3]
    assert batch.x.shape == (2, 2)
    (made,) = take(mixture.loader("step", 4, to_named_tuple=("action", "info"), device="cpu"), 1)
    assert made.info["source"].tolist() == ["demo"] * 2 + ["online"] * 2
    first = mixture.sample_arrays(4, sampler=FifoSampler())
    assert first.action.tolist() == [0, 1, 0, 1]


def test_buffers_of_different_databases_are_told_apart(opened, both_urls):
    buffers = {kind: opened(url, "replay") for kind, url in both_urls.items()}
    fill(buffers["sqlite"], 10)
    fill(buffers["postgresql"], 10, first=100)
    mixture = mix(dict.fromkeys(buffers.values(), 1.0))
    batch = mixture.sample_arrays(10)
    names = batch.info["source"].tolist()
    assert names[:5] == [f"replay@{both_urls['sqlite']}"] * 5
    assert names[5].startswith("replay@postgresql")
    assert (batch.action[:5] < 100).all()
    assert (batch.action[5:] >= 100).all()


def test_passwords_are_not_in_the_names(opened, make_database_url):
    # The server of the tests asks for no password.
    url = make_url(make_database_url("postgresql", schema=True)).set(password="secret")
    buffer = opened(url, "a")
    mixture = mix({buffer: 1, opened("sqlite://", "a"): 1})
    assert "secret" not in repr(mixture)
    assert "a@postgresql" in repr(mixture)


def test_buffers_in_memory_of_one_name_are_numbered(opened):
    mixture = mix({opened("sqlite://", "a"): 1, opened("sqlite://", "a"): 1})
    assert list(mixture.weights) == ["a@sqlite://#0", "a@sqlite://#1"]


def test_an_empty_source_raises_or_gives_its_share_to_the_others(demo, online):
    demo.clear()
    with pytest.raises(InsufficientDataError, match="demo: asked for 4, and 0 match"):
        mix({demo: 1, online: 1}).sample_arrays(8)
    with pytest.raises(InsufficientDataError, match="demo: asked for 4, and 0 match"):
        take(mix({demo: 1, online: 1}).loader("step", 8), 1)
    mixture = mix({demo: 1, online: 1}, on_empty="redistribute")
    loader = iter(mixture.loader("step", 8, seed=1))
    assert counts([mixture.sample_arrays(8), next(loader)]) == [{"online": 8}] * 2
    fill(demo, 10)  # and takes part as soon as it has something
    assert counts([mixture.sample_arrays(8), next(loader)]) == [{"demo": 4, "online": 4}] * 2
    demo.clear()
    online.clear()
    with pytest.raises(InsufficientDataError, match="none of demo, online has anything"):
        mixture.sample_arrays(8)


def test_a_source_with_too_few_is_named(demo, online):
    loader = mix({demo: 1, online: 1}, on_empty="redistribute").loader("step", 60)
    with pytest.raises(InsufficientDataError, match="demo: asked for 30, and 20 match"):
        take(loader, 1)
    assert take(mix({demo: 1, online: 1}).loader("step", 60, replace=True), 1)[0].n_rows == 60


def test_a_seed_repeats_the_batches_and_each_source_has_its_own_numbers(opened, buffer_url):
    buffers = [opened(buffer_url, name) for name in "ab"]
    for buffer in buffers:
        fill(buffer, 100)
    mixture = mix(dict.fromkeys(buffers, 1))
    for options in ({"seed": 5}, {"sampler": RandomSampler(seed=5)}):
        first, second = (
            [b.action.tolist() for b in take(mixture.loader("step", 16, **options), 3)]
            for _ in range(2)
        )
        assert first == second
        assert all(batch[:8] != batch[8:] for batch in first)


def test_a_state_resumes_a_mixture(demo, online):
    mixture = mix({demo: 2, online: 1})
    loader = mixture.loader("step", 4, seed=3, prefetch=2)
    batches = iter(loader)
    next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = [next(batches).action.tolist() for _ in range(3)]
    batches.close()
    again = pickle.loads(pickle.dumps(mixture)).loader("step", 4)
    again.load_state_dict(state)
    assert [batch.action.tolist() for batch in take(again, 3)] == rest
    with pytest.raises(ValueError, match="mixture="):
        mix({demo: 1, online: 1}).loader("step", 4, seed=3).load_state_dict(state)
    with pytest.raises(ValueError, match="damaged"):
        again.load_state_dict({**state, "credits": [0.0]})
    with pytest.raises(ValueError, match="here it is"):
        demo.loader("step", 4).load_state_dict(state)


@pytest.mark.thorough
def test_workers_draw_from_a_mixture(demo, online):
    dataset = IterableDataset(mix({demo: 1, online: 1}).loader("step", 8, seed=1))
    loader = DataLoader(dataset, None, num_workers=2, multiprocessing_context="fork", timeout=60)
    found = take(loader, 4)
    assert all(batch["info"]["source"].tolist() == ["demo"] * 4 + ["online"] * 4 for batch in found)
    assert len({tuple(batch["action"].tolist()) for batch in found}) == 4


def test_values_of_varying_length_are_padded_to_the_longest_of_all_sources(opened):
    buffers = [opened("sqlite://", name, {"tokens": ("int64", (-1,))}) for name in "ab"]
    for buffer, n in zip(buffers, (2, 5), strict=True):
        buffer.extend({"tokens": [np.full(n, n)] * 3})
    batch = mix(dict.fromkeys(buffers, 1)).sample_arrays(2)
    assert batch.tokens.tolist() == [[2, 2, 0, 0, 0], [5] * 5]
    assert batch.tokens_lens.tolist() == [2, 5]


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"obs": ("float32", (3,)), "action": "int64"}, r"'obs' is float32\(2,\), observed in a"),
        ({"obs": ("float32", (2,)), "action": "int32"}, "'action' is int64 in a and int32 in b"),
        ({"obs": ("float32", (2,))}, "'action' is int64 in a and not declared in b"),
        ({**FIELDS, "more": "int8"}, "'more' is not declared in a and int8 in b"),
    ],
)
def test_fields_that_differ_are_named_with_both_sources(opened, fields, shown):
    first, other = opened("sqlite://", "a"), opened("sqlite://", "b", fields)
    with pytest.raises(FieldError, match=f"field {shown}"):
        mix({first: 1, other: 1})


def test_fields_that_are_asked_for_may_be_some_of_those_declared(opened):
    first, other = opened("sqlite://", "a"), opened("sqlite://", "b", {**FIELDS, "more": "int8"})
    fill(first, 3)
    other.extend({"obs": [[1, 2]], "action": [7], "more": [1]})
    mixture = mix({first: 1, other: 1}, fields=["action", "reward"])
    assert sorted(mixture.sample_arrays(4)) == ["action", "reward"]
    assert sorted(take(mixture.loader("step", 2, fields=["action"]), 1)[0]) == ["action"]
    with pytest.raises(FieldError, match="unknown field 'speed'"):
        mix({first: 1, other: 1}, fields=["speed"])


def test_what_cannot_be_mixed_says_so(opened):
    buffer = opened("sqlite://", "a")
    for weight in (0, -1, float("nan"), float("inf"), True, "1", None):
        with pytest.raises(ArgumentError, match="the weight of 'a' in sources is a number above 0"):
            mix({buffer: weight})
    for sources in ({}, [buffer], None):
        with pytest.raises(ValueError, match="with one buffer or more"):
            mix(sources)
    with pytest.raises(TypeError, match=r"each key of sources is a ReplayBuffer, .* got 'a'"):
        mix({"a": 1.0})
    with pytest.raises(ValueError, match="on_empty is one of raise, redistribute"):
        mix({buffer: 1}, on_empty="ignore")
    mixture = mix({buffer: 1e308, opened("sqlite://", "b"): 1e308})
    assert list(mixture.weights.values()) == [0.5, 0.5]
    for options in ({"epochs": 1}, {"shuffle": False}):
        with pytest.raises(ValueError, match="a mixture is drawn without end"):
            mixture.loader("step", **options)
    with pytest.raises(ValueError, match="mode is one of"):
        mixture.loader("steps")
    with pytest.raises(TypeError, match="batch_sizes"):
        mixture.loader("step", batch_sizes=3)
    for batch_size in (0, -1, 2.5, None):
        with pytest.raises((TypeError, ValueError), match="batch"):
            mixture.sample_arrays(batch_size)
    assert isinstance(mixture, Mixture)
