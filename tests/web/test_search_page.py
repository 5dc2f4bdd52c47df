"""Words are found in all episodes of a buffer, newest first, a bounded search at a time."""

import html
import random
import re

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web import searching
from sqlbuffer.web.searching import text_of, words_of
from tests.support.web_lists import address, lines_of, next_of
from tests.web.conftest import HOSTILE, SCRIPT

LAYOUTS = pytest.mark.parametrize("fields", [None, {"x": "int64"}], ids=["json", "typed"])


def search(client, words, buffer="talks"):
    response = client.get(address("/search", buffer=buffer, q=words))
    assert response.status_code == 200, response.text
    return response.text


def found(text):
    """Return, for each rollout that a page lists, its name and (place, text, address) of hits."""
    listed = []
    for part in re.findall(r'<article class="step" data-row>(.*?)</article>', text, re.S):
        name = re.search(
            r'<a class="number" href="[^"]+">(?:<span class="id">)?(.*?)(?:</span>)?</a>', part
        )[1]
        hits = re.findall(
            r'<p class="role">(.*?)</p>.*?<a href="([^"]+)">… (.*?) …</a>', part, re.S
        )
        plain = [
            (html.unescape(where).strip(), html.unescape(re.sub(r"<[^>]+>", "", excerpt)),
             html.unescape(link))
            for where, link, excerpt in hits
        ]  # fmt: skip
        listed.append((html.unescape(name), plain))
    return listed


def all_found(client, words, buffer="talks"):
    """Return the names of the rollouts of all pages, and the number of pages."""
    names, n, path = [], 0, address("/search", buffer=buffer, q=words)
    while path:
        text = client.get(path).text
        names += [name for name, _ in found(text)]
        path, n = next_of(text), n + 1
        assert n < 500
    return names, n


def store(url, fields=None):
    columns = {"x": 0} if fields else {}
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "function": {"name": "ls", "arguments": '{"at": "/srv"}'}}],
    }
    with ReplayBuffer(url, "talks", fields=fields) as buffer:
        for key, step, meta in (
            ("message", {"messages": ["Where is the Heron?"], "actions": ["There."]}, {}),
            ("action", {"messages": ["Hi"], "actions": ["I saw a heron today."]}, {}),
            ("tool", {"messages": ["Look"], "actions": [call]}, {}),
            ("state", {"state": {"animal": {"bird": ["heron", 3]}}, "actions": [1]}, {}),
            ("extra", {"extra": {"log": "a heron\nand more"}, "actions": [1]}, {}),
            ("meta", {"state": {"n": 1}, "actions": [1]}, {"dataset": "héron", "tag": "heron"}),
        ):
            with buffer.episode(task_id="t", episode_id=key, **meta) as episode:
                episode.append(**step, **columns)


