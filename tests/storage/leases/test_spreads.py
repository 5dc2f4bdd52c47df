"""Leases skip groups whose rewards are equal, and order groups by their spreads and uses."""

import math
import random
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ArgumentError, InsufficientDataError
from tests.support.leases import GivenBack
from tests.support.sql import run, scalar

pytestmark = pytest.mark.combinations

ORDERS = ("random", "fifo", "freshest", "stalest", "spread", "least_used")


def add(buffer, task, rewards, group_id=None, keys=None, **meta):
    """Store a rollout of one step for each reward."""
    for i, reward in enumerate(rewards):
        key = f"{task}/{i}" if keys is None else keys[i]
        step = {"obs" if buffer.fields else "state": float(i)}
        with buffer.episode(task, episode_id=key, group_id=group_id, **meta) as episode:
            episode.append(**step, reward=reward)
    buffer.flush()


def groups_of(batch):
    return [sorted({row.exp_meta.episode_id for row in group}) for group in batch.groups]


def leased(buffer, n=1, *, keeps=False, **options):
    """Return the rollouts of the groups of a batch, which is given back unless it is kept."""
    options = {"group_by": "task_id", "min_spread": 0.0, "timeout_s": 0, **options}
    try:
        with buffer.lease(n, **options) as batch:
            if not keeps:
                raise GivenBack
    except GivenBack:
        pass
    return groups_of(batch)


class Model:
    """The rollouts of a queue in plain Python: lists of (task, group, key, reward)."""

    def __init__(self):
        self.rollouts = []

    def groups(self, by, *, min_spread, group_size=None):
        found = {}
        for rollout in self.rollouts:
            found.setdefault(rollout["task" if by == "task_id" else "group"], []).append(rollout)
        claimable = {}
        for name, members in found.items():
            live = [r for r in members if not r["aborted"]]
            judged = [r for r in live if r["reward"] is not None and math.isfinite(r["reward"])]
            if group_size is None:
                if len(judged) < len(live) or not live:
                    continue
            elif len(judged) < group_size:
                continue
            chosen = judged[:group_size]
            rewards = [r["reward"] for r in chosen]
            if max(rewards) - min(rewards) > min_spread:
                claimable[name] = (max(rewards) - min(rewards), sorted(r["key"] for r in chosen))
        return claimable


def rewards_of(rng):
    return rng.choice([None, math.nan, 0.0, 0.0, 0.0, 1.0, 1.0, 0.5, math.inf, -0.0])


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_are_those_of_a_model(opened, seed):
    rng = random.Random(seed)
    buffer, model = opened(max_use=3), Model()
    number = 0
    for _ in range(70):
        action = rng.choice(["add"] * 5 + ["judge", "annotate", "abort", "lease", "lease", "lease"])
        if action == "add":
            task = f"t{rng.randrange(5)}"
            group = rng.choice([None, f"{task}/g"])
            reward, number = rewards_of(rng), number + 1
            add(buffer, task, [reward], group, [f"e{number}"])
            has_reward = reward is not None and not math.isnan(reward)
            model.rollouts.append(
                {"task": task, "group": group or task, "key": f"e{number}", "aborted": False,
                 "own": None, "steps": reward if has_reward else None}
            )  # fmt: skip
        elif action == "abort":
            number += 1
            episode = buffer.episode("t0", episode_id=f"e{number}")
            episode.append(**{"obs" if buffer.fields else "state": 0.0}, reward=77.0)
            episode.abort()
            buffer.flush()
        elif action in ("judge", "annotate") and model.rollouts:
            rollout, reward = rng.choice(model.rollouts), rng.choice([0.0, 1.0, 2.5])
            if action == "judge":
                buffer.annotate_episode(rollout["key"], reward=reward)
                rollout["own"] = reward
            else:
                of = QueryBuilder().eq("episode_id", rollout["key"]).build()
                buffer.annotate(of, reward=reward)
                rollout["steps"] = reward
        for rollout in model.rollouts:
            rollout["reward"] = rollout["steps"] if rollout["own"] is None else rollout["own"]
        if action != "lease":
            continue
        options = {
            "group_by": rng.choice(["task_id", "group_id"]),
            "group_size": rng.choice([None, None, 2]), "min_spread": rng.choice([0.0, 0.0, 0.7]),
        }  # fmt: skip
        expected = model.groups(
            options["group_by"], min_spread=options["min_spread"], group_size=options["group_size"]
        )
        order = rng.choice(ORDERS)
        with pytest.raises(InsufficientDataError, match=f" {len(expected)} groups may be claimed"):
            leased(buffer, len(expected) + 1, order=order, **options)
        if expected:
            groups = leased(buffer, len(expected), order=order, **options)
            assert sorted(groups) == sorted(keys for _, keys in expected.values())
            n = rng.randint(1, len(expected))
            some = leased(buffer, n, order=order, **options)
            assert len(some) == n
            assert all(group in groups for group in some)
            if order == "spread":
                spreads = [{tuple(k): s for s, k in expected.values()}[tuple(g)] for g in groups]
                assert spreads == sorted(spreads, reverse=True)


