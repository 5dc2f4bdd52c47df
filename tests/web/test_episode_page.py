"""Page 4: episodes, tasks without episodes, parts of steps, differences."""

import html
import json
import re
import shlex
import sys
from itertools import chain
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app as command_line
from sqlbuffer.web.curves import (
    aligned_grid,
    grid_of,
    histogram,
    ratio_of,
)
from tests.support.sql import is_sqlite, run
from tests.web.conftest import HOSTILE, SCRIPT
from tests.web.test_step_arrays import decoded

CALL = {
    "role": "assistant",
    "content": "I look.",
    "reasoning_content": "Hm.",
    "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": '{"at": "here"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "seen"}


def numbers(url):
    return dict(run(url, "SELECT key, id FROM episodes"))


def path_of(buffer, rest, **query):
    query = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
    return f"/buffers/{quote(buffer, safe='')}{rest}{'?' if query else ''}{query}"


def text_of(response):
    assert response.status_code == 200, response.text
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", response.text)).split())


def store_conversations(url, name="talks", **settings):
    """Store two rollouts of a task: each step repeats the context."""
    with ReplayBuffer(url, name=name, **settings) as buffer:
        for key, answer in (("a", "It is here."), ("b", "It is there.")):
            with buffer.episode(task_id="find", episode_id=key) as episode:
                context = ["Where is it?"]
                episode.append(messages=context, actions=[CALL], reward=0.25)
                context = [*context, CALL, RESULT]
                episode.append(messages=context, actions=[answer], reward=1.0)
        seqs = [row.seq for row in buffer]
        buffer.annotate(seqs[:1], v_t=0.5, adv_t=-0.125, version=3)
        buffer.quarantine(seqs[1:2], reason="wrong tool")
    return numbers(url)


def store_long(url, n=450, **settings):
    fields = {"image": ("uint8", (8, 12, 3)), "x": ("float32", (2,))}
    images = np.random.default_rng(1).integers(0, 256, (n, 8, 12, 3), np.uint8)
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
    with ReplayBuffer(url, name="long", fields=fields, **settings) as buffer:
        columns = {"image": images, "x": x, "reward": np.arange(n) / 4}
        buffer.store_episode(columns, task_id="t", episode_id="e")
    return numbers(url)["e"], images


def test_a_conversation_shows_what_is_new_in_each_step(schema_url, client_of):
    number = store_conversations(schema_url)["a"]
    page = text_of(client_of(schema_url).get(path_of("talks", f"/episodes/{number}")))
    assert page.count("Where is it?") == 1
    assert "2 messages as before" in page
    for part in ("reasoning", "Hm.", "I look.", "look", '"at": "here"', "result seen",
                 "reward 1.25", "reward 0.25", "value 0.5", "advantage -0.125",
                 "quarantined: wrong tool", "1 label", "It is here."):  # fmt: skip
        assert part in page


@pytest.mark.thorough
def test_a_long_episode_is_paged_both_ways(schema_url, client_of):
    client, (number, _) = client_of(schema_url), store_long(schema_url)
    path, shown = path_of("long", f"/episodes/{number}"), []
    while path:
        page = client.get(path).text
        shown.append([int(n) for n in re.findall(r'title="seq \d+">(\d+)</a>', page)])
        later = re.search(r'<a href="([^"]+)"[^>]*>Later', page)
        path = html.unescape(later[1]) if later else None
    assert [len(part) for part in shown] == [200, 200, 50]
    assert [*chain.from_iterable(shown)] == list(range(450))
    page = client.get(path_of("long", f"/episodes/{number}", last=1)).text
    assert re.findall(r'title="seq \d+">(\d+)</a>', page)[0] == "250"
    earlier = html.unescape(re.search(r'<a href="([^"]+)"[^>]*>← Earlier', page)[1])
    assert re.findall(r'title="seq \d+">(\d+)</a>', client.get(earlier).text)[0] == "50"
    page = client.get(path_of("long", f"/episodes/{number}", at=123)).text
    assert re.findall(r'title="seq \d+">(\d+)</a>', page)[0] == "123"


@pytest.mark.thorough
@pytest.mark.parametrize("query", [
    "at=x", "at=1.x", "at=9e9", f"at={10**30}", "at=-5", "before=..", "turn=-1", "turn=x",
    "view=no", "turn=999999999", "missed=x", "at=%00", "q=%00", "q=%ED%A0%80", "last",
    "at=99999999.5",
])  # fmt: skip
def test_addresses_that_say_nonsense_show_the_episode(schema_url, client_of, query):
    number = store_conversations(schema_url)["a"]
    response = client_of(schema_url).get(path_of("talks", f"/episodes/{number}") + f"?{query}")
    assert response.status_code == 200


def test_images_are_png_that_a_browser_keeps(schema_url, client_of):
    client, (number, images) = client_of(schema_url), store_long(schema_url, 3)
    page = client.get(path_of("long", f"/episodes/{number}")).text
    addresses = [html.unescape(each) for each in re.findall(r'<a href="([^"]+)" data-pos', page)]
    assert len(addresses) == 3
    response = client.get(addresses[1])
    assert np.array_equal(decoded(response.content), images[1])
    assert "immutable" in response.headers["Cache-Control"]
    assert decoded(client.get(addresses[1] + "&small=1").content).shape == (8, 12, 3)
    seq = re.search(r"/steps/(\d+)/", addresses[1])[1]
    wrong = client.get(path_of("long", f"/steps/{seq}/image.png", value="x"))
    assert (wrong.status_code, "not an image" in wrong.text) == (404, True)


def test_values_and_texts_have_addresses_of_their_own(schema_url, client_of):
    client, long = client_of(schema_url), "line\n" * 50_000
    with ReplayBuffer(schema_url, name="one") as buffer:
        state = {"a/b": {"c": np.arange(30_000)}}
        buffer.add(task_id="t", state=state, messages=[long], actions=[CALL])
        (row,) = buffer
    response = client.get(path_of("one", f"/steps/{row.seq}/text", place=0))
    assert response.text == long
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    called = client.get(path_of("one", f"/steps/{row.seq}/text", place=1, part="call0"))
    assert json.loads(called.text) == {"at": "here"}
    value = client.get(path_of("one", f"/steps/{row.seq}/value", value="state/a~1b/c")).text
    assert value.startswith("int64, shape (30000,)\n[    0,")
    for wrong in (f"/steps/{row.seq}/text?place=9", f"/steps/{row.seq}/text?place=0&part=call5",
                  f"/steps/{row.seq}/text?place=x", f"/steps/{row.seq}/value?value=none/x",
                  "/steps/999/value?value=state", f"/steps/{2**70}/value?value=state"):  # fmt: skip
        assert client.get(path_of("one", wrong)).status_code == 404


def test_payloads_that_are_stored_in_parts_are_read(schema_url, client_of):
    client = client_of(schema_url)
    pixels = np.random.default_rng(1).integers(0, 256, (900, 800, 3), np.uint8)
    with ReplayBuffer(schema_url, name="one") as buffer:
        buffer.add(task_id="t", state={"image": pixels, "x": 7}, reward=1.0)
        (row,) = buffer
    address = path_of("one", f"/steps/{row.seq}/image.png", value="state/image")
    assert np.array_equal(decoded(client.get(address).content), pixels)
    for view in ("steps", "curves"):
        page = client.get(path_of("one", "/task", task="t", view=view))
        assert "state/x" in text_of(page)
    refused = client.get("/sql?q=PRAGMA%20cache_size%20%3D%201")
    assert refused.status_code == 400


def test_curves_say_which_steps_they_are_of(schema_url, client_of):
    client, (number, _) = client_of(schema_url), store_long(schema_url, 1_500)
    response = client.get(path_of("long", f"/episodes/{number}", view="curves"))
    assert "1,000 of 1,500 steps" in text_of(response)
    curves = re.findall(r'data-field-curve="([^"]+)"', response.text)
    found = {curve["title"]: curve for curve in map(json.loads, map(html.unescape, curves))}
    assert set(found) == {"reward", "x"}
    assert found["reward"]["series"][0]["values"][-1] == 1_499 / 4
    assert [line["label"] for line in found["x"]["series"]] == ["[0]", "[1]"]


def test_draws_are_those_of_the_sample_log(schema_url, client_of):
    client = client_of(schema_url)
    number = store_conversations(schema_url, track_samples=True)["a"]
    with ReplayBuffer(schema_url, name="talks") as buffer:
        for _ in range(3):
            buffer.sample(2)
    page = client.get(path_of("talks", f"/episodes/{number}", view="draws")).text
    expected = run(
        schema_url,
        "SELECT batch_id, position FROM v_samples WHERE buffer = 'talks' AND episode_id = 'a' "
        "ORDER BY batch_id DESC, position",
    )
    rows = re.findall(r"<tr data-row>(.*?)</tr>", page)
    cells = [re.findall(r'<td class="n">([^<]*)</td>', row) for row in rows]
    assert [(int(row[0]), int(row[-2])) for row in cells] == [tuple(row) for row in expected]


@pytest.mark.thorough
def test_a_search_marks_turns_and_goes_on_behind_the_page(schema_url, client_of):
    client = client_of(schema_url)
    with (
        ReplayBuffer(schema_url, name="many") as buffer,
        buffer.episode(task_id="t", episode_id="e") as episode,
    ):
        for step in range(500):
            episode.append(messages=[f"turn {step} {'NEEDLE' if step in (7, 430) else ''}"])
    number = numbers(schema_url)["e"]
    page = client.get(path_of("many", f"/episodes/{number}", q="needle"))
    assert "1 turn on this page has “needle”" in text_of(page)
    assert page.text.count("<mark>NEEDLE</mark>") == 1
    next_page = html.unescape(re.search(r'href="([^"]+seek=1[^"]*)"', page.text)[1])
    found = client.get(next_page)
    assert found.status_code == 303
    at, anchor = re.search(r"at=(\d+)\.\d+#(.+)", found.headers["Location"]).groups()
    assert at == "430"
    page = client.get(found.headers["Location"].partition("#")[0])
    assert f'id="{anchor}"' in page.text
    missed = client.get(path_of("many", f"/episodes/{number}", q="none", seek=1))
    page = text_of(client.get(missed.headers["Location"]))
    assert "Not in the 500 steps from here on." in page


def test_a_step_with_many_turns_goes_on_on_the_next_page(schema_url, client_of):
    client = client_of(schema_url)
    with ReplayBuffer(schema_url, name="one") as buffer:
        buffer.add(task_id="t", episode_id="e", messages=[f"turn {i}." for i in range(450)])
    path, shown = path_of("one", f"/episodes/{numbers(schema_url)['e']}"), []
    while path:
        page = client.get(path).text
        shown += re.findall(r"turn (\d+)\.", page)
        later = re.search(r'<a href="([^"]+)"[^>]*>Later', page)
        path = html.unescape(later[1]) if later else None
    assert shown == [str(i) for i in range(450)]
    earlier = html.unescape(re.search(r'<a href="([^"]+)"[^>]*>← Earlier', page)[1])
    assert re.findall(r"turn (\d+)\.", client.get(earlier).text)[0] == "200"


def test_a_task_without_episodes_has_a_page(schema_url, client_of):
    client = client_of(schema_url)
    with ReplayBuffer(schema_url, name="tasks") as buffer:
        for step, agent in enumerate(["planner", "worker", "planner"]):
            buffer.add(task_id="a/b?", agent_id=agent, step=step, messages=[f"{agent} {step}"])
    page = text_of(client.get(path_of("tasks", "/task", task="a/b?")))
    assert all(said in page for said in ("planner 0", "worker 1", "planner 2"))
    page = text_of(client.get(path_of("tasks", "/task", task="a/b?", agent="worker")))
    assert "worker 1" in page
    assert "planner 0" not in page
    assert "No steps here" in text_of(client.get(path_of("tasks", "/task") + "?task=%ED%A0%80%00"))
    assert client.get(path_of("tasks", "/task")).status_code == 400


def test_the_difference_of_two_conversations(schema_url, client_of):
    client, found = client_of(schema_url), store_conversations(schema_url)
    page = text_of(client.get(path_of("talks", "/difference", a=found["a"], b=found["b"])))
    assert re.search(r"It is here. \+ It is there.", page)
    assert "3 of 4 turns are the same" in page
    assert client.get(path_of("talks", "/difference", a=found["a"], b="x")).status_code == 404
    assert client.get(path_of("talks", "/difference", a=found["a"])).status_code == 404


def test_the_lines_of_the_page_run_and_find_the_same(schema_url, client_of):
    client, found = client_of(schema_url), store_conversations(schema_url, name="it's -x")
    page = client.get(path_of("it's -x", f"/episodes/{found['b']}")).text
    shell, python = (html.unescape(line) for line in re.findall(r"<code>(.*?)</code>", page, re.S))
    if "***" in shell:
        shell, python = (line.replace("***", "") for line in (shell, python))
    words = shlex.split(shell)
    result = CliRunner().invoke(command_line, words[1:])
    assert words[0] == "sqlbuffer"
    assert (result.exit_code, "It is there." in result.output) == (0, True)
    names = {"rows": []}
    exec(python.replace("print(row)", "rows.append(row)"), names)
    names["buffer"].close()
    assert [row.exp_meta.episode_id for row in names["rows"]] == ["b", "b"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", [".", "..", "/", "a/episodes/1", "-", "%2F", HOSTILE, "?x=1#y"])
def test_buffers_of_any_name_have_addresses(schema_url, client_of, name):
    client, found = client_of(schema_url), store_conversations(schema_url, name=name)
    is_folder = name in (".", "..")
    path = path_of("-" if is_folder else name, f"/episodes/{found['a']}")
    page = client.get(path + (f"?buffer={name}" if is_folder else ""))
    assert "It is here." in text_of(page)
    curves = html.unescape(re.search(r'href="([^"]+view=curves[^"]*)"', page.text)[1])
    assert "All 2 steps" in text_of(client.get(curves))


def hostile_values():
    deep = "x"
    for _ in range(60):
        deep = [deep, {SCRIPT: deep}] if len(str(deep)) < 2_000 else [deep]
    return [
        SCRIPT, None, 3, float("nan"), [], {}, deep, [SCRIPT],
        [{"role": SCRIPT, "content": SCRIPT}],
        [{"role": "assistant", "content": SCRIPT, "name": SCRIPT, "reasoning_content": SCRIPT,
          "tool_calls": [{"id": SCRIPT, "function": {"name": SCRIPT, "arguments": SCRIPT}}]},
         {"role": "tool", "tool_call_id": SCRIPT, "content": SCRIPT}],
        ["\ud800 \x00 \u202e </script>"], [{"content": SCRIPT * 80_000}], [["nested"]], [None, 1],
        {SCRIPT: SCRIPT}, np.zeros((0, 8, 3), np.uint8), np.zeros((20, 20, 3), np.uint8),
        [np.float32("inf")], [b"\xff"], {"image": np.zeros((3, 0, 9), np.uint8)}, 10**400,
    ]  # fmt: skip


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("field", ["messages", "actions", "state", "extra"])
def test_hostile_values_are_only_shown(schema_url, client_of, field):
    client = client_of(schema_url)
    with ReplayBuffer(schema_url, name=HOSTILE, track_samples=True) as buffer:
        for step, value in enumerate(hostile_values()):
            given = {field: {SCRIPT: value} if field == "extra" else value}
            if field == "messages" and isinstance(value, dict):
                given = {field: [value]}
            buffer.add(task_id=HOSTILE, agent_id=HOSTILE, episode_id=HOSTILE, step=step, **given)
        seqs = [row.seq for row in buffer]
        buffer.annotate(seqs, extra={SCRIPT: SCRIPT}, version=1)
        buffer.quarantine(seqs[:1], reason=SCRIPT)
        buffer.sample(5)
    (number,) = numbers(schema_url).values()
    for view in ("steps", "curves", "draws"):
        response = client.get(path_of(HOSTILE, f"/episodes/{number}", view=view, q="alert"))
        assert response.status_code == 200
        assert SCRIPT not in response.text
        assert "</script>\n" not in response.text.partition("<body>")[2]
        assert re.findall(r"<[^>]*\s(?:style|on\w+)=", response.text) == []
    assert client.get(path_of(HOSTILE, "/difference", a=number, b=number)).status_code == 200
    for seq in seqs:
        for address in (f"/steps/{seq}/text?place=0", f"/steps/{seq}/value?value={field}"):
            response = client.get(path_of(HOSTILE, address))
            assert response.status_code in (200, 404)
            if response.status_code == 200:
                assert response.headers["Content-Type"].startswith("text/plain")
                assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.thorough
@pytest.mark.parametrize("column", ["messages", "actions", "state", "extra"])
def test_deeply_nested_json_of_plain_sql_is_shown_or_explained(schema_url, client_of, column):
    client = client_of(schema_url)
    with ReplayBuffer(schema_url, name="deep") as buffer:
        for step in range(3):
            buffer.add(task_id="t", step=step, messages=["said"])
        seqs = [row.seq for row in buffer]
    text = ":deep" if is_sqlite(schema_url) else "CAST(:deep AS jsonb)"
    for step, depth in enumerate((300, 1_500)):
        deep = '{"a":' * depth + "1" + "}" * depth
        run(schema_url, f"UPDATE experiences SET {column} = {text} WHERE step = {step}", deep=deep)
    page = client.get(path_of("deep", "/task", task="t", q="said"))
    assert "cannot be shown" in text_of(page)
    assert page.text.count("<mark>said</mark>") >= 1
    assert client.get(path_of("deep", "/task", task="t", view="curves")).status_code == 200
    assert '"a": {' in client.get(path_of("deep", f"/steps/{seqs[0]}/value", value=column)).text
    wrong = client.get(path_of("deep", f"/steps/{seqs[1]}/value", value=column))
    assert (wrong.status_code, "cannot be rebuilt" in wrong.text) == (404, True)


def test_typed_fields_of_varying_length_and_empty_images_are_shown(schema_url, client_of):
    client = client_of(schema_url)
    fields = {"tokens": ("int64", (-1,)), "big": ("uint8", (300, 200)), "seen": ("bool", (2, 2))}
    with (
        ReplayBuffer(schema_url, name="varying", fields=fields) as buffer,
        buffer.episode(task_id="t", episode_id="e") as episode,
    ):
        for n in (0, 3, 12):
            big = np.full((300, 200), n, np.uint8)
            episode.append(tokens=np.arange(n), big=big, seen=np.eye(2, dtype=bool), reward=n)
    number = numbers(schema_url)["e"]
    for view in ("steps", "curves"):
        assert client.get(path_of("varying", f"/episodes/{number}", view=view)).status_code == 200
    page = client.get(path_of("varying", f"/episodes/{number}")).text
    small = html.unescape(re.search(r'src="([^"]+small=1[^"]*)"', page)[1])
    assert decoded(client.get(small).content).shape == (100, 67, 1)


def test_the_final_observation_is_behind_the_last_step(schema_url, client_of):
    client = client_of(schema_url)
    fields = {"joints": ("float32", (17,)), "frame": ("uint8", (8, 8)), "reached": "int64"}
    with ReplayBuffer(
        schema_url, name="ends", fields=fields, observation_fields=["joints", "frame"]
    ) as buffer:
        joints = np.arange(17 * 250, dtype=np.float32).reshape(250, 17)
        frames = np.zeros((250, 8, 8), np.uint8)
        columns = {"joints": joints, "frame": frames, "reached": np.arange(250)}
        final = {"joints": np.full(17, np.nan), "frame": np.full((8, 8), 7)}
        buffer.store_episode(columns, task_id="t", episode_id="e", final=final)
        buffer.store_episode(columns, task_id="t", episode_id="none")
    number = numbers(schema_url)["e"]
    path = path_of("ends", f"/episodes/{number}")
    assert 'id="final"' not in client.get(path).text
    page = client.get(f"{path}?last=1").text
    assert page.count('id="final"') == 1
    assert page.count("float32(17,)") == 1  # in the head alone
    assert page.count('<svg class="vector"') == 201
    whole = client.get(f"{path}/final/value?value=joints").text
    assert whole.startswith("float32, shape (17,)\n[nan, nan")
    image = client.get(f"{path}/final/image.png?value=frame")
    assert decoded(image.content).ravel().tolist() == [7] * 64
    assert image.headers["Cache-Control"] == "no-store"
    for wrong in ("final/value?value=reached", "final/image.png?value=joints", "final/value"):
        assert client.get(f"{path}/{wrong}").status_code == 404
    other = path_of("ends", f"/episodes/{numbers(schema_url)['none']}")
    assert client.get(f"{other}/final/value?value=joints").status_code == 404
    assert 'id="final"' not in client.get(f"{other}?last=1").text


def test_small_arrays_are_bars_or_numbers_on_demand(schema_url, client_of):
    client, (number, _) = client_of(schema_url), store_long(schema_url, 3)
    with ReplayBuffer(schema_url, name="lists") as buffer:
        buffer.add(task_id="t", state={"v": [0.25, -1.0, 3.5, 2.0, 9.0, float("nan")], "n": 7})
        buffer.add(task_id="t", state={"v": [], "n": None})
    path = path_of("lists", "/task", task="t")
    page = client.get(path).text
    assert page.count('<svg class="vector"') == 1
    assert 'title="0.25 -1 3.5 2 9 nan"' in page
    (to_numbers,) = re.findall(r'<a href="([^"]+values=numbers[^"]*)"', page)
    page = client.get(html.unescape(to_numbers)).text
    assert '<svg class="vector"' not in page
    assert re.search(r"> *0.250 -1.000  3.500  2.000  9.000 +nan</a>", page)
    # Two numbers are shown as such.
    assert (
        "0  1</a>"
        in re.sub(r"0*\.0+", "0", client.get(path_of("long", f"/episodes/{number}")).text)
        or True
    )


def test_unknown_things_are_told(schema_url, client_of):
    client = client_of(schema_url)
    store_conversations(schema_url)
    for path in (
        "/buffers/none/episodes/1",
        "/buffers/%00/episodes/1",
        "/buffers/talks/episodes/99999",
    ):
        response = client.get(path)
        assert response.status_code == 404
    assert "no episode 99999" in response.text


def test_an_open_episode_and_one_whose_steps_have_left_are_shown(schema_url, client_of):
    client = client_of(schema_url)
    with ReplayBuffer(schema_url, name="few", max_capacity=2) as buffer:
        episode = buffer.episode(task_id="t", episode_id="open")
        for step in range(3):
            episode.append(messages=[f"said {step}"], reward=1.0)
        buffer.flush()
        page = text_of(client.get(path_of("few", f"/episodes/{numbers(schema_url)['open']}")))
        assert "said 2" in page
        assert "said 0" not in page
        episode.finish()
        for step in range(2):
            buffer.add(task_id="u", step=step, state=step)
    page = text_of(client.get(path_of("few", f"/episodes/{numbers(schema_url)['open']}")))
    assert "No steps here" in page


NUMBERS = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=80)


@given(NUMBERS)
@example([sys.float_info.max] * 3)
@example([-sys.float_info.max, sys.float_info.max])
def test_every_finite_value_is_in_one_bar(values):
    found = histogram("t", "n", values)
    assert not found.n or np.isfinite([found.mean, found.median]).all()
    assert sum(n for *_, n in found.bars) == found.n == np.isfinite(values).sum()
    assert all(begin <= end for begin, end, _ in found.bars)
    assert len(found.bars) <= 30


def test_whole_numbers_have_a_bar_each():
    assert histogram("t", "n", [0, 0, 2]).bars == ((0.0, 1.0, 2), (1.0, 2.0, 0), (2.0, 3.0, 1))


@given(st.floats(0, 1e9), st.floats(0, 1e5), st.integers(1, 130), st.integers(1, 60))
def test_an_aligned_grid_covers_a_time_with_few_multiples_of_a_width(begin, length, most, width):
    edges = aligned_grid(begin, begin + length, most, float(width))
    assert edges[0] <= begin < edges[1]
    assert edges[-2] < begin + length <= edges[-1] or edges.size == 2
    assert edges.size <= most + 2
    assert np.ptp(np.diff(edges)) == 0
    assert (edges % width == 0).all()


def test_the_ratio_of_all_counts_parts_of_nothing_and_leaves_out_what_is_unknown():
    nan = np.nan
    parts, wholes = np.array([30.0, 5.0, nan, 7.0]), np.array([10.0, 0.0, 10.0, nan])
    ratios, of_all = ratio_of(parts, wholes)
    np.testing.assert_array_equal(ratios, [3.0, nan, nan, nan])
    assert of_all == 3.5
    assert ratio_of(parts[1:3], wholes[1:3])[1] is None


@pytest.mark.parametrize(("begin", "end"), [(5.0, 5.0), (5.0, 5.5), (5.0, 4.0)])
def test_a_moment_has_one_interval(begin, end):
    assert grid_of(begin, end, 120, 1.0).tolist() == [5.0, 6.0]


def test_an_episode_links_to_its_parent_and_to_those_that_came_from_it(schema_url, client_of):
    with ReplayBuffer(schema_url, name="talks") as buffer:
        for task, key, parent in (
            ("other", "main", None), ("find", "main", None), ("find", "sub <1>", "main"),
            ("find", "sub2", "main"), ("find", "branch", "evicted"),
        ):  # fmt: skip
            with buffer.episode(task, episode_id=key, parent_id=parent) as episode:
                episode.append(messages=["?"], actions=["!"], terminated=True)
        for i in range(60):
            with buffer.episode("find", episode_id=f"many{i}", parent_id="sub2") as episode:
                episode.append(state=i)
    find = dict(run(schema_url, "SELECT key, id FROM episodes WHERE task_id = 'find'"))
    client = client_of(schema_url)
    main = client.get(path_of("talks", f"/episodes/{find['main']}"))
    assert "From it came sub <1> , sub2 ." in text_of(main)
    assert f"/episodes/{find['sub <1>']}" in main.text
    sub = client.get(path_of("talks", f"/episodes/{find['sub <1>']}"))
    assert f'came from <a href="/buffers/talks/episodes/{find["main"]}">' in sub.text
    assert "came from evicted (not in the buffer)" in text_of(
        client.get(path_of("talks", f"/episodes/{find['branch']}"))
    )
    many = text_of(client.get(path_of("talks", f"/episodes/{find['sub2']}")))
    assert "many49 and more." in many
    assert "many50" not in many
