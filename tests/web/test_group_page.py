"""The page of a group: its prompt, and the answer, the reward and the advantage of each rollout."""

import html
import math
import re

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.llm import group_advantages
from sqlbuffer.web import answers
from tests.support.sql import run
from tests.support.web_lists import address, next_of, rows_of
from tests.web.conftest import HOSTILE, SCRIPT

SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": "I count.",
    "tool_calls": [{"id": "c1", "function": {"name": "count", "arguments": '{"of": "r"}'}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3"}
LONG = "It is three. " * 60


def store(url, rewards, fields=None, answer_of="It is {}.".format):
    """Store a group of rollouts of two steps; a reward of None is not judged."""
    columns = {"x": 1} if fields else {}
    with ReplayBuffer(url, "talks", fields=fields) as buffer:
        for number, reward in enumerate(rewards):
            with buffer.episode(task_id="count", episode_id=f"e{number}") as episode:
                asked = [SYSTEM, "How many r?"]
                episode.append(messages=asked, actions=[CALL], **columns)
                said = [*asked, CALL, RESULT]
                episode.append(messages=said, actions=[answer_of(number)], **columns)
                episode.end(reward=reward)
    return address("/group", buffer="talks", group="count")


def by_episode(text):
    """Return reward, advantage and answer of the rows of a page by their episode."""
    return {row[0].split()[0]: (row[1], row[2], row[3]) for row in rows_of(text)}


@pytest.mark.parametrize("fields", [None, {"x": "int64"}], ids=["json", "typed"])
def test_a_group_has_its_prompt_answers_rewards_and_advantages(schema_url, client_of, fields):
    rewards = [1.0, None, 0.0, 0.5]
    text = client_of(schema_url).get(store(schema_url, rewards, fields)).text
    prompt = re.search(r'aria-label="Prompt">(.*?)</section>', text, re.S)[1]
    assert all(part in prompt for part in ("Be brief.", "How many r?"))
    assert not any(part in prompt for part in ("I count.", "It is"))
    found = by_episode(text)
    expected = group_advantages([1.0, 0.0, 0.5], [0, 0, 0])
    for key, reward, advantage in zip(
        ("e0", "e2", "e3"), ("1.0", "0.0", "0.5"), expected, strict=True
    ):
        assert found[key][0] == reward
        assert float(found[key][1]) == pytest.approx(advantage, abs=1e-4)
    assert found["e1"][:2] == ("\u2013", "\u2013")
    assert [found[f"e{i}"][2] for i in range(4)] == [f"It is {i}." for i in range(4)]


def test_a_long_answer_is_shortened_and_whole_on_demand(schema_url, client_of):
    client = client_of(schema_url)
    text = client.get(store(schema_url, [1.0], answer_of=lambda _: LONG * 40)).text
    head = re.search(
        r'<td class="answer long">.*?</div>\s*<div class="said">(.*?)</div>', text, re.S
    )[1]
    assert len(head) <= answers.ANSWER_CHARS
    assert len(text) < 40_000
    whole = html.unescape(re.search(r'href="([^"]+/text\?[^"]+)">All', text)[1])
    assert client.get(whole).text == LONG * 40


def test_the_end_of_a_long_answer_is_shown(schema_url, client_of):
    path = store(schema_url, [1.0, 0.0], answer_of=lambda n: f"{LONG}The answer is \\boxed{{{n}}}")
    text = client_of(schema_url).get(path).text
    ends = re.findall(r'<div class="said end">(.*?)</div>', text)
    assert [end[:2] for end in ends] == ["… "] * 2
    assert [end[-9:] for end in ends] == ["\\boxed{0}", "\\boxed{1}"]
    assert max(map(len, ends)) <= answers.END_CHARS + 2


def test_columns_that_are_alike_in_all_rows_are_told_once(schema_url, client_of):
    path = store(schema_url, [1.0, 0.0])
    heads = re.compile(r'<th scope="col"[^>]*>([^<]*)</th>')
    text = client_of(schema_url).get(path).text
    assert not {"status", "task", "agent", "model"} & set(heads.findall(text))
    alike = re.search(r"The same in all rows:(.*?)</p>", text)[1]
    assert "status <b>complete</b>" in alike
    assert "length <b>2</b>" in alike
    with ReplayBuffer(schema_url, "talks") as buffer, buffer.episode("count") as episode:
        episode.append(messages=["How many r?"], actions=["Hm."])
    text = client_of(schema_url).get(path).text
    assert "length" in set(heads.findall(text))
    assert "length <b>" not in re.search(r"The same in all rows:(.*?)</p>", text)[1]


@pytest.mark.parametrize("name", ["answer", "submit_answer"])
def test_the_name_of_an_action_is_not_an_answer(schema_url, client_of, name):
    last = {"role": "assistant", "content": "So it is \\boxed{49}"}
    with ReplayBuffer(schema_url, "talks") as buffer, buffer.episode("count") as episode:
        episode.append(messages=["7 squared?", last], actions=[name], reward=1.0)
        episode.end()
    client = client_of(schema_url)
    text = client.get(address("/group", buffer="talks", group="count")).text
    ((*_, answer),) = by_episode(text).values()
    assert answer == "So it is \\boxed{49}"
    (link,) = re.findall(r'<a href="([^"]+/episodes/[^"]+)"><span class="id"', text)
    page = client.get(html.unescape(link)).text
    assert page.count('class="turn assistant"') == 1
    assert name in re.search(r'<dl class="values">(.*?)</dl>', page, re.S)[1]
    found = client.get(address("/search", buffer="talks", q=name)).text
    assert f"<mark>{name}</mark>" in found


def test_an_answer_that_is_a_call_is_shown(schema_url, client_of):
    call = {**CALL, "content": ""}
    text = client_of(schema_url).get(store(schema_url, [1.0], answer_of=lambda _: call)).text
    assert "→ count" in by_episode(text)["e0"][2]


def test_aborted_and_infinite_rollouts_have_no_advantage(schema_url, client_of):
    path = store(schema_url, [1.0, 0.0], {"x": "int64"})
    with ReplayBuffer(schema_url, "talks") as buffer:
        columns = {"x": [1], "reward": [math.inf]}
        buffer.store_episode(columns, task_id="count", episode_id="e2")
        episode = buffer.episode(task_id="count", episode_id="bad")
        episode.append(x=1, messages=["How many r?"], actions=["Hm."], reward=5.0)
        episode.abort()
    found = by_episode(client_of(schema_url).get(path).text)
    assert [found[key][1] for key in ("bad", "e2")] == ["\u2013"] * 2
    assert float(found["e0"][1]) == pytest.approx(2**-0.5, abs=1e-4)


@pytest.mark.thorough
def test_advantages_count_the_rollouts_of_all_pages(schema_url, client_of):
    rewards = [float(number * 7 % 11) for number in range(70)]
    path, client = store(schema_url, rewards), client_of(schema_url)
    found = {}
    while path:
        text = client.get(path).text
        found |= by_episode(text)
        path = next_of(text)
    expected = group_advantages(rewards, [0] * 70)
    shown = [float(found[f"e{number}"][1]) for number in range(70)]
    assert shown == pytest.approx(expected, abs=1e-3)


def test_rollouts_without_words_have_rewards_only(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks", fields={"x": "int64"}) as buffer:
        for number in range(2):
            columns = {"x": [1, 2], "reward": [0.0, float(number)]}
            buffer.store_episode(columns, task_id="count", episode_id=f"e{number}")
    text = client_of(schema_url).get(address("/group", buffer="talks", group="count")).text
    assert "<h2>Prompt" not in text
    assert {row[2] for row in by_episode(text).values()} == {""}


def test_answers_that_took_too_long_to_read_are_left_out_and_said(
    schema_url, client_of, monkeypatch
):
    monkeypatch.setattr(answers, "MOST_SECONDS", -1.0)
    text = client_of(schema_url).get(store(schema_url, [1.0, 0.0])).text
    assert "2 are shown without their answers" in text
    assert {row[2] for row in by_episode(text).values()} == {""}


def test_two_rollouts_stand_side_by_side(schema_url, client_of):
    client = client_of(schema_url)
    text = client.get(store(schema_url, [1.0, 0.0])).text
    assert '<select name="a">' in text
    numbers = dict(run(schema_url, "SELECT key, id FROM episodes"))
    path = f"/buffers/talks/difference?a={numbers['e0']}&b={numbers['e1']}&view=sides"
    assert path.replace("&", "&amp;") in text
    page = client.get(path).text
    sides = re.findall(r'<div class="compared">(.*?)</div>\s*</div>', page, re.S)
    plain = [html.unescape(re.sub(r"<[^>]+>", "", side)).split() for side in sides]
    assert [(side[0] == "+", side[1:]) for side in plain] == [
        (False, ["It", "is", "0."]),
        (True, ["It", "is", "1."]),
    ]
    assert page.count('class="compared both"') == 4
    lines = html.unescape(re.search(r'<a href="([^"]+)">Line by line', page)[1])
    assert "sides" not in client.get(lines).text.partition("<article")[2]


def test_hostile_texts_of_a_group_are_only_shown(schema_url, client_of):
    with ReplayBuffer(schema_url, HOSTILE) as buffer:
        for key in (HOSTILE, SCRIPT):
            with buffer.episode(task_id=HOSTILE, episode_id=key) as episode:
                episode.append(messages=[{"role": SCRIPT, "content": SCRIPT}], actions=[SCRIPT])
    client = client_of(schema_url)
    text = client.get(address("/group", buffer=HOSTILE, group=HOSTILE)).text
    assert SCRIPT not in text
    assert html.escape(SCRIPT) in text
    (link, *_) = re.findall(r'href="([^"]+/difference\?[^"]+)"', text)
    page = client.get(html.unescape(link))
    assert (page.status_code, SCRIPT in page.text) == (200, False)
