"""Conditions name facts of episodes: rewards, returns, lengths, statuses, groups and values."""

import math
import random
from contextlib import ExitStack, suppress

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from sqlbuffer import QueryBuilder, QueryFilter, ReplayBuffer
from sqlbuffer.errors import (
    ConditionError,
    EpisodeEndedError,
    EpisodeNotFoundError,
    EpisodeTakenError,
    InsufficientDataError,
)
from sqlbuffer.orm import Experience, engine, to_sqlalchemy
from sqlbuffer.steps import DataRow, ExpMeta
from sqlbuffer.steps import Experience as StepData
from tests.support.mirrors import drawn_rows
from tests.support.sql import run

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
FACTS = "SELECT episode_id, episode_reward, episode_return, length, status FROM v_episodes"
LEAVES = (
    ("episode_reward", ("gte", "lt", "eq", "ne"), (-1.0, 0, 0.5, 2, 3.5, math.inf)),
    ("episode_return", ("gt", "lte", "eq", "in", "not_in"), (0.0, 2.0, 3)),
    ("episode_length", ("gte", "lt", "eq", "ne"), (1, 2, 3, 1.5)),
    ("status", ("eq", "ne"), ("complete", "aborted")),
    ("meta.level", ("eq", "ne", "gt", "lt"), (1, 2, "hard")),
    ("meta.tags", ("like", "not_like"), ("a", "b")),
    ("meta", ("is_null", "is_not_null"), (None,)),
    ("episode_reward", ("is_null", "is_not_null"), (None,)),
    ("episode_length", ("is_null", "is_not_null"), (None,)),
    ("status", ("is_null",), (None,)),
)
METAS = (None, {"level": 1}, {"level": 2, "tags": ["a"]}, {"level": "hard", "tags": ["a", "b"]})


@pytest.fixture(params=LAYOUTS)
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, **LAYOUTS[request.param]) as buffer:
        yield buffer


def step(buffer, **more):
    return {"obs": 0.0, **more} if buffer.fields else {"state": 0, **more}


def fill(buffer, chooser, metas):
    """Store episodes of each kind, and steps without an episode."""
    for number in range(24):
        key, meta = f"e{number}", chooser.choice(METAS)
        rewards = [chooser.choice([None, 0.0, 1.0, 2.0]) for _ in range(chooser.randint(1, 3))]
        if chooser.random() < 0.2:
            for reward in rewards:
                ends = {"terminated": True} if chooser.random() < 0.5 else {}
                buffer.add(task_id="t", episode_id=key, **step(buffer, reward=reward, **ends))
        else:
            writer = buffer.episode("t", episode_id=key, **(meta or {}))
            metas[key] = meta
            for reward in rewards:
                writer.append(**step(buffer, reward=reward))
            own = chooser.choice([None, None, 0.5, 3.5])
            what = chooser.random()
            if what < 0.6:
                writer.end(reward=own)
            elif what < 0.8:
                writer.abort()
    buffer.add(task_id="t", **step(buffer, reward=1.0))
    buffer.flush()
    judged = chooser.sample([f"e{n}" for n in range(24)], 6)
    buffer.annotate_episodes(judged, rewards=[chooser.choice([-1.0, 2.0]) for _ in judged])
    buffer.annotate(QueryBuilder().eq("seq", 3).build(), reward=3.0)


def expected(buffer, tree, metas):
    """Return the steps that match: as if each row had the facts of its episode in `extra`."""
    facts = {
        key: dict(
            zip(("episode_reward", "episode_return", "episode_length", "status"), rest, strict=True)
        )
        for key, *rest in run(buffer.url, FACTS)
    }
    query = QueryFilter(as_extra(tree))
    seqs = []
    for row in buffer.get_all():
        key = row.exp_meta.episode_id
        extra = {**facts.get(key, {}), "meta": metas.get(key)}
        known = DataRow(ExpMeta("t"), StepData(extra=extra))
        if query.check_condition(known):
            seqs.append(row.seq)
    return seqs


