import csv
import html
import io
import re
from urllib.parse import quote

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web import app
from sqlbuffer.web.pages.sql_page import EXAMPLES
from tests.docs.pages import fenced_blocks, text_of
from tests.support.sql import is_sqlite
from tests.support.web_client import WebClient
from tests.web.conftest import HOSTILE, SCRIPT, row

COUNT_TO_A_MILLION = (
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 1000000) "
    "SELECT n, 'text' FROM c"
)


def asked(statement, path="/sql"):
    return f"{path}?q={quote(statement)}"


def test_examples_are_those_of_the_docs():
    read_only = [
        block.body
        for block in fenced_blocks("docs/reference/views.md")
        if block.language == "sql"
        and "SELECT" in block.body
        and not re.search("INSERT|DELETE", block.body)
    ]
    assert [f"-- {each.question}\n{each.sql}" for each in EXAMPLES] == [
        text.strip() for text in read_only
    ]


def test_every_example_runs_about_a_buffer_that_is_there(schema_url, client_of):
    name = "it's"
    with ReplayBuffer(schema_url, name=name) as buffer:
        buffer.store_batch([row(step, state={"position": step}) for step in range(5)])
    client = client_of(schema_url)
    page = client.get("/sql").text
    links = [html.unescape(link) for link in re.findall(r'class="example".*?href="([^"]+)"', page)]
    assert len(links) == len(EXAMPLES)
    for link in links:
        answer = client.get(link)
        assert answer.status_code == 200, link
        assert re.search(r" rows? in ", answer.text)
    assert "it&#39;&#39;s" in page


def test_shows_what_a_statement_finds_and_the_line_that_finds_it_too(hostile_url, client_of):
    client = client_of(hostile_url)
    text = client.get(asked("SELECT task_id, step, reward, NULL AS nil FROM v_experiences")).text
    assert "3 rows in " in text
    assert html.escape(HOSTILE) in text.replace("&#39;", "&#x27;").replace("&#34;", "&quot;")
    assert SCRIPT not in text
    assert '<td class="quiet">NULL</td>' in text
    assert "sqlbuffer sql" in text


def test_numbers_are_right_aligned_and_rounded_and_long_texts_are_on_one_line(
    schema_url, client_of
):
    long = "'" + "word " * 600 + "'"
    statement = (
        f"SELECT 2.0 / 3 AS third, 12345678901 AS id, NULL AS nil, 'a' AS t, {long} AS long "
        "UNION ALL SELECT NULL, 7, NULL, 'b', '<b>'"
    )
    text = client_of(schema_url).get(asked(statement)).text
    heads = re.findall(r'<th scope="col"( class="n")?>(\w+)</th>', text)
    assert {name for is_right, name in heads if is_right} == {"third", "id"}
    # PostgreSQL has 16 digits of a numeric, SQLite those of a double.
    (whole, shown) = re.search(
        r'<td class="n" title="(0\.6{14}\d+)"[^>]*>([^<]*)</td>', text
    ).groups()
    assert (shown, float(whole)) == ("0.666667", pytest.approx(2 / 3, abs=1e-15))
    assert '<td class="n">12345678901</td>' in text
    assert '<td class="n quiet">NULL</td>' in text
    (line, rest) = re.search(r"<summary>(word.*?)…</summary><pre>(.*?)</pre>", text).groups()
    assert (len(line) <= 120, rest.count("word"), "cut; CSV has all" in rest) == (True, 400, True)
    assert "&lt;b&gt;" in text


@pytest.mark.parametrize("values", ["1, 'a'", "'1', 2"])
def test_a_column_of_numbers_and_texts_is_left_aligned(make_database_url, client_of, values):
    """SQLite has columns of several types."""
    url = make_database_url("sqlite", schema=True)
    first, second = values.split(", ")
    text = client_of(url).get(asked(f"SELECT {first} AS v UNION ALL SELECT {second}")).text
    assert '<th scope="col">v</th>' in text
    assert '<td class="n"' not in text.partition("Answer")[2].partition("</table>")[0]


def test_csv_has_the_values_as_they_are(hostile_url, client_of):
    statement = "SELECT task_id, step, extra FROM v_experiences ORDER BY step"
    response = client_of(hostile_url).get(asked(statement, "/sql.csv"))
    assert response.headers["content-disposition"] == 'attachment; filename="answer.csv"'
    assert response.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(response.text))
    assert header == ["task_id", "step", "extra"]
    assert [line[:2] for line in rows] == [[HOSTILE, str(step)] for step in range(3)]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT reward_t FROM v_experiences", ["did you mean reward", "v_experiences has "]),
        ("SELECT e.episode_rewrad FROM v_episodes e", ["did you mean episode_reward"]),
        ("SELECT * FROM v_episode", ["did you mean v_episodes", "listed below"]),
        ("SELCT 1", ["did you mean SELECT?"]),
        ("SELECT 1 AS one FRM v_episodes", ["FRM is not a word of SQL; did you mean FROM"]),
        ("SELECT 1; SELECT 2", ["Run the first statement alone"]),
        ("SELECT (1", ["not closed"]),
        ("SELECT 'a", ["not closed"]),
    ],
)
def test_an_error_of_sql_says_what_to_do(schema_url, client_of, statement, said):
    page = client_of(schema_url).get(asked(statement))
    assert page.status_code == 400
    reason = html.unescape(re.search(r'role="alert">(.*?)</p>', page.text, re.S)[1])
    assert [part for part in said if part not in reason] == [], reason
    assert "://" not in reason
    assert "?." not in reason


