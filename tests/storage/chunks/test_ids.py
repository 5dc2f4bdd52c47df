"""The ids of steps in chunks: those that users give never meet those that the library makes."""

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import FieldError
from tests.support.sql import run

FIELDS = {"obs": "float32"}


def obs(n):
    return {"obs": np.arange(float(n)), "reward": np.ones(n)}


@pytest.fixture
def buffer(buffer_url):
    """Steps with ids of their own, of episodes, one with slashes in its id, and with none."""
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        buffer.extend({"id": [f"own/{i}" for i in range(300)], **obs(300)})
        buffer.store_episode(obs(600), episode_id="e")
        buffer.store_episode(obs(3), episode_id="a/7/b")
        buffer.extend(obs(4))
        yield buffer


def found(buffer, *ids):
    builder = QueryBuilder()
    condition = builder.eq("id", ids[0]) if len(ids) == 1 else builder.in_("id", list(ids))
    return [row.id for row in buffer.get_all(query_condition=condition.build())]


@pytest.mark.thorough
def test_each_step_is_found_by_its_id(buffer):
    ids = [row.id for row in buffer]
    assert len(set(ids)) == 907
    for place in (0, 299, 300, 555, 556, 899, 902, *range(-4, 0)):
        assert found(buffer, ids[place]) == [ids[place]]
    assert found(buffer, *ids) == ids
    assert found(buffer, ids[303], "nowhere/1", ids[-1]) == [ids[303], ids[-1]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "id_",
    ["", "/", "/3", "{}", "{}/", "{}/256", "{}/-1", "{}/03", "{}/999999999999", "e/0", "own/300"],
)
def test_no_step_is_found_by_another_id(buffer, id_):
    chunk_id, _, place = next(row.id for row in buffer if row.seq == 301).rpartition("/")
    assert place == "0"
    assert found(buffer, id_.format(chunk_id)) == []


def matching(buffer, builder):
    return [row.id for row in buffer.get_all(query_condition=builder.build())]


def test_conditions_leave_ids_out(buffer):
    ids = [row.id for row in buffer]
    assert matching(buffer, QueryBuilder().not_in("id", [ids[0], ids[303], "no"])) == [
        id_ for id_ in ids if id_ not in (ids[0], ids[303])
    ]


def test_steps_are_found_by_their_numbers(buffer):
    ids = [row.id for row in buffer]
    numbers = [556, 1, 300, 301, 907, 908, 2**62, 0, -7]
    own = [ids[n - 1] for n in (1, 300, 301, 556, 907)]
    others = [id_ for id_ in ids if id_ not in own]
    some = QueryBuilder().in_("seq", numbers)
    assert matching(buffer, some) == own
    assert matching(buffer, QueryBuilder().not_in("seq", numbers)) == others
    assert matching(buffer, QueryBuilder().nested(some).or_().eq("id", ids[303])) == [
        *own[:3], ids[303], *own[3:],
    ]  # fmt: skip
    assert buffer.delete(query_condition=some.build()) == 5
    assert [row.id for row in buffer] == others


def test_steps_are_deleted_by_id(buffer):
    deleted, kept = (buffer.get_paginated(seq, 1)[0].id for seq in (304, 305))
    assert buffer.delete(query_condition=QueryBuilder().in_("id", [deleted, "own/7"]).build()) == 2
    assert found(buffer, deleted, "own/7", kept) == [kept]
    assert buffer.delete(query_condition=QueryBuilder().eq("id", deleted).build()) == 0
    others = QueryBuilder().ne("id", kept).build()
    assert buffer.delete(query_condition=others) == 904
    assert [row.id for row in buffer] == [kept]


def turn(step, id_, episode="r1", task="p"):
    """Return a step that is sent alone, under an id as users make them."""
    meta = ExpMeta(task_id=task, step=step, episode_id=episode)
    return DataRow(meta, Experience(), id_, fields={"obs": step})


def test_ids_of_turns_are_no_places_in_their_episode(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        given = [turn(step, f"r1/{step}") for step in (0, 2, 4)]
        assert [buffer.store(row).inserted for row in given] == [1, 1, 1]
        # At the places 3 to 6 of the episode.
        more = {"task_id": "p", "episode_id": "r1"}
        assert buffer.extend(obs(2), step=[5, 6], **more).inserted == 2
        assert [buffer.store(turn(7, id_)).inserted for id_ in ("r1/1", "r1/3")] == [1, 1]
        other = [turn(step, f"r1/{step}", "r2", "q") for step in (5, 6)]
        assert buffer.store_batch(other).inserted == 2
        rows = list(buffer)
        assert [row.exp_meta.step for row in rows] == [0, 2, 4, 5, 6, 7, 7, 5, 6]
        assert len({row.id for row in rows}) == 9
        assert {row.id for row in rows} >= {row.id for row in (*given, *other)}
        for sent in (given, other, rows):
            assert buffer.store_batch(sent).duplicates == len(sent)


def test_rows_keep_their_ids_where_they_are_stored_next(make_database_url, buffer_url):
    source = ReplayBuffer(make_database_url("sqlite"), fields=FIELDS, max_capacity=6)
    source.store_episode(obs(10), episode_id="e", task_id="t")
    source.store_episode(obs(3), episode_id="e", task_id="u")
    rows = list(source)
    assert [row.exp_meta.step for row in rows] == [7, 8, 9, 0, 1, 2]
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        buffer.extend(obs(8), task_id="t", episode_id="e")
        for part, n_new in ((rows[:2], 2), (rows, 4), (rows, 0)):
            result = buffer.store_batch(part)
            assert (result.inserted, result.conflicts) == (n_new, 0)
        assert buffer.extend(obs(2), step=[10, 11], task_id="t", episode_id="e").inserted == 2
        ids = [row.id for row in buffer]
        assert len(set(ids)) == 16
        assert set(ids) >= {row.id for row in rows}
        assert found(buffer, rows[0].id) == [rows[0].id]
        assert buffer.store_batch(list(buffer)).duplicates == 16
    assert source.store_batch(rows).duplicates == 6
    source.close()


@pytest.mark.parametrize("fields", [None, FIELDS], ids=["json", "typed"])
def test_an_episode_without_an_id_is_stored_once_by_the_ids_of_its_steps(buffer_url, fields):
    columns = {"reward": [0.0, 1.0], "id": ["a", "b"], **({"obs": [0.0, 1.0]} if fields else {})}
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        results = [buffer.store_episode(columns) for _ in range(2)]
        assert [(r.inserted, r.duplicates, r.conflicts) for r in results] == [(2, 0, 0), (0, 2, 0)]
        assert results[0].seqs.tolist() == results[1].seqs.tolist() == [1, 2]
        assert run(buffer_url, "SELECT length, status FROM v_episodes") == [(2, "complete")]
        with pytest.raises(FieldError, match="is stored once by that id; leave out `id`"):
            buffer.store_episode(columns, episode_id="e")
