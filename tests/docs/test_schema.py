"""docs/schema.md says what the databases have, and its examples run."""

import re

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.schema import reference
from sqlbuffer.storage.schema.views import VIEWS
from tests.support.array_rows import make_array_row
from tests.support.markdown import ROOT, blocks
from tests.support.sql import run

KINDS = {
    "text": "text",
    "integer": "integer",
    "bigint": "integer",
    "numeric": "integer",
    "double precision": "real",
    "boolean": "boolean",
    "timestamp with time zone": "time",
    "jsonb": "JSON",
}
WRITING = [sql for sql in blocks("docs/schema.md", "sql") if sql.startswith(("INSERT", "DELETE"))]
READING = [sql for sql in blocks("docs/schema.md", "sql") if sql not in WRITING]


@pytest.fixture
def filled(schema_url):
    with ReplayBuffer(schema_url, max_capacity=50) as buffer:
        buffer.store_batch(
            [make_array_row(task=n // 4, step=n % 4, episode_id=str(n % 2)) for n in range(12)]
        )
        yield schema_url


def test_the_document_is_what_the_generator_makes():
    document = (ROOT / "docs/schema.md").read_text(encoding="utf-8")
    assert reference.with_sections(document) == document, (
        "run `python -m sqlbuffer.storage.schema.reference`"
    )


def test_the_generator_writes_the_file(tmp_path):
    path = tmp_path / "schema.md"
    path.write_text("# Views\n<!-- begin views -->\nyesterday\n<!-- end views -->\nthe end\n")
    reference.main(path)
    text = path.read_text()
    assert "### v_tasks" in text
    assert "yesterday" not in text
    assert text.endswith("\nthe end\n")


@pytest.mark.parametrize("view", VIEWS)
def test_views_have_the_documented_columns(schema_url, view):
    columns = readonly.query(schema_url, f"SELECT * FROM {view}").columns
    assert columns == list(VIEWS[view].columns)


def test_every_view_is_documented(both_urls):
    query = "SELECT name FROM sqlite_master WHERE type = 'view'"
    names = {name for (name,) in readonly.query(both_urls["sqlite"], query).rows}
    # Rows are sent through it on their way in; it shows nothing.
    names.remove("new_special_rows")
    assert names == {*VIEWS, "new_experiences", "episode_states"}
    query = "SELECT viewname FROM pg_views WHERE schemaname = current_schema()"
    assert {name for (name,) in readonly.query(both_urls["postgresql"], query).rows} == names


@pytest.mark.parametrize("view", VIEWS)
def test_views_have_the_documented_kinds_on_postgresql(both_urls, view):
    query = (
        "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
        f"WHERE attrelid = '{view}'::regclass AND attnum > 0"
    )
    kinds = {
        name: KINDS[type_] for name, type_ in readonly.query(both_urls["postgresql"], query).rows
    }
    assert kinds == {name: kind for name, (kind, _) in VIEWS[view].columns.items()}


def test_new_experiences_has_the_documented_columns(schema_url):
    columns = readonly.query(schema_url, "SELECT * FROM new_experiences").columns
    text = (ROOT / "docs/schema.md").read_text(encoding="utf-8")
    sentence = text.partition("The columns of `new_experiences` are ")[2].partition(";")[0]
    assert re.findall(r"`(\w+)`", sentence) == columns


@pytest.mark.parametrize("statement", READING)
def test_examples_that_read_find_rows(filled, statement):
    assert readonly.query(filled, statement).rows


def test_a_row_inserted_by_hand_is_a_row_like_others_until_it_is_deleted_by_hand(filled):
    insert, delete = WRITING
    statements = [insert]
    if filled.startswith("postgresql"):
        statements += blocks("docs/schema.md", "postgresql")
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
    (block,) = (body for body in blocks("docs/schema.md", "python") if "$array" in body)
    names: dict = {}
    exec(block, names)
    names["connection"].close()
    np.testing.assert_array_equal(names["observation"], np.full(4, 3, np.float32))


def test_pandas_reads_a_view(tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="allowed: pandas is not installed")
    monkeypatch.chdir(tmp_path)
    with ReplayBuffer("sqlite:///replay.db") as buffer:
        buffer.store(make_array_row())
    (block,) = (body for body in blocks("docs/schema.md", "python") if "pandas" in body)
    names: dict = {}
    exec(block, names)
    names["engine"].dispose()
    assert len(names["tasks"]) == 1
