"""Goals in hindsight are those of a plain reference, by SQL and from a mirror."""

import asyncio
import pickle
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from sqlbuffer import (
    FifoSampler,
    HindsightGoals,
    PrioritizedSampler,
    QueryBuilder,
    RandomSampler,
    ReplayBuffer,
    mix,
)
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import ArgumentError, FieldError, InsufficientDataError
from tests.support.mirrors import assert_same_batches

OBSERVED = {
    "obs_observation": ("float32", (2,)),
    "obs_achieved_goal": ("float32", (2,)),
    "obs_desired_goal": ("float32", (2,)),
}
FIELDS = {**OBSERVED, "action": "int64"}
GAMMA = 0.9
STRATEGIES = ["future", "final", "episode"]


def near(achieved_goal, desired_goal, infos):
    """Return -distance, and whether it is at most one step."""
    distance = np.abs(achieved_goal - desired_goal).sum(axis=-1)
    return -distance - infos["action"] / 64, distance <= 1


def goals_of(strategy="future", **options):
    return HindsightGoals(**{"reward_fn": near, "strategy": strategy, **options})


@dataclass(frozen=True)
class World:
    """An episode, and what became of it.

    Attributes:
        n: Number of steps.
        end: `terminated`, `truncated`, or `open`.
        final: The observation after the last step is stored.
        deleted: Places of steps that were deleted.
        quarantined: Places of steps in quarantine.
    """

    n: int
    end: str = "truncated"
    final: bool = True
    deleted: frozenset[int] = frozenset()
    quarantined: frozenset[int] = frozenset()

    def goals(self, has_next):
        """Return the places after which a goal was achieved that may be chosen."""
        if self.end == "open":
            return []

        def is_there(t):
            return t < self.n and t not in self.deleted and t not in self.quarantined

        if has_next:
            return [t for t in range(self.n) if is_there(t)]
        ends = {self.n} if self.final else set()
        return [t for t in range(self.n) if is_there(t) and (is_there(t + 1) or t + 1 in ends)]


WORLDS = st.lists(
    st.builds(
        World,
        st.integers(1, 7),
        st.sampled_from(["terminated", "truncated", "truncated", "open"]),
        st.sampled_from([True, True, False]),
        st.frozensets(st.integers(0, 6), max_size=2),
        st.frozensets(st.integers(0, 6), max_size=1),
    ),
    min_size=1,
    max_size=4,
)


def observed(number: int, t: int) -> dict[str, Any]:
    return {
        "obs_observation": np.array([number, -t], np.float32),
        "obs_achieved_goal": np.array([number, t], np.float32),
        "obs_desired_goal": np.array([number, 50], np.float32),
    }


def opened(url, name="default", has_next=False, **options):
    fields = {**FIELDS, **({f"next_{k}": v for k, v in OBSERVED.items()} if has_next else {})}
    return ReplayBuffer(url, name, fields=fields, observation_fields=[*OBSERVED], **options)


def store(buffer, worlds, has_next=False):
    for number, world in enumerate(worlds):
        with_episode(buffer, number, world, has_next)
        rows = {row.exp_meta.step: row.seq for row in buffer.get_by_task_id(f"e{number}")}
        for places, call in (
            (world.quarantined, buffer.quarantine),
            (world.deleted, buffer.delete),
        ):
            if seqs := [rows[t] for t in places if t < world.n]:
                call(seqs)


def with_episode(buffer, number, world, has_next=False):
    episode = buffer.episode(task_id=f"e{number}", episode_id=f"e{number}")
    for t in range(world.n):
        is_last = t == world.n - 1
        after = observed(number, t + 1)
        episode.append(
            **observed(number, t),
            **({f"next_{k}": v for k, v in after.items()} if has_next else {}),
            action=t,
            reward=float(number),
            terminated=is_last and world.end == "terminated",
            truncated=is_last and world.end == "truncated",
        )
    if world.end == "open":
        episode.leave()
    else:
        has_final = world.final and not has_next
        episode.finish(observed(number, world.n) if has_final else None)


