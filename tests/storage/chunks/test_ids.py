"""Conditions on the ids and numbers of steps in chunks."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer

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


def test_each_step_is_found_by_its_id(buffer):
    ids = [row.id for row in buffer]
    assert len(set(ids)) == 907
    for id_ in (ids[0], ids[299], "e/0", "e/255", "e/256", "e/599", "a/7/b/2", *ids[-4:]):
        assert found(buffer, id_) == [id_]
    assert found(buffer, *ids) == ids
    assert found(buffer, "e/3", "nowhere/1", ids[-1]) == ["e/3", ids[-1]]


@pytest.mark.parametrize(
    "id_", ["", "/", "/3", "e", "e/", "e/600", "e/-1", "e/03", "e/99999999999999999999", "own/300"]
)
def test_no_step_is_found_by_another_id(buffer, id_):
    assert found(buffer, id_) == []


def matching(buffer, builder):
    return [row.id for row in buffer.get_all(query_condition=builder.build())]


def test_conditions_leave_ids_out(buffer):
    ids = [row.id for row in buffer]
    assert matching(buffer, QueryBuilder().not_in("id", [ids[0], "e/3", "no"])) == [
        id_ for id_ in ids if id_ not in (ids[0], "e/3")
    ]


def test_steps_are_found_by_their_numbers(buffer):
    ids = [row.id for row in buffer]
    numbers = [556, 1, 300, 301, 907, 908, 2**62, 0, -7]
    own = [ids[n - 1] for n in (1, 300, 301, 556, 907)]
    others = [id_ for id_ in ids if id_ not in own]
    some = QueryBuilder().in_("seq", numbers)
    assert matching(buffer, some) == own
    assert matching(buffer, QueryBuilder().not_in("seq", numbers)) == others
    assert matching(buffer, QueryBuilder().nested(some).or_().eq("id", "e/3")) == [
        *own[:3], "e/3", *own[3:],
    ]  # fmt: skip
    assert buffer.delete(query_condition=some.build()) == 5
    assert [row.id for row in buffer] == others


def test_steps_are_deleted_by_id(buffer):
    assert buffer.delete(query_condition=QueryBuilder().in_("id", ["e/3", "own/7"]).build()) == 2
    assert found(buffer, "e/3", "own/7", "e/4") == ["e/4"]
    assert buffer.delete(query_condition=QueryBuilder().eq("id", "e/3").build()) == 0
    others = QueryBuilder().ne("id", "e/4").build()
    assert buffer.delete(query_condition=others) == 904
    assert [row.id for row in buffer] == ["e/4"]
