"""Leases skip groups whose rewards are equal, and order groups by their spreads and uses."""

import math
import random

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ArgumentError, InsufficientDataError
from tests.support.leases import GivenBack
from tests.support.sql import run, scalar

pytestmark = pytest.mark.combinations

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
ORDERS = ("random", "fifo", "freshest", "stalest", "spread", "least_used")


@pytest.fixture(params=LAYOUTS)
def opened(buffer_url, request):
    buffers = []

    def make(**settings):
        settings = {"leases": True, "max_use": 1, **LAYOUTS[request.param], **settings}
        buffers.append(ReplayBuffer(buffer_url, **settings))
        return buffers[-1]

    yield make
    for buffer in buffers:
        buffer.close()


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


@pytest.mark.parametrize("seed", range(3))
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