def check_rows(batch, worlds, strategy, has_next):
    """Check each row of a batch, from the episodes as they were stored."""
    t_of_goals = batch.info["goal_seq"] - batch.info["seq"] + batch.info["t"]
    for i, (key, t) in enumerate(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True)):
        number = int(key[1:])
        world, before, after = worlds[number], observed(number, t), observed(number, t + 1)
        ends, places = (
            t == world.n - 1 and world.end == "terminated",
            worlds[number].goals(has_next),
        )
        reward, goal = float(number), before["obs_desired_goal"]
        assert t in places
        if batch.info["relabelled"][i]:
            chosen = int(t_of_goals[i])
            can_be = {"future": [p for p in places if p >= t], "final": places[-1:]}
            assert chosen in can_be.get(strategy, places)
            goal = observed(number, chosen + 1)["obs_achieved_goal"]
            reward, ends = near(after["obs_achieved_goal"], goal, {"action": t})
        else:
            assert batch.info["goal_seq"][i] == -1
        for name in OBSERVED:
            is_goal = name == "obs_desired_goal"
            np.testing.assert_array_equal(batch[name][i], goal if is_goal else before[name])
            np.testing.assert_array_equal(
                batch[f"next_{name}"][i], goal if is_goal else after[name]
            )
        assert batch.reward[i] == np.float32(reward)
        assert batch.terminated[i] == ends
        assert batch.discount[i] == np.float32(0 if ends else GAMMA)
        assert batch.action[i] == t


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(worlds=WORLDS, strategy=st.sampled_from(STRATEGIES), has_next=st.booleans())
def test_every_row_is_that_of_the_reference(buffer_url, worlds, strategy, has_next):
    with opened(buffer_url, f"next-{has_next}", has_next) as buffer:
        buffer.clear()
        store(buffer, worlds, has_next)
        places = {(f"e{i}", t) for i, w in enumerate(worlds) for t in w.goals(has_next)}
        with buffer.mirror() as mirror:
            for source in (buffer, mirror):
                draw = {"gamma": GAMMA, "relabel": goals_of(strategy)}
                if not places:
                    with pytest.raises(InsufficientDataError):
                        source.sample_transitions(4, **draw)
                    continue
                batch = source.sample_transitions(600, **draw)
                check_rows(batch, worlds, strategy, has_next)
                drawn = set(zip(batch.info["episode"], batch.info["t"].tolist(), strict=True))
                assert drawn == places  # 28 at most: one is missed with a chance of 1e-8


SOURCES = pytest.mark.parametrize("is_mirror", [False, True], ids=["sql", "mirror"])


@pytest.fixture
def buffer(buffer_url):
    with opened(buffer_url, priorities=True) as buffer:
        yield buffer


def source_of(buffer, is_mirror):
    """Return the buffer, or a mirror of it, which ends with it."""
    return buffer.mirror() if is_mirror else buffer


HOLES = World(12, deleted=frozenset({4}), quarantined=frozenset({9}))


@SOURCES
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_goals_are_uniform_over_the_steps_that_are_left(buffer, is_mirror, strategy):
    store(buffer, [HOLES, World(5)])
    places = HOLES.goals(False)
    assert places == [0, 1, 2, 5, 6, 7, 10, 11]
    goals = goals_of(strategy, n_sampled_goal=1_000)
    batch = source_of(buffer, is_mirror).sample_transitions(
        6_000, relabel=goals, gamma=GAMMA, sampler=RandomSampler(replace=True, seed=3)
    )
    check_rows(batch.__class__(*first(batch, 200)), [HOLES, World(5)], strategy, False)
    chosen = batch.info["goal_seq"] - batch.info["seq"] + batch.info["t"]
    is_of_first = (batch.info["episode"] == "e0") & batch.info["relabelled"]
    for t in places[:-1]:
        can_be = places if strategy == "episode" else [place for place in places if place >= t]
        of_step = chosen[is_of_first & (batch.info["t"] == t)]
        counts = [int((of_step == place).sum()) for place in can_be]
        assert sum(counts) == len(of_step) > 300
        assert chisquare(counts).pvalue > 1e-4  # at a fixed seed; 7 tests


