"""Rollouts are paged by key, as the library returns their steps, with what is known of each."""

import json
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.storage.browsing.rollouts import Rollout, browsed_buffer, find_episode
from sqlbuffer.storage.browsing.steps import (
    MOST_AGENTS,
    draws_of,
    key_page,
    notes_of,
    read_steps,
    spaced_keys,
)
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.transactions import snapshot
from tests.support.sql import run

N = 23


@contextmanager
def browsing(url, name="default"):
    resolved = resolve_url(url)
    with snapshot(engine_for(resolved)) as connection:
        yield connection, browsed_buffer(connection, resolved, name)


def joined(pages):
    return [*chain.from_iterable(pages)]


def all_pages(connection, buffer, rollout, limit, *, backwards=False):
    """Return the positions page by page, and check that each page joins the next."""
    pages = []
    page = key_page(connection, buffer, rollout, limit, is_last=backwards)
    while True:
        pages.append([key.position for key in page.keys])
        if not page.has_more:
            return pages[::-1] if backwards else pages
        edge = {"before": page.keys[0]} if backwards else {"after": page.keys[-1]}
        page = key_page(connection, buffer, rollout, limit, **edge)


def rows_in_episodes(url, **options):
    """Store two episodes whose steps alternate, as rows with a place in the episode."""
    buffer = ReplayBuffer(url, **options)
    names = {"task_id": "t"}
    with (
        buffer.episode(episode_id="a", **names) as a,
        buffer.episode(episode_id="b", **names) as b,
    ):
        for i in range(N):
            a.append(state={"x": i}, actions=[i], reward=1.0)
            b.append(state={"x": -i}, actions=[i], reward=1.0)
    return buffer


def rows_alone(url, **options):
    """Store the same as rows that name their episode, the last one first."""
    buffer = ReplayBuffer(url, **options)
    for i in reversed(range(N)):
        for episode, sign in (("a", 1), ("b", -1)):
            state = {"x": sign * i}
            buffer.add(task_id="t", episode_id=episode, step=i, state=state, actions=[i], reward=1)
    return buffer


def typed_episodes(url, **options):
    buffer = ReplayBuffer(url, fields={"x": ("float32", ())}, **options)
    names = {"task_id": "t"}
    with (
        buffer.episode(episode_id="a", **names) as a,
        buffer.episode(episode_id="b", **names) as b,
    ):
        for i in range(N):
            a.append(x=i, reward=1.0)
            b.append(x=-i, reward=1.0)
            if i % 5 == 0:
                buffer.flush()
    return buffer


def number_of(url, key):
    ((number,),) = run(url, "SELECT id FROM episodes WHERE key = :key", key=key)
    return number


def x_of(row):
    return row.fields["x"] if row.fields else row.exp_data.state["x"]


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("store", [rows_in_episodes, rows_alone, typed_episodes])
@pytest.mark.parametrize("limit", [1, 5, N, 100])
def test_an_episode_is_paged_in_its_order_both_ways(buffer_url, store, limit):
    store(buffer_url).close()
    with browsing(buffer_url) as (connection, buffer):
        rollout = find_episode(connection, buffer, number_of(buffer_url, "b"))
        assert (rollout.task_id, rollout.episode_id) == ("t", "b")
        pages = all_pages(connection, buffer, rollout, limit)
        assert joined(pages) == list(range(N))
        assert all(len(page) == limit for page in pages[:-1])
        back = all_pages(connection, buffer, rollout, limit, backwards=True)
        assert joined(back) == list(range(N))
        steps, _ = read_steps(connection, buffer, key_page(connection, buffer, rollout, N).keys)
        assert [x_of(step.row) for step in steps] == [-i for i in range(N)]


@pytest.mark.parametrize("store", [rows_in_episodes, rows_alone, typed_episodes])
def test_steps_at_even_distances_have_both_ends(buffer_url, store):
    store(buffer_url).close()
    with browsing(buffer_url) as (connection, buffer):
        rollout = find_episode(connection, buffer, number_of(buffer_url, "a"))
        keys, n = spaced_keys(connection, buffer, rollout, 5)
        assert n == N
        assert [key.position for key in keys] == [0, 5, 11, 16, 22]
        assert len(spaced_keys(connection, buffer, rollout, 100)[0]) == N


