"""Short names mean what AWorld's long paths mean, on both databases and in Python."""

import pytest

from sqlbuffer import QueryBuilder, QueryFilter, ReplayBuffer
from sqlbuffer.errors import ConditionError

PAIRS = {
    "task_id": ("exp_meta.task_id", "t1"),
    "step": ("exp_meta.step", 2),
    "agent_id": ("exp_meta.agent_id", "a0"),
    "reward": ("exp_data.reward_t", 1.0),
    "reward_t": ("exp_data.reward_t", 1.0),
    "v_t": ("exp_data.v_t", 0.0),
    "state.x": ("exp_data.state.x", 1),
    "state.tags[0]": ("exp_data.state.tags[0]", "even"),
    "actions[0]": ("exp_data.actions[0]", 3),
    "extra": ("exp_data.extra", {"k": 1}),
}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for i in range(6):
            buffer.add(
                task_id=f"t{i // 3}",
                agent_id=f"a{i % 2}",
                step=i % 3,
                reward=float(i % 2),
                v_t=float(i % 3),
                state={"x": i % 2, "tags": ["odd" if i % 2 else "even"]},
                actions=[i],
                extra={"k": i % 4},
            )
        yield buffer


@pytest.mark.parametrize("short", PAIRS)
def test_a_short_name_finds_the_rows_of_the_long_one(buffer, short):
    long, value = PAIRS[short]
    found = [
        [row.seq for row in buffer.get_all(QueryBuilder().eq(name, value))]
        for name in (short, long)
    ]
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 6
    rows = QueryFilter(QueryBuilder().eq(short, value)).filter(buffer.get_all())
    assert [row.seq for row in rows] == found[0]


def test_a_typo_names_what_may_be_meant(buffer):
    with pytest.raises(ConditionError, match=r"unknown field 'task'; did you mean task_id"):
        buffer.size(QueryBuilder().eq("task", 1))


def test_fields_are_named_as_in_conditions(buffer):
    (row, *_) = buffer.get_all(fields=["task_id", "reward", "state.x"])
    assert (row.exp_meta.task_id, row.exp_data.reward_t) == ("t0", 0.0)
    assert (row.exp_data.state, row.exp_data.actions) == ({"x": 0}, None)
