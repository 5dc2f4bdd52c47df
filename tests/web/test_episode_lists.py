"""The pages of episodes and of groups show what SQL finds, a page after the other."""

import html
import json
import math
import re

import pytest

from sqlbuffer import RandomSampler, ReplayBuffer
from tests.conftest import KINDS
from tests.support.sql import run
from tests.support.web_lists import address, all_rows, found_by, lines_of, next_of, rows_of
from tests.web.conftest import HOSTILE, SCRIPT, row

SORTS = {
    "task": "task_id, first_seq",
    "task descending": "task_id DESC, first_seq DESC",
    "newest": "first_seq DESC",
    "oldest": "first_seq",
    "best": "episode_return DESC, first_seq DESC",
    "worst": "episode_return, first_seq",
    "longest": "length DESC, first_seq DESC",
    "shortest": "length, first_seq",
}


def store_episodes(url):
    """Store 130 ended episodes in 13 tasks, some of which are alike."""
    with ReplayBuffer(url, fields={"obs": "int64"}, max_capacity=200) as buffer:
        for i in range(130):
            n = 1 + i % 5
            reward = 0.25 if i // 10 == 3 else (i * 7 % 11) / 4
            buffer.store_episode(
                {"obs": [i] * n, "reward": [reward / n] * n},
                task_id=f"task {i // 10}", episode_id=f"e{i}", agent_id=f"a{i % 2}",
                model_version=i // 50,
            )  # fmt: skip


@pytest.fixture(params=KINDS)
def episodes_url(request, filled_once):
    """Return a database with the episodes, to be read alone."""
    return filled_once(request.param, store_episodes)


@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_episodes_are_those_of_sql_in_order(episodes_url, client_of, sort):
    shown = all_rows(client_of(episodes_url), address("/episodes", buffer="default", sort=sort))
    statement = f"SELECT episode_id FROM v_episodes ORDER BY {SORTS[sort]}"
    wanted = [key for (key,) in run(episodes_url, statement)]
    if sort in ("best", "worst", "longest", "shortest"):
        # Sums of rewards are added up in another order here than there.
        assert sorted(line[0].split()[0] for line in shown) == sorted(wanted)
        place = {"best": 4, "worst": 4, "longest": 5, "shortest": 5}[sort]
        values = [float(line[place]) for line in shown]
        assert values == sorted(values, reverse=sort in ("best", "longest"))
    else:
        assert [line[0].split()[0] for line in shown] == wanted
    assert {line[1] for line in shown} == {f"task {i}" for i in range(13)}


def test_episodes_by_spread_begin_with_the_task_that_differs_most(episodes_url, client_of):
    path = address("/episodes", buffer="default", sort="spread")
    shown = all_rows(client_of(episodes_url), path)
    assert len({line[0] for line in shown}) == 130
    spreads = [float(line[6]) for line in shown]
    assert spreads == sorted(spreads, reverse=True)
    assert shown[-1][1] == "task 3"


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ('task="task 2"', "task_id = 'task 2'"),
        ("episode=e77", "episode_id = 'e77'"),
        ("agent=a1 model = 1", "agent_id = 'a1' AND model_version = 1"),
        ("reward>=1.1 reward<=2.1", "episode_return BETWEEN 1.1 AND 2.1"),
        ("length>3 agent!=a0", "length > 3 AND agent_id <> 'a0'"),
        ("status=open", "status = 'open'"),
        ("E7", "episode_id LIKE '%e7%'"),
        ('"Task 3" a1', "task_id = 'task 3' AND agent_id = 'a1'"),
        ("spread<0.1", "task_id = 'task 3'"),
    ],
)
def test_filters_leave_what_sql_leaves(episodes_url, client_of, given, where):
    shown = all_rows(client_of(episodes_url), address("/episodes", buffer="default", q=given))
    wanted = run(episodes_url, f"SELECT episode_id FROM v_episodes WHERE {where}")
    assert sorted(line[0].split()[0] for line in shown) == sorted(key for (key,) in wanted)


