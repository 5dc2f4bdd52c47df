"""What was annotated, as every way of reading sees it."""

from typing import Any

import numpy as np
import pytest

from sqlbuffer import DataRow, PrioritizedSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError
from tests.support.sql import run

FIELDS = {"obs": ("float32", (1,))}
N = 5
EACH = RandomSampler(replace=False)


def columns(first: float, n: int = N) -> dict[str, Any]:
    return {
        "obs": np.arange(n, dtype=np.float32)[:, None],
        "reward": first + np.arange(n),
        "terminated": np.arange(n) == n - 1,
    }


def of_episodes(url: str, **settings: Any) -> ReplayBuffer:
    """Return a buffer with two episodes of five steps: seq 1 to 5 and 6 to 10. Of the first the
    rewards are 1 to 5, and 10 more since they were annotated.
    """
    buffer = ReplayBuffer(url, fields=FIELDS, **settings)
    for number, first in enumerate((1.0, 100.0)):
        final = {"obs": [99.0]}
        buffer.store_episode(columns(first), episode_id=f"e{number}", task_id="t", final=final)
    assert buffer.annotate(range(1, N + 1), reward=10.0 + np.arange(1, N + 1)) == N
    return buffer


def test_batches_of_arrays_have_the_rewards_that_hold(buffer_url: str) -> None:
    batch = of_episodes(buffer_url).sample_arrays(10, sampler=EACH)
    by_seq = dict(zip(batch.info["seq"].tolist(), batch.reward.tolist(), strict=True))
    assert by_seq == {**{i: 10.0 + i for i in range(1, 6)}, **{i: 94.0 + i for i in range(6, 11)}}


@pytest.mark.parametrize("n_step", [1, 3])
def test_returns_of_transitions_are_of_the_rewards_that_hold(buffer_url: str, n_step: int) -> None:
    buffer = of_episodes(buffer_url)
    batch = buffer.sample_transitions(64, n_step=n_step, gamma=0.5)
    rewards = [11.0, 12.0, 13.0, 14.0, 15.0], [100.0, 101.0, 102.0, 103.0, 104.0]
    expected = {
        (f"e{e}", t): sum(0.5**k * r for k, r in enumerate(rewards[e][t : t + n_step]))
        for e in (0, 1)
        for t in range(N)
    }
    keys = list(zip(batch.info["episode"].tolist(), batch.info["t"].tolist(), strict=True))
    assert batch.reward.tolist() == [pytest.approx(expected[key]) for key in keys]
    assert len(set(keys)) > 5


def test_windows_and_trajectories_have_the_rewards_that_hold(buffer_url: str) -> None:
    buffer = of_episodes(buffer_url)
    first = QueryBuilder().eq("seq", 1).build()
    windows = next(iter(buffer.loader("window", 1, length=3, condition=first)))
    assert windows.reward.tolist() == [[11.0, 12.0, 13.0]]
    whole = next(iter(buffer.loader("trajectory", 1, condition=first)))
    assert whole.reward.tolist() == [[11.0, 12.0, 13.0, 14.0, 15.0]]
    assert whole.info["return"].tolist() == [65.0]
    n_step = next(iter(buffer.loader("n_step", 1, n_step=2, gamma=1.0, condition=first)))
    assert n_step.reward.tolist() == [23.0]


