"""The pages on views and tables say what the databases have, and their examples run."""

import re

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from tests.benchmarks import questions
from tests.support.array_rows import make_array_row
from tests.support.markdown import ROOT, blocks
from tests.support.sql import connected, is_sqlite, plain_engine, run

VIEWS, TABLES = "docs/reference/views.md", "docs/reference/tables.md"
WRITING, READING = blocks(TABLES, "sql"), blocks(VIEWS, "sql")


@pytest.fixture
def filled(schema_url):
    with ReplayBuffer(schema_url, max_capacity=50) as buffer:
        buffer.store_batch(
            [make_array_row(task=n // 4, step=n % 4, episode_id=str(n % 2)) for n in range(12)]
        )
        yield schema_url


def test_new_experiences_has_the_documented_columns(schema_url):
    with connected(schema_url) as connection:
        columns = list(connection.execute(text("SELECT * FROM new_experiences")).keys())
    page = (ROOT / TABLES).read_text(encoding="utf-8")
    sentence = page.partition("The columns of `new_experiences` are ")[2].partition(";")[0]
    assert re.findall(r"`(\w+)`", sentence) == columns


@pytest.fixture(params=questions.LAYOUTS)
def asked(request, schema_url):
    """Return a database with something to find for each example."""
    questions.fill(schema_url, 240, **questions.LAYOUTS[request.param])
    return schema_url


def test_examples_that_read_find_rows(asked):
    statements = READING + blocks(VIEWS, "sqlite3" if is_sqlite(asked) else "postgresql")
    for statement in statements:
        assert run(asked, statement), statement


def test_a_row_inserted_by_hand_is_a_row_like_others_until_it_is_deleted_by_hand(filled):
    insert, delete = WRITING
    statements = [insert]
    if filled.startswith("postgresql"):
        statements += blocks(TABLES, "postgresql")
    for statement in statements:
        run(filled, statement)
    with ReplayBuffer(filled) as buffer:
        rows = buffer.get_by_task_id("typed")
        assert [row.exp_data.state for row in rows] == [{"position": 0.5}] * len(statements)
        assert len(buffer) == buffer.size() == 12 + len(statements)
        run(filled, delete)
        assert len(buffer) == buffer.size() == 12


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_counts_stay_right_after_a_delete_by_hand(schema_url, evict_by):
    with ReplayBuffer(schema_url, max_capacity=10, evict_by=evict_by) as buffer:
        buffer.store_batch([make_array_row(task=n % 4, step=n) for n in range(8)])
        run(schema_url, "DELETE FROM experiences WHERE task_id = 'task_3'")
        assert len(buffer) == buffer.size() == len(list(buffer)) == 6
        buffer.store_batch([make_array_row(task=5, step=n) for n in range(30)])
        assert len(buffer) == buffer.size() == len(list(buffer)) == 10


def test_the_arrays_of_a_row_are_read_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ReplayBuffer("sqlite:///replay.db") as buffer:
        buffer.store(make_array_row(step=3))
    (block,) = (body for body in blocks(TABLES, "python") if "$array" in body)
    names: dict = {}
    exec(block, names)
    names["connection"].close()
    np.testing.assert_array_equal(names["observation"], np.full(4, 3, np.float32))


def test_the_records_of_a_chunk_are_read_by_hand(schema_url):
    obs = np.arange(20, dtype=np.float32).reshape(10, 2)
    fields = {"level": "int16", "obs": ("float32", (2,))}
    with ReplayBuffer(schema_url, "chunked", fields=fields) as buffer:
        buffer.extend({"obs": obs, "level": np.arange(10)}, task_id="t", agent_id="a")
    (block,) = (body for body in blocks(TABLES, "python") if "records" in body)
    url = plain_engine(schema_url).url.render_as_string(hide_password=False)
    names: dict = {}
    exec(block.replace("sqlite:///replay.db", url), names)
    names["engine"].dispose()
    np.testing.assert_array_equal(names["observations"], obs)
    np.testing.assert_array_equal(names["steps"]["level"], np.arange(10))


def test_the_documented_form_finds_a_step_of_either_layout(schema_url):
    (query,) = (sql for sql in READING if "seq = 5" in sql)
    obs = {"obs": ("float32", (2,))}
    for name, fields in (("rows", None), ("chunks", obs)):
        with ReplayBuffer(schema_url, name=name, fields=fields) as buffer:
            columns = {name: np.zeros((10, 2), np.float32) for name in fields or ()}
            buffer.extend({**columns, "reward": np.arange(10.0)}, task_id="t", agent_id="a")
        assert run(schema_url, query.replace("'default'", f"'{name}'")) == [("t", 4, 4.0)]


@pytest.mark.slow
def test_pandas_reads_a_view(tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="allowed: pandas is not installed")
    monkeypatch.chdir(tmp_path)
    with ReplayBuffer("sqlite:///replay.db") as buffer:
        buffer.store(make_array_row())
    (block,) = (body for body in blocks(VIEWS, "python") if "pandas" in body)
    names: dict = {}
    exec(block, names)
    names["engine"].dispose()
    assert len(names["tasks"]) == 1
