"""From an episode the page leads to its group, its task, and to its neighbours in the list."""

import html
import random
import re

import pytest

from sqlbuffer import ReplayBuffer
from tests.support.sql import run
from tests.support.web_lists import address, rows_of


@pytest.fixture
def talks_url(schema_url):
    """Return a database with 12 ended episodes, of which some have no reward and some a group."""
    generator = random.Random(3)
    with ReplayBuffer(schema_url, "talks") as buffer:
        for i in range(12):
            group = {"group_id": f'g "{i % 2}"'} if i % 3 else {}
            with buffer.episode(
                f"t{i % 4}", episode_id=f"e{i}", agent_id=f"a{i % 2}", **group
            ) as e:
                for _ in range(1 + generator.randrange(3)):
                    e.append(state={"x": i}, actions=[1])
                e.end(reward=None if i % 5 == 0 else float(generator.randrange(3)))
    return schema_url


def first_link(text):
    return html.unescape(re.search(r'<tr data-row>.*?<a href="([^"]+)"', text, re.S)[1])


def around(text, way):
    found = re.search(rf'<a rel="{way}" href="([^"]+)"', text)
    return html.unescape(found[1]) if found else None


def name_of(text):
    return re.search(r"<h1>Episode <span[^>]*>([^<]*)<", text)[1]


@pytest.mark.parametrize(
    "query",
    [
        {}, {"sort": "oldest"}, {"sort": "best"}, {"sort": "worst"}, {"sort": "longest"},
        {"sort": "task"}, {"sort": "agent descending"}, {"sort": "model"}, {"q": "agent=a1"},
        {"q": "reward>0", "sort": "worst"}, {"q": 'group="g \\"1\\""'}, {"q": "task=t1 state.x>1"},
    ],
    ids=str,
)  # fmt: skip
def test_next_and_previous_follow_the_list(talks_url, client_of, query):
    client = client_of(talks_url)
    text = client.get(address("/episodes", buffer="talks", **query)).text
    listed = [row[0] for row in rows_of(text)]
    assert len(listed) > 1
    path, seen = first_link(text), []
    while path:
        page = client.get(path).text
        seen.append((name_of(page), path))
        path = around(page, "next")
        assert len(seen) <= len(listed)
    assert [name for name, _ in seen] == listed
    back, path = [], seen[-1][1]
    while path:
        page = client.get(path).text
        back.append(name_of(page))
        path = around(page, "prev")
        assert len(back) <= len(listed)
    assert back == listed[::-1]


def test_the_neighbours_of_a_wrong_list_are_those_of_all(talks_url, client_of):
    number = dict(run(talks_url, "SELECT key, id FROM episodes"))["e5"]
    for query in ({"among": "nonsense=1"}, {"sort": "nonsense"}, {"among": '{"a'}, {"among": "\0"}):
        page = client_of(talks_url).get(address(f"/buffers/talks/episodes/{number}", **query))
        assert page.status_code == 200
        assert around(page.text, "prev") is not None


def test_an_episode_leads_to_its_group_and_its_task(talks_url, client_of):
    client = client_of(talks_url)
    numbers = dict(run(talks_url, "SELECT key, id FROM episodes"))
    for name, group in (("e4", 'g "0"'), ("e3", "t3")):
        page = client.get(f"/buffers/talks/episodes/{numbers[name]}").text
        links = {
            key: html.unescape(re.search(rf'<li>{key} <a href="([^"]+)"', page)[1])
            for key in ("group", "task")
        }
        text = client.get(links["group"]).text
        assert (
            f'<h1>Group <span class="name" title="{html.escape(group).replace("&quot;", "&#34;")}'
            in text
        )
        assert name in [row[0] for row in rows_of(text)]
        task = f"t{int(name[1:]) % 4}"
        rows = rows_of(client.get(links["task"]).text)
        assert {row[1] for row in rows} == {task}
        assert name in [row[0] for row in rows]


def test_the_list_has_a_column_of_groups_if_there_are_some(talks_url, client_of):
    client = client_of(talks_url)
    text = client.get(address("/episodes", buffer="talks", sort="oldest")).text
    assert [row[2] for row in rows_of(text)][:4] == ["", 'g "1"', 'g "0"', ""]
    text = client.get(address("/episodes", buffer="talks", q="episode=e3")).text
    assert 'data-col="group"' not in text
