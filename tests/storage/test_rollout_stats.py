"""What is kept of rollouts and groups equals what their steps add up to."""

import math
import statistics

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import DataRow, ExpMeta, QueryBuilder, ReplayBuffer
from tests.support.processes import run_at_once
from tests.support.sql import buffer_id, connected, run

FIELDS = {"obs": "int64"}
ROLLOUTS = (
    'SELECT r.task_id, p.key, sum(r.length), sum(r."return"), min(r.first_seq), max(r.last_seq) '
    "FROM rollout_stats r LEFT JOIN episodes p ON p.id = r.episode_id WHERE r.buffer_id = :id "
    "GROUP BY r.task_id, p.key "
    "ORDER BY r.task_id, p.key IS NULL DESC, p.key"
)
GROUPS = (
    "SELECT group_id, n_rollouts, n_rewards, mean, m2, min, max, spread FROM group_stats "
    "WHERE buffer_id = :id ORDER BY group_id"
)
STEPS = (
    "SELECT e.task_id, e.episode_id, e.reward, e.seq FROM v_experiences e WHERE buffer = :name "
    "ORDER BY seq"
)


@pytest.fixture(params=["rows", "chunks"])
def fields(request):
    return None if request.param == "rows" else FIELDS


@pytest.fixture
def buffer(buffer_url, fields):
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        yield buffer


def write(buffer, task, episode, rewards):
    if buffer.fields:
        arrays = {"obs": np.arange(len(rewards)), "reward": np.array(rewards, float)}
        buffer.extend(arrays, task_id=task, episode_id=episode)
        return
    start = len(buffer)
    buffer.store_batch(
        [
            DataRow(
                exp_meta=ExpMeta(
                    task_id=task, agent_id="a", step=start + i, episode_id=episode, task_name="t"
                ),
                exp_data={"reward_t": reward, "state": {"i": i}},
            )
            for i, reward in enumerate(rewards)
        ]
    )


def expected(url, name="default"):
    """Return the rollouts and groups that the steps of a buffer add up to."""
    sums = {}
    for task, episode, reward, seq in run(url, STEPS, name=name):
        sums.setdefault((task, episode), []).append((reward, seq))
    rollouts, groups = [], {}
    for (task, episode), steps in sums.items():
        rewards = [reward for reward, _ in steps if reward is not None]
        total = sum(rewards) if rewards else None
        numbers = [seq for _, seq in steps]
        rollouts.append((task, episode, len(steps), total, min(numbers), max(numbers)))
        if episode is not None:
            groups.setdefault(task, []).append(total)
    made = []
    for task, totals in sorted(groups.items()):
        finite = [total for total in totals if total is not None and math.isfinite(total)]
        if not finite:
            made.append((task, len(totals), 0, None, 0.0, None, None, None))
            continue
        mean, low, high = statistics.fmean(finite), min(finite), max(finite)
        m2 = sum((total - mean) ** 2 for total in finite)
        spread = high - low if len(finite) == len(totals) else None
        made.append((task, len(totals), len(finite), mean, m2, low, high, spread))
    by_task = sorted(rollouts, key=lambda row: (row[0], row[1] is not None, row[1] or ""))
    return by_task, made


def near(row):
    return tuple(
        pytest.approx(value, rel=1e-9, abs=1e-6) if isinstance(value, float) else value
        for value in row
    )


def assert_kept(url, name="default"):
    id_ = buffer_id(url, name)
    rollouts, groups = expected(url, name)
    kept_rollouts, kept_groups = run(url, ROLLOUTS, id=id_), run(url, GROUPS, id=id_)
    assert [row[:3] for row in kept_rollouts] == [row[:3] for row in rollouts]
    for kept, made in ((kept_rollouts, rollouts), (kept_groups, groups)):
        assert len(kept) == len(made)
        for one, other in zip(kept, made, strict=True):
            assert one == near(other)


