"""The pages on views and tables are generated, and describe what the databases have."""

import pytest

from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.schema import reference
from sqlbuffer.storage.schema.views import VIEWS
from tests.support.markdown import ROOT

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


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_document_is_what_the_generator_makes(page):
    document = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    assert reference.with_sections(document) == document, (
        "run `python -m sqlbuffer.storage.schema.reference`"
    )


def test_the_generator_writes_the_file(tmp_path):
    (tmp_path / "tables.md").write_text("# Tables\n")
    path = tmp_path / "views.md"
    path.write_text("# Views\n<!-- begin views -->\nyesterday\n<!-- end views -->\nthe end\n")
    reference.main(tmp_path)
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
    internal = {"episode_states", "chunk_steps", "step_numbers", "step_sums"}
    assert names == {*VIEWS, "new_experiences", *internal}
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
