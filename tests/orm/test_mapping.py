"""The mapped classes agree with the migrated database."""

import subprocess
import sys

import pytest
from sqlalchemy import create_engine, inspect
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from sqlbuffer import ReplayBuffer, orm
from tests.support.sql import plain_engine

CLASSES = (orm.Buffer, orm.Episode, orm.Experience, orm.Task)
# Columns of the views that are not mapped: sums over all rows, and what has a call of its own.
LEFT_OUT = {
    "v_buffers": {
        "fill", "oldest_at", "newest_at", "expired", "used_up", "other_session", "partial", "flat",
        "leased", "quarantined", "clock", "max_staleness", "max_use", "min_size", "alpha",
    },
    "v_episodes": set(),
    "v_experiences": {"executed_at"},
    "v_tasks": {"first_at", "last_at"},
}  # fmt: skip
# What stands for a mapped type in a view of PostgreSQL.
INTEGERS = {"INTEGER", "BIGINT", "NUMERIC"}


@pytest.mark.parametrize("entity", CLASSES, ids=lambda entity: entity.__name__)
def test_every_column_of_the_view_is_mapped_or_left_out(schema_url, entity):
    view = entity.__table__.name
    mapped = {column.name for column in entity.__table__.columns}
    shown = {column["name"] for column in inspect(plain_engine(schema_url)).get_columns(view)}
    assert mapped <= shown
    assert shown - mapped <= LEFT_OUT[view]


@pytest.mark.parametrize("entity", CLASSES, ids=lambda entity: entity.__name__)
def test_mapped_types_are_those_of_the_database(make_database_url, entity):
    """PostgreSQL, whose views have types."""
    url = make_database_url("postgresql", schema=True)
    dialect = postgresql.dialect()
    columns = inspect(plain_engine(url)).get_columns(entity.__table__.name)
    found = {column["name"]: column["type"].compile(dialect) for column in columns}
    for column in entity.__table__.columns:
        mapped, shown = column.type.compile(dialect), found[column.name].partition(" COLLATE")[0]
        assert mapped == shown or {mapped, shown} <= INTEGERS, column


def test_every_mapped_column_is_read(schema_url):
    buffer = ReplayBuffer(schema_url)
    buffer.store_episode(
        {"step": [0, 1], "reward": [1.0, 2.0]}, task_id="t", session_id="s", model_version=3
    )
    with Session(orm.engine(schema_url)) as session:
        for entity in CLASSES:
            row = session.query(entity).first()
            assert all(hasattr(row, name) for name in inspect(entity).columns.keys())  # noqa: SIM118


def test_any_engine_on_the_database_will_do(schema_url):
    ReplayBuffer(schema_url).add(step=1)
    made = create_engine(plain_engine(schema_url).url)
    with Session(made) as session:
        session.add(orm.Experience(task_id="t", agent_id="a", step=2))
        session.commit()
        assert {row.step for row in session.query(orm.Experience)} == {1, 2}
    made.dispose()


def test_a_database_in_memory_is_shared_by_its_engine():
    memory = orm.engine("sqlite://")
    buffer = ReplayBuffer(memory)
    with Session(orm.engine(memory)) as session:
        session.add(orm.Experience(task_id="t", agent_id="a", step=2))
        session.commit()
    assert [row.exp_meta.step for row in buffer.get_all()] == [2]


@pytest.mark.thorough
@pytest.mark.slow
def test_buffers_do_without_the_orm():
    code = (
        "import sys; from sqlbuffer import ReplayBuffer; ReplayBuffer('sqlite://').add(); "
        "sys.exit('sqlbuffer.orm' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
