import asyncio
import html
import json
import re

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web import app
from sqlbuffer.web.site import LivePoller
from tests.web.conftest import SCRIPT, row


async def first_of(poller, n, seen):
    async for sighting in poller.sightings():
        seen.append(sighting.found)
        if len(seen) == n:
            return


async def until(is_so):
    deadline = asyncio.get_running_loop().time() + 20
    while not is_so():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


def test_one_look_serves_all_watchers():
    looks = []
    poller = LivePoller(lambda: looks.append(None) or len(looks), every_s=0.2)

    async def watch():
        seen = [[] for _ in range(5)]
        await asyncio.gather(*(first_of(poller, 3, each) for each in seen))
        return seen

    seen = asyncio.run(watch())
    assert len(looks) < 8
    assert all(each == sorted(set(each)) for each in seen)


def test_the_poller_ends_when_no_one_looks_and_begins_again():
    poller = LivePoller(lambda: 1, every_s=0.05)

    async def watch():
        for _ in range(2):
            task = asyncio.create_task(first_of(poller, 10**9, []))
            await until(lambda: poller.is_running)
            assert poller.n_watchers == 1
            task.cancel()
            await until(lambda: not poller.is_running)
            assert poller.n_watchers == 0

    asyncio.run(watch())


def test_a_watcher_that_is_slow_gets_the_newest_alone():
    looks = []
    poller = LivePoller(lambda: looks.append(None) or len(looks), every_s=0.01)

    async def watch():
        seen = []
        async for sighting in poller.sightings():
            seen.append(sighting.found)
            if len(seen) == 2:
                break
            await until(lambda: len(looks) > 20)
        return seen

    first, second = asyncio.run(watch())
    assert first < 20 < second


def test_an_error_is_told_and_the_poller_goes_on():
    answers = iter([OSError("the cable"), 2])

    def look():
        found = next(answers, 3)
        if isinstance(found, Exception):
            raise found
        return found

    async def watch():
        seen = []
        async for sighting in LivePoller(look, every_s=0.05).sightings():
            seen.append((sighting.found, sighting.trouble))
            if len(seen) == 2:
                break
        return seen

    assert asyncio.run(watch()) == [(None, "the cable"), (2, None)]


def test_closing_ends_every_stream_at_once():
    poller = LivePoller(lambda: 1, every_s=3_600)

    async def watch():
        task = asyncio.create_task(first_of(poller, 10**9, []))
        await until(lambda: poller.is_running)
        poller.close()
        await task
        assert await asyncio.create_task(first_of(poller, 1, [])) is None

    asyncio.run(asyncio.wait_for(watch(), 20))


async def events_of(made, wanted, path="/live"):
    """Return the stream of live figures up to a text, and go away."""
    body, ended = [], asyncio.Event()
    path, _, query = path.partition("?")
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
        "root_path": "", "query_string": query.encode(), "headers": [(b"host", b"localhost")],
        "scheme": "http", "server": ("localhost", 80), "client": ("localhost", 1),
        "http_version": "1.1",
    }  # fmt: skip

    async def receive():
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        body.append(message.get("body", b"").decode())
        if wanted in "".join(body):
            ended.set()

    await asyncio.wait_for(made(scope, receive, send), 30)
    return "".join(body)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(LivePoller.__init__, "__defaults__", (0.1,))


def test_figures_are_sent_as_they_change_until_the_client_goes_away(schema_url, quick):
    name = f"{SCRIPT}\n\n\u2028data: x"
    buffer = ReplayBuffer(schema_url, name=name)
    made = app(schema_url)

    async def watch():
        first = await events_of(made, "event: figures")
        buffer.store_batch([row(step) for step in range(7)])
        second = await events_of(made, json.dumps('<td class="n">7</td>')[1:-1])
        await until(lambda: not made.state.site.live.is_running)
        return first, second

    for text, rows in zip(asyncio.run(watch()), (0, 7), strict=True):
        event, data = text.rstrip("\n").split("\n")[-2:]
        assert event == "event: figures"
        shown = json.loads(data.removeprefix("data: "))
        assert f'<td class="n">{rows}</td>' in shown
        assert SCRIPT not in shown
    buffer.close()


def test_a_lost_database_is_told_in_the_stream_and_on_the_page(make_database_url, quick, client_of):
    url = make_database_url("postgresql", schema=True)
    lost = url.replace("/sqlbuffer_", "/gone_", 1)
    made = app(lost)
    text = asyncio.run(events_of(made, "event: trouble"))
    assert "gone_" in text
    page = client_of(lost).get("/")
    assert page.status_code == 503
    assert "The database did not answer" in page.text
    assert "Try again" in page.text


def test_a_list_of_episodes_says_how_many_are_newer(schema_url, client_of, quick):
    made, path = app(schema_url), "/episodes?buffer=default&sort=best&q=first"

    def newer():
        text = asyncio.run(events_of(made, "event: figures", live))
        return json.loads(text.rstrip("\n").rpartition("data: ")[2]).strip()

    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch([row(0, task="first")])
        client = client_of(schema_url)
        live = html.unescape(re.search(r'data-live="([^"]+)"', client.get(path).text)[1])
        assert newer() == ""
        buffer.store_batch([row(0, task="second"), row(0, task="third")])
        link, words = re.fullmatch('<a href="([^"]+)">(.*)</a>', newer()).groups()
    assert words == "2 newer, show"
    assert "sort=best" in link
    assert "q=first" in link
    text = client.get(html.unescape(link)).text
    live = html.unescape(re.search(r'data-live="([^"]+)"', text)[1])
    assert newer() == ""
