"""Every order and status of the pages of episodes and of groups, as SQL has it."""

import json
import math

import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import KINDS
from tests.support.sql import run
from tests.support.web_lists import address, all_rows, found_by, lines_of, next_of, rows_of

# Orders without an index -> the column of SQL.
OTHER_SORTS = {
    "episode": "episode_id",
    "task": "task_id",
    "agent": "agent_id",
    "status": "status",
    "own reward": "reward",
    "model": "model_version",
    "began": "started_at",
    "ended": "ended_at",
}


def store_varied(url):
    """Store 60 episodes, some without rewards, a model, a reward of their own or an end."""
    with ReplayBuffer(url, fields={"obs": "int64"}) as buffer:
        for i in range(60):
            columns = {"obs": [i], "reward": [float(i)]} if i % 5 else {"obs": [i]}
            keys = {"task_id": f"t{i % 2}", "episode_id": f"e{i}", "agent_id": f"a{i % 3}"}
            model = i % 6 if i % 7 else None
            if i % 4:
                own = None if i % 3 else i % 10 / 4
                buffer.store_episode(columns, **keys, model_version=model, episode_reward=own)
            else:
                buffer.extend(columns, **keys, model_version=model)


@pytest.fixture(params=KINDS)
def varied_url(request, filled_once):
    """Return a database with the 60 episodes, to be read alone."""
    return filled_once(request.param, store_varied)


@pytest.mark.parametrize("descends", [False, True])
@pytest.mark.parametrize("sort", OTHER_SORTS)
def test_other_columns_sort_episodes_and_those_without_a_value_come_last(
    varied_url, client_of, sort, descends
):
    ending = " descending" if descends else ""
    path = address("/episodes", buffer="default", sort=f"{sort}{ending}")
    shown = [line[0] for line in all_rows(client_of(varied_url), path)]
    found = run(varied_url, f"SELECT {OTHER_SORTS[sort]}, episode_id FROM v_episodes")
    keys = [(value, int(key[1:])) for value, key in found]
    with_value = sorted((key for key in keys if key[0] is not None), reverse=descends)
    without = sorted((key for key in keys if key[0] is None), reverse=descends)
    assert shown == [f"e{number}" for _, number in with_value + without]


@pytest.mark.parametrize("query", [{"sort": "task"}, {"sort": "best", "agent": "a1"}])
def test_an_order_without_an_index_says_how_many_it_covers(
    varied_url, client_of, monkeypatch, query
):
    client, path = client_of(varied_url), address("/episodes", buffer="default", **query)
    assert "are filtered and sorted" not in client.get(path).text
    monkeypatch.setattr("sqlbuffer.storage.browsing.rollouts.LOOKED_AT", 20)
    text = client.get(path).text
    assert "Only the newest 20 rollouts are filtered and sorted; there are more." in text
    assert {int(line[0][1:]) for line in rows_of(text)} <= set(range(40, 60))
    found = json.loads(found_by(lines_of(text)[0], "--json"))
    assert {each["episode_id"] for each in found} == {line[0] for line in rows_of(text)}


@pytest.mark.thorough
@pytest.mark.parametrize("reward", [1.0, math.inf, -math.inf, None])
@pytest.mark.parametrize("sort", ["best", "worst"])
@pytest.mark.parametrize("agent", ["", "a"], ids=["all", "filtered"])
def test_episodes_without_a_finite_return_have_pages_too(
    schema_url, client_of, reward, sort, agent
):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for i in range(60):
            columns = {"obs": [i]} if reward is None else {"obs": [i], "reward": [reward]}
            buffer.store_episode(columns, task_id="t", episode_id=f"e{i}", agent_id="a")
        buffer.store_episode(
            {"obs": [1], "reward": [0.5]}, task_id="t", episode_id="e60", agent_id="a"
        )
    path = address("/episodes", buffer="default", sort=sort, agent=agent)
    shown = [line[0] for line in all_rows(client_of(schema_url), path)]
    assert sorted(shown) == sorted(f"e{i}" for i in range(61))
    is_first = reward is None or (reward < 0.5 if sort == "best" else reward > 0.5)
    assert shown.index("e60") == (0 if is_first else 60)