def first(batch, n):
    """Return the first rows of a batch, as arguments of `Batch`."""
    arrays = {name: values[:n] for name, values in batch.items()}
    return arrays, {name: values[:n] for name, values in batch.info.items()}


@SOURCES
@pytest.mark.parametrize(("batch_size", "n"), [(1, 4), (10, 4), (7, 1)])
def test_the_share_of_relabelled_rows_is_exact_on_average(buffer, is_mirror, batch_size, n):
    store(buffer, [World(9)])
    source, sampler = source_of(buffer, is_mirror), RandomSampler(replace=True, seed=5)
    counts = [
        int(
            source.sample_transitions(
                batch_size, sampler=sampler, relabel=goals_of(n_sampled_goal=n)
            ).info["relabelled"].sum()
        )
        for _ in range(60)
    ]  # fmt: skip
    share = batch_size * n / (n + 1)
    assert set(counts) <= {int(share), int(np.ceil(share))}
    assert np.mean(counts) == pytest.approx(share, abs=0.25)  # four deviations


@SOURCES
def test_a_seeded_sampler_repeats_goals_too(buffer, is_mirror):
    store(buffer, [World(12, deleted=frozenset({4})), World(30), World(7)])
    source = source_of(buffer, is_mirror)
    for sampler in (RandomSampler, PrioritizedSampler):
        batches = [
            [source.sample_transitions(32, relabel=goals_of(), sampler=seeded) for _ in range(2)]
            for seeded in (sampler(seed=3, replace=True), sampler(seed=3, replace=True))
        ]
        assert_same_batches(*batches)
        one, other = batches[0]
        assert not np.array_equal(one.info["goal_seq"], other.info["goal_seq"])


@SOURCES
def test_conditions_samplers_and_fields_are_those_of_transitions(buffer, is_mirror):
    worlds = [HOLES, World(30, "terminated"), World(7)]
    store(buffer, worlds)
    source, draw = source_of(buffer, is_mirror), {"relabel": goals_of(), "gamma": GAMMA}
    condition = QueryBuilder().eq("task_id", "e1").and_().gte("step", 20)
    batch = source.sample_transitions(64, condition=condition, **draw)
    check_rows(batch, worlds, "future", False)
    assert set(batch.info["t"]) <= set(range(20, 30))

    seqs = batch.info["seq"][:1]
    buffer.update_priorities(seqs, [1e9])
    batch = source.sample_transitions(64, sampler=PrioritizedSampler(seed=1), **draw)
    check_rows(batch, worlds, "future", False)
    assert (batch.info["seq"] == seqs[0]).mean() > 0.9
    assert batch.weights.shape == (64,)

    batch = source.sample_transitions(8, sampler=FifoSampler(), **draw)
    assert batch.info["seq"].tolist() == sorted(batch.info["seq"].tolist())
    check_rows(batch, worlds, "future", False)

    batch = source.sample_transitions(8, fields=["action", "truncated"], **draw)
    assert {*batch} == {
        "action", "reward", "discount", "terminated", "truncated", "obs_achieved_goal",
        "obs_desired_goal", "next_obs_achieved_goal", "next_obs_desired_goal",
    }  # fmt: skip
    plain = source.sample_transitions(8)
    assert {*source.sample_transitions(8, **draw)} == {*plain}


@SOURCES
def test_steps_that_were_evicted_are_not_chosen(buffer_url, is_mirror):
    with opened(buffer_url, "ring", max_capacity=30) as buffer:
        worlds = [World(20), World(25), World(4, "open")]
        store(buffer, worlds)
        source = source_of(buffer, is_mirror)
        batch = source.sample_transitions(500, gamma=GAMMA, relabel=goals_of("episode"))
        check_rows(batch, worlds, "episode", False)
        assert batch.info["goal_seq"][batch.info["relabelled"]].min() == 20  # 49 - 30 + 1
        # The rest of e0 has left but for one step.
        assert set(batch.info["episode"]) == {"e0", "e1"}