def test_rollouts_and_groups_are_kept_with_each_write(buffer_url, buffer):
    write(buffer, "t", "e1", [1.0, 2.0])
    assert_kept(buffer_url)
    write(buffer, "t", "e2", [5.0])
    write(buffer, "t", "e1", [0.5] * 300)  # more than one chunk
    write(buffer, "t", None, [0.25, 0.25])
    write(buffer, "naïve/täsk '%;", "e1", [-1.0])
    assert_kept(buffer_url)
    assert [row[1] for row in run(buffer_url, GROUPS, id=buffer_id(buffer_url))] == [1, 2]


def test_steps_without_rewards_make_a_rollout_without_a_return(buffer_url, buffer):
    write(buffer, "t", "e1", [None, None])
    write(buffer, "t", "e2", [None, 3.0])
    assert_kept(buffer_url)
    write(buffer, "t", "e1", [None, -2.0])
    assert_kept(buffer_url)


def test_returns_without_an_end_are_not_counted_in_their_group(buffer_url, buffer):
    write(buffer, "t", "e1", [math.inf])
    write(buffer, "t", "e2", [1.5])
    assert_kept(buffer_url)
    write(buffer, "t", "e2", [math.inf])
    write(buffer, "t", "e2", [-math.inf])
    write(buffer, "t", "e3", [1e308])
    write(buffer, "t", "e3", [1e308])
    write(buffer, "t", "e4", [math.nan, 2.0])
    id_ = buffer_id(buffer_url)
    assert [row[3] for row in run(buffer_url, ROLLOUTS, id=id_)] == [math.inf, None, math.inf, 2.0]
    assert run(buffer_url, GROUPS, id=id_) == [("t", 4, 1, 2.0, 0.0, 2.0, 2.0, None)]


def test_annotations_change_returns_and_groups(buffer_url, buffer):
    write(buffer, "t", "e1", [1.0, 2.0])
    write(buffer, "t", "e2", [None, 4.0])
    write(buffer, "u", None, [1.0])
    buffer.annotate(QueryBuilder().eq("episode_id", "e2").build(), reward=3.0)
    assert_kept(buffer_url)
    buffer.annotate(QueryBuilder().eq("task_id", "u").build(), reward=-7.0)
    buffer.annotate(QueryBuilder().eq("episode_id", "e2").build(), reward=1.0)
    assert_kept(buffer_url)


def test_rewards_of_episodes_count_in_place_of_their_steps(buffer_url, buffer):
    write(buffer, "t", "e1", [1.0, 2.0])
    write(buffer, "t", "e2", [None])
    step = {"obs": 1} if buffer.fields else {"state": 1}
    first = buffer.episode("t", episode_id="e3")
    first.append(**step, reward=7.0)
    buffer.flush()
    groups = "SELECT rollouts, return_mean, return_min, return_max, return_spread FROM v_groups"

    def shown():
        kept = run(buffer_url, GROUPS, id=buffer_id(buffer_url))
        ((_, n, _, mean, _, low, high, spread),) = kept
        assert run(buffer_url, groups) == [(n, pytest.approx(mean), low, high, spread)]
        return n, pytest.approx(mean), low, high, spread

    assert shown() == (3, 5.0, 3.0, 7.0, None)  # one is not judged yet
    buffer.annotate_episode("e2", reward=0.5)
    assert shown() == (3, 3.5, 0.5, 7.0, 6.5)
    buffer.annotate_episodes(["e1", "e3"], rewards=[0.0, 1.0])
    assert shown() == (3, 0.5, 0.0, 1.0, 1.0)
    buffer.annotate(QueryBuilder().eq("episode_id", "e1").build(), reward=9.0)
    assert shown() == (3, 0.5, 0.0, 1.0, 1.0)
    first.abort()
    buffer.flush()
    assert shown() == (2, 0.25, 0.0, 0.5, 0.5)
    with buffer.episode("t", episode_id="e3", resume=True) as writer:
        writer.append(**step, reward=2.0)
        writer.end(reward=-1.0)
    buffer.flush()
    assert shown() == (3, -1 / 6, -1.0, 0.5, 1.5)
    buffer.delete_episodes(["e1", "e2"], task_ids=["t", "t"])
    assert shown() == (1, -1.0, -1.0, -1.0, 0.0)


