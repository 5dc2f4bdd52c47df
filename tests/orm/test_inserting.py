"""Rows that a session adds are numbered, evicted and read like any others, and never changed."""

import math
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError
from sqlalchemy.orm import Session

from sqlbuffer import QueryBuilder, QueryFilter, ReplayBuffer, orm
from sqlbuffer.errors import FieldError, ImmutableRowError
from tests.query.strategies import keys, payloads
from tests.support.sql import run, stored_rows


def step(number, **values):
    return orm.Experience(**{"task_id": "t", "agent_id": "a", "step": number, **values})


def steps_of(buffer):
    return [row.exp_meta.step for row in buffer.get_all()]


def test_a_row_has_its_number_once_it_is_flushed(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    buffer.add()
    before = time.time()
    row = step(7, reward=0.5, state={"x": (1, 2)}, terminated=False)
    session.add(row)
    session.flush()
    assert (row.seq, row.buffer) == (2, "default")
    assert before <= row.execute_time <= time.time()
    assert len(row.id) == 36
    assert (row.inserted_at is None, row.episode_id, row.episode) == (False, None, None)
    session.commit()
    assert (row.seq, row.state, row.extra) == (2, {"x": (1, 2)}, None)
    (stored,) = buffer.get_all(QueryBuilder().eq("id", row.id))
    assert (stored.seq, stored.exp_meta.step, stored.exp_data.state) == (2, 7, {"x": (1, 2)})
    assert (stored.exp_data.reward_t, stored.exp_data.terminated) == (0.5, False)
    assert stored.exp_meta.execute_time == row.execute_time


def test_a_row_with_an_episode_makes_or_extends_it(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    session.add(step(0, reward=1.0, episode_id="e"))
    session.flush()
    session.add(step(1, reward=2.0, episode_id="e", terminated=True))
    session.commit()
    (episode,) = session.scalars(select(orm.Episode)).all()
    assert (episode.episode_id, episode.status, [row.step for row in episode.steps]) == (
        "e",
        "complete",
        [0, 1],
    )
    assert steps_of(buffer) == [0, 1]


def test_rows_beyond_the_capacity_are_evicted(schema_url, session):
    buffer = ReplayBuffer(schema_url, max_capacity=4)
    other = ReplayBuffer(schema_url, name="other", max_capacity=2)
    session.add_all([step(number) for number in range(6)])
    session.add_all([step(number, buffer="other") for number in range(3)])
    session.commit()
    assert steps_of(buffer) == [2, 3, 4, 5]
    assert steps_of(other) == [1, 2]
    values = [{"task_id": "t", "agent_id": "a", "step": n, "state": [n]} for n in range(6, 9)]
    session.execute(insert(orm.Experience), values)
    numbers = session.scalars(
        insert(orm.Experience).returning(orm.Experience.seq),
        [{"task_id": "t", "agent_id": "a", "step": n} for n in range(9, 11)],
    )
    assert sorted(numbers) == [10, 11]
    session.commit()
    assert steps_of(buffer) == [7, 8, 9, 10]
    assert len(buffer) == stored_rows(schema_url) == 4
    assert len({row.id for row in buffer.get_all()}) == 4


def test_whole_tasks_are_evicted(schema_url, session):
    buffer = ReplayBuffer(schema_url, max_capacity=4, evict_by="task")
    session.add_all([step(number, task_id=f"t{number // 2}") for number in range(6)])
    session.commit()
    assert steps_of(buffer) == [2, 3, 4, 5]


def test_two_sessions_add_at_the_same_time(schema_url):
    buffer = ReplayBuffer(schema_url, max_capacity=10)
    database, numbers = orm.engine(schema_url, writes=True), []

    def add(first):
        with Session(database) as session:
            for number in range(first, first + 20):
                row = step(number)
                session.add(row)
                session.flush()
                numbers.append(row.seq)
                session.commit()

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(numbers)) == 40
    assert [row.seq for row in buffer.get_all()] == sorted(numbers)[-10:]
    assert len(buffer) == 10


def test_what_a_session_rolls_back_is_not_there(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    session.add(step(1))
    session.flush()
    session.rollback()
    assert len(buffer) == 0
    session.add(step(2))
    session.commit()
    assert steps_of(buffer) == [2]


def test_rows_are_added_to_a_buffer(schema_url, session):
    buffer = ReplayBuffer(schema_url, name="robots")
    session.get(orm.Buffer, "robots").experiences.add(step(3))
    session.commit()
    assert steps_of(buffer) == [3]


def test_a_session_that_reads_first_may_take_the_write_lock(schema_url):
    buffer = ReplayBuffer(schema_url)
    with Session(orm.engine(schema_url, writes=True)) as session:
        assert session.scalars(select(orm.Experience)).all() == []
        session.add(step(1))
        session.commit()
    assert steps_of(buffer) == [1]


def test_a_transaction_on_a_shared_engine_writes_after_another_program_has(schema_url):
    engine = create_engine(schema_url.replace("postgresql://", "postgresql+psycopg://"))
    with ReplayBuffer(engine) as buffer, engine.connect() as connection:
        buffer.add(state=1)
        run(schema_url, "CREATE TABLE notes (text varchar)")
        connection.begin()
        run(schema_url, "INSERT INTO notes VALUES ('theirs')")
        connection.exec_driver_sql("INSERT INTO notes VALUES ('ours')")
        connection.commit()
    engine.dispose()
    assert len(run(schema_url, "SELECT text FROM notes")) == 2


def test_rows_of_a_buffer_with_priorities_begin_with_the_largest(schema_url, session):
    buffer = ReplayBuffer(schema_url, priorities=True)
    buffer.add(priority=3.0)
    session.add(step(1))
    session.commit()
    found = run(schema_url, "SELECT priority FROM v_priorities ORDER BY seq")
    assert found == [(3.0,), (3.0,)]


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(
    states=st.lists(payloads, min_size=1, max_size=5),
    extra=st.none() | st.dictionaries(keys, payloads, max_size=2),
    condition=st.sampled_from(
        [
            {"field": "exp_data.state", "op": "is_null"},
            {"field": "exp_data.state[0]", "op": "ne", "value": 1},
            {"field": "exp_data.state.a", "op": "gte", "value": 0},
            {"field": "exp_data.extra.a", "op": "is_not_null"},
            {"field": "exp_data.state", "op": "like", "value": "a"},
            {"field": "exp_data.state", "op": "ne", "value": {"a": 1}},
        ]
    ),
)
def test_payloads_come_back_from_either_side(buffers, urls, states, extra, condition):
    for kind, buffer in buffers.items():
        buffer.clear()
        with Session(orm.engine(urls[kind])) as session:
            for number, state in enumerate(states):
                # Arrays and bytes are refused; the next row is added all the same.
                with suppress(StatementError), session.begin_nested():
                    session.add(step(number, state=state, extra=extra))
            session.commit()
            shown = session.scalars(select(orm.Experience).order_by(orm.Experience.seq)).all()
            stored = list(buffer.get_all())
            for row, same in zip(shown, stored, strict=True):
                assert repr((row.state, row.extra)) == repr(
                    (same.exp_data.state, same.exp_data.extra)
                )
        found = [row.id for row in buffer.get_all(condition)]
        assert found == [row.id for row in QueryFilter(condition).filter(stored)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"reward": math.nan}, "no NaN"),
        ({"state": {"pixels": b"abc"}}, "no arrays or bytes"),
        ({"actions": object()}, "cannot store a builtins.object"),
        ({"extra": [1]}, "extra: expected a dict, got list"),
    ],
)
def test_what_a_session_cannot_store_is_refused(schema_url, session, values, message):
    buffer = ReplayBuffer(schema_url)
    session.add(step(1, **values))
    with pytest.raises(StatementError, match=message) as error:
        session.commit()
    assert isinstance(error.value.orig, FieldError)
    session.rollback()
    assert len(buffer) == 0


