"""Windows, episodes and stacks that a mirror draws are those of its buffer, as often as each."""

import tracemalloc
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import (
    Batch,
    FifoSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    ReplayBuffer,
)
from sqlbuffer.errors import InsufficientDataError
from tests.support.episodes import EPISODES, FIELDS, arrays_of, empty, observation, store
from tests.support.episodes import Made as Episode
from tests.support.mirrors import assert_same_batches, every_row, rows_of

# Arguments far beyond what is there, and the least that mean the same.
BEYOND = [
    ("transition", {"n_step": 999_999}, {"n_step": 7}),
    ("n_step", {"n_step": 3_000, "sequence_fields": ["obs", "reward"]}, {"n_step": 7}),
    ("window", {"length": 3_000, "burn_in": 2_000}, {"length": 7, "burn_in": 7}),
    ("window", {"length": 999, "stack": {"obs": 3}}, {"length": 7}),
]
VARIED = {"obs": ("float32", (2,)), "image": ("uint8", (40, 40)), "tokens": ("int32", (-1,))}
FORMS = [
    ("window", {"length": 3, "burn_in": 2}),
    ("window", {"length": 4, "stride": 3, "stack": {"obs": 2}}),
    ("trajectory", {}),
    ("trajectory", {"include_partial": True}),
]


def sampled_transitions(buffer, mirror):
    for source in (buffer, mirror):
        source.sample_transitions(64, n_step=10**6)
        source.sample_transitions(4, n_step=3, stack={"obs": 1_000})
        next(iter(source.loader("n_step", 64, n_step=10**5)))
        next(iter(source.loader("window", 2, length=2_000, stack={"obs": 20})))


def sampled_rows(buffer, mirror):
    assert len(buffer.sample(10**12, sampler=PrioritizedSampler(replace=False))) == 1_000
    for sampler in (PrioritizedSampler(replace=False), RandomSampler(), FifoSampler()):
        for source in (buffer, mirror):
            with pytest.raises(InsufficientDataError, match="and 1000 match"):
                source.sample_arrays(2**40, sampler=sampler)


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True, max_capacity=1_000) as buffer:
        yield buffer


def columns(n):
    t = np.arange(n)
    return {"obs": np.stack([t, t], 1).astype("f4"), "action": t, "reward": t.astype(float)}


def drawn(loader, n_batches):
    """Return how often each thing was drawn, by the number of its key."""
    seqs = np.concatenate([batch.info["seq"] for batch in islice(loader, n_batches)])
    return dict(zip(*(each.tolist() for each in np.unique(seqs, return_counts=True)), strict=True))


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "options"), FORMS)
def test_each_thing_is_drawn_as_often(buffer, mode, options):
    for number in range(60):
        buffer.store_episode(columns(9 + number % 7), episode_id=f"e{number}")
        buffer.extend(columns(3))
    buffer.delete(QueryBuilder().eq("exp_meta.step", 5).and_().lt("seq", 300).build())
    buffer.quarantine([400, 401, 650])
    expected = every_row(buffer, mode, **options)
    n_batches = -(-40 * len(expected) // 64)
    with buffer.mirror() as mirror:
        found = drawn(mirror.loader(mode, 64, replace=True, seed=5, **options), n_batches)
    assert sorted(found) == sorted(expected)
    assert chisquare(list(found.values())).pvalue > 1e-4


@pytest.mark.thorough
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPISODES, st.sampled_from(FORMS))
def test_draws_without_replacement_are_all_there_is(buffer_url, buffer, episodes, form):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, episodes)
    mode, options = form
    expected = every_row(buffer, mode, **options)
    with buffer.mirror() as mirror:
        if expected:
            batch = next(iter(mirror.loader(mode, len(expected), **options)))
            own = rows_of(batch)
            assert sorted(own) == sorted(expected)
        with pytest.raises(InsufficientDataError, match=f"and {len(expected)} match"):
            next(iter(mirror.loader(mode, len(expected) + 1, **options)))


@pytest.mark.parametrize(("mode", "options"), FORMS)
def test_fields_of_all_kinds_are_padded_as_those_of_the_buffer(buffer_url, mode, options):
    with ReplayBuffer(buffer_url, fields=VARIED, compression="zstd") as buffer:
        rng = np.random.default_rng(0)
        for number in range(6):
            n = 4 + number
            arrays = {
                "obs": rng.random((n, 2)),
                "image": rng.integers(0, 256, (n, 40, 40), np.uint8),
                "tokens": [np.arange((i + number) % 5) for i in range(n)],
                "reward": np.where(np.arange(n) == 2, np.nan, np.arange(n)),
            }
            buffer.store_episode(arrays, episode_id=f"ä{number}", final={"obs": [number, 0]})
        stacked = {"stack": {"image": 3}} if mode == "window" else {}
        given = {"epochs": 1, "shuffle": False, **options, **stacked}
        with buffer.mirror() as mirror:
            for size in (1, 5):
                assert_same_batches(
                    buffer.loader(mode, size, **given), mirror.loader(mode, size, **given)
                )