@pytest.mark.parametrize(
    "condition",
    ["step=4", "step>=4", '{"field": "step", "op": "gte", "value": 4}', "agent=a1 step>=0"],
)
def test_a_condition_finds_the_episodes_that_have_such_a_step(episodes_url, client_of, condition):
    path = address("/episodes", buffer="default", q=condition)
    shown = all_rows(client_of(episodes_url), path)
    where = "agent_id = 'a1'" if "agent" in condition else "step >= 4"
    statement = f"SELECT DISTINCT episode_id FROM v_experiences WHERE {where}"
    assert {line[0].split()[0] for line in shown} == {
        key for (key,) in run(episodes_url, statement)
    }


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "is not JSON"),
        ("nonsense=1", "unknown field 'nonsense'"),
        ("nonsense=1", 'put it in quotes: "nonsense=1"'),
        ("agent=", "agent= has no value"),
        ('"to do', "a quote is not closed"),
        ('task="to do', "a quote is not closed"),
        ("model=x", "whole number"),
        ("length>" + "9" * 30, "64 bits"),
        ("reward>=nan", "is a number"),
        ("status=done", "open, complete, aborted, abandoned"),
        ("a\0b", "U+0000"),
        ("a " * 51, "more than 50 parts"),
    ],
)
def test_a_wrong_filter_says_what_is_wrong(episodes_url, client_of, given, reason):
    page = client_of(episodes_url).get(address("/episodes", buffer="default", q=given))
    assert page.status_code == 200
    assert reason in html.unescape(page.text)
    assert "The filter is not applied" in page.text
    assert len(rows_of(page.text)) == 50
    assert "agent%3D" not in next_of(page.text)


@pytest.mark.parametrize(
    ("given", "hint"), [("rewrad>1", "reward"), ("lenght=3", "length"), ("reward_tt=1", "reward_t")]
)
def test_an_unknown_field_is_told_in_short(episodes_url, client_of, given, hint):
    text = client_of(episodes_url).get(address("/episodes", buffer="default", q=given)).text
    said = html.unescape(re.search(r'<p class="reason"[^>]*>(.*?)</p>', text, re.S)[1])
    assert f"did you mean {hint}" in said
    assert len(said) < 260
    assert "?." not in said
    folded = re.search(r"<summary>Fields of steps</summary>(.*?)</details>", text, re.S)[1]
    assert "reward_t" in folded


@pytest.mark.parametrize("after", ["", "{", "[]", "[null, 1]", '["x", 1]', "[1, 2, 3, 4, 5]"])
def test_an_address_that_was_changed_by_hand_still_shows_a_page(episodes_url, client_of, after):
    for path, sort in (("/episodes", "best"), ("/episodes", "spread"), ("/groups", "spread")):
        given = {"buffer": "default", "sort": sort, "after": after}
        page = client_of(episodes_url).get(address(path, **given))
        assert page.status_code == 200, after


def test_tasks_without_episodes_are_listed_too(schema_url, client_of):
    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch([row(step, task=f"t{step % 3}", reward=2.0) for step in range(9)])
    shown = all_rows(client_of(schema_url), address("/episodes", buffer="default"))
    assert [line[0] for line in shown] == ["without an episode"] * 3
    assert [shown[0][1], shown[0][4]] == ["t2", "6"]


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("given", [{}, {"q": "agent=a1"}])
@pytest.mark.parametrize("sort", ["newest", "best", "spread"])
def test_pages_go_on_where_they_ended_while_a_writer_writes(schema_url, client_of, sort, given):
    store_episodes(schema_url)
    client = client_of(schema_url)
    first = client.get(address("/episodes", buffer="default", sort=sort, **given)).text
    with ReplayBuffer(schema_url, create=False) as buffer:
        # Within the spread of its task: no other episode changes its place.
        arrays = {"obs": [0], "reward": [1.0]}
        buffer.store_episode(arrays, task_id="task 5", episode_id="later", agent_id="a1")
    second = client.get(next_of(first)).text
    shown = [line[0].split()[0] for line in rows_of(first) + rows_of(second)]
    assert len(shown) == len(set(shown))
    assert len({*shown} - {"later"}) >= (65 if given else 99)


def test_an_open_episode_says_what_it_has_so_far(schema_url, client_of):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        buffer.extend({"obs": [1, 2], "reward": [0.25, 0.5]}, task_id="t", episode_id="e")
    client = client_of(schema_url)
    text = client.get(address("/episodes", buffer="default")).text
    ((first, task, _, status, return_, length, *_),) = rows_of(text)
    assert (first, task, status, return_, length) == ("e", "t", "open", "0.75", "2")
    (link,) = re.findall(r'<a href="([^"]+)"><span class="id">e</span></a>', text)
    page = client.get(html.unescape(link)).text
    assert "length <b>2</b>" in page
    assert "reward <b>0.75</b>" in page


