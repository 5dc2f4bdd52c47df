"""The pages on views and tables are generated, and describe what the databases have."""

import re

import pytest

from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.migrations import migrate
from sqlbuffer.storage.schema import reference, views
from sqlbuffer.storage.schema.metadata import whole_metadata
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


def test_inner_tables_are_tables_and_the_views_that_they_name_are_views():
    assert set(reference.INNER) <= set(whole_metadata().tables)
    assert set(re.findall(r"`(v_\w+)`", " ".join(reference.INNER.values()))) <= set(VIEWS)


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
    names -= {"new_special_rows", "new_episode_steps", "new_group_changes"}
    names -= {"row_messages"}  # a function on PostgreSQL
    internal = {"episode_states", "chunk_steps", "step_numbers", "step_sums", "retention_bounds"}
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


# Views and tables on PostgreSQL have their descriptions as comments.


COMMENTS = """SELECT c.relname, a.attname, d.description
    FROM pg_class c
    JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND d.objsubid > 0
    WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = '{kind}'"""


def comments_of(url, kind):
    rows = readonly.query(url, COMMENTS.format(kind=kind)).rows
    return {(relation, column): text for relation, column, text in rows}


def test_each_view_and_its_columns_have_their_descriptions(make_database_url):
    url = make_database_url("postgresql", schema=True)
    assert comments_of(url, "v") == views.comments()
    query = "SELECT viewname FROM pg_views WHERE schemaname = current_schema()"
    names = {name for (name,) in readonly.query(url, query).rows}
    assert names == {relation for relation, _ in views.comments()}


def test_each_column_of_a_table_has_its_description(make_database_url):
    url = make_database_url("postgresql", schema=True)
    wanted = {
        (table.name, column.name): column.comment
        for table in whole_metadata().sorted_tables
        for column in table.columns
    }
    assert comments_of(url, "r") == wanted


def test_the_migration_has_the_statement_that_the_command_prints():
    assert migrate.HEAD == "0001", "write a migration with the new comments"
    folder = migrate.script_location() / "versions/0001_first_schema/postgresql"
    written = (folder / "view_comments.sql").read_text(encoding="utf-8")
    assert written == views.statement(), (
        "replace it with what `python -m sqlbuffer.storage.schema.views` prints"
    )


def test_a_comment_is_one_line_of_sql():
    assert all(re.fullmatch(r"[^\n$]+", text) for text in views.comments().values())