@pytest.mark.thorough
def test_long_answers_are_cut_and_say_so(schema_url, client_of):
    client = client_of(schema_url)
    page = client.get(asked(COUNT_TO_A_MILLION)).text
    assert "1,000 rows in " in page
    assert "<b>cut</b>" in page
    response = client.get(asked(COUNT_TO_A_MILLION, "/sql.csv"))
    assert "answer-cut.csv" in response.headers["content-disposition"]
    assert response.text.count("\n") == 100_001
    wide = "SELECT " + ("hex(zeroblob(100000))" if is_sqlite(schema_url) else "repeat('0', 200000)")
    empty = len(client.get("/sql").text)
    assert len(client.get(asked(wide)).text) - empty < 20_000


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM", "syntax|incomplete"),
        ("SELECT * FROM nothing_of_that_name", "(?s)nothing_of_that_name.*listed below"),
        ("SELECT * FROM v_eviction", "v_eviction.*did you mean v_evictions"),
        ("DELETE FROM buffers", "read"),
        ("SELECT 1; SELECT 2", "one|statement"),
        ("x" * 10_001, "10,001 characters"),
    ],
)
def test_what_cannot_be_run_is_told(schema_url, client_of, statement, said):
    client = client_of(schema_url)
    response = client.get(asked(statement))
    assert response.status_code == 400
    reason = re.search(r'class="reason" role="alert">(.*?)</p>', response.text, re.DOTALL)
    assert re.search(said, reason[1])
    # The download shows the same page.
    assert client.get(asked(statement, "/sql.csv")).status_code == 400


def test_a_statement_that_locks_rows_is_told_so(postgres_url, client_of):
    ReplayBuffer(postgres_url, create=True).close()
    page = client_of(postgres_url).get(asked("SELECT * FROM buffers FOR UPDATE")).text
    assert "write a SELECT that locks no rows" in page
    assert "standby" not in page


def test_a_link_on_another_site_runs_nothing(schema_url, client_of):
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    client = client_of(schema_url)
    for path in ("/sql", "/sql.csv"):
        page = client.get(asked("SELECT 12345 + 1", path), headers=headers).text
        assert "Another site linked to this statement" in page
        assert "12346" not in page
        assert "SELECT 12345 + 1" in page


def test_the_page_that_refuses_a_link_of_another_site_leads_to_one_that_runs_nothing(schema_url):
    client = WebClient(app(schema_url, token="secret", hosts={"localhost", "127.0.0.1"}))
    client.get("/?token=secret")
    for path in ("/sql", "/sql.csv"):
        # The browser sends no cookie with a link of another site.
        refused = client.get(asked("SELECT 12345 + 1", path), headers={"Cookie": ""})
        assert refused.status_code == 403
        (again,) = re.findall(r'<a href="([^"]*12345[^"]*)">Open this page again', refused.text)
        page = client.get(html.unescape(again)).text
        assert "Another site linked to this statement" in page
        assert "12346" not in page


def test_line_ends_of_a_form_are_those_of_the_statement(schema_url, client_of):
    client = client_of(schema_url)
    assert client.get(asked("SELECT length('a\r\nb')", "/sql.csv")).text.split()[-1] == "3"


def test_examples_stay_about_the_buffer_that_the_page_came_from(schema_url, client_of):
    for name in ("first", "second"):
        ReplayBuffer(schema_url, name=name).close()
    client = client_of(schema_url)
    start = client.get("/groups?buffer=second").text
    (link,) = re.findall(r'<a href="(/sql[^"]*)"', start)
    for path in (html.unescape(link), f"{asked('SELECT nothing_at_all')}&buffer=second"):
        text = client.get(path).text
        assert "&#39;second&#39;" in text
        assert "&#39;first&#39;" not in text


def test_the_limits_are_shown_and_the_views_are_listed(schema_url, client_of):
    page = client_of(schema_url).get("/sql").text
    assert "The page shows at most 1,000 rows or 4.0 MiB, and ends a statement after 5 s" in page
    assert all(
        f"<code>{view}</code>" in page for view in ("v_experiences", "v_groups", "v_waiting")
    )
    assert text_of("docs/reference/views.md")