def test_evicted_episodes_say_so(episodes_url, client_of):
    shown = all_rows(client_of(episodes_url), address("/episodes", buffer="default", sort="oldest"))
    assert shown[0][0] == "e0 evicted"
    assert shown[-1][0] == "e129"


def test_groups_are_those_of_sql(episodes_url, client_of):
    client = client_of(episodes_url)
    shown = all_rows(client, address("/groups", buffer="default"))
    assert {line[0] for line in shown} == {f"task {i}" for i in range(13)}
    assert {line[1] for line in shown} == {"10"}
    assert [line[0] for line in shown if line[7] == "zero spread"] == ["task 3"]
    statement = (
        "SELECT avg(episode_return), min(episode_return), max(episode_return) FROM v_episodes "
        "WHERE task_id = 'task 5'"
    )
    (wanted,) = run(episodes_url, statement)
    (line,) = [line for line in shown if line[0] == "task 5"]
    assert [float(line[i]) for i in (2, 4, 5)] == pytest.approx(wanted, rel=1e-3)
    alike = all_rows(client, address("/groups", buffer="default", sort="alike"))
    assert alike[0][0] == "task 3"
    by_name = all_rows(client, address("/groups", buffer="default", sort="group"))
    assert [line[0] for line in by_name] == sorted(f"task {i}" for i in range(13))


def test_a_group_shows_its_rollouts_and_their_differences(episodes_url, client_of):
    client = client_of(episodes_url)
    text = client.get(address("/group", buffer="default", group="task 5")).text
    shown = rows_of(text)
    assert len(shown) == 10
    links = re.findall(r'href="([^"]+/difference\?[^"]+)"', text)
    assert len(links) == 10
    assert client.get(html.unescape(links[0])).status_code == 200
    (first,) = re.findall(r'<a href="([^"]+)"><span class="id">e57</span></a>', text)
    assert client.get(html.unescape(first)).status_code == 200
    assert client.get(address("/group", buffer="default", group="none")).status_code == 404


@pytest.mark.parametrize("path", ["/episodes", "/groups"])
def test_an_empty_buffer_says_what_fills_the_page(schema_url, client_of, path):
    ReplayBuffer(schema_url).close()
    page = client_of(schema_url).get(address(path, buffer="default"))
    assert page.status_code == 200
    assert "yet" in page.text


@pytest.mark.parametrize("path", ["/episodes", "/groups", "/group"])
def test_hostile_names_are_only_shown(hostile_url, client_of, path):
    page = client_of(hostile_url).get(address(path, buffer=HOSTILE, task=HOSTILE, group=HOSTILE))
    assert page.status_code == 200
    assert SCRIPT not in page.text


@pytest.mark.parametrize("sort", ["mean", "deviation ascending", "episodes", "group descending"])
def test_heads_of_groups_sort_a_page_after_the_other(episodes_url, client_of, sort, monkeypatch):
    monkeypatch.setattr("sqlbuffer.web.pages.groups_page.GROUPS_A_PAGE", 4)
    client, path = client_of(episodes_url), address("/groups", buffer="default", sort=sort)
    shown = all_rows(client, path)
    place = {"group": 0, "episodes": 1, "mean": 2, "deviation": 3}[sort.split()[0]]
    values = [row[place] if place == 0 else float(row[place]) for row in shown]
    assert len({row[0] for row in shown}) == 13
    assert values == sorted(values, reverse="ascending" not in sort)
    way = "ascending" if "ascending" in sort.split() else "descending"
    assert client.get(path).text.count(f'aria-sort="{way}"') == 1


@pytest.mark.parametrize("sort", ["spread", "alike", "group", "deviation", "mean ascending"])
def test_the_line_of_groups_finds_the_same(episodes_url, client_of, sort):
    text = client_of(episodes_url).get(address("/groups", buffer="default", sort=sort)).text
    (line,) = lines_of(text)
    found = [each["group_id"] for each in json.loads(found_by(line, "--json"))]
    assert found == [line[0] for line in rows_of(text)]
    assert len(found) == 13