@SOURCES
def test_episodes_that_were_written_at_the_same_time_are_kept_apart(buffer_url, is_mirror):
    with opened(buffer_url, "many", flush_s=0.001) as buffer:
        episodes = [buffer.episode(task_id=f"e{i}", episode_id=f"e{i}") for i in range(5)]
        for t in range(9):
            for number, episode in enumerate(episodes):
                episode.append(**observed(number, t), action=t, reward=float(number))
            buffer.flush()
        for number, episode in enumerate(episodes):
            episode.finish(observed(number, 9))
        source = source_of(buffer, is_mirror)
        for strategy in STRATEGIES:
            batch = source.sample_transitions(200, gamma=GAMMA, relabel=goals_of(strategy))
            goals = batch.obs_desired_goal[batch.info["relabelled"]]
            numbers = batch.obs_observation[batch.info["relabelled"], 0]
            np.testing.assert_array_equal(goals[:, 0], numbers)
            assert goals[:, 1].max() == 9
            assert goals[:, 1].min() >= (9 if strategy == "final" else 1)


def rewards_alone(achieved_goal, desired_goal, infos):
    assert {"action", "obs_observation", "reward", "terminated", "next_obs_observation"} <= {*infos}
    assert all(len(infos[name]) == len(achieved_goal) for name in infos)
    assert infos["reward"].max() <= 2
    np.testing.assert_array_equal(infos["obs_desired_goal"], desired_goal)
    return (infos["action"] + 100).astype(int)


@SOURCES
def test_without_ends_of_the_function_the_stored_ones_stay(buffer, is_mirror):
    store(buffer, [World(2, "terminated"), World(3)])
    goals = goals_of(reward_fn=rewards_alone)
    batch = source_of(buffer, is_mirror).sample_transitions(200, gamma=GAMMA, relabel=goals)
    np.testing.assert_array_equal(
        batch.terminated, (batch.info["episode"] == "e0") & (batch.info["t"] == 1)
    )
    np.testing.assert_array_equal(batch.discount, np.where(batch.terminated, 0, np.float32(GAMMA)))
    is_new = batch.info["relabelled"]
    np.testing.assert_array_equal(batch.reward[is_new], batch.action[is_new] + 100)
    assert batch.reward[~is_new].max() <= 2


@SOURCES
def test_goals_may_have_other_names(buffer_url, is_mirror):
    names = {"achieved_goal": "place", "desired_goal": "ziel_é"}
    image = ("uint8", (3, 8, 8))
    with ReplayBuffer(
        buffer_url, "images", fields=dict.fromkeys(names.values(), image), compression="zstd",
        observation_fields=[*names.values()],
    ) as buffer:  # fmt: skip
        frames = np.arange(6, dtype=np.uint8)[:, None, None, None] + np.zeros(image[1], np.uint8)
        columns = {"place": frames[:5], "ziel_é": frames[:5] + 100, "reward": np.zeros(5)}
        buffer.store_episode(
            columns, final={"place": frames[5], "ziel_é": frames[5]}, truncated=True
        )

        def distance(achieved, desired, infos):
            return (desired[:, 0, 0, 0].astype(int) - achieved[:, 0, 0, 0]) / 1.0

        goals = HindsightGoals(reward_fn=distance, **names)
        batch = source_of(buffer, is_mirror).sample_transitions(100, relabel=goals)
        is_new = batch.info["relabelled"]
        goal = batch["ziel_é"][:, 0, 0, 0].astype(int)
        np.testing.assert_array_equal(
            batch.reward[is_new], goal[is_new] - batch.info["t"][is_new] - 1
        )
        assert (goal[is_new] <= 5).all()
        assert (goal[~is_new] >= 100).all()
        np.testing.assert_array_equal(batch["next_ziel_é"][is_new], batch["ziel_é"][is_new])


# Loaders.