def test_equal_hits_of_a_group_are_one(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks") as buffer:
        for task, number in [("one", 0), ("one", 1), ("two", 2), ("one", 3)]:
            with buffer.episode(task, episode_id=f"e{number}") as episode:
                episode.append(messages=["Where is the heron?"], actions=["There."])
    client = client_of(schema_url)
    text = search(client, "heron")
    assert [name for name, _ in found(text)] == ["e3", "e2"]
    others = re.search(r"The same in 2 more of the group: (.*?)</p>", text)[1]
    links = re.findall(r'href="([^"]+)"><span class="id">(\w+)<', others)
    assert [name for _, name in links] == ["e1", "e0"]
    assert "heron" in client.get(html.unescape(links[0][0]).partition("#")[0]).text
    assert "Found in 4 of 4 episodes" in text


@LAYOUTS
def test_words_are_found_wherever_they_are(schema_url, client_of, fields):
    store(schema_url, fields)
    client = client_of(schema_url)
    text = search(client, "HERON")
    wheres = [(name, hits[0][0]) for name, hits in found(text)]
    assert wheres == [
        ("meta", "meta"), ("extra", "step 0 extra"), ("state", "step 0 state"),
        ("action", "step 0 assistant"), ("message", "step 0 user"),
    ]  # fmt: skip
    assert "of 6 episodes searched, newest first (6 steps)" in text
    assert "No episode is left to search" in text
    assert [name for name, _ in found(search(client, "/srv"))] == ["tool"]
    assert [name for name, _ in found(search(client, "héron"))] == ["meta"]
    assert [name for name, _ in found(search(client, "bird heron"))] == ["state"]
    assert [name for name, _ in found(search(client, "heron today"))] == ["action"]
    assert [name for name, _ in found(search(client, '"saw a heron"'))] == ["action"]
    assert found(search(client, "heron gull")) == []
    for name, hits in found(text):
        page = client.get(hits[0][2])
        anchor = hits[0][2].partition("#")[2]
        assert f'id="{anchor}"' in page.text, name
    for name in ("action", "message"):
        ((_, hits),) = [each for each in found(text) if each[0] == name]
        assert client.get(hits[0][2]).text.lower().count("<mark>heron</mark>") == 1


@LAYOUTS
def test_a_message_that_steps_repeat_is_found_once_in_its_first_step(schema_url, client_of, fields):
    columns = {"x": 0} if fields else {}
    said = []
    with (
        ReplayBuffer(schema_url, "talks", fields=fields) as buffer,
        buffer.episode(task_id="t", episode_id="e") as episode,
    ):
        for step in range(6):
            said = [*said, {"role": "user", "content": f"turn {step} {'owl' * (step == 2)}"}]
            episode.append(messages=said, actions=[f"answer {step}"], **columns)
            said = [*said, {"role": "assistant", "content": f"answer {step}"}]
    ((_, hits),) = found(search(client_of(schema_url), "owl"))
    assert [where for where, *_ in hits] == ["step 2 user"]


def test_annotated_values_count_and_evicted_steps_do_not(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks", max_capacity=3) as buffer:
        for number in range(5):
            buffer.add(task_id=f"t{number}", episode_id=f"e{number}", messages=["an owl"])
        buffer.annotate([next(iter(buffer)).seq], extra={"judge": "a wren"})
    client = client_of(schema_url)
    assert [name for name, _ in found(search(client, "owl"))] == ["e4", "e3", "e2"]
    assert [name for name, _ in found(search(client, "wren judge"))] == ["e2"]


def test_steps_without_an_episode_are_searched(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks") as buffer:
        for step in range(3):
            buffer.add(task_id="a/b?", step=step, messages=[f"owl {step}"])
    client = client_of(schema_url)
    ((name, hits),) = found(search(client, "owl 2"))
    assert (name, hits[0][0]) == ("without an episode", "step 2 user")
    assert "owl</mark> 2" in client.get(hits[0][2]).text or "owl 2" in client.get(hits[0][2]).text


WORDS = ("owl", "wren", "gull", "ibis")


def random_buffer(url, fields, rng):
    """Store rollouts of random words; return them as (name, texts of each step), newest first."""
    columns, made = {"x": 0} if fields else {}, []
    with ReplayBuffer(url, "talks", fields=fields) as buffer:
        for number in range(30):
            texts = []
            with buffer.episode(task_id=f"t{number % 7}", episode_id=f"e{number}") as episode:
                for step in range(rng.randint(1, 9)):
                    place = rng.choice(["messages", "state", "extra"])
                    text = " ".join(rng.sample(WORDS, rng.randint(0, 2)))
                    value = [f"{step}: {text}"] if place == "messages" else {"k": text}
                    episode.append(**{place: value}, **columns)
                    texts.append(text)
            made.append((f"e{number}", texts))
    return made[::-1]


def having(made, words):
    return [
        name for name, texts in made if any(all(word in text for word in words) for text in texts)
    ]


@LAYOUTS
def test_all_pages_of_random_rollouts_have_those_of_a_model(
    schema_url, client_of, fields, monkeypatch
):
    made, client = random_buffer(schema_url, fields, random.Random(3)), client_of(schema_url)
    # Some of the rollouts are long ones.
    monkeypatch.setattr(searching, "STEPS_AT_ONCE", 5)
    monkeypatch.setattr(searching, "ROLLOUTS_AT_ONCE", 7)
    monkeypatch.setattr(searching, "MOST_FOUND", 6)
    monkeypatch.setattr(searching, "SEARCH_SECONDS", 60.0)
    for words in (["owl"], ["wren", "gull"], ["nothing"]):
        wanted = having(made, words)
        names, n = all_found(client, " ".join(words))
        assert names == wanted
        assert n == 1 + max(len(wanted) - 1, 0) // searching.MOST_FOUND + (
            len(wanted) % searching.MOST_FOUND == 0 and len(wanted) > 0
        )


@pytest.mark.thorough
@LAYOUTS
def test_a_search_that_stops_says_so_and_goes_on_where_it_stopped(
    schema_url, client_of, fields, monkeypatch
):
    made, client = random_buffer(schema_url, fields, random.Random(4)), client_of(schema_url)
    monkeypatch.setattr(searching, "SEARCH_SECONDS", -1.0)  # one step a search
    monkeypatch.setattr(searching, "STEPS_AT_ONCE", 4)
    text = search(client, "ibis")
    assert "<b>Stopped</b>" in text
    assert "Continue the search" in text
    names, n = all_found(client, "ibis")
    assert [*dict.fromkeys(names)] == having(made, ["ibis"])
    assert n > 30


@pytest.mark.thorough
@pytest.mark.parametrize("query", [
    "q=", "q=%22", "q=%22%22", "q=(", "q=.*", "q=%5C", "q=%00", "q=%ED%A0%80", "q=" + "x" * 5_000,
    "q=owl&after=x", "q=owl&after=[1,2]&at=[1]", "q=owl&after=[1,2]&at=[0,0]",
    "q=owl&after=[null,1]", "q=owl&at=[1,2]", "q=owl&after=[1e300,1]",
    "q=owl&after=[1.5,2]&at=[NaN,1]",
    f"q=owl&after=[9,9]&at=[{2**62},{2**62}]",
])  # fmt: skip
def test_addresses_that_say_nonsense_show_the_page(schema_url, client_of, query):
    store(schema_url)
    assert client_of(schema_url).get(f"/search?buffer=talks&{query}").status_code == 200


def test_an_empty_buffer_and_a_missing_one(schema_url, client_of):
    ReplayBuffer(schema_url, "empty").close()
    client = client_of(schema_url)
    assert "Found in 0 of 0 episodes searched" in search(client, "owl", "empty")
    assert client.get(address("/search", buffer="none", q="owl")).status_code == 404


def test_hostile_texts_are_only_shown(hostile_url, client_of):
    with ReplayBuffer(hostile_url, HOSTILE) as buffer:
        buffer.add(task_id=HOSTILE, episode_id=HOSTILE, messages=[SCRIPT], extra={SCRIPT: SCRIPT})
    for words in ("alert", SCRIPT, HOSTILE):
        text = search(client_of(hostile_url), words, HOSTILE)
        assert SCRIPT not in text
        assert "<mark>" in text


@pytest.mark.thorough
def test_the_line_of_a_search_finds_the_same(schema_url, client_of):
    store(schema_url)
    (line,) = lines_of(search(client_of(schema_url), "Heron"))
    names = {"keys": []}
    exec(
        line.replace("***", "").replace("print(", "keys.append((").replace(".seq)", ".seq))"), names
    )
    names["buffer"].close()
    assert {key for _, key, _ in names["keys"]} == {"message", "action", "state", "extra"}


def test_texts_of_any_value_are_searched_and_arrays_are_not():
    deep = "x"
    for _ in range(5_000):
        deep = [deep]
    assert text_of(deep) == "x"
    assert text_of({"a": None, "b": [True, 0, {"c": "d"}], 3: np.arange(9)}) == (
        "a\nb: True\n0\nc: d\n3"
    )
    assert text_of("plain") == "plain"
    assert text_of(10**5_000).startswith("<int>")
    assert words_of('  a  "b c" d" ""') == ["a", "b c", "d"]
