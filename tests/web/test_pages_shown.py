import re
from urllib.parse import quote

import numpy as np
import pytest
from sqlalchemy import event

from sqlbuffer import ReplayBuffer
from sqlbuffer.web import app
from tests.support.sql import connected, is_sqlite
from tests.support.web_client import WebClient
from tests.support.web_lists import rows_of
from tests.support.web_pages import one_of_each_kind, other_views
from tests.web.conftest import HOSTILE, SCRIPT, row

PAGES = ["/", f"/buffer?buffer={quote(HOSTILE, safe='')}", "/sql"]


def test_buffers_are_listed_with_their_figures(schema_url, client_of):
    with ReplayBuffer(schema_url, name="train", max_capacity=200) as buffer:
        buffer.store_batch([row(step, agent=f"agent{step % 3}") for step in range(100)])
        buffer.sample(10)
        buffer.stats()  # which counts what was sampled
    ReplayBuffer(schema_url, name="empty").close()
    page = client_of(schema_url).get("/").text
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in re.findall(r"<tr data-row>.*?</tr>", page, re.DOTALL)
    ]
    empty, train = cells
    assert train[:4] == ["train", "100", "200", "50%"]
    assert train[7] == "3"
    assert '<span title="agent0, agent1, agent2">3</span>' in page
    assert train[8] not in ("", "\u2013")
    assert empty[:4] == ["empty", "0", "∞", ""]


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_and_texts_are_only_shown(hostile_url, client_of, path):
    response = client_of(hostile_url).get(path)
    assert response.status_code == 200
    assert SCRIPT not in response.text
    assert "49" not in re.findall(r"\{\{.*?\}\}", response.text)
    # Nothing of a page is run or styled but its own files.
    assert re.findall(r"<script(?! src=| type=\"application/json\")", response.text) == []
    assert re.findall(r"<[^>]*\s(?:style|on\w+)=", response.text) == []


def test_an_empty_database_says_how_a_buffer_is_made(schema_url, client_of):
    assert "There are no buffers yet" in client_of(schema_url).get("/").text


@pytest.mark.parametrize("path", ["/buffer?buffer=none", "/buffer", "/buffer?buffer=%00"])
def test_a_buffer_that_is_not_there_is_told(schema_url, client_of, path):
    response = client_of(schema_url).get(path)
    assert response.status_code == 404
    assert "choose one from the list" in response.text


def test_an_address_of_no_page_is_told(schema_url, client_of):
    response = client_of(schema_url).get(f"/{quote(SCRIPT)}")
    assert response.status_code == 404
    assert "There is no such page" in response.text
    assert SCRIPT not in response.text


# Pages wait for no writer and block none: they take no lock that a writer could meet.


SETTINGS = {"priorities": True, "track_samples": True, "max_use": 50, "max_capacity": 1_000}
HOT = ("experiences", "chunks", "chunk_data", "episodes", "rollout_stats", "priorities", "samples")


@pytest.fixture
def client(schema_url):
    """Return a client of a database with episodes, draws and priorities in both layouts."""
    for name, fields in (("typed", {"obs": ("float32", (2,))}), ("json", None)):
        with ReplayBuffer(schema_url, name, fields=fields, **SETTINGS) as buffer:
            columns = {"obs": np.zeros((3, 2))} if fields else {"state": [0, 1, 2]}
            for number in range(4):
                keys = {"task_id": "t", "episode_id": f"e{number}", "agent_id": "a"}
                buffer.store_episode({**columns, "reward": np.full(3, float(number))}, **keys)
            buffer.extend(columns, task_id="t", episode_id="open")
            (buffer.sample_arrays if fields else buffer.sample)(4)
            buffer.annotate([next(iter(buffer)).seq], reward_t=0.5)
    return WebClient(app(schema_url))


def paths_of(client):
    """Return the addresses of all kinds of pages."""

    def text_of(path):
        return client.get(path).text

    views = [path for name in ("typed", "json") for path in other_views(text_of, name)]
    statement = "/sql?q=SELECT%20count(*)%20FROM%20v_experiences"
    return [*one_of_each_kind(text_of), *views, statement]


@pytest.mark.thorough
def test_no_page_waits_for_a_writer(client, schema_url):
    paths = paths_of(client)
    with connected(schema_url) as connection:
        # Until the end of this transaction it has locked every row, as a writer locks a few.
        for table in HOT:
            connection.exec_driver_sql(f"DELETE FROM {table}")
        assert {path: client.get(path).status_code for path in paths} == dict.fromkeys(paths, 200)
        connection.rollback()


@pytest.mark.thorough
def test_no_page_blocks_a_writer_or_locks_more_than_the_shape_of_tables(client, schema_url):
    paths, engine = paths_of(client), client.app.state.site.pool.engine
    locks, n_written = set(), []

    def look(connection):
        # The transaction of the page still holds what it has locked.
        if not is_sqlite(schema_url):
            found = connection.connection.driver_connection.execute(
                "SELECT coalesce(c.relkind::text, locktype), mode FROM pg_locks l "
                "LEFT JOIN pg_class c ON c.oid = l.relation WHERE l.pid = pg_backend_pid()"
            )
            locks.update(tuple(each) for each in found)
        n_written.append(writer.store(row(100 + len(n_written), task="later")))

    with ReplayBuffer(schema_url, "json") as writer:
        for name in ("commit", "rollback"):
            event.listen(engine, name, look)
        for path in paths:
            assert client.get(path).status_code == 200, path
        for name in ("commit", "rollback"):
            event.remove(engine, name, look)
    assert len(n_written) >= len(paths) - 1
    # A lock of the transaction itself; and that of nextval(), which all share, for its last number.
    others = {("virtualxid", "ExclusiveLock"), ("S", "RowExclusiveLock")}
    assert {mode for _, mode in locks - others} <= {"AccessShareLock"}
    assert is_sqlite(schema_url) or {("r", "AccessShareLock"), ("v", "AccessShareLock")} <= locks


def test_heads_sort_the_buffers(schema_url, client_of):
    for name, rows in (("a", 2), ("b", 5), ("c", 1)):
        with ReplayBuffer(schema_url, name) as buffer:
            buffer.store_batch([row(step) for step in range(rows)])
    ReplayBuffer(schema_url, "capped", max_capacity=10).close()
    client = client_of(schema_url)
    for sort, names in (
        ("-rows", ["b", "a", "c", "capped"]), ("rows", ["capped", "c", "a", "b"]),
        ("-buffer", ["capped", "c", "b", "a"]), ("nonsense", ["a", "b", "c", "capped"]),
    ):  # fmt: skip
        text = client.get(f"/?sort={sort}").text
        assert [cells[0] for cells in rows_of(text)] == names
        assert f'data-live="/live?sort={sort}"' in text
    assert client.get("/?sort=capacity").text.count('aria-sort="ascending"') == 1


def test_an_address_that_names_nothing_says_what_to_do(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks") as buffer:
        buffer.store_episode({"state": [1], "reward": [1.0]}, task_id="t", episode_id="e")
    client = client_of(schema_url)
    for path in ("/buffers/nope/episodes/1", "/buffer?buffer=nope", "/episodes?buffer=nope"):
        page = client.get(path)
        assert page.status_code == 404
        assert "choose one from the list" in page.text
        assert "ReplayBuffer.list" not in page.text
    text = client.get("/buffers/talks/difference?left=1&right=zzz").text
    assert "a difference needs a=" in text
    assert "&#39;zzz&#39;, which b= names" in client.get("/buffers/talks/difference?a=1&b=zzz").text
