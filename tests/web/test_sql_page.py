import csv
import html
import io
import re
from urllib.parse import quote

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web.sql_examples import EXAMPLES
from tests.docs.pages import fenced_blocks, text_of
from tests.support.sql import is_sqlite
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
        assert " rows in " in answer.text
    assert "it&#39;&#39;s" in page


def test_shows_what_a_statement_finds_and_the_line_that_finds_it_too(hostile_url, client_of):
    client = client_of(hostile_url)
    text = client.get(asked("SELECT task_id, step, reward, NULL AS nil FROM v_experiences")).text
    assert "3 rows in " in text
    assert html.escape(HOSTILE) in text.replace("&#39;", "&#x27;").replace("&#34;", "&quot;")
    assert SCRIPT not in text
    assert '<td class="quiet">NULL</td>' in text
    assert "sqlbuffer sql" in text


def test_csv_has_the_values_as_they_are(hostile_url, client_of):
    statement = "SELECT task_id, step, extra FROM v_experiences ORDER BY step"
    response = client_of(hostile_url).get(asked(statement, "/sql.csv"))
    assert response.headers["content-disposition"] == 'attachment; filename="answer.csv"'
    assert response.headers["content-type"].startswith("text/csv")
    header, *rows = csv.reader(io.StringIO(response.text))
    assert header == ["task_id", "step", "extra"]
    assert [line[:2] for line in rows] == [[HOSTILE, str(step)] for step in range(3)]


def test_long_answers_are_cut_and_say_so(schema_url, client_of):
    client = client_of(schema_url)
    page = client.get(asked(COUNT_TO_A_MILLION)).text
    assert "1,000 rows in " in page
    assert "<b>cut</b>" in page
    response = client.get(asked(COUNT_TO_A_MILLION, "/sql.csv"))
    assert "answer-cut.csv" in response.headers["content-disposition"]
    assert response.text.count("\n") == 100_001
    wide = "SELECT " + ("hex(zeroblob(100000))" if is_sqlite(schema_url) else "repeat('0', 200000)")
    assert len(client.get(asked(wide)).text) < 40_000


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("SELECT * FROM", "syntax|incomplete"),
        ("SELECT * FROM nothing_of_that_name", "nothing_of_that_name"),
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


def test_the_limits_are_shown_and_the_views_are_listed(schema_url, client_of):
    page = client_of(schema_url).get("/sql").text
    assert "The page shows at most 1,000 rows or 4.0 MiB, and ends a statement after 5 s" in page
    assert all(
        f"<code>{view}</code>" in page for view in ("v_experiences", "v_groups", "v_waiting")
    )
    assert text_of("docs/reference/views.md")
