"""Views that answer from summaries: groups, staleness of draws, and bytes of a buffer."""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.sql import run

FIELDS = {"obs": ("float32", (2,))}


@pytest.fixture(params=["rows", "typed steps"])
def buffer(request, buffer_url):
    settings = {"fields": FIELDS} if request.param == "typed steps" else {}
    with ReplayBuffer(buffer_url, track_samples=True, max_capacity=20, **settings) as buffer:
        yield buffer


def stored(buffer, n, **keys):
    values = {"obs": np.ones((n, 2))} if buffer.fields else {"state": [{"x": i} for i in range(n)]}
    buffer.extend({**values, "reward": np.ones(n)}, **keys)


def drawn(buffer, n):
    return buffer.sample_arrays(n) if buffer.fields else buffer.sample(n)


def test_steps_without_an_episode_are_a_rollout_of_their_task(buffer):
    stored(buffer, 3, task_id="loose")
    stored(buffer, 2, task_id="t", episode_id="e", group_id="g")
    columns = "task_id, group_id, rollouts, steps, return_mean, return_spread, incomplete, late"
    assert run(buffer.url, f"SELECT {columns} FROM v_groups ORDER BY group_id") == [
        ("t", "g", 1, 2, 2.0, 0.0, 0, 0),
        ("loose", "loose", 1, 3, 3.0, 0.0, 0, 0),
    ]


def test_a_group_of_aborted_rollouts_has_no_reward(buffer):
    with buffer.episode("t", group_id="g") as episode:
        episode.append(**({"obs": (0.0, 0.0)} if buffer.fields else {"state": 0}), reward=5.0)
        episode.abort()
    buffer.flush()
    columns = "group_id, rollouts, steps, return_mean, return_spread, incomplete"
    assert run(buffer.url, f"SELECT {columns} FROM v_groups") == [("g", 0, 1, None, None, 1)]


def test_staleness_stays_when_the_steps_have_left(buffer):
    stored(buffer, 10, task_id="t", model_version=2)
    buffer.set_clock(5)
    drawn(buffer, 4)
    stored(buffer, 40, task_id="u")
    drawn(buffer, 4)
    rows = run(
        buffer.url, "SELECT task_id, model_version, staleness FROM v_samples ORDER BY batch_id"
    )
    assert rows == [(None, 2, 3)] * 4 + [("u", None, None)] * 4
    batches = "SELECT clock, rows, mean_staleness, max_staleness FROM v_batches ORDER BY batch_id"
    assert run(buffer.url, batches) == [(5, 4, 3.0, 3), (5, 4, None, None)]


def test_a_buffer_without_steps_takes_no_bytes(buffer):
    kinds = {"chunks", "payloads", "indexes"} if buffer.fields else {"rows", "payloads", "indexes"}
    empty = run(buffer.url, "SELECT kind, entries FROM v_storage")
    assert dict(empty) == dict.fromkeys(kinds, 0)
    stored(buffer, 10, task_id="t")
    ((entries, size),) = run(
        buffer.url, "SELECT sum(entries), sum(bytes) FROM v_storage WHERE kind <> 'indexes'"
    )
    assert entries >= 1
    assert 300 < size < 500_000


def test_buffers_that_share_a_table_share_its_bytes(buffer):
    settings = {"fields": FIELDS} if buffer.fields else {}
    with ReplayBuffer(buffer.url, name="large", **settings) as large:
        stored(buffer, 5, task_id="t")
        for _ in range(4):
            stored(large, 100, task_id="t")
        kind = "payloads" if buffer.fields else "rows"
        sizes = run(
            buffer.url,
            "SELECT buffer, bytes, approximate FROM v_storage WHERE kind = :kind ORDER BY bytes",
            kind=kind,
        )
        assert [name for name, *_ in sizes] == ["default", "large"]
        assert all(approximate for *_, approximate in sizes)