@pytest.mark.thorough
@pytest.mark.parametrize("sort", [*SORTS, "spread"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"q": 'task="task 2"'},
        {"q": "agent=a1 model=1"},
        {"q": "reward>=1.1 reward<2.1"},
        {"q": "E7 a1"},
        {"q": "spread>0 length!=2"},
    ],
    ids=str,
)
def test_the_line_of_episodes_finds_the_same(episodes_url, client_of, sort, given):
    client = client_of(episodes_url)
    path = address("/episodes", buffer="default", sort=sort, **given)
    text = client.get(path).text
    shown = {row[0].split()[0] for row in rows_of(text)}
    (line,) = lines_of(text)
    found = [each["episode_id"] for each in json.loads(found_by(line, "--json"))]
    assert len(found) == len(shown)
    if sort in ("newest", "oldest", "spread"):  # the others have ties
        assert set(found) == shown
    later = next_of(text)
    if later is not None:
        (line,) = lines_of(client.get(later).text)
        found = {each["episode_id"] for each in json.loads(found_by(line, "--json"))}
        assert found >= {row[0].split()[0] for row in rows_of(client.get(later).text)} | shown


def test_the_lines_of_tasks_without_episodes_and_of_conditions_find_the_same(
    schema_url, client_of, capsys
):
    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch([row(step, task=f"t{step % 3}", reward=2.0) for step in range(9)])
    client = client_of(schema_url)
    (line,) = lines_of(client.get(address("/episodes", buffer="default")).text)
    found = {each["task_id"] for each in json.loads(found_by(line, "--json"))}
    assert found == {"t0", "t1", "t2"}
    path = address("/episodes", buffer="default", q="step=4")
    (line,) = lines_of(client.get(path).text)
    # The URL is shown without its password, and that of the tests may have one.
    exec(re.sub(r"ReplayBuffer\([^,]*", f"ReplayBuffer({schema_url!r}", line), {})
    assert capsys.readouterr().out.startswith("t1 None ")


def test_the_lines_of_an_episode_find_its_steps_alone(episodes_url, client_of):
    client = client_of(episodes_url)
    text = client.get(address("/episodes", buffer="default", q="episode=e128")).text
    (link,) = re.findall(r'<a href="([^"]+)"><span class="id">e128</span></a>', text)
    shell, python = lines_of(client.get(html.unescape(link)).text)
    assert len(json.loads(found_by(shell, "--json"))) == 4
    assert python.endswith("print(row)")


