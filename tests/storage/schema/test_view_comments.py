"""Views and tables on PostgreSQL have their descriptions as comments."""

import re

from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.migrations import migrate
from sqlbuffer.storage.schema import views
from sqlbuffer.storage.schema.metadata import metadata

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
        for table in metadata.sorted_tables
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
