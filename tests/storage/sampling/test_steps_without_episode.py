"""Transitions of steps that have no episode: by SQL, from a mirror, and by loaders of both."""

import logging

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError

PLAIN = {"obs": ("float32", (1,)), "action": "int64"}
WITH_NEXT = {**PLAIN, "next_obs": ("float32", (1,))}
SINGLE, IN_EPISODE = QueryBuilder().eq("task_id", "single"), QueryBuilder().eq("task_id", "whole")


def by_sql(buffer, n, options):
    return buffer.sample_transitions(n, **options)


def by_mirror(buffer, n, options):
    with buffer.mirror() as mirror:
        return mirror.sample_transitions(n, **options)


def by_loader(buffer, n, options):
    return next(iter(buffer.loader("transition", n, replace=True, **options)))


def by_mirror_loader(buffer, n, options):
    with buffer.mirror() as mirror:
        return next(iter(mirror.loader("transition", n, replace=True, **options)))


def by_pass(buffer, n, options):
    return next(iter(buffer.loader("transition", n, epochs=1, **options)))


def by_mirror_pass(buffer, n, options):
    with buffer.mirror() as mirror:
        return next(iter(mirror.loader("transition", n, epochs=1, **options)))


DRAWS = [by_sql, by_mirror, by_loader, by_mirror_loader, by_pass, by_mirror_pass]


def fill(buffer, n_single=60, n_episodes=6, prefix="e"):
    """Store steps without an episode, and episodes, whose observations count up."""
    following = "next_obs" in buffer.fields

    def columns(first, n):
        t = np.arange(first, first + n, dtype=np.float32)
        own = {"obs": t[:, None], "action": np.zeros(n, int), "reward": np.ones(n)}
        return {**own, "next_obs": t[:, None] + 1} if following else own

    if n_single:
        ends = np.arange(n_single) % 10 == 9
        buffer.extend({**columns(0, n_single), "terminated": ends}, task_id="single")
    for k in range(n_episodes):
        steps = {**columns(1000 * (k + 1), 10), "terminated": np.arange(10) == 9}
        buffer.store_episode(steps, task_id="whole", episode_id=f"{prefix}{k}")


@pytest.mark.thorough
@pytest.mark.parametrize("draw", DRAWS)
def test_they_are_refused_without_a_next_observation(schema_url, draw):
    with ReplayBuffer(schema_url, fields=PLAIN) as buffer:
        fill(buffer)
        with pytest.raises(FieldError, match=r"step 60 has no episode.*next_obs.*skip_single=True"):
            draw(buffer, 32, {})
        with pytest.raises(FieldError, match="step 60 has no episode"):
            draw(buffer, 8, {"condition": SINGLE, "n_step": 3})
        assert set(draw(buffer, 32, {"condition": IN_EPISODE}).info["task_id"]) == {"whole"}
        batch = draw(buffer, 60, {"skip_single": True, "n_step": 3})
        assert set(batch.info["task_id"]) == {"whole"}
        assert (batch.next_obs[~batch.terminated] == batch.obs[~batch.terminated] + 3).all()
        if "pass" not in draw.__name__:
            with pytest.raises(InsufficientDataError):
                draw(buffer, 8, {"condition": SINGLE, "skip_single": True})


@pytest.mark.thorough
@pytest.mark.parametrize("draw", DRAWS)
def test_they_are_no_longer_refused_when_they_have_left(schema_url, draw):
    with ReplayBuffer(schema_url, fields=PLAIN, max_capacity=100) as buffer:
        fill(buffer, n_single=20, n_episodes=8)
        buffer.delete(QueryBuilder().in_("seq", list(range(11, 21))))
        with pytest.raises(FieldError, match="step 10 has no episode"):
            draw(buffer, 8, {})
        fill(buffer, n_single=0, n_episodes=1, prefix="more")  # which evicts the first ten steps
        assert set(draw(buffer, 64, {}).info["task_id"]) == {"whole"}