def as_extra(tree):
    if "field" in tree:
        return {**tree, "field": f"extra.{tree['field']}"}
    ((key, parts),) = tree.items()
    return {key: [as_extra(part) for part in parts]}


def random_tree(chooser, depth=1):
    if depth and chooser.random() < 0.4:
        return {chooser.choice(["and_", "or_"]): [random_tree(chooser, depth - 1) for _ in "ab"]}
    name, ops, values = chooser.choice(LEAVES)
    op, value = chooser.choice(ops), chooser.choice(values)
    if op in ("is_null", "is_not_null"):
        return {"field": name, "op": op}
    return {"field": name, "op": op, "value": [value] if op in ("in", "not_in") else value}


def test_all_ways_of_looking_find_the_same_steps(buffer):
    chooser, metas = random.Random(buffer.url.split(":")[0] + str(bool(buffer.fields))), {}
    fill(buffer, chooser, metas)
    mirror = buffer.mirror() if buffer.fields else None
    for _ in range(40):
        tree = random_tree(chooser)
        seqs = expected(buffer, tree, metas)
        assert [row.seq for row in buffer.get_all(tree)] == seqs, tree
        assert buffer.size(tree) == len(seqs)
        with Session(engine(buffer.url)) as session:
            of_view = select(Experience.seq).where(to_sqlalchemy(tree)).order_by(Experience.seq)
            assert list(session.scalars(of_view)) == seqs, tree
        if seqs:
            drawn = buffer.sample(min(16, len(seqs)), condition=tree)
            assert {row.seq for row in drawn} <= set(seqs)
        if mirror is not None and seqs:
            assert set(drawn_rows(mirror, "step", 40 * len(seqs), condition=tree)) == set(seqs)
    if mirror is not None:
        mirror.close()


def test_a_mirror_learns_of_later_verdicts(buffer_url):
    good = QueryBuilder().gte("episode_reward", 1.0).build()
    with ReplayBuffer(buffer_url, **LAYOUTS["typed"]) as buffer, buffer.mirror() as mirror:
        for key in ("a", "b"):
            with buffer.episode("t", episode_id=key) as writer:
                for _ in range(300):  # more than a chunk
                    writer.append(obs=0.0)
        buffer.flush()
        with pytest.raises(InsufficientDataError, match="match"):
            mirror.sample_arrays(4, condition=good)
        buffer.annotate_episode("b", reward=1.0)
        batch = mirror.sample_arrays(500, condition=good)
        assert set(batch.info["seq"].tolist()) <= set(range(301, 601))
        assert batch.info["seq"].min() < 330
        buffer.annotate_episode("b", reward=0.0)
        buffer.annotate_episode("a", reward=2.0)
        assert mirror.sample_arrays(50, condition=good).info["seq"].max() <= 300


def change(buffer, chooser, writers):
    """Let something happen to one of six episodes: a step, an end, a verdict, another writer."""
    key, what = f"e{chooser.randrange(6)}", chooser.random()
    reward = chooser.choice([0.0, 1.0, 2.0])
    writer = writers.pop(key, None) if what < 0.7 else None
    if writer is not None and what < 0.5:
        for _ in range(chooser.randint(1, 3)):
            writer.append(**step(buffer, reward=reward))
        writers[key] = writer
    elif writer is not None:
        writer.end(reward=reward) if what < 0.6 else writer.abort()
    elif what < 0.35:
        meta = chooser.choice([{}, {"level": 1}, {"level": 2}])
        writers[key] = buffer.episode("t", episode_id=key, resume=True, **meta)
    elif what < 0.7:
        ends = {"terminated": chooser.random() < 0.6}
        buffer.add(task_id="t", episode_id=key, **step(buffer, reward=reward, **ends))
    elif what < 0.8:
        buffer.end_episode(key, reward=reward, status=chooser.choice(["complete", "aborted"]))
    elif what < 0.9:
        buffer.annotate_episode(key, reward=reward, meta={"level": chooser.randint(1, 2)})
    elif len(buffer):
        change_step(buffer, chooser, reward)


