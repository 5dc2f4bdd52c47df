"""Conditions on the ids of steps in chunks."""

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


def test_steps_are_deleted_by_id(buffer):
    assert buffer.delete(query_condition=QueryBuilder().in_("id", ["e/3", "own/7"]).build()) == 2
    assert found(buffer, "e/3", "own/7", "e/4") == ["e/4"]
    assert buffer.delete(query_condition=QueryBuilder().eq("id", "e/3").build()) == 0
    others = QueryBuilder().ne("id", "e/4").build()
    assert buffer.delete(query_condition=others) == 904
    assert [row.id for row in buffer] == ["e/4"]
