"""A mirror draws what the buffer itself draws."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import FifoSampler, LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from tests.support.episodes import EPISODES, FIELDS, Made, empty, store
from tests.support.mirrors import assert_same_batches, assert_same_draws, every_row

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


@pytest.mark.thorough
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


@pytest.mark.parametrize("n_step", [1, 3])
def test_next_observations_of_all_kinds_are_those_of_the_buffer(buffer_url, n_step):
    observed = ["obs", "image", "tokens"]
    fields = {name: VARIED[name] for name in (*observed, "name")}
    fields |= {f"next_{name}": VARIED[name] for name in observed}
    values = varied(45)
    columns = {name: values[name.removeprefix("next_")][::-1] for name in fields}
    columns |= {name: values[name] for name in (*observed, "name", "reward")}
    with ReplayBuffer(buffer_url, fields=fields, observation_fields=observed) as buffer:
        buffer.store_episode({name: column[:35] for name, column in columns.items()})
        buffer.extend({name: column[35:] for name, column in columns.items()})
        with buffer.mirror() as mirror:
            for chosen in (None, ["next_image"], ["next_obs"], ["name", "next_tokens"]):
                options = {"n_step": n_step, "fields": chosen}
                assert_same_draws(buffer, mirror, "transition", **options)
            assert_same_draws(buffer, mirror, "transition", n_step=n_step, stack={"obs": 2})


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("n_kept", [1, 40])
def test_a_seed_draws_the_same_with_plans_that_are_kept(buffer_url, replace, n_kept):
    """A mirror keeps the plans of all transitions once it has drawn some."""
    with ReplayBuffer(buffer_url, fields=NEXT) as buffer:
        numbers = np.arange(8_192, dtype=np.float32).reshape(4_096, 2)
        arrays = {"obs": numbers, "next_obs": numbers + 1, "reward": numbers[:, 0]}
        buffer.store_episode({name: values[:4_000] for name, values in arrays.items()})
        buffer.extend({name: values[4_000:] for name, values in arrays.items()})
        buffer.quarantine([seq for seq in range(1, 4_096) if seq % 43 >= n_kept + 3])
        with buffer.mirror() as mirror, buffer.mirror() as other:
            other.sample_transitions(256, n_step=3)
            drawn, of_kept = (
                [
                    one.sample_transitions(
                        4, n_step=3, sampler=RandomSampler(seed=seed, replace=replace)
                    )
                    for seed in range(3)
                ]
                for one in (mirror, other)
            )
            assert_same_batches(drawn, of_kept)


@pytest.mark.thorough
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


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_stay_the_same_while_those_of_all_steps_are_planned(buffer_url, n_step):
    n, rng = 40_000, np.random.default_rng(0)
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        for number in range(10):
            store_plain(buffer, number, n // 10)
        # The first mirror plans a part of the steps at each draw, the others just what they draw.
        with buffer.mirror() as mirror:
            for number in range(10):
                for _ in range(2):
                    mirror.sample_transitions(256, n_step=n_step)
                with buffer.mirror() as other:
                    sampled = [
                        source.sample_transitions(64, n_step=n_step, sampler=RandomSampler(seed=1))
                        for source in (mirror, other)
                    ]
                    assert_same_batches(sampled[1:], sampled[:1])
                changed = rng.integers(1, n, 20)
                buffer.annotate(changed[:10], reward=rng.random(10))
                buffer.delete(QueryBuilder().in_("seq", changed[10:].tolist()).build())
                store_plain(buffer, 100 + number, 500)


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


# Where nothing is random, a mirror has the same batches as its buffer.


ENDS = [FifoSampler(), LatestSampler()]


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
        for n in {min(1, n_steps), n_steps} - {0}:  # some examples delete their only step
            assert_same_batches(
                [buffer.sample_arrays(n, sampler=sampler)],
                [mirror.sample_arrays(n, sampler=sampler)],
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
