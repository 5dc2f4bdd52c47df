"""A session finds what `get_all` finds."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    QueryBuilder,
    QueryFilter,
    ReplayBuffer,
    orm,
)
from sqlbuffer.errors import ConditionError
from tests.query.strategies import rows_and_conditions
from tests.support.sql import run

NAMES = {
    "exp_meta": [
        "task_id", "task_name", "agent_id", "pre_agent", "step", "execute_time", "episode_id",
        "model_version", "session_id",
    ],
    "exp_data": ["state", "actions", "messages", "extra", "terminated", "truncated"],
}  # fmt: skip
NUMBERS = {"reward": "reward_t", "advantage": "adv_t", "value": "v_t"}


def matching(condition, *, buffer="default", fields=None):
    """Return the statement that `get_all` of a buffer stands for."""
    return (
        select(orm.Experience)
        .where(orm.Experience.buffer == buffer, orm.to_sqlalchemy(condition, fields=fields))
        .order_by(orm.Experience.seq)
    )


def content(row):
    """Return what a mapped row or one of `get_all` says, in one form."""
    if isinstance(row, DataRow):
        found = {name: getattr(getattr(row, part), name) for part in NAMES for name in NAMES[part]}
        found |= {name: getattr(row.exp_data, NUMBERS[name]) for name in NUMBERS}
    else:
        found = {name: getattr(row, name) for part in NAMES for name in NAMES[part]}
        found |= {name: getattr(row, name) for name in NUMBERS}
    return {"id": row.id, "seq": row.seq, **found}


def assert_same(session, buffer, condition, *, name="default"):
    """Compare what a session and a buffer find; return how many rows."""
    expected = [content(row) for row in buffer.get_all(condition)]
    statement = matching(condition, buffer=name, fields=buffer.fields)
    assert [content(row) for row in session.scalars(statement)] == expected
    session.rollback()
    return len(expected)


def make_rows(n):
    return [
        DataRow(
            ExpMeta(
                f"t{i // 3}", None, "a", i, 1.5 + i, episode_id=str(i % 2), session_id="s1",
                model_version=i if i % 2 else None,
            ),
            Experience(
                {"x": i, "tags": ["even"] if i % 2 == 0 else []}, [i], float(i), extra={"$k": (i,)}
            ),
        )
        for i in range(n)
    ]  # fmt: skip


CONDITIONS = [
    None,
    QueryBuilder().gt("exp_meta.step", 3),
    QueryBuilder().eq("exp_meta.task_id", "t1").or_().is_null("model_version").build(),
    QueryBuilder().eq("episode_id", "1").and_().eq("session_id", "s1").build(),
    QueryBuilder().like("exp_data.state.tags", "even").and_().lt("exp_data.state.x", 7).build(),
    QueryBuilder().between("exp_data.reward_t", 2, 6).and_().ne("exp_data.actions[0]", 4).build(),
    QueryBuilder().gte("exp_meta.execute_time", 4.5).and_().not_in("seq", [1, 9]).build(),
    QueryBuilder().eq("exp_data.extra.$k[0]", 5).build(),
    QueryBuilder()
    .is_null("exp_meta.task_name")
    .and_()
    .nested(QueryBuilder().in_("exp_meta.step", [1, 2, 8]).or_().eq("exp_data.reward_t", 4.0))
    .build(),
]


@pytest.mark.thorough
def test_finds_the_rows_that_match_in_one_of_several_buffers(schema_url, session):
    for name in ("other", "default"):
        buffer = ReplayBuffer(schema_url, name=name)
        buffer.store_batch(make_rows(10))
    for condition in CONDITIONS:
        assert 0 < assert_same(session, buffer, condition) <= 10


def found_by_each(session, conditions):
    """Return the ids that each condition finds, by one statement: one each takes longer."""
    row = orm.Experience
    found = [select(row.id).where(orm.to_sqlalchemy(condition)) for condition in conditions]
    rows = session.execute(select(row.id, *(row.id.in_(ids) for ids in found)).order_by(row.seq))
    table = rows.all()
    return [[id_ for id_, *is_found in table if is_found[i]] for i in range(len(conditions))]


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(drawn=rows_and_conditions())
def test_random_conditions_find_what_get_all_finds(buffers, urls, drawn):
    rows, conditions = drawn
    for kind, buffer in buffers.items():
        buffer.clear()
        buffer.store_batch(rows)
        stored = list(buffer.get_all())
        with Session(orm.engine(urls[kind])) as session:
            for condition, ids in zip(conditions, found_by_each(session, conditions), strict=True):
                matches = QueryFilter(condition).filter(stored)
                assert ids == [row.id for row in matches], (kind, condition)
            shown = session.scalars(matching(conditions[0]))
            assert [row.seq for row in shown] == [row.seq for row in buffer.get_all(conditions[0])]


def test_rows_behind_the_window_are_not_found(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    buffer.store_batch(make_rows(10))
    run(schema_url, "UPDATE buffers SET low_seq = 6")
    assert run(schema_url, "SELECT count(*) FROM experiences") == [(10,)]
    assert assert_same(session, buffer, None) == 4
    assert assert_same(session, buffer, QueryBuilder().gt("exp_meta.step", 7)) == 2
    assert session.get(orm.Experience, ("default", 6)) is None
    assert session.get(orm.Experience, ("default", 7)).step == 6


def test_labels_are_in_place(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    rows = make_rows(6)
    rows[5].exp_data.reward_t = math.nan
    buffer.store_batch(rows)
    buffer.annotate(QueryBuilder().gt("exp_meta.step", 3), reward=-1.0, extra={"judge": "b"})
    for condition, n_rows in (
        (None, 6),
        (QueryBuilder().eq("exp_data.reward_t", -1), 2),
        (QueryBuilder().gt("exp_data.reward_t", 3), 0),
        (QueryBuilder().eq("exp_data.extra.judge", "b"), 2),
        (QueryBuilder().is_null("exp_data.extra.judge"), 4),
        (QueryBuilder().is_null("exp_data.reward_t"), 0),
    ):
        assert assert_same(session, buffer, condition) == n_rows


def test_a_number_that_is_nan_is_not_missing(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    for reward in (math.nan, None, 1.0):
        buffer.add(reward=reward, execute_time=math.nan if reward else 1.0)
    is_missing = QueryBuilder().is_null("exp_data.reward_t")
    (missing,) = session.scalars(matching(is_missing))
    assert [missing.seq] == [row.seq for row in buffer.get_all(is_missing)] == [2]
    first = session.get(orm.Experience, ("default", 1))
    assert first.reward is None
    assert set(first.special_numbers) == {"reward_t", "execute_time"}
    assert math.isnan(first.special_numbers["reward_t"])


def test_declared_fields_are_found(schema_url, session):
    buffer = ReplayBuffer(schema_url, fields={"level": {"dtype": "int32", "column": True}})
    buffer.extend({"level": [1, 2, 3]})
    statement = matching({"field": "level", "op": "gt", "value": 1}, fields=buffer.fields)
    assert [row.fields for row in session.scalars(statement)] == [{"level": 2}, {"level": 3}]
    with pytest.raises(ConditionError, match="unknown field 'level'"):
        orm.to_sqlalchemy({"field": "level", "op": "gt", "value": 1})


def test_a_value_with_arrays_or_bytes_keeps_its_tags(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    buffer.add(state={"pixels": b"abc", "at": (1, 2)}, actions=[{3: "x"}])
    row = session.scalars(matching(None)).one()
    assert row.state == {"pixels": {"$bytes": [0, 3]}, "at": {"$tuple": [1, 2]}}
    assert row.actions == [{3: "x"}]


def test_conditions_take_an_alias(schema_url, session):
    ReplayBuffer(schema_url).store_batch(make_rows(6))
    later = aliased(orm.Experience)
    pairs = select(orm.Experience.step, later.step).where(
        orm.Experience.task_id == later.task_id,
        orm.to_sqlalchemy(QueryBuilder().eq("exp_data.state.x", 3)),
        orm.to_sqlalchemy(QueryBuilder().gt("exp_data.state.x", 3), later),
    )
    assert sorted(session.execute(pairs).all()) == [(3, 4), (3, 5)]


def test_sql_looks_into_json_and_compares_times(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    buffer.store_batch(make_rows(6))
    row = orm.Experience
    found = session.scalars(select(row.step).where(row.state["x"].as_integer() > 4)).all()
    assert found == [5]
    newest = session.scalars(select(func.max(row.inserted_at))).one()
    assert newest.utcoffset().total_seconds() == 0
    assert session.scalars(select(func.count()).where(row.inserted_at <= newest)).one() == 6
    assert session.scalars(select(func.count()).where(row.inserted_at > newest)).one() == 0


def test_rows_lead_to_their_episode_their_task_and_their_buffer(schema_url, session):
    buffer = ReplayBuffer(schema_url, max_capacity=5)
    for task, n_steps in (("t0", 4), ("t1", 3)):
        steps = {"step": list(range(n_steps)), "reward": [1.0] * n_steps}
        buffer.store_episode(steps, episode_id=f"of {task}", task_id=task, seed=7)
    first, second = session.scalars(select(orm.Episode).order_by(orm.Episode.task_id))
    assert (first.status, first.length, first.episode_return) == ("complete", 4, 4.0)
    assert first.meta == {"seed": 7}
    assert [row.step for row in first.steps] == [2, 3]  # the others have left
    assert [row.step for row in second.steps] == [0, 1, 2]
    assert all(row.episode is second for row in second.steps)
    task = session.get(orm.Task, ("default", "t1"))
    assert (task.n_steps, task.n_agents, task.total_reward, task.mean_reward) == (3, 1, 3.0, 1.0)
    assert task.experiences == second.steps
    last = orm.to_sqlalchemy(QueryBuilder().eq("exp_meta.step", 3))
    having = select(orm.Task.task_id).where(orm.Task.experiences.any(last))
    assert session.scalars(having).all() == ["t0"]
    whole = session.get(orm.Buffer, "default")
    assert (whole.n_rows, whole.capacity, whole.evict_by) == (5, 5, "row")
    assert [row.step for row in session.scalars(whole.experiences.select())] == [2, 3, 0, 1, 2]
    session.commit()
    buffer.add()
    alone = session.scalars(matching(QueryBuilder().is_null("episode_id"))).one()
    assert alone.episode is None


@pytest.mark.parametrize(
    "condition",
    [
        {"field": "exp_meta.stepp", "op": "eq", "value": 1},
        {"field": "exp_meta.step", "op": "equals", "value": 1},
        {"field": "exp_meta.step", "op": "gt"},
        {"and": []},
        QueryBuilder().eq("exp_meta.step", 1).eq("exp_meta.step", 2),
        "step > 3",
    ],
    ids=["field", "operator", "value", "key", "operators", "text"],
)
def test_a_malformed_condition_is_refused_as_get_all_refuses_it(condition):
    with pytest.raises(ConditionError) as expected:
        list(ReplayBuffer("sqlite://").get_all(condition))
    with pytest.raises(ConditionError) as error:
        orm.to_sqlalchemy(condition)
    assert str(error.value) == str(expected.value)


def test_values_are_bound():
    condition = QueryBuilder().eq("exp_meta.task_id", "it's").and_().eq("exp_data.state.x", "it's")
    statement = matching(condition, buffer="it's").compile(orm.engine("sqlite://"))
    assert "it's" not in str(statement)
    assert list(statement.params.values()).count("it's") >= 3