@SOURCES
@pytest.mark.parametrize(
    "options", [{"seed": 3, "replace": True}, {"seed": 3, "epochs": 2}, {"shuffle": False}]
)
def test_a_loader_repeats_and_resumes_its_goals(buffer, is_mirror, options):
    worlds = [HOLES, World(30), World(7)]
    store(buffer, worlds)
    source = source_of(buffer, is_mirror)
    options = {"relabel": goals_of("episode"), "gamma": GAMMA, "seed": 4, **options}

    def batches(n, state=None):
        loader = source.loader("transition", 16, **options)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        return list(islice(iterator, n)), loader.state_dict()

    whole, _ = batches(6)
    before, state = batches(2)
    after, _ = batches(4, state)
    assert_same_batches(whole, [*before, *after])
    for batch in whole:
        check_rows(batch, worlds, "episode", False)
    if "epochs" in options or "shuffle" in options:
        n_items = sum(len(world.goals(False)) for world in worlds)
        first_pass = sum(batch.n_rows for batch in whole[:3])
        assert first_pass == n_items == 45
        rows = [whole[i].info["goal_seq"][np.argsort(whole[i].info["seq"])] for i in (0, 3)]
        assert not np.array_equal(*rows)  # another pass has other goals


def test_a_mixture_and_a_coroutine_relabel(buffer_url, buffer):
    worlds = [World(6), World(9)]
    store(buffer, worlds)
    mixture = mix({buffer: 1.0})
    check_rows(
        mixture.sample_transitions(40, gamma=GAMMA, relabel=goals_of()), worlds, "future", False
    )

    async def drawn():
        async with await AsyncReplayBuffer.open(buffer_url) as other:
            return await other.sample_transitions(40, gamma=GAMMA, relabel=goals_of())

    check_rows(asyncio.run(drawn()), worlds, "future", False)


def test_a_loader_is_pickled_with_a_function_that_can_be(buffer):
    store(buffer, [World(6)])
    loader = pickle.loads(pickle.dumps(buffer.loader("transition", 4, relabel=goals_of(), seed=1)))
    assert next(iter(loader)).info["relabelled"].any()
    local = buffer.loader("transition", 4, relabel=goals_of(reward_fn=lambda *_: 0))
    with pytest.raises(ArgumentError, match=r"reward_fn .* cannot be pickled.*top level"):
        pickle.dumps(local)


# What is refused.


def test_uses_of_a_batch_are_given_back_if_its_rewards_fail(buffer_url):
    with opened(buffer_url, "uses", max_use=2, track_samples=True) as buffer:
        store(buffer, [World(6)])

        def fails(*_):
            raise ZeroDivisionError("of the user")

        for _ in range(5):
            with pytest.raises(ZeroDivisionError, match="of the user"):
                buffer.sample_transitions(6, relabel=goals_of(reward_fn=fails))
        without = RandomSampler()
        for _ in range(2):
            batch = buffer.sample_transitions(6, relabel=goals_of(), sampler=without)
            assert batch.info["relabelled"].sum() in (4, 5)
        with pytest.raises(InsufficientDataError, match="sampled 2 times"):
            buffer.sample_transitions(1, relabel=goals_of(), sampler=without)


@SOURCES
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (0.0, r"numbers of shape \(8,\).*got float64 of shape \(\)"),
        (np.zeros((8, 1)), r"got float64 of shape \(8, 1\)"),
        (np.zeros(7), r"got float64 of shape \(7,\)"),
        (["far"] * 8, "got .*far"),
        (None, "got None"),
        (np.full(8, np.nan), "reward nan in row 0 of 8"),
        (np.full(8, 1e300), "finite numbers of float32"),
        ((np.zeros(8), np.zeros(3)), r"terminated, got float64 of shape \(3,\)"),
        ((np.zeros(8), np.full(8, 2)), "terminated, got int64"),
        ((np.zeros(8), np.zeros(8), np.zeros(8)), "tuple of 3"),
    ],
)
def test_wrong_results_of_the_function_are_named(buffer, is_mirror, result, message):
    store(buffer, [World(6)])
    goals = goals_of(reward_fn=lambda *_: result)
    with pytest.raises(ArgumentError, match=message):
        source_of(buffer, is_mirror).sample_transitions(10, relabel=goals)


