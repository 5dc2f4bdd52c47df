"""Rows with typed fields are stored, and read back as they were."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.errors import EpisodeEndedError, FieldError
from tests.support.sql import run, scalar

FIELDS = {
    "obs": ("float32", (2,)),
    "level": {"dtype": "int64", "column": True, "default": 7},
    "tokens": ("int32", (-1,)),
}


def typed(n, **values):
    return {"obs": np.float32([n, -n]), "tokens": np.arange(n % 3, dtype=np.int32), **values}


def make_rows(n=12):
    """Return rows that differ in everything that steps of a chunk have in common."""
    return [
        DataRow(
            ExpMeta(
                f"t{i // 6}",
                None if i < 3 else "näme",
                f"a{i // 4}",
                3 * i,
                math.nan if i == 5 else -0.0 if i == 6 else 1000.0 + i * i,
                pre_agent="p" if i % 5 else None,
                episode_id=f"e{i // 6}" if i % 4 else None,
                model_version=None if i % 3 else i,
                session_id="s" if i > 8 else None,
            ),
            Experience(
                state={"grid": np.full((2, 2), i)} if i % 2 else None,
                actions=[i],
                messages=["hello"] if i == 3 else None,
                extra={"k": i} if i == 4 else None,
                reward_t=None if i == 1 else math.nan if i == 2 else -0.0 if i == 7 else float(i),
                adv_t=None if i % 2 else i / 4,
                v_t=math.nan if i == 2 else 0.5,
                terminated=None if i == 3 else i % 6 == 5,
                truncated=False if i % 2 else None,
            ),
            fields=typed(i, level=np.int64(i)),
        )
        for i in range(n)
    ]


@pytest.fixture(params=[None, "zstd"], ids=["raw", "zstd"])
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, fields=FIELDS, compression=request.param) as buffer:
        yield buffer


def by_id(rows):
    return {row.id: row for row in rows}


def assert_same(found, expected):
    found = by_id(found)
    assert found.keys() == by_id(expected).keys()
    for row in expected:
        assert found[row.id] == row
        for name in ("execute_time",):
            given, read = (getattr(each.exp_meta, name) for each in (row, found[row.id]))
            assert math.copysign(1, given) == math.copysign(1, read)
        for name, value in row.fields.items():
            assert found[row.id].fields[name].dtype == np.asarray(value).dtype


def test_rows_come_back_as_they_were(buffer):
    rows = make_rows()
    result = buffer.store_batch(rows)
    assert result.inserted == len(rows)
    assert_same(buffer, rows)
    assert {row.seq: row.id for row in buffer} == dict(
        zip(result.seqs.tolist(), [row.id for row in rows], strict=True)
    )
    assert buffer.store_batch(rows).duplicates == len(rows)
    changed = replace(rows[3], fields=typed(3, level=4))
    assert buffer.store_batch([changed, rows[4]]).conflicting_ids == (changed.id,)


@pytest.mark.each_value
@pytest.mark.thorough
def test_rows_go_from_buffer_to_buffer(buffer, buffer_url):
    rows = make_rows(40)
    buffer.store_batch(rows)
    with ReplayBuffer(buffer_url, name="other", fields=FIELDS) as other:
        for row in buffer:
            other.store(row)
        assert_same(other, rows)


def test_times_are_views_too(buffer, buffer_url):
    buffer.store_batch(make_rows())
    shown = dict(run(buffer_url, "SELECT id, execute_time FROM v_experiences"))
    steps = dict(run(buffer_url, "SELECT id, execute_time FROM chunk_steps"))
    assert (
        shown
        == steps
        == {
            row.id: None if math.isnan(row.exp_meta.execute_time) else row.exp_meta.execute_time
            for row in buffer
        }
    )
    first, last = run(buffer_url, "SELECT first_at, last_at FROM v_tasks WHERE task_id = 't1'")[0]
    assert str(first) < str(last)


def test_a_default_stands_for_a_field_that_is_left_out(buffer):
    meta = ExpMeta("t", None, "a", 1, 0.0)
    buffer.store(DataRow(meta, Experience(), fields=typed(1)))
    buffer.store(DataRow(meta, Experience(), fields=typed(1, level=None)))
    assert [row.fields["level"] for row in buffer] == [7, 7]


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "row 1: field 'obs' is missing: expected float32"),
        (typed(1, speed=2), "row 1: unknown field 'speed'; the buffer has obs, level, tokens"),
        (typed(1, obs=[1.0, 2.0, 3.0]), "obs"),
        (typed(1, obs="text"), "obs"),
        (typed(1, level=1.5), "level"),
        (typed(1, tokens=3), "tokens"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(buffer, fields, message):
    meta = ExpMeta("t", None, "a", 1, 0.0)
    good = DataRow(meta, Experience(), fields=typed(1))
    with pytest.raises(FieldError, match=message):
        buffer.store_batch([good, DataRow(meta, Experience(), fields=fields)])
    assert len(buffer) == 0


def test_a_buffer_without_fields_takes_none(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        with pytest.raises(FieldError, match=r"row 0: unknown field 'obs'.*no typed fields"):
            buffer.store(DataRow(ExpMeta("t", None, "a", 1, 0.0), Experience(), fields=typed(1)))
        assert len(buffer) == 0


def of_episode(episode, steps):
    return [
        DataRow(
            ExpMeta("t", None, "a", step, 0.0, episode_id=episode),
            Experience(reward_t=float(step)),
            fields=typed(step),
        )
        for step in steps
    ]


def test_rows_are_appended_to_their_episode(buffer, buffer_url):
    rows = of_episode("e", range(9))
    buffer.store_batch(rows[:3])
    buffer.store_batch([*rows[:4], *of_episode("f", range(2))])
    buffer.store_batch(rows)
    found = run(buffer_url, "SELECT step, t FROM chunk_steps WHERE task_id = 't' ORDER BY seq")
    assert sorted(found) == sorted([*((n, n) for n in range(9)), (0, 0), (1, 1)])
    batch = buffer.sample_transitions(64)
    np.testing.assert_array_equal(batch.next_obs[:, 0], batch.obs[:, 0] + 1)
    lengths = "SELECT episode_id, status, length FROM v_episodes ORDER BY episode_id"
    assert [row[:2] for row in run(buffer_url, lengths)] == [("e", "open"), ("f", "open")]


def test_an_episode_that_has_ended_takes_no_more(buffer):
    columns = {"obs": np.zeros((2, 2), np.float32), "tokens": [[], []]}
    buffer.store_episode(columns, task_id="t", agent_id="a", episode_id="e")
    with pytest.raises(EpisodeEndedError, match="'e' of task 't' has ended"):
        buffer.store_batch(of_episode("e", range(2, 4)))
    assert len(buffer) == 2


@pytest.mark.thorough
def test_writers_append_to_one_episode_at_once(buffer, buffer_url):
    def write(n):
        with ReplayBuffer(buffer_url) as own:
            for step in range(10):
                if n % 2:  # at a step that all have in common
                    own.store_batch(of_episode("e", [0]))
                else:
                    own.add(**typed(step), task_id="t", agent_id="a", step=0, episode_id="e")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = run(buffer_url, "SELECT t FROM chunk_steps ORDER BY t")
    assert [t for (t,) in found] == list(range(40))
    assert scalar(buffer_url, "SELECT next_t FROM episodes") == 40


def test_priorities_and_a_session_for_all(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        meta = ExpMeta("t", None, "a", 1, 0.0)
        rows = [DataRow(meta, Experience(), fields=typed(n)) for n in range(3)]
        buffer.store_batch(rows, priority=[1.0, 2.0, 3.0], model_version=4, session_id="s")
        metas = [row.exp_meta for row in buffer]
        assert {(meta.session_id, meta.model_version) for meta in metas} == {("s", 4)}
        shown = run(buffer_url, "SELECT initial_priority FROM chunk_steps ORDER BY seq")
        assert [own for (own,) in shown] == [1.0, 2.0, 3.0]
