"""Steps are merged into a buffer that is in use: whole episodes, under new numbers, once."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import ArgumentError, CopyError
from tests.conftest import KINDS
from tests.support.copied_buffers import columns, comparable, json_rows, odd_steps, typed_steps
from tests.support.sql import run, scalar

WAYS = [(here, there) for here in KINDS for there in KINDS]
FACTS = (
    "SELECT episode_id, task_id, agent_id, group_id, status, length, episode_return, reward, "
    "model_version, CAST(meta AS text), attempt, parent_id FROM v_episodes WHERE buffer = '{}' "
    "ORDER BY 1, 2"
)
LABELS = (
    "SELECT id, version, reward, advantage, value, CAST(extra AS text) FROM v_labels "
    "WHERE buffer = '{}' ORDER BY 1, 2"
)
QUARANTINED = "SELECT id, reason FROM v_quarantine WHERE buffer = '{}' ORDER BY 1"
PRIORITIES = "SELECT id, priority FROM v_priorities WHERE buffer = '{}' ORDER BY 1"
GROUPS = (
    "SELECT group_id, rollouts, return_mean, return_spread FROM v_groups WHERE buffer = '{}' "
    "ORDER BY 1"
)
SIMPLE = {"obs": "float32"}


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def urls(request, make_database_url):
    here, there = request.param
    return make_database_url(here, schema=True), make_database_url(there, schema=True)


def listed(url, query, name):
    """Return rows of a view, JSON as values."""
    return [
        tuple(
            json.loads(value) if isinstance(value, str) and value.startswith("{") else value
            for value in row
        )
        for row in run(url, query.format(name))
    ]


def in_use(source, url, name="goal"):
    """Return a buffer for the same steps that has some of its own."""
    settings = source.config.model_copy(deep=True)
    buffer = ReplayBuffer(url, name, create=True, config=settings)
    buffer.resize(None)
    if buffer.fields and "frame" in buffer.fields:
        own = columns(6, 77)
        buffer.store_episode(own, episode_id="own", task_id="own", final={"obs": [0.0] * 3}, rank=1)
    elif buffer.fields:
        own = {"x": [[1.0, 1.0]] * 6, "level": [1.0] * 6, "flag": [True] * 6, "word": ["w"] * 6}
        buffer.store_episode(own, episode_id="own", task_id="own")
    else:
        buffer.extend({"state": [1, 2]}, task_id="own", episode_id="own")
    return buffer


def shown_rows(buffer):
    """Return the steps by their ids, without what each buffer makes itself."""
    return {row.id: comparable([row.exp_meta, row.exp_data, row.fields]) for row in buffer}


@pytest.mark.thorough
@pytest.mark.parametrize("make", [json_rows, typed_steps, odd_steps])
def test_merged_steps_show_what_their_source_shows(urls, make):
    source = make(urls[0], "source")
    with source, in_use(source, urls[1]) as goal:
        before = shown_rows(goal)
        report = source.copy_to(goal)
        assert not report.is_exact
        with_open = {row.id for row in source if row.exp_meta.episode_id == "open"}
        expected = {id_: row for id_, row in shown_rows(source).items() if id_ not in with_open}
        assert shown_rows(goal) == before | expected
        assert report.n_copied == len(expected)
        for query in (LABELS, QUARANTINED, PRIORITIES):
            ours = [row for row in listed(urls[0], query, "source") if row[0] not in with_open]
            theirs = listed(urls[1], query, "goal")
            assert [row for row in theirs if row[0] not in before] == ours
        whole = [row for row in listed(urls[0], FACTS, "source") if row[4] != "open"]
        held = {row.exp_meta.episode_id for row in source}
        merged = listed(urls[1], FACTS, "goal")
        assert [row for row in merged if row[0] != "own"] == [r for r in whole if r[0] in held]
        assert source.copy_to(goal).n_copied == 0  # a second time stores nothing
        assert len(goal) == len(before) + len(expected)


def play(buffer, rng, name, n=6, ends=True):
    """Write an episode, and give some of it labels; return its id."""
    typed = bool(buffer.fields)
    with_group = {"group_id": rng.choice(["g", "h"])} if rng.random() < 0.5 else {}
    with_parent = {"parent_id": rng.choice(["p", "e1"])} if rng.random() < 0.5 else {}
    if with_parent.get("parent_id") == name:
        with_parent = {}
    episode = buffer.episode(f"t{rng.randrange(3)}", episode_id=name, **with_group, **with_parent)
    for i in range(n):
        value = {"obs": float(i)} if typed else {"state": i}
        episode.append(**value, reward=float(rng.randrange(5)), terminated=ends and i == n - 1)
    if rng.random() < 0.3:
        episode.abort()
    elif ends:
        episode.end(reward=rng.choice([None, 2.0]), **({"obs": -1.0} if typed else {}))
    buffer.flush()
    return episode


class Recording:
    """A source to which things happen at random."""

    def __init__(self, url, name, rng, fields, capacity):
        self.name, self.rng = name, rng
        self.buffer = ReplayBuffer(url, name, fields=fields, create=True, max_capacity=capacity)
        self.episodes = []
        self.changed = set()  # after they were merged: such changes are not merged

    def happen(self, name, merged):
        """Let one thing happen; `merged` has the ids of episodes that were merged."""
        buffer, rng = self.buffer, self.rng
        open_ones = [episode for episode in self.episodes if episode.is_open]
        what = rng.randrange(5)
        if what == 0 and open_ones:
            episode = rng.choice(open_ones)
            episode.append(**({"obs": 9.0} if buffer.fields else {"state": 9}), reward=1.0)
            episode.end()
        elif what == 2 and len(buffer):
            labelled, deleted = rng.sample(list(buffer), 2)
            buffer.annotate([labelled.seq], reward=7.0, extra={"by": name})
            buffer.delete(QueryBuilder().eq("seq", deleted.seq).build())
            touched = {labelled.exp_meta.episode_id, deleted.exp_meta.episode_id}
            self.changed |= touched & merged
        else:
            self.episodes.append(play(buffer, rng, name, ends=what != 1))


@pytest.mark.combinations
@pytest.mark.parametrize("fields", [None, SIMPLE], ids=["rows", "typed"])
def test_what_comes_and_ends_between_merges_is_merged_once(buffer_url, fields):
    """Random changes of two sources, with a merge of each now and then, beside a writer."""
    rng, merged, value = random.Random(5), set(), "obs" if fields else "state"
    with ReplayBuffer(buffer_url, "goal", fields=fields, create=True) as goal:
        goal.extend({value: [1.0]}, task_id="own", episode_id="own")
        sources = [Recording(buffer_url, f"s{i}", rng, fields, c) for i, c in enumerate([None, 60])]
        for step in range(30):
            source = rng.choice(sources)
            source.happen(f"{source.name}-{step}", merged)
            goal.extend({value: [2.0]}, task_id="own", id=[f"own-{step}"])
            if step % 6 == 5:
                for source in sources:
                    source.buffer.copy_to(goal)
                merged = {row.exp_meta.episode_id for row in goal}
        rows, ids = shown_rows(goal), [row.id for row in goal]
        facts = {row[:2]: row for row in run(buffer_url, FACTS.format("goal"))}
        assert len(ids) == len(set(ids))
        for source in sources:
            ended = [r for r in run(buffer_url, FACTS.format(source.name)) if r[4] != "open"]
            here = {row[0] for row in ended}
            held = [row for row in source.buffer if row.exp_meta.episode_id in here]
            assert {row.id for row in held} <= rows.keys()
            for row in ended:
                assert row[0] in source.changed or facts.get(row[:2], row) == row
            assert all(facts[r.exp_meta.episode_id, r.exp_meta.task_id] for r in held)
            not_ended = {episode.episode_id for episode in source.episodes if episode.is_open}
            assert not not_ended.intersection(row.exp_meta.episode_id for row in goal)
            source.buffer.close()


@pytest.mark.parametrize("fields", [None, SIMPLE], ids=["rows", "typed"])
def test_ids_that_exist_are_an_error_or_skipped_or_prefixed(buffer_url, fields):
    value = "obs" if fields else "state"
    with (
        ReplayBuffer(buffer_url, "a", fields=fields, create=True) as source,
        ReplayBuffer(buffer_url, "goal", fields=fields, create=True) as goal,
    ):
        source.extend({value: [1.0, 2.0]}, task_id="t", id=["x", "y"])
        episode = {value: [3.0, 4.0], "reward": [1.0, 1.0], "terminated": [False, True]}
        source.store_episode(episode, episode_id="e", task_id="t")
        source.store_episode(episode, episode_id="f", task_id="t")
        goal.extend({value: [9.0]}, task_id="other", id=["y"])
        goal.store_episode(episode, episode_id="e", task_id="t")
        with pytest.raises(CopyError, match=r"has .* already.*prefix='run1/'.*on_conflict='skip'"):
            source.copy_to(goal)
        assert len(goal) == 3
        report = source.copy_to(goal, on_conflict="skip")
        assert (report.n_copied, report.n_skipped, len(goal)) == (3, 3, 6)
        report = source.copy_to(goal, prefix="run1/")
        assert (report.n_copied, report.n_skipped, len(goal)) == (6, 0, 12)
        prefixed = [row for row in goal if row.id.startswith("run1/")]
        assert len(prefixed) == 6
        assert {row.id for row in prefixed} == {f"run1/{row.id}" for row in source}
        assert {row.exp_meta.episode_id for row in prefixed} == {None, "run1/e", "run1/f"}
        assert {row.exp_meta.task_id for row in prefixed} == {"t"}
        assert goal.get_by_ids([prefixed[0].id])[prefixed[0].id] == prefixed[0]
        assert source.copy_to(goal, prefix="run1/").n_copied == 0


@pytest.mark.parametrize("fields", [None, SIMPLE], ids=["rows", "typed"])
def test_an_episode_that_began_in_the_same_moment_is_another_one(buffer_url, fields):
    moment = "2026-01-02T03:04:05.678Z"
    with (
        ReplayBuffer(buffer_url, "source", fields=fields) as source,
        ReplayBuffer(buffer_url, "goal", fields=fields) as goal,
    ):
        for buffer in (source, goal):
            value = {"obs": 1.0} if fields else {"state": 1}
            with buffer.episode("t", episode_id="e") as episode:
                episode.append(**value)
        run(buffer_url, f"UPDATE episodes SET started_at = '{moment}'")
        with pytest.raises(CopyError, match="'e'"):
            source.copy_to(goal)
        assert source.copy_to(goal, on_conflict="skip").n_copied == 0
        assert len(goal) == 1
        assert source.copy_to(goal, prefix="other/").n_copied == 1


@pytest.mark.parametrize("grown", ["source", "goal"])
def test_a_field_that_was_added_merges_with_one_that_was_declared(buffer_url, grown):
    with (
        ReplayBuffer(buffer_url, "old", fields={"x": "float32"}) as old,
        ReplayBuffer(buffer_url, "new", fields={"x": "float32", "act": "int64"}) as new,
    ):
        old.store_episode({"x": [1.0]}, episode_id="before", task_id="t")
        old.add_field("act", {"dtype": "int64", "default": 7})
        old.store_episode({"x": [2.0], "act": [2]}, episode_id="after", task_id="t")
        new.store_episode({"x": [3.0], "act": [3]}, episode_id="new", task_id="t")
        source, goal = (old, new) if grown == "source" else (new, old)
        assert source.copy_to(goal).n_copied == len(source)
        found = {row.exp_meta.episode_id: int(row.fields["act"]) for row in goal}
        assert found == {"before": 7, "after": 2, "new": 3}
        assert source.copy_to(goal).n_copied == 0


@pytest.mark.parametrize("fields", [None, SIMPLE], ids=["rows", "typed"])
def test_open_episodes_are_merged_on_request_and_go_on(buffer_url, fields):
    value = "obs" if fields else "state"
    with (
        ReplayBuffer(buffer_url, "a", fields=fields, create=True) as source,
        ReplayBuffer(buffer_url, "goal", fields=fields, create=True) as goal,
    ):
        goal.extend({value: [9.0]}, task_id="other")
        episode = source.episode("t", episode_id="e")
        episode.append(**{value: 1.0}, reward=1.0)
        source.flush()
        assert source.copy_to(goal).n_open == 1
        assert source.copy_to(goal, include_open=True).n_copied == 1
        status = "SELECT status, length, episode_return FROM v_episodes WHERE buffer = 'goal'"
        assert run(buffer_url, status) == [("open", None, None)]
        episode.append(**{value: 2.0}, reward=1.0)
        source.flush()
        assert source.copy_to(goal).n_copied == 0
        episode.end(reward=5.0)
        assert source.copy_to(goal).n_copied == 1
        assert run(buffer_url, status) == [("complete", 2, 2.0)]
        source.annotate_episode("e", reward=6.0)  # later verdicts stay where they are
        assert source.copy_to(goal).n_copied == 0
        # One that ends without another step.
        episode = source.episode("t", episode_id="f")
        episode.append(**{value: 1.0}, reward=1.0)
        source.flush()
        source.copy_to(goal, include_open=True)
        episode.end(reward=3.0)
        source.copy_to(goal)
        ended = "SELECT status, reward FROM v_episodes WHERE buffer = 'goal' AND episode_id = 'f'"
        assert run(buffer_url, ended) == [("complete", 3.0)]


def test_attempts_of_a_continued_episode_are_merged(buffer_url):
    for fields in (None, SIMPLE):
        names, value = f"a{bool(fields)}", "obs" if fields else "state"
        goal = ReplayBuffer(buffer_url, f"goal{names}", fields=fields, create=True)
        goal.extend({value: [9.0] * 3}, task_id="other")
        source = ReplayBuffer(buffer_url, names, fields=fields, create=True)
        source.episode("t", episode_id="e").append(**{value: 1.0})
        source.flush()
        with source.episode("t", episode_id="e", resume=True) as episode:
            episode.append(**{value: 2.0}, terminated=True)
        source.copy_to(goal)
        attempts = (
            "SELECT t, attempt FROM v_experiences WHERE buffer = '{}' AND task_id = 't' ORDER BY t"
        )
        assert run(buffer_url, attempts.format(goal.name)) == [(0, 1), (1, 2)]
        assert run(buffer_url, attempts.format(names)) == [(0, 1), (1, 2)]
        source.close()
        goal.close()


def test_what_does_not_fit_is_refused_before_anything_is_merged(buffer_url):
    with (
        ReplayBuffer(buffer_url, "a", fields=SIMPLE, create=True) as source,
        ReplayBuffer(buffer_url, "goal", fields=SIMPLE, create=True, max_capacity=5) as goal,
        ReplayBuffer(buffer_url, "other", fields={"obs": "int8"}, create=True) as other,
    ):
        for key in "ab":
            source.store_episode({"obs": [1.0] * 3, "truncated": [0, 0, 1]}, episode_id=key)
        goal.extend({"obs": [0.0] * 5})
        other.extend({"obs": [0]})
        with pytest.raises(CopyError, match=r"6 steps .* do not fit .*max_capacity=5.*resize"):
            source.copy_to(goal)
        with pytest.raises(CopyError, match="field 'obs': float32 there, int8 here"):
            source.copy_to(other)
        assert scalar(buffer_url, "SELECT count(*) FROM merges") == 0
        assert len(goal) == 5
        condition = QueryBuilder().eq("episode_id", "a").build()
        assert source.copy_to(goal, condition).n_copied == 3  # evicts older steps
        assert len(goal) == 5
        with pytest.raises(CopyError, match="another condition"):
            source.copy_to(goal)
        for wrong in ({"prefix": 3}, {"on_conflict": "replace"}, {"include_open": "yes"}):
            with pytest.raises(ArgumentError):
                source.copy_to(goal, **wrong)


def test_a_file_that_was_restored_is_not_the_same_source(make_database_url, tmp_path):
    import shutil

    url = f"sqlite:///{tmp_path}/a.db"
    with (
        ReplayBuffer(url, "a") as source,
        ReplayBuffer(make_database_url("sqlite", schema=True), "goal") as goal,
    ):
        goal.add(state=0)
        source.add(state=1)
        source.close()
        shutil.copyfile(tmp_path / "a.db", tmp_path / "b.db")
        with ReplayBuffer(f"sqlite:///{tmp_path}/b.db", "a") as twin:
            twin.add(state=2)
            assert twin.copy_to(goal).n_copied == 2
        with ReplayBuffer(url, "a") as source:
            source.add(state=3)
            with pytest.raises(CopyError, match="another step at seq 2"):
                source.copy_to(goal)


def merge_in_process(source_url, goal_url):
    with ReplayBuffer(source_url, "a") as source, ReplayBuffer(goal_url, "goal") as goal:
        source.copy_to(goal)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "fields"), [("sqlite", None), ("postgresql", SIMPLE)], ids=["rows", "typed"]
)
def test_a_merge_that_is_killed_goes_on_and_stores_nothing_twice(make_database_url, kind, fields):
    buffer_url = make_database_url(kind, schema=True)
    value, rng = "obs" if fields else "state", random.Random(3)
    context = multiprocessing.get_context("spawn")
    with (
        ReplayBuffer(buffer_url, "a", fields=fields, create=True) as source,
        ReplayBuffer(buffer_url, "goal", fields=fields, create=True) as goal,
    ):
        stop = threading.Event()

        def write():
            while not stop.wait(0.01):
                goal.extend({value: [0.0]}, task_id="own")

        goal.extend({value: [0.0]}, task_id="own")
        for i in range(40):
            n = 400 if fields else 150
            source.store_episode(
                {value: np.arange(n, dtype=float).tolist(), "reward": [1.0] * n},
                episode_id=f"e{i}", task_id="t",
            )  # fmt: skip
        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                process = context.Process(target=merge_in_process, args=(buffer_url, buffer_url))
                process.start()
                time.sleep(1.0 + rng.random() * 0.5)
                if process.is_alive():
                    os.kill(process.pid, signal.SIGKILL)
                process.join()
                lengths = Counter(row.exp_meta.episode_id for row in goal.get_by_task_id("t"))
                ended = {row[0]: row[5] for row in run(buffer_url, FACTS.format("goal")) if row[5]}
                assert all(lengths[key] == length for key, length in ended.items())
            source.copy_to(goal)
        finally:
            stop.set()
            thread.join()
        merged = [row for row in goal if row.exp_meta.task_id == "t"]
        assert sorted(row.id for row in merged) == sorted(row.id for row in source)
        facts = [row for row in run(buffer_url, FACTS.format("goal")) if row[1] == "t"]
        assert facts == run(buffer_url, FACTS.format("a"))