def test_a_reward_that_is_given_before_the_first_step_counts(buffer_url, buffer):
    with buffer.episode("t", episode_id="e1", resume=True) as writer:
        buffer.annotate_episode("e1", reward=3.0)
        writer.append(**({"obs": 1} if buffer.fields else {"state": 1}), reward=1.0)
    ((*_, spread),) = run(buffer_url, GROUPS, id=buffer_id(buffer_url))
    assert run(buffer_url, "SELECT reward FROM rollout_stats") == [(3.0,)]
    assert spread == 0.0


def test_deletes_take_steps_out_of_their_rollouts(buffer_url, buffer):
    for episode in ("e1", "e2", "e3"):
        write(buffer, "t", episode, [1.0, 2.0, float(episode[1])])
    write(buffer, "u", None, [1.0, 2.0])
    buffer.annotate(QueryBuilder().eq("episode_id", "e2").build(), reward=9.0)
    buffer.delete(QueryBuilder().eq("episode_id", "e2").build())
    buffer.delete(QueryBuilder().eq("task_id", "u").and_().eq("reward_t", 2.0).build())
    rollouts, groups = expected(buffer_url)
    id_ = buffer_id(buffer_url)
    assert [row[:4] for row in run(buffer_url, ROLLOUTS, id=id_)] == [row[:4] for row in rollouts]
    assert run(buffer_url, GROUPS, id=id_) == [near(row) for row in groups]


def test_a_deleted_step_changes_no_return_of_an_ended_episode(buffer_url, buffer):
    for key, ends in (("ended", True), ("open", False)):
        values = [{"obs": i} if buffer.fields else {"state": i} for i in range(3)]
        for i, value in enumerate(values):
            end = {"terminated": True} if ends and i == 2 else {}
            buffer.add(task_id=key, episode_id=key, reward=1.0, **value, **end)
    buffer.flush()
    buffer.delete([1, 4])
    returns = dict(run(buffer_url, 'SELECT task_id, "return" FROM rollout_stats'))
    assert returns == {"ended": 3.0, "open": 2.0}
    assert dict(run(buffer_url, "SELECT task_id, return_mean FROM v_groups")) == returns
    assert run(buffer_url, "SELECT episode_reward FROM v_episodes WHERE status = 'complete'") == [
        (3.0,)
    ]
    buffer.delete([2, 3])
    assert dict(run(buffer_url, 'SELECT task_id, "return" FROM rollout_stats')) == {"open": 2.0}


def test_a_cleared_buffer_has_no_rollouts(buffer_url, buffer):
    write(buffer, "t", "e1", [1.0, 2.0])
    buffer.clear()
    id_ = buffer_id(buffer_url)
    assert run(buffer_url, ROLLOUTS, id=id_) == run(buffer_url, GROUPS, id=id_) == []
    write(buffer, "t", "e1", [3.0])
    assert_kept(buffer_url)


def test_rollouts_outlive_their_steps(buffer_url, fields):
    with ReplayBuffer(buffer_url, fields=fields, max_capacity=2) as buffer:
        for i in range(4):
            write(buffer, "t", f"e{i}", [float(i), 1.0])
    kept = run(buffer_url, ROLLOUTS, id=buffer_id(buffer_url))
    assert [row[1:4] for row in kept] == [(f"e{i}", 2, i + 1.0) for i in range(4)]
    assert run(buffer_url, GROUPS, id=buffer_id(buffer_url))[0][1:4] == (4, 4, 2.5)