@pytest.mark.thorough
@pytest.mark.slow
def test_conditions_are_on_the_values_that_hold(buffer_url: str) -> None:
    buffer = of_episodes(buffer_url)
    buffer.annotate([2], adv_t=-1.0, v_t=3.0, extra={"score": {"a": 1}, "tags": ["x"]})
    for builder, found in (
        (QueryBuilder().gt("exp_data.reward_t", 14), {5, *range(6, 11)}),
        (QueryBuilder().in_("exp_data.reward_t", [1, 12]), {2}),
        (QueryBuilder().lt("exp_data.adv_t", 0), {2}),
        (QueryBuilder().is_null("exp_data.v_t"), {1, *range(3, 11)}),
        (QueryBuilder().eq("exp_data.extra.score.a", 1), {2}),
        (QueryBuilder().eq("exp_data.extra", {"score": {"a": 1}, "tags": ["x"]}), {2}),
        (QueryBuilder().like("exp_data.extra.tags", "x"), {2}),
        (QueryBuilder().is_null("exp_data.extra"), {1, *range(3, 11)}),
        (
            QueryBuilder().eq("exp_meta.task_id", "t").and_().ne("exp_data.reward_t", 12),
            {1, *range(3, 11)},
        ),
    ):
        condition = builder.build()
        seqs = buffer.sample_arrays(len(found), condition=condition, sampler=EACH).info["seq"]
        assert set(seqs.tolist()) == found
        assert buffer.size(condition) == len(found)
        assert {row.seq for row in buffer.get_all(condition)} == found
        assert {row.seq for row in buffer.get_paginated(1, 20, condition)} == found
    whole = buffer.loader("trajectory", 1, condition=QueryBuilder().eq("exp_data.reward_t", 11))
    assert next(iter(whole)).info["episode"].tolist() == ["e0"]
    assert buffer.delete(QueryBuilder().eq("exp_data.reward_t", 12).build()) == 1
    assert buffer.annotate(QueryBuilder().eq("exp_data.reward_t", 13).build(), reward=0) == 1
    assert "labels" in buffer.sql(QueryBuilder().eq("exp_data.reward_t", 13).build())


def test_tasks_and_groups_are_of_the_rewards_that_hold(buffer_url: str) -> None:
    buffer = of_episodes(buffer_url)
    (task,) = buffer.sample_tasks(1)
    assert [row.exp_data.reward_t for row in task][:N] == [11.0, 12.0, 13.0, 14.0, 15.0]
    held = 65.0 + 510.0
    for view in ("v_tasks", "v_agents"):
        assert run(buffer_url, f"SELECT total_reward, mean_reward FROM {view}") == [
            (held, pytest.approx(held / 10))
        ]
    columns = "rollouts, steps, return_min, return_max, return_mean, return_variance"
    groups = run(buffer_url, f"SELECT {columns} FROM v_groups")
    assert groups == [(2, 10, 65.0, 510.0, held / 2, pytest.approx(222.5**2))]


def test_views_show_what_holds_and_the_history(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, max_capacity=3)
    for i in range(4):
        buffer.add(id=f"r{i}", state=i, task_id="t", reward=float("nan"), extra={"own": i})
    buffer.annotate([2, 3], reward=0.5, adv_t=1.5, v_t=2.5, extra={"judge": "a"}, version=1)
    buffer.annotate([3], reward=0.75, version=4)
    values = "seq, reward, advantage, value"
    rows = run(buffer_url, f"SELECT {values} FROM v_experiences ORDER BY seq")
    assert rows == [(2, 0.5, 1.5, 2.5), (3, 0.75, 1.5, 2.5), (4, None, None, None)]
    key = "extra ->> 'judge'" if buffer_url.startswith("postgresql") else "extra ->> '$.judge'"
    rows = run(buffer_url, f"SELECT {key}, extra FROM v_experiences ORDER BY seq")
    assert [judge for judge, _ in rows] == ["a", "a", None]
    assert all("$reals" not in str(extra) for _, extra in rows)
    rows = run(
        buffer_url,
        f"SELECT buffer, id, task_id, version, {values}, {key}, labelled_at IS NOT NULL "
        "FROM v_labels ORDER BY seq, version",
    )
    assert rows == [
        ("default", "r1", "t", 1, 2, 0.5, 1.5, 2.5, "a", True),
        ("default", "r2", "t", 1, 3, 0.5, 1.5, 2.5, "a", True),
        ("default", "r2", "t", 4, 3, 0.75, None, None, None, True),
    ]


def test_priorities_do_not_change(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, priorities=True)
    for i in range(4):
        buffer.add(state=i, reward=float(i), priority=1.0 + i)
    priorities = "SELECT seq, priority FROM v_priorities ORDER BY seq"
    before = run(buffer_url, priorities)
    buffer.annotate([1, 2, 3, 4], reward=9.0)
    assert run(buffer_url, priorities) == before
    few = QueryBuilder().gte("exp_data.reward_t", 9).build()
    rows: list[DataRow] = buffer.sample(4, sampler=PrioritizedSampler(), condition=few)
    assert [row.exp_data.reward_t for row in rows] == [9.0] * 4


