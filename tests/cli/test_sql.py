import csv
import io
import json

import pytest

from sqlbuffer import ReplayBuffer
from tests.support import sql as plain_sql
from tests.support.cli_errors import error_lines


def test_sql_prints_a_table(run, filled):
    result = run("sql", filled, "SELECT task_id, steps FROM v_tasks WHERE task_id LIKE 'task_%'")
    assert result.exit_code == 0
    assert "│ task_id │ steps │" in result.stdout
    assert result.stdout.count("│ task_") == 5


def test_numbers_are_printed_in_full(run, schema_url):
    text = run("sql", schema_url, "SELECT 1234567 AS a, 1700000000.25 AS b").stdout
    assert "│ 1234567 │ 1700000000.25 │" in text


def test_sql_prints_every_format(run, filled):
    question = """SELECT 1 AS one, NULL AS none, 'a "b",
c' AS text, 0 AS zero"""
    (row,) = json.loads(run("sql", filled, question, "--json").stdout)
    (line,) = run("sql", filled, question, "--ndjson").stdout.splitlines()
    (record,) = csv.DictReader(io.StringIO(run("sql", filled, question, "--csv").stdout))
    assert row == json.loads(line) == {"one": 1, "none": None, "text": 'a "b",\nc', "zero": 0}
    assert record == {"one": "1", "none": "", "text": 'a "b",\nc', "zero": "0"}


def test_types_of_postgresql_become_json(run, postgres_url):
    question = """SELECT 'infinity'::timestamptz AS forever, '-infinity'::date AS never,
        'NaN'::float8 AS nan, '{"a": [1]}'::jsonb AS json, array[1, NULL] AS array,
        2.50::numeric AS n,
        '\\x0102'::bytea AS bytes, timestamptz '2024-01-01 00:00+02' AS at, true AS yes"""
    (row,) = json.loads(run("sql", postgres_url, question, "--json").stdout)
    assert row == {
        "forever": "infinity",
        "never": "-infinity",
        "nan": None,
        "json": {"a": [1]},
        "array": [1, None],
        "n": 2.5,
        "bytes": "AQI=",
        "at": "2023-12-31T22:00:00Z",
        "yes": True,
    }


def test_text_that_is_no_utf8_is_printed(run, sqlite_url):
    ReplayBuffer(sqlite_url).close()
    result = run("sql", sqlite_url, "SELECT CAST(x'61ff' AS TEXT) AS odd", "--json")
    assert json.loads(result.stdout) == [{"odd": "a\ufffd"}]


def test_a_dash_reads_the_statement_from_standard_input(run, filled):
    result = run("sql", filled, "-", "--csv", input="SELECT 7 AS seven -- a comment\n")
    assert result.stdout == "seven\n7\n"


def test_a_percent_sign_and_a_colon_are_what_they_are(run, filled):
    result = run("sql", filled, "SELECT 7 % 4 AS a, ':name' AS b, '%s' AS c", "--csv")
    assert result.stdout == "a,b,c\n3,:name,%s\n"


def test_columns_are_named_where_there_are_no_rows(run, filled):
    result = run("sql", filled, "SELECT task_id, steps FROM v_tasks WHERE 1 = 0", "--csv")
    assert result.stdout == "task_id,steps\n"


@pytest.mark.parametrize("statement", ["EXPLAIN SELECT 1", "VALUES (1)", "SELECT 1;", "(SELECT 1)"])
def test_other_statements_that_read_are_run(run, postgres_url, statement):
    result = run("sql", postgres_url, statement)
    assert result.exit_code == 0
    assert "1" in result.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM experiences",
        "UPDATE buffers SET name = 'x'",
        "INSERT INTO buffers (name) VALUES ('x')",
        "DROP VIEW v_tasks",
        "WITH gone AS (DELETE FROM buffers RETURNING name) SELECT * FROM gone",
    ],
)
def test_a_statement_that_writes_is_refused_in_one_line(run, filled, statement):
    if statement.startswith("WITH") and plain_sql.is_sqlite(filled):
        return  # no such syntax there
    result = run("sql", filled, statement)
    assert result.exit_code == 1
    assert "`sqlbuffer sql` only reads" in result.stderr
    assert len(error_lines(result.stderr)) == 1
    assert ReplayBuffer.list(filled) == ["arrays", "empty", "talks"]