def test_a_mirror_refuses_one_that_arrives_later(schema_url):
    with ReplayBuffer(schema_url, fields=PLAIN) as buffer:
        fill(buffer, n_single=0)
        with buffer.mirror() as mirror:
            mirror.sample_transitions(2_000)
            buffer.extend({"obs": [[5.0]], "action": [0]}, task_id="single")
            with pytest.raises(FieldError, match="step 61 has no episode"):
                mirror.sample_transitions(8)
            assert mirror.sample_transitions(8, condition=IN_EPISODE).n_rows == 8
            buffer.delete(SINGLE)
            assert mirror.sample_transitions(8).n_rows == 8


@pytest.mark.each_value
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("draw", DRAWS)
def test_with_a_next_observation_each_is_a_transition_of_one_step(schema_url, draw, n_step):
    with ReplayBuffer(schema_url, fields=WITH_NEXT) as buffer:
        fill(buffer)
        n = 120 if "pass" in draw.__name__ else 2_000
        batch = draw(buffer, n, {"n_step": n_step, "gamma": 0.5})
        is_single = batch.info["task_id"] == "single"
        assert (batch.info["n_steps"][is_single] == 1).all()
        assert set(batch.info["n_steps"][~is_single]) == set(range(1, n_step + 1))
        assert (batch.next_obs == batch.obs + batch.info["n_steps"][:, None]).all()
        alive = is_single & ~batch.terminated
        assert set(batch.discount[alive]) == {0.5}
        assert set(batch.discount[batch.terminated]) == {0}
        assert set(batch.reward[is_single]) == {1}
        # Half of the steps are single, and a tenth of these are terminal: 5 standard deviations.
        assert abs(is_single.mean() - 0.5) < 5 * 0.5 / n**0.5
        assert abs(batch.terminated[is_single].mean() - 0.1) < 5 * 0.3 / (n / 2) ** 0.5
        only = draw(buffer, n // 2, {"n_step": n_step, "skip_single": True})
        assert set(only.info["task_id"]) == {"whole"}


@pytest.mark.parametrize("draw", [by_sql, by_mirror])
def test_stacks_and_sequences_of_one_step(schema_url, draw):
    with ReplayBuffer(schema_url, fields=WITH_NEXT) as buffer:
        fill(buffer, n_episodes=0)
        batch = draw(buffer, 64, {"n_step": 3, "stack": {"obs": 2}})
        assert (batch.obs[:, 0] == batch.obs[:, 1]).all()
        assert (batch.next_obs[:, 1] == batch.obs[:, 1] + 1).all()
        assert (batch.next_obs[:, 0] == batch.obs[:, 1]).all()
        options = {"sequence_fields": ["obs", "reward"], "replace": True}
        loader = buffer.loader("n_step", 64, n_step=3, **options)
        batch = next(iter(loader))
        assert (batch["seq_obs"][:, 0] == batch.obs).all()
        assert not batch["seq_obs"][:, 1:].any()
        assert batch["seq_reward"].sum(axis=1).tolist() == [1.0] * 64


def test_they_are_warned_of_once_for_each_buffer_and_n_step(schema_url, caplog):
    caplog.set_level(logging.WARNING, "sqlbuffer")
    with ReplayBuffer(schema_url, fields=WITH_NEXT) as buffer, buffer.mirror() as mirror:
        fill(buffer)
        buffer.sample_transitions(64)
        assert caplog.messages == []
        for n_step in (3, 3, 5, 3):
            buffer.sample_transitions(64, n_step=n_step)
            mirror.sample_transitions(64, n_step=n_step)
    assert [message[:9] for message in caplog.messages] == ["n_step=3:", "n_step=5:"]


def test_add_warns_once_where_they_will_not_be_drawn(schema_url, caplog):
    caplog.set_level(logging.WARNING, "sqlbuffer")
    step = {"obs": [0.0], "action": 0}
    settings = {"plain": PLAIN, "with next": WITH_NEXT, "no observation": {"action": "int64"}}
    for name, fields in settings.items():
        with ReplayBuffer(schema_url, name, fields=fields) as buffer:
            buffer.add(**{field: step.get(field, [0.0]) for field in fields}, episode_id="e")
            assert caplog.messages == []
            for _ in range(3):
                buffer.add(**{field: step.get(field, [0.0]) for field in fields})
        is_warned = ["'plain': steps that add() stores without" in m for m in caplog.messages]
        assert is_warned == ([True] if name == "plain" else [])
        caplog.clear()
