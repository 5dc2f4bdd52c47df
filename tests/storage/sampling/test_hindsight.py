"""Goals in hindsight are those of a plain reference, by SQL and from a mirror."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import (
    HindsightGoals,
    ReplayBuffer,
)
from sqlbuffer.errors import InsufficientDataError

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