def test_a_row_of_an_unknown_buffer_or_with_a_known_id_is_refused(schema_url, session):
    ReplayBuffer(schema_url).add(id="x")
    for values, message in (({"buffer": "unknown"}, "no buffer"), ({"id": "x"}, "(?i)unique")):
        session.add(step(1, **values))
        with pytest.raises(IntegrityError, match=message):
            session.flush()
        session.rollback()


def test_what_the_database_makes_is_not_given(schema_url, session):
    ReplayBuffer(schema_url)
    values = {
        "seq": "1",
        "first_seq": "1",
        "session_id": "'s'",
        "fields": "'{}'",
        "attempt": "1",
    }
    for name, value in {**values, "inserted_at": "CURRENT_TIMESTAMP"}.items():
        with pytest.raises(TypeError, match=name):
            step(1, **{name: None})
        with pytest.raises(DBAPIError, match=f"inserted without .*{name}"):
            run(
                schema_url,
                f"INSERT INTO v_experiences (buffer, task_id, agent_id, step, {name}) "
                f"VALUES ('default', 't', 'a', 1, {value})",
            )


def test_stored_rows_are_neither_changed_nor_deleted(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    buffer.add(task_id="t", step=1, episode_id="e")
    session.scalars(select(orm.Experience)).one().reward = 2.0
    with pytest.raises(ImmutableRowError, match=r"ReplayBuffer\.annotate"):
        session.flush()
    session.rollback()
    for entity in (orm.Experience, orm.Episode, orm.Task, orm.Buffer):
        session.delete(session.scalars(select(entity)).one())
        with pytest.raises(ImmutableRowError, match=f"deletes no {entity.__name__}"):
            session.flush()
        session.rollback()
        refused = [update(entity).values({entity.__mapper__.primary_key[0]: "x"})]
        if entity is not orm.Experience:
            refused.append(delete(entity))
        for statement in refused:
            with pytest.raises(DBAPIError, match="view"):
                session.execute(statement)
            session.rollback()
    assert steps_of(buffer) == [1]


def test_a_delete_statement_deletes_rows(schema_url, session):
    buffer = ReplayBuffer(schema_url)
    for step in range(3):
        buffer.add(task_id="t", step=step)
    session.execute(delete(orm.Experience).where(orm.Experience.step == 1))
    session.commit()
    assert steps_of(buffer) == [0, 2]


def test_a_value_that_is_set_to_what_it_was_is_no_change(schema_url, session):
    ReplayBuffer(schema_url).add(step=1)
    row = session.scalars(select(orm.Experience)).one()
    row.step = 1
    session.commit()
    assert row.step == 1


@pytest.mark.parametrize(
    "row",
    [
        orm.Episode(buffer="default", task_id="t", episode_id="e", status="open"),
        orm.Task(buffer="default", task_id="t"),
        orm.Buffer(name="new"),
    ],
    ids=lambda row: type(row).__name__,
)
def test_only_experiences_are_added(schema_url, row):
    ReplayBuffer(schema_url)
    with Session(orm.engine(schema_url)) as session:
        session.add(row)
        with pytest.raises(ImmutableRowError, match=f"adds no {type(row).__name__}"):
            session.flush()
        session.expunge_all()