@pytest.mark.each_value
@pytest.mark.thorough
def test_the_list_is_as_long_as_the_list_of_episodes(buffer_url, fields):
    settings = {"fields": fields, "max_capacity": 4, "keep_episodes": 10}
    with ReplayBuffer(buffer_url, **settings) as buffer:
        for i in range(60):
            write(buffer, f"t{i}", f"e{i}" if i % 2 else None, [float(i)] * 2)
            if i % 2 and buffer.fields:
                buffer.store_episode(
                    {"obs": [1], "reward": [1.0]}, task_id=f"t{i}", episode_id=f"w{i}"
                )
    episodes = run(buffer_url, "SELECT task_id, id FROM episodes ORDER BY id")
    kept = run(buffer_url, "SELECT task_id, episode_id FROM rollout_stats ORDER BY episode_id")
    assert [row for row in kept if row[1]] == episodes
    assert len([row for row in kept if not row[1]]) <= 12
    tasks = {row[0] for row in run(buffer_url, GROUPS, id=buffer_id(buffer_url))}
    assert tasks == {task for task, episode in kept if episode}


def test_rows_of_plain_sql_are_in_their_rollouts(buffer_url, buffer):
    write(buffer, "t", None, [1.0])
    id_ = buffer_id(buffer_url)
    for reward in (2.0, None, 4.0) if not buffer.fields else ():
        run(
            buffer_url,
            "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step, reward_t) "
            "VALUES (:id, 't', 'a', 9, :reward)",
            id=id_,
            reward=reward,
        )
    assert_kept(buffer_url)


@pytest.mark.each_value
@pytest.mark.thorough
def test_a_copy_has_the_rollouts_of_the_steps_that_it_holds(buffer_url, make_database_url, buffer):
    write(buffer, "t", "e1", [1.0, 2.0])
    write(buffer, "t", "e2", [3.0])
    write(buffer, "u", None, [4.0])
    buffer.annotate(QueryBuilder().eq("episode_id", "e2").build(), reward=8.0)
    for kind in ("sqlite", "postgresql"):
        url = make_database_url(kind, schema=True)
        with ReplayBuffer(url, config=buffer.config) as target:
            buffer.copy_to(target)
        assert_kept(url)


def add_rollouts(url, writer):
    with ReplayBuffer(url) as buffer:
        for i in range(20):
            write(buffer, "t", f"{writer}-{i}", [float(i), writer * 1.0])
            write(buffer, "t", f"{writer}-{i}", [0.5])
            write(buffer, "u", None, [1.0])


@pytest.mark.each_value
@pytest.mark.thorough
def test_several_writers_of_one_task_lose_nothing(buffer_url, buffer):
    run_at_once([(add_rollouts, buffer_url, writer) for writer in range(4)])
    # What the last ones have left to the next.
    write(buffer, "t", "last", [1.0])
    assert_kept(buffer_url)
    assert run(buffer_url, GROUPS, id=buffer_id(buffer_url))[0][1] == 81


def test_a_dropped_buffer_leaves_nothing(buffer_url, buffer):
    write(buffer, "t", "e1", [1.0])
    buffer.close()
    ReplayBuffer.drop(buffer_url, "default")
    for table in ("rollout_stats", "group_stats"):
        assert run(buffer_url, f"SELECT count(*) FROM {table}") == [(0,)]


def test_a_transaction_that_stays_open_holds_up_no_writer_of_its_task(make_database_url, fields):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, fields=fields) as buffer:
        write(buffer, "t", "e1", [1.0])
        write(buffer, "t", None, [1.0])
        with connected(url) as connection:
            connection.execute(text('UPDATE rollout_stats SET "return" = 9'))
            write(buffer, "t", "e2", [5.0])
            write(buffer, "t", None, [2.0])
            connection.rollback()
        write(buffer, "u", "e3", [1.0])
        assert_kept(url)
        assert run(url, "SELECT count(*) FROM group_changes") == [(0,)]