@pytest.mark.thorough
def test_groups_without_returns_are_listed_last(schema_url, client_of):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for key in ("e1", "e2", "e3"):
            buffer.store_episode({"obs": [1]}, task_id="none", episode_id=key)
    client = client_of(schema_url)
    page = client.get(address("/group", buffer="default", task="none"))
    assert page.status_code == 200
    assert [line[0] for line in rows_of(page.text)] == ["e3", "e2", "e1"]
    for line in rows_of(client.get(address("/groups", buffer="default")).text):
        assert (line[0], line[1], line[6], line[7]) == ("none", "3", "\u2013", "no finite return")
    with ReplayBuffer(schema_url, create=False) as buffer:
        for number in range(60):
            for reward in (0.0, float(number)):
                columns = {"obs": [1], "reward": [reward]}
                buffer.store_episode(columns, task_id=f"task {number:02}")
        buffer.store_episode({"obs": [1], "reward": [math.inf]}, task_id="none", episode_id="e4")
    numbers = [f"task {number:02}" for number in range(60)]
    for sort, wanted in (
        ("spread", [*reversed(numbers), "none"]),
        ("alike", [*numbers, "none"]),
        ("task", ["none", *numbers]),
    ):
        path = address("/groups", buffer="default", sort=sort)
        assert [line[0] for line in all_rows(client, path)] == wanted
    # Also the best of a task ends with those that have none.
    page = client.get(address("/group", buffer="default", task="none", sort="best")).text
    assert [line[0] for line in rows_of(page)] == ["e4", "e3", "e2", "e1"]


@pytest.mark.parametrize("fields", [None, {"obs": "int64"}], ids=["json", "typed"])
def test_abandoned_episodes_are_not_open_ones(schema_url, client_of, fields):
    with ReplayBuffer(schema_url, fields=fields, open_timeout_s=60) as buffer:
        columns = {"obs": [1]} if fields else {"state": [1]}
        for key in ("left", "open"):
            buffer.extend(columns, task_id="t", episode_id=key)
    table, long_ago = "chunks" if fields else "experiences", "'2020-01-01T00:00:00.000Z'"
    left = "(SELECT id FROM episodes WHERE key = 'left')"
    run(schema_url, f"UPDATE episodes SET started_at = {long_ago}")
    run(schema_url, f"UPDATE {table} SET inserted_at = {long_ago} WHERE episode_id = {left}")
    client = client_of(schema_url)
    for status, wanted in (("open", ["open"]), ("abandoned", ["left"]), ("complete", [])):
        text = client.get(address("/episodes", buffer="default", status=status)).text
        assert [line[0] for line in rows_of(text)] == wanted
        assert f"<option selected>{status}</option>" in text
        found = json.loads(found_by(lines_of(text)[0], "--json"))
        assert [each["episode_id"] for each in found] == wanted


@pytest.mark.thorough
@pytest.mark.parametrize("sort", ["best", "worst", "newest"])
def test_the_line_of_a_group_finds_the_same(schema_url, client_of, sort):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for i in range(70):
            columns = {"obs": [i], "reward": [float(i * 37 % 71)]} if i != 7 else {"obs": [i]}
            buffer.store_episode(columns, task_id="t", episode_id=f"e{i}")
    client = client_of(schema_url)
    path = address("/group", buffer="default", task="t", sort=sort)
    pages = [client.get(path).text]
    pages.append(client.get(next_of(pages[0])).text)
    first, second = ([line[0] for line in rows_of(text)] for text in pages)
    assert (len(first), len(second)) == (64, 6)
    for text, wanted in zip(pages, (first, first + second), strict=True):
        found = [each["episode_id"] for each in json.loads(found_by(lines_of(text)[0], "--json"))]
        assert found == wanted if sort != "newest" else len(found) == len(wanted)