def change_step(buffer, chooser, reward):
    seq = chooser.choice([*buffer.get_all()]).seq
    what = chooser.random()
    if what < 0.6:
        buffer.annotate([seq], reward=reward)
    if what > 0.4:
        buffer.delete(QueryBuilder().eq("seq", seq))


REFUSED = (EpisodeEndedError, EpisodeNotFoundError, EpisodeTakenError)
LIMITS = [{}, {"max_capacity": 12}, {"max_capacity": 4, "evict_by": "episode"}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_mirrors_of_what_matches_follow_the_lives_of_episodes(buffer_url, limits):
    chooser = random.Random(f"{buffer_url.split(':')[0]}{limits}")
    with ReplayBuffer(buffer_url, **LAYOUTS["typed"], **limits) as buffer, ExitStack() as stack:
        trees = [random_tree(chooser) for _ in range(6)]
        mirrors, writers = [], {}
        whole = stack.enter_context(buffer.mirror(refresh_s=3_600))
        for number in range(48):
            if number % 8 == 0 and trees:  # some begin in the middle
                tree = trees.pop()
                is_shared = number % 16 == 0
                mirror = buffer.mirror(condition=tree, refresh_s=3_600, shared=is_shared)
                mirrors.append((tree, stack.enter_context(mirror), {}))
            with suppress(*REFUSED):  # what is left of an episode may not take this
                change(buffer, chooser, writers)
                buffer.flush()
            drawn, _, _ = chooser.choice(mirrors)
            for tree, mirror, options in [*mirrors, (drawn, whole, {"condition": drawn})]:
                mirror.refresh()
                seqs = [row.seq for row in buffer.get_all(tree)]
                batches = mirror.loader("step", 64, shuffle=False, epochs=1, **options)
                assert [seq for b in batches for seq in b.info["seq"].tolist()] == seqs, tree
                assert len(mirror) == len(seqs) or mirror is whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_leases_and_deletes_take_facts_of_episodes(buffer_url, layout):
    with ReplayBuffer(buffer_url, leases=True, max_use=9, **LAYOUTS[layout]) as buffer:
        lease_and_delete(buffer)


def lease_and_delete(buffer):
    fill(buffer, random.Random(3), {})
    good = QueryBuilder().gte("episode_reward", 2.0).build()
    seqs = {row.seq for row in buffer.get_all(good)}
    assert len(seqs) > 3
    with buffer.lease(3, condition=good, timeout_s=0) as batch:
        assert {row.seq for row in batch} <= seqs
    assert buffer.delete(good) == len(seqs)
    assert buffer.size(good) == 0


def test_what_cannot_be_compared_says_what_to_do(buffer):
    good = QueryBuilder().gte("episode_reward", 2.0).build()
    with pytest.raises(ConditionError, match=r"episode_reward.*buffer.get_all"):
        QueryFilter(good)
    with pytest.raises(ConditionError, match="did you mean episode_reward"):
        buffer.size(QueryBuilder().gte("episode_rewards", 2.0).build())
    if buffer.fields:
        are_open = QueryBuilder().eq("status", "open").build()
        with pytest.raises(ConditionError, match="abandoned"):
            buffer.mirror(condition=are_open)
        with buffer.mirror() as mirror, pytest.raises(ConditionError, match="abandoned"):
            mirror.sample_arrays(1, condition=are_open)


def test_a_declared_field_comes_before_a_fact_of_the_same_name(buffer_url):
    fields = {"obs": "float32", "status": {"dtype": "int64", "column": True}}
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        buffer.add(task_id="t", obs=0.0, status=3)
        assert buffer.size(QueryBuilder().eq("status", 3).build()) == 1