@pytest.mark.parametrize(("mode", "options"), FORMS)
def test_an_empty_buffer_has_none(buffer, mode, options):
    with buffer.mirror() as mirror:
        for n_steps in (0, 2):
            if n_steps:
                buffer.extend(columns(n_steps))
                buffer.quarantine([1])
                mirror.refresh()
            assert list(mirror.loader(mode, 4, epochs=1, **options)) == []
            with pytest.raises(InsufficientDataError, match="and 0 match"):
                next(iter(mirror.loader(mode, 4, **options)))


def test_windows_end_before_the_head_and_before_holes(buffer):
    with buffer.mirror() as mirror, buffer.episode(episode_id="open") as episode:
        for t in range(40):
            episode.append(obs=[0, t], action=t, reward=0.0)
            if t % 10 == 9:
                buffer.flush()
        buffer.delete(QueryBuilder().eq("exp_meta.step", 20).build())
        mirror.refresh()
        batch = mirror.sample_transitions(2_000, n_step=3)
        assert set(batch.action.tolist()) == {*range(17), *range(21, 37)}
        windows = next(iter(mirror.loader("window", 2_000, length=5, burn_in=3, replace=True)))
        assert set(windows.info["t"].tolist()) == {*range(16), *range(21, 36)}
        steps = np.where(windows.mask, windows.action, -1)
        is_next = np.diff(steps) == 1
        assert is_next[windows.mask[:, 1:] & windows.mask[:, :-1]].all()
        assert not (steps == 20).any()


def test_stacks_after_terminal_and_final_observations_are_those_of_the_buffer(buffer):
    for number, made in enumerate([Episode(4), Episode(4, final=True), Episode(1, final=True)]):
        final = {"obs": observation(number, 1_000)} if made.final else None
        buffer.store_episode(arrays_of(number, made), episode_id=f"s{number}", final=final)
    given = {"epochs": 1, "shuffle": False, "stack": {"obs": 3}, "n_step": 2}
    with buffer.mirror() as mirror:
        assert_same_batches(
            buffer.loader("transition", 4, **given), mirror.loader("transition", 4, **given)
        )


STEPS = [("step", {}), ("transition", {"skip_single": True})]


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize(("mode", "options"), [*STEPS, *FORMS])
def test_a_seed_repeats_the_batches_of_another_mirror(buffer, mode, options):
    """Where steps are in memory, which differs, does not matter."""
    with buffer.mirror() as old:
        for number in range(30):
            buffer.store_episode(columns(60), episode_id=f"e{number}")
            buffer.extend(columns(number))
            old.refresh()
        buffer.delete(QueryBuilder().eq("exp_meta.step", 11).and_().lt("seq", 1_600).build())
        old.refresh()
        with buffer.mirror() as new:
            assert_same_batches(
                islice(old.loader(mode, 8, seed=3, replace=True, **options), 5),
                islice(new.loader(mode, 8, seed=3, replace=True, **options), 5),
            )
            if mode == "step":
                samplers = [RandomSampler(seed=1), RandomSampler(seed=1)]
                for _ in range(3):
                    assert_same_batches(
                        [old.sample_arrays(200, sampler=samplers[0])],
                        [new.sample_arrays(200, sampler=samplers[1])],
                    )


@pytest.mark.thorough
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EPISODES)
def test_arguments_beyond_what_is_there_change_nothing_but_zeros(buffer_url, buffer, episodes):
    empty(buffer, buffer_url)
    store(buffer, buffer_url, episodes)
    with buffer.mirror() as mirror:
        for mode, beyond, least in BEYOND:
            for source in (buffer, mirror):
                given = {"epochs": 1, "shuffle": False}
                expected, found = (
                    list(source.loader(mode, 500, **given, **options))
                    for options in (beyond | least, beyond)
                )
                assert_same_but_zeros(
                    expected, found, beyond.get("burn_in", 0) - least.get("burn_in", 0)
                )


def assert_same_but_zeros(expected, found, n_before):
    for batch, larger in zip(expected, found, strict=True):
        arrays = {}
        for name, values in larger.items():
            n = batch[name].shape[1] if batch[name].ndim > 1 else None
            if n is not None and values.shape[1] > n:
                rest = np.delete(values, np.s_[n_before : n_before + n], axis=1)
                assert not rest.any()
                values = values[:, n_before : n_before + n]
            arrays[name] = values
        info = {
            **larger.info,
            **{name: batch.info[name] for name in ("burn_in",) if name in batch.info},
        }
        assert_same_batches([batch], [Batch(arrays, info)])


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("make", [sampled_transitions, sampled_rows])
def test_memory_depends_on_what_is_there(buffer, make):
    for number in range(20):
        buffer.store_episode(columns(50), episode_id=f"e{number}", final={"obs": [0, 0]})
    with buffer.mirror() as mirror:
        make(buffer, mirror)  # imports, and compiles statements
        tracemalloc.start()
        try:
            make(buffer, mirror)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < 16 * 2**20