@pytest.mark.each_value
@pytest.mark.parametrize("fields", [None, {"obs": "int64"}], ids=["json", "typed"])
def test_the_lines_of_curves_and_of_draws_find_what_these_show(
    schema_url, client_of, capsys, fields
):
    with ReplayBuffer(schema_url, fields=fields, track_samples=True) as buffer:
        for key in ("e1", "e2"):
            columns = {"obs": [7, 8]} if fields else {"state": [7, 8]}
            buffer.store_episode({**columns, "reward": [0.25, 0.5]}, task_id="t", episode_id=key)
        for _ in range(3):
            (buffer.sample_arrays if fields else buffer.sample)(4, sampler=RandomSampler(seed=1))
    client = client_of(schema_url)
    text = client.get(address("/episodes", buffer="default", q="episode=e2")).text
    (link,) = re.findall(r'<a href="([^"]+)"><span class="id">e2</span></a>', text)
    shown = client.get(f"{html.unescape(link)}&view=draws").text
    found = json.loads(found_by(lines_of(shown)[0], "--json"))
    # The columns: step, batch, when, clock, sampler, place, rows.
    wanted = [(line[1], line[4], line[5]) for line in rows_of(shown)]
    assert [
        (str(each["batch_id"]), each["sampler"], str(each["position"])) for each in found
    ] == wanted
    assert wanted
    (line,) = lines_of(client.get(f"{html.unescape(link)}&view=curves").text)
    # The URL is shown without its password, and that of the tests may have one.
    exec(re.sub(r"ReplayBuffer\([^,]*", f"ReplayBuffer({schema_url!r}", line), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2
    assert all("7" in line or "8" in line for line in printed)
    assert ("0.25" in printed[0], "0.5" in printed[1]) == (True, True)


@pytest.mark.parametrize("fields", [None, {"obs": "int64"}], ids=["json", "typed"])
def test_conditions_look_at_the_values_that_hold_now(schema_url, client_of, fields):
    with ReplayBuffer(schema_url, fields=fields) as buffer:
        columns = {"obs": [1, 2]} if fields else {}
        for key in ("e1", "e2"):
            buffer.store_episode({**columns, "reward": [0.0, 1.0]}, task_id="t", episode_id=key)
        (first, *_) = [row.seq for row in buffer if row.exp_meta.episode_id == "e2"]
        buffer.annotate([first], reward_t=0.75, v_t=0.5, extra={"judge": "tests"})
    client = client_of(schema_url)
    for condition, wanted in (
        ("reward_t=0.75", ["e2"]),
        ("v_t=0.5", ["e2"]),
        ("extra.judge=tests", ["e2"]),
        ("reward_t=0", ["e1"]),
    ):
        path = address("/episodes", buffer="default", q=condition)
        assert [line[0] for line in rows_of(client.get(path).text)] == wanted, condition


def test_a_group_with_an_infinite_reward_has_no_spread(schema_url, client_of):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for key, reward in enumerate((3.0, 3.0, float("inf"))):
            columns = {"obs": [1], "reward": [reward]}
            buffer.store_episode(columns, task_id="t", episode_id=str(key))
    client = client_of(schema_url)
    page = client.get(address("/group", buffer="default", group="t")).text
    assert "zero spread" not in page
    assert "2 with a finite reward" in page
    (line,) = rows_of(client.get(address("/groups", buffer="default")).text)
    assert line[6:] == ["\u2013", ""]


# Every order and status of the pages of episodes and of groups, as SQL has it.


# Orders without an index -> the column of SQL.
OTHER_SORTS = {
    "episode": "episode_id",
    "agent": "agent_id",
    "status": "status",
    "own reward": "reward",
    "model": "model_version",
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


@pytest.mark.parametrize("query", [{"sort": "agent"}, {"sort": "best", "q": "agent=a1"}])
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


def test_a_whole_id_finds_an_old_episode_that_no_filter_looks_at(
    varied_url, client_of, monkeypatch
):
    client = client_of(varied_url)
    monkeypatch.setattr("sqlbuffer.storage.browsing.rollouts.LOOKED_AT", 20)
    for sought, wanted in (
        ("e3", {"e3"}),
        ("episode=e3", {"e3"}),
        ("e5", {"e5", *(f"e{i}" for i in range(50, 60))}),
        ("task=t1 e3", {f"e{i}" for i in range(60) if i % 2 and "e3" in f"e{i}"} - {"e3", "e13"}),
    ):
        shown = all_rows(client, address("/episodes", buffer="default", q=sought))
        assert {line[0] for line in shown} >= wanted - {f"e{i}" for i in range(4, 40)}, sought


def test_the_head_of_a_column_sorts_by_it_and_then_the_other_way(varied_url, client_of):
    client, path = client_of(varied_url), address("/episodes", buffer="default", q="reward>=0")
    orders = []
    for way in ("descending", "ascending", "descending"):
        text = client.get(path).text
        path = html.unescape(re.search(r'<a href="([^"]+)">reward</a></th>', text)[1])
        text = client.get(path).text
        head = re.search(r'data-col="reward" aria-sort="(\w+)"', text)
        assert (head[1], text.count("aria-sort")) == (way, 1)
        assert "Clear" in text  # the filter is kept
        orders.append([float(line[4]) for line in rows_of(text)])
    assert orders[0] == sorted(orders[0], reverse=True) == orders[2]
    assert orders[1] == sorted(orders[1])


# Keys have 500 bytes at most.
ODD_IDS = ["é" * 250, "數據/" * 71, "\u202eabc " * 70, "a  b\nc", " ", "x" * 499 + "<"]


def test_ids_of_any_length_are_short_and_whole_on_hover(schema_url, client_of):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for key in ODD_IDS:
            keys = {"task_id": key, "agent_id": key, "episode_id": key}
            buffer.store_episode({"obs": [1]}, **keys)
    client = client_of(schema_url)
    text = client.get(address("/episodes", buffer="default")).text
    for key in ODD_IDS:
        found = re.findall(
            rf'class="id"(?: title="{re.escape(html.escape(key))}" data-whole)?>([^<]*)</span>',
            text,
        )
        assert found, key
    shorts = map(html.unescape, re.findall(r'class="id"[^>]*>([^<]*)<', text))
    assert max(map(len, shorts)) <= 20
    for key in ODD_IDS[:4]:
        quoted = json.dumps(key, ensure_ascii=False).replace("\\n", "\n")
        page = client.get(address("/episodes", buffer="default", q=f"episode={quoted}")).text
        assert len(rows_of(page)) == 1, key
        (line,) = lines_of(page)
        (found,) = json.loads(found_by(line, "--json"))
        assert found["episode_id"] == key


def test_the_lines_of_a_filter_with_conditions_find_what_it_finds(varied_url, client_of, capsys):
    sought = "E5 reward>=50 agent!=a2 status=complete step=0"
    text = client_of(varied_url).get(address("/episodes", buffer="default", q=sought)).text
    (line,) = lines_of(text)
    exec(re.sub(r"ReplayBuffer\([^,]*", f"ReplayBuffer({varied_url!r}", line), {})
    printed = [words.split()[1] for words in capsys.readouterr().out.splitlines()]
    assert sorted(printed) == sorted(row[0] for row in rows_of(text))
    assert printed
    text = (
        client_of(varied_url).get(address("/episodes", buffer="default", q="spread>0 step=0")).text
    )
    assert lines_of(text) == []


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("reward", [1.0, math.inf, -math.inf, None])
@pytest.mark.parametrize("sort", ["best", "worst"])
@pytest.mark.parametrize("sought", ["", "agent=a"], ids=["all", "filtered"])
def test_episodes_without_a_finite_return_have_pages_too(
    schema_url, client_of, reward, sort, sought
):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for i in range(60):
            columns = {"obs": [i]} if reward is None else {"obs": [i], "reward": [reward]}
            buffer.store_episode(columns, task_id="t", episode_id=f"e{i}", agent_id="a")
        buffer.store_episode(
            {"obs": [1], "reward": [0.5]}, task_id="t", episode_id="e60", agent_id="a"
        )
    path = address("/episodes", buffer="default", sort=sort, q=sought)
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
    page = client.get(address("/group", buffer="default", group="none"))
    assert page.status_code == 200
    assert [line[0] for line in rows_of(page.text)] == ["e3", "e2", "e1"]
    for line in rows_of(client.get(address("/groups", buffer="default")).text):
        assert (line[0], line[1], line[6], line[7]) == ("none", "3", "\u2013", "no finite reward")
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
        ("group", ["none", *numbers]),
    ):
        path = address("/groups", buffer="default", sort=sort)
        assert [line[0] for line in all_rows(client, path)] == wanted
    # Also the best of a task ends with those that have none.
    page = client.get(address("/group", buffer="default", group="none", sort="best")).text
    assert [line[0] for line in rows_of(page)] == ["e4", "e3", "e2", "e1"]


@pytest.mark.thorough
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
        text = client.get(address("/episodes", buffer="default", q=f"status={status}")).text
        assert [line[0] for line in rows_of(text)] == wanted
        found = json.loads(found_by(lines_of(text)[0], "--json"))
        assert [each["episode_id"] for each in found] == wanted


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("sort", ["best", "worst", "newest"])
def test_the_line_of_a_group_finds_the_same(schema_url, client_of, sort):
    with ReplayBuffer(schema_url, fields={"obs": "int64"}) as buffer:
        for i in range(70):
            columns = {"obs": [i], "reward": [float(i * 37 % 71)]} if i != 7 else {"obs": [i]}
            buffer.store_episode(columns, task_id="t", episode_id=f"e{i}")
    client = client_of(schema_url)
    path = address("/group", buffer="default", group="t", sort=sort)
    pages = [client.get(path).text]
    pages.append(client.get(next_of(pages[0])).text)
    first, second = ([line[0] for line in rows_of(text)] for text in pages)
    assert (len(first), len(second)) == (64, 6)
    for text, wanted in zip(pages, (first, first + second), strict=True):
        found = [each["episode_id"] for each in json.loads(found_by(lines_of(text)[0], "--json"))]
        assert found == wanted if sort != "newest" else len(found) == len(wanted)