@pytest.mark.parametrize("typed", [False, True])
def test_a_task_without_episodes_is_paged_agent_by_agent_or_together(buffer_url, typed):
    with ReplayBuffer(buffer_url, fields={"x": ("int64", ())} if typed else None) as buffer:
        for step in range(10):
            for agent in ("planner", "worker"):
                value = {"x": step} if typed else {"state": {"x": step}}
                buffer.add(task_id="t", agent_id=agent, step=step, **value)
        if not typed:
            buffer.add(task_id="t", agent_id="planner", step=3, episode_id="e", state={"x": 0})
    with browsing(buffer_url) as (connection, buffer):
        together = all_pages(connection, buffer, Rollout("t"), 3)
        assert joined(together) == sorted([*range(10), *range(10)])
        assert joined(all_pages(connection, buffer, Rollout("t"), 3, backwards=True)) == joined(
            together
        )
        alone = all_pages(connection, buffer, Rollout("t", agent_id="worker"), 4)
        assert joined(alone) == list(range(10))
        assert not key_page(connection, buffer, Rollout("no such"), 3).keys


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("typed", [False, True])
def test_a_task_of_many_agents_whose_steps_alternate_is_paged(buffer_url, typed):
    n_agents, n_steps = MOST_AGENTS + 3, 4
    fields = {"x": ("int64", ())} if typed else None
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        for step in range(n_agents * n_steps):
            value = {"x": step} if typed else {"state": {"x": step}}
            buffer.add(task_id="t", agent_id=f"agent {step % n_agents}", step=step, **value)
    with browsing(buffer_url) as (connection, buffer):
        for backwards in (False, True):
            pages = all_pages(connection, buffer, Rollout("t"), 100, backwards=backwards)
            assert joined(pages) == list(range(n_agents * n_steps))
        keys = key_page(connection, buffer, Rollout("t", agent_id="agent 2"), 10).keys
        assert [key.position for key in keys] == [2 + n_agents * i for i in range(n_steps)]


@pytest.mark.thorough
@pytest.mark.parametrize("store", [rows_in_episodes, rows_alone, typed_episodes])
def test_steps_that_have_left_are_not_shown(buffer_url, store):
    with store(buffer_url, max_capacity=20) as buffer:
        buffer.delete(QueryBuilder().eq("seq", max(row.seq for row in buffer)).build())
        held = {row.seq for row in buffer}
    with browsing(buffer_url) as (connection, buffer):
        shown = []
        for key in ("a", "b"):
            rollout = find_episode(connection, buffer, number_of(buffer_url, key))
            keys = key_page(connection, buffer, rollout, 100).keys
            shown += [step.row.seq for step in read_steps(connection, buffer, keys)[0]]
    assert set(shown) == held
    assert len(shown) == len(held)


def test_unknown_episodes_and_buffers(buffer_url):
    rows_in_episodes(buffer_url).close()
    ReplayBuffer(buffer_url, name="other").close()
    number = number_of(buffer_url, "a")
    with browsing(buffer_url, "other") as (connection, buffer):
        assert find_episode(connection, buffer, number) is None
        for wrong in (0, -1, 2**63, 10**30):
            assert find_episode(connection, buffer, wrong) is None
    unknown = pytest.raises(BufferNotFoundError, match="no buffer 'none'")
    with unknown, browsing(buffer_url, "none"):
        pass