def returns(url: str) -> dict[str, tuple[Any, ...]]:
    found = run(url, "SELECT episode_id, status, episode_return, reward FROM v_episodes")
    return {key: rest for key, *rest in map(tuple, found)}  # type: ignore[misc]


def test_the_return_of_an_episode_that_has_ended_follows(buffer_url: str) -> None:
    buffer = of_episodes(buffer_url)
    assert returns(buffer_url)["e0"] == ["complete", 65.0, None]
    buffer.annotate([1], reward=0.0)
    buffer.annotate([1], reward=500.0, version=0)
    buffer.annotate([2], adv_t=3.0)
    assert returns(buffer_url) == {
        "e0": ["complete", 54.0, None],
        "e1": ["complete", 510.0, None],
    }


def test_the_return_of_an_episode_that_ends_later_has_what_was_annotated(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=2)
    episode = buffer.episode(episode_id="e")
    for t in range(2):
        episode.append(obs=[t], reward=1.0)
    buffer.flush()
    buffer.annotate([1, 2], reward=[5.0, 7.0])
    assert returns(buffer_url)["e"] == ["open", None, None]
    partial = next(iter(buffer.loader("trajectory", 1, include_partial=True)))
    assert np.isnan(partial.info["return"]).all()
    for t in range(2, 4):  # by now the annotated steps have left
        episode.append(obs=[t], reward=1.0)
    episode.end(reward=0.5)
    assert returns(buffer_url)["e"] == ["complete", 14.0, 0.5]
    buffer.annotate([4], reward=3.0)
    assert returns(buffer_url)["e"] == ["complete", 16.0, 0.5]


def test_steps_without_rewards_are_given_a_return(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url)
    for key in ("ended", "open"):
        episode = buffer.episode(episode_id=key)
        for t in range(2):
            episode.append(state=t)
        buffer.flush()
        if key == "ended":
            episode.end()
    buffer.annotate([2, 4], reward=[0.0, 2.0])
    episode.end()
    assert returns(buffer_url) == {
        "ended": ["complete", 0.0, None],
        "open": ["complete", 2.0, None],
    }


def test_an_episode_has_a_reward_of_its_own(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, fields=FIELDS)
    buffer.store_episode(columns(0.0), episode_id="a", episode_reward=0.25)
    with buffer.episode(episode_id="b") as episode:
        episode.append(obs=[0.0], reward=1.0)
        with pytest.raises(FieldError, match="finite"):
            episode.end(reward=float("nan"))
        episode.end(obs=[1.0], reward=1)
    buffer.store_episode(columns(0.0), episode_id="c")
    assert returns(buffer_url) == {
        "a": ["complete", 10.0, 0.25],
        "b": ["complete", 1.0, 1.0],
        "c": ["complete", 10.0, None],
    }
    batch = next(iter(buffer.loader("trajectory", 3)))
    found = dict(zip(batch.info["episode"], batch.info["episode_reward"], strict=True))
    assert found == {"a": 0.25, "b": 1.0, "c": 10.0}
    for reward in (True, "1", float("inf"), [1.0]):
        with pytest.raises(FieldError, match="episode_reward"):
            buffer.store_episode(columns(0.0), episode_id="d", episode_reward=reward)
    assert "d" not in returns(buffer_url)


def test_leases_and_quarantine_go_by_the_values_that_hold(buffer_url: str) -> None:
    buffer = ReplayBuffer(buffer_url, leases=True)
    for i in range(6):
        buffer.add(state=i, task_id=f"t{i % 3}", reward=float(i))
    judged = QueryBuilder().eq("exp_data.extra.judge", "a").build()
    buffer.annotate([1, 2], reward=50.0, extra={"judge": "a"})
    with buffer.lease(2, condition=judged, timeout_s=0) as batch:
        assert [row.exp_data.reward_t for row in batch] == [50.0, 50.0]
        assert batch.rows[0].exp_data.extra == {"judge": "a"}
    with buffer.lease(2, condition=judged, group_by="task_id", timeout_s=0) as batch:
        assert sorted(row.exp_data.reward_t for row in batch) == [3.0, 4.0, 50.0, 50.0]
    good = QueryBuilder().gte("exp_data.reward_t", 50).build()
    assert buffer.quarantine(good, reason="too good") == 2
    assert {row.seq for row in buffer.sample(6)} == {3, 4, 5, 6}
    assert buffer.release(good) == 2