SPREADS = "SELECT group_id, spread FROM v_queue ORDER BY group_id"


def test_the_view_of_the_queue_shows_spreads(opened):
    buffer = opened()
    add(buffer, "a", [1.0, 1.0])
    add(buffer, "b", [1.0, None])
    add(buffer, "c", [0.0, 2.5])
    add(buffer, "d", [math.inf, 2.5])
    assert run(buffer.url, SPREADS) == [("a", 0.0), ("b", None), ("c", 2.5), ("d", None)]
    buffer.annotate_episode("b/1", reward=4.0)
    assert dict(run(buffer.url, SPREADS))["b"] == 3.0


def test_each_row_without_an_episode_is_a_rollout(opened):
    buffer = opened()
    values = {"obs": 0.0} if buffer.fields else {"state": 0}
    for task, rewards in (("flat", (1, 1, 1)), ("good", (0, 2)), ("late", (1, 1))):
        for reward in rewards:
            buffer.add(task_id=task, reward=float(reward), **values)
    buffer.flush()
    with pytest.raises(InsufficientDataError, match=r"2 whose .*\('flat': 3, spread 0, 'late': 2"):
        leased(buffer, 2)
    seqs = [row.seq for row in buffer if row.exp_meta.task_id == "late"]
    buffer.annotate(seqs[:1], reward=5.0)
    shown = dict(run(buffer.url, SPREADS))
    assert shown == dict.fromkeys(shown) if buffer.fields else {"flat": 0, "good": 2, "late": 4}
    for order in ORDERS:
        with pytest.raises(InsufficientDataError):
            leased(buffer, 3, order=order)
        assert leased(buffer, 2, order=order) == [[None]] * 2
    with buffer.lease(
        1, group_by="task_id", order="spread", group_size=2, min_spread=3, timeout_s=0
    ) as batch:
        assert {row.exp_meta.task_id for row in batch} == {"late"}
        assert len(batch) == 2


def test_a_part_of_a_group_has_a_spread_of_its_own(opened):
    buffer = opened(max_use=2)
    add(buffer, "t", [0.0, 1.0], "g")
    by_group = {"group_by": "group_id", "order": "fifo"}
    assert leased(buffer, keeps=True, **by_group) == [["t/0", "t/1"]]
    add(buffer, "t", [3.0, 3.0], "g", ["c", "d"])  # these form another group
    with pytest.raises(InsufficientDataError, match=r"1 whose .*\('g': 2, spread 0\)"):
        leased(buffer, 2, **by_group)
    assert leased(buffer, **by_group) == [["t/0", "t/1"]]
    buffer.annotate_episode("d", reward=9.0)
    assert leased(buffer, keeps=True, **by_group) == [["c", "d"]]
    assert leased(buffer, keeps=True, **by_group) == [["t/0", "t/1"]]


def test_an_acknowledged_sibling_without_a_reward_does_not_count(opened):
    buffer = opened(max_use=2)
    add(buffer, "t", [None])
    assert leased(buffer, keeps=True, min_spread=None) == [["t/0"]]
    add(buffer, "t", [1.0, 2.0], None, ["b", "c"])
    assert leased(buffer) == [["b", "c"]]


def test_flat_groups_stay_or_leave_and_are_counted(opened):
    buffer = opened(max_use=2)
    for task in "abc":
        add(buffer, task, [1.0, 1.0])
    add(buffer, "d", [0.0, 1.0])
    with buffer.lease(1, group_by="task_id", min_spread=0.0, order="fifo", timeout_s=0) as batch:
        assert (groups_of(batch), batch.n_skipped) == ([["d/0", "d/1"]], 3)
    with buffer.lease(1, group_by="task_id", min_spread=0.0, order="fifo", timeout_s=0) as batch:
        assert (groups_of(batch), batch.n_skipped) == ([["d/0", "d/1"]], 0)
    assert (len(buffer), buffer.stats().flat) == (6, 0)
    assert leased(buffer, 3, min_spread=None, order="fifo")[0] == ["a/0", "a/1"]
    with pytest.raises(InsufficientDataError, match=r"3 whose rewards differ by 0\.0"):
        leased(buffer)
    with pytest.raises(InsufficientDataError):
        leased(buffer, on_flat="drop")
    assert (len(buffer), buffer.stats().flat) == (0, 6)
    assert scalar(buffer.url, "SELECT flat FROM v_buffers") == 6
    with pytest.raises(InsufficientDataError, match="6 of groups whose rewards differed too litt"):
        leased(buffer)


def test_only_the_rollouts_that_were_asked_for_are_dropped(opened):
    buffer = opened()
    add(buffer, "t", [1.0, 1.0, 4.0, 5.0])
    exactly = {"group_size": 2, "order": "fifo", "on_flat": "drop"}
    with pytest.raises(InsufficientDataError):
        leased(buffer, **exactly)
    assert {row.exp_meta.episode_id for row in buffer} == {"t/2", "t/3"}
    assert leased(buffer, **exactly) == [["t/2", "t/3"]]