def test_large_steps_make_a_short_page(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for i in range(30):
            buffer.add(task_id="t", step=i, messages=["x" * 100_000])
    with browsing(buffer_url) as (connection, buffer):
        keys = key_page(connection, buffer, Rollout("t"), 100).keys
        steps, n_taken = read_steps(connection, buffer, keys, most_bytes=1)
        assert 1 <= len(steps) == n_taken <= 8
        assert len(read_steps(connection, buffer, keys, most_bytes=10**6)[0]) < 25
        assert len(read_steps(connection, buffer, keys)[0]) == 30


def test_fields_that_are_not_wanted_are_not_read(buffer_url):
    fields = {"image": ("uint8", (8, 8)), "x": ("int64", ())}
    with (
        ReplayBuffer(buffer_url, fields=fields) as buffer,
        buffer.episode(task_id="t", episode_id="a") as episode,
    ):
        episode.append(image=np.ones((8, 8), np.uint8), x=3, reward=2.0)
    with browsing(buffer_url) as (connection, buffer):
        rollout = find_episode(connection, buffer, number_of(buffer_url, "a"))
        keys = key_page(connection, buffer, rollout, 5).keys
        (step,), _ = read_steps(connection, buffer, keys, without=["image"])
        assert step.row.fields == {"x": 3}
        assert step.row.exp_data.reward_t == 2.0
        (none,), _ = read_steps(connection, buffer, keys, without=["image", "x"])
        assert none.row.fields == {}


def test_what_plain_sql_has_stored_wrongly_does_not_hide_the_other_steps(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for step in range(3):
            buffer.add(task_id="t", step=step, state={"x": step})
    run(
        buffer_url,
        """UPDATE experiences SET state = '{"$array": ["<f4", [9], 0, 36]}'
        WHERE step = 1""",
    )
    with browsing(buffer_url) as (connection, buffer):
        keys = key_page(connection, buffer, Rollout("t"), 5).keys
        steps, _ = read_steps(connection, buffer, keys)
    assert [step.row is None for step in steps] == [False, True, False]
    assert steps[1].trouble


def test_annotations_uses_priorities_and_quarantine(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True, max_use=5) as buffer:
        for step in range(3):
            buffer.add(task_id="t", step=step, state={"x": step}, reward=0.0)
        seqs = [row.seq for row in buffer]
        buffer.annotate(seqs[:1], reward=1.0, version=1)
        buffer.annotate(seqs[:1], reward=9.0, extra={"judge": "<b>"}, version=2)
        buffer.quarantine(seqs[1:2], reason="odd")
        buffer.sample(1)
        buffer.update_priorities(seqs[2:], [7.0])
    with browsing(buffer_url) as (connection, buffer):
        notes = notes_of(connection, buffer, seqs)
        keys = key_page(connection, buffer, Rollout("t"), 5).keys
        assert read_steps(connection, buffer, keys)[0][0].row.exp_data.reward_t == 9.0
    assert [(each.version, each.reward) for each in notes[seqs[0]].labels] == [
        (1, 1),
        (2, 9.0),
    ]
    assert "judge" in notes[seqs[0]].labels[1].extra
    assert notes[seqs[1]].quarantine[0] == "odd"
    assert notes[seqs[2]].priority == pytest.approx(7.0, abs=1e-3)
    assert sum(note.n_uses or 0 for note in notes.values()) == 1


def test_late_fields_are_shown_with_their_versions(buffer_url):
    with ReplayBuffer(buffer_url, fields={"weight": "float32"}) as buffer:
        buffer.extend({"weight": np.ones(2)}, task_id="t", step=[0, 1])
        buffer.annotate([2], weight=0.5)
    with browsing(buffer_url) as (connection, buffer):
        keys = key_page(connection, buffer, Rollout("t"), 5).keys
        steps, _ = read_steps(connection, buffer, keys)
        assert [step.row.fields["weight"] for step in steps] == [1.0, 0.5]
        (label,) = notes_of(connection, buffer, [2])[2].labels
        assert json.loads(label.fields) == {"weight": 0.5}


def test_the_batches_that_held_a_step(buffer_url):
    with ReplayBuffer(buffer_url, track_samples=True) as buffer:
        buffer.store_batch([DataRow(ExpMeta("t", step=i), Experience(state=i)) for i in range(4)])
        seqs = [row.seq for row in buffer]
        drawn = [buffer.sample(2) for _ in range(6)]
    with browsing(buffer_url) as (connection, buffer):
        found = draws_of(connection, buffer, seqs[:2])
    assert (found.n_searched, found.is_all) == (6, True)
    expected = sum(row.seq in seqs[:2] for batch in drawn for row in batch)
    assert len(found.draws) == expected
    assert [draw.batch for draw in found.draws] == sorted(
        (draw.batch for draw in found.draws), reverse=True
    )