@pytest.mark.thorough
@pytest.mark.parametrize("lock", ["FOR UPDATE", "FOR KEY SHARE"])
def test_a_statement_that_locks_rows_is_refused_for_that_reason(run, postgres_url, lock):
    ReplayBuffer(postgres_url, create=True).close()
    result = run("sql", postgres_url, f"SELECT * FROM buffers {lock}")
    assert result.exit_code == 1
    assert f"SELECT {lock} in a read-only transaction" in result.stderr
    assert "`sqlbuffer sql` only reads" in result.stderr
    assert "standby" not in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("first", ["COMMIT", "ROLLBACK", "SELECT 1"])
def test_a_second_statement_is_refused(run, filled, first):
    result = run("sql", filled, f"{first}; DELETE FROM buffers")
    assert result.exit_code == 1
    assert len(error_lines(result.stderr)) == 1
    assert ReplayBuffer.list(filled) == ["arrays", "empty", "talks"]


@pytest.mark.parametrize("statement", ["SELEKT 1", "SELECT * FROM nowhere", "SELECT nothing"])
def test_a_statement_that_is_wrong_ends_in_one_line(run, filled, statement):
    result = run("sql", filled, statement)
    assert result.exit_code == 1
    assert (
        statement.split()[-1 if " " in statement and "SELEKT" not in statement else 0]
        in result.stderr
    )
    assert "db init" not in result.stderr
    assert len(error_lines(result.stderr)) == 1


@pytest.mark.parametrize("statement", ["", " \n"])
def test_an_empty_statement_is_a_usage_error(run, filled, statement):
    assert run("sql", filled, statement).exit_code == 2
    assert run("sql", filled, "-", input=statement).exit_code == 2


def test_a_view_in_a_database_without_the_schema_asks_for_init(run, postgres_url):
    result = run("sql", postgres_url, "SELECT * FROM v_tasks")
    assert result.exit_code == 4
    assert "sqlbuffer db init" in result.stderr


def test_a_role_that_may_not_read_is_told_whom_to_ask(run, with_roles, login):
    result = run("sql", login(), "SELECT * FROM v_tasks")
    assert result.exit_code == 1
    assert "permission denied" in result.stderr
    assert "ask the owner" in result.stderr


def test_a_table_in_a_pipe_has_every_row(run, schema_url):
    plain_sql.fill(schema_url, 2500).close()
    result = run("sql", schema_url, "SELECT seq FROM v_experiences")
    assert result.stdout.count("\n") == 2500 + 4
    assert result.stderr == ""


def test_a_column_that_is_not_there_is_told_where_columns_are_listed(run, filled):
    result = run("sql", filled, "SELECT temperature FROM v_experiences")
    assert result.exit_code == 1
    assert "temperature" in result.stderr
    assert "typed fields that SQL can read are in its column `fields`" in result.stderr


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("v_eviction", "v_evictions"), ("V_Task", "v_tasks"), ("experience", "experiences")],
)
def test_a_misspelt_view_or_table_is_suggested(run, schema_url, misspelt, meant):
    result = run("sql", schema_url, f"SELECT * FROM {misspelt}")
    assert result.exit_code == 1
    assert f"; did you mean {meant}?" in result.stderr


def test_a_name_like_no_view_is_answered_with_a_list(run, schema_url):
    result = run("sql", schema_url, "SELECT * FROM zzz")
    assert result.exit_code == 1
    assert "did you mean" not in result.stderr
    assert "v_buffers, v_tasks" in result.stderr