@pytest.mark.parametrize("order", ["fifo", "freshest", "stalest", "least_used"])
def test_a_used_group_waits_behind_unused_ones_of_its_age(opened, order):
    buffer = opened(max_use=2)
    for version in (1, 2):
        for task in "abc":
            add(buffer, f"{task}{version}", [1.0, 2.0], model_version=version)
    options = {"order": order, "min_spread": None, "keeps": True}
    taken = [leased(buffer, **options)[0][0][:2] for _ in range(12)]
    by_version = {1: {"a1", "b1", "c1"}, 2: {"a2", "b2", "c2"}}
    first, second = (2, 1) if order == "freshest" else (1, 2)
    if order in ("fifo", "least_used"):
        every = [f"{task}{version}" for version in (1, 2) for task in "abc"]
        assert taken == every * 2
    else:
        for i, version in enumerate((first, first, second, second)):
            assert set(taken[3 * i : 3 * i + 3]) == by_version[version]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **options)


def test_rows_that_were_used_least_come_first(opened):
    buffer = opened(max_use=3)
    for i in range(4):
        buffer.add(
            task_id="t", step=i, reward=1.0, **({"obs": 1} if buffer.fields else {"state": 1})
        )
    buffer.flush()
    taken = []
    for n in (3, 2, 3):
        with buffer.lease(n, order="least_used", timeout_s=0) as batch:
            taken.append([row.exp_meta.step for row in batch])
    assert taken == [[0, 1, 2], [3, 0], [1, 2, 3]]


def test_groups_go_on_being_compared_after_a_restored_checkpoint(opened):
    buffer = opened(max_use=1)
    add(buffer, "t", [0.0, 1.0])
    options = {"consumer": "trainer", "keeps": True}
    buffer.checkpoint("start", consumer="trainer")
    assert leased(buffer, **options) == [["t/0", "t/1"]]
    with pytest.raises(InsufficientDataError):
        leased(buffer, **options)
    buffer.restore("start", consumer="trainer")
    assert leased(buffer, **options) == [["t/0", "t/1"]]


WRONG = [
    {"min_spread": 0.0}, {"min_spread": 0.0, "group_by": "episode_id"},
    {"order": "spread"}, {"order": "spread", "group_by": "episode_id"},
    {"on_flat": "drop", "group_by": "task_id"}, {"on_flat": "use", "group_by": "task_id"},
    {"min_spread": -1, "group_by": "task_id"}, {"min_spread": math.nan, "group_by": "task_id"},
    {"min_spread": "0", "group_by": "task_id"}, {"order": "uses"},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(opened, wrong):
    with pytest.raises(ArgumentError):
        opened().lease(1, **wrong)


def take_all(url, order, names):
    with ReplayBuffer(url) as buffer:
        options = {"group_by": "group_id", "group_size": 2, "min_spread": 0.0, "timeout_s": 0.5}
        while True:
            try:
                with buffer.lease(2, order=order, **options) as batch:
                    names += [group[0].exp_meta.group_id for group in batch.groups]
            except InsufficientDataError:
                return


def test_two_consumers_get_each_group_with_a_spread_once(opened):
    buffer = opened()
    for i in range(24):
        add(buffer, f"t{i}", [0.0, float(i % 3 > 0)], f"g{i}")
    taken = {"random": [], "fifo": []}
    threads = [Thread(target=take_all, args=(buffer.url, *one)) for one in taken.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken["random"] + taken["fifo"]) == sorted(f"g{i}" for i in range(24) if i % 3)
    assert len(buffer) == 16


def test_a_waiting_consumer_gets_a_group_whose_reward_is_changed(opened):
    buffer = opened()
    add(buffer, "t", [1.0, 1.0])
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(leased, buffer, timeout_s=30)
        with pytest.raises(InsufficientDataError):
            leased(buffer, timeout_s=0.6)
        assert not waiting.done()
        buffer.annotate_episode("t/1", reward=0.0)
        assert waiting.result(30) == [["t/0", "t/1"]]


def test_a_copy_knows_the_groups_that_wait(opened, make_database_url):
    buffer = opened()
    add(buffer, "t", [0.0, 1.0])
    url = make_database_url("sqlite", schema=True)
    with ReplayBuffer(url, config=buffer.config) as target:
        buffer.copy_to(target)
        assert leased(target, order="spread") == [["t/0", "t/1"]]


def test_what_leaves_the_queue_is_forgotten(opened):
    buffer = opened(max_capacity=4)
    for i in range(6):
        add(buffer, f"t{i}", [0.0, 1.0], f"g{i}")
    waiting = "SELECT count(*) FROM queue_groups WHERE group_bound >= 0"
    by_group = {"group_by": "group_id", "order": "spread"}
    assert len(leased(buffer, 2, **by_group)) == 2
    with pytest.raises(InsufficientDataError):
        leased(buffer, 3, **by_group)
    assert scalar(buffer.url, waiting) == 2
    leased(buffer, 2, keeps=True, **by_group)
    with pytest.raises(InsufficientDataError):
        leased(buffer, 1, **by_group)
    assert scalar(buffer.url, waiting) == 0
    buffer.clear()
    assert scalar(buffer.url, "SELECT count(*) FROM queue_groups") == 0