@SOURCES
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"relabel": goals_of(), "n_step": 3}, ArgumentError, "n_step=1, got n_step=3"),
        ({"relabel": "future"}, ArgumentError, "relabel is HindsightGoals"),
        ({"relabel": near}, ArgumentError, "relabel is HindsightGoals"),
        (
            {"relabel": goals_of(), "stack": {"obs_desired_goal": 4}},
            FieldError,
            "'obs_desired_goal' is not stacked",
        ),
        (
            {"relabel": goals_of(achieved_goal="place")},
            FieldError,
            "no observation field 'place'.*obs_observation.*achieved_goal=",
        ),
        ({"relabel": goals_of(desired_goal="action")}, FieldError, "no observation field 'action'"),
    ],
)
def test_what_cannot_be_relabelled_is_refused(buffer, is_mirror, options, error, message):
    source = source_of(buffer, is_mirror)
    with pytest.raises(error, match=message):
        source.sample_transitions(4, **options)
    with pytest.raises(error, match=message):
        source.loader("transition", 4, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward_fn": None}, "reward_fn is a function"),
        ({"n_sampled_goal": 0}, "n_sampled_goal is an integer from 1"),
        ({"n_sampled_goal": 1.5}, "n_sampled_goal is an integer"),
        ({"strategy": "past"}, "strategy.*future"),
        ({"achieved_goal": 3}, "achieved_goal"),
        ({"achieved_goal": "obs_desired_goal"}, "two fields"),
    ],
)
def test_wrong_arguments_of_goals_are_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        goals_of(**options)


@SOURCES
def test_goals_of_two_shapes_or_dtypes_are_refused(buffer_url, is_mirror):
    for name, other in (("shape", ("float32", (3,))), ("dtype", ("float64", (2,)))):
        fields = {"obs_achieved_goal": ("float32", (2,)), "obs_desired_goal": other}
        with (
            ReplayBuffer(buffer_url, name, fields=fields, observation_fields=[*fields]) as buffer,
            pytest.raises(FieldError, match="one dtype and shape"),
        ):
            source_of(buffer, is_mirror).sample_transitions(4, relabel=goals_of())


@SOURCES
def test_steps_without_an_episode_are_refused_or_skipped(buffer_url, is_mirror):
    with opened(buffer_url, "single", has_next=True) as buffer:
        store(buffer, [World(6)], has_next=True)
        after = {f"next_{name}": value for name, value in observed(5, 1).items()}
        buffer.add(**observed(5, 0), **after, action=0, reward=5.0)
        source = source_of(buffer, is_mirror)
        with pytest.raises(FieldError, match=r"no episode, so it has no goals.*skip_single"):
            source.sample_transitions(4, relabel=goals_of())
        batch = source.sample_transitions(100, gamma=GAMMA, relabel=goals_of(), skip_single=True)
        check_rows(batch, [World(6)], "future", True)


@SOURCES
def test_an_empty_buffer_and_open_episodes_have_too_few(buffer, is_mirror):
    source = source_of(buffer, is_mirror)
    with pytest.raises(InsufficientDataError, match="asked for 4"):
        source.sample_transitions(4, relabel=goals_of())
    episode = buffer.episode(task_id="e0", episode_id="e0")
    for t in range(4):
        episode.append(**observed(0, t), action=t, reward=0.0)
    assert source.sample_transitions(2).n_rows == 2
    with pytest.raises(InsufficientDataError, match="episodes that have not ended"):
        source.sample_transitions(2, relabel=goals_of())
    episode.finish(observed(0, 4))
    batch = source.sample_transitions(100, gamma=GAMMA, relabel=goals_of())
    check_rows(batch, [World(4)], "future", False)
    assert set(batch.info["t"]) == {0, 1, 2, 3}
