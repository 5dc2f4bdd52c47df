"""An episode page leads to rewards, errors and failures of tools, on later pages too."""

import html
import re

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web.jumps import has_failed, is_error
from sqlbuffer.web.transcript import Said, said_of
from tests.support.sql import run
from tests.web.conftest import SCRIPT

CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c1", "function": {"name": "run", "arguments": "{}"}}],
}


def number(url):
    return dict(run(url, "SELECT key, id FROM episodes"))["e"]


def store(url, steps, fields=None):
    columns = {"x": 0} if fields else {}
    with (
        ReplayBuffer(url, "talks", fields=fields) as buffer,
        buffer.episode(task_id="t", episode_id="e") as episode,
    ):
        for step in steps:
            episode.append(**columns, **step)
    return f"/buffers/talks/episodes/{number(url)}"


def jumps(page):
    """Return the positions and the anchors of the links of each kind."""
    listed = re.search(r'aria-label="Jump to">(.*?)</nav>', page, re.S)
    kinds = {}
    for part in re.findall(r"<span>(.*?)</span>", listed[1] if listed else "", re.S):
        links = re.findall(r'<a href="#([^"]+)" title="[^"]*">step (\d+)</a>', part)
        kinds[part.split("<")[0].strip(" :")] = links
        assert all(f'id="{anchor}"' in page for anchor, _ in links)
    return {kind: [int(position) for _, position in links] for kind, links in kinds.items()}


@pytest.mark.parametrize("fields", [None, {"x": "int64"}], ids=["json", "typed"])
def test_a_page_leads_to_rewards_errors_and_failures(schema_url, client_of, fields):
    path = store(schema_url, [
        {"messages": ["Hi"], "actions": [CALL], "reward": 0.0},
        {"messages": [{"role": "tool", "tool_call_id": "c1", "content": "Error: none"}],
         "actions": ["Hm."], "reward": 0.5},
        {"messages": ["ValueError: it is negative"], "actions": ["Oh."]},
        {"messages": ["Go on"], "actions": ["Yes."], "extra": {"error": "timeout"}, "reward": -1.0},
    ], fields)  # fmt: skip
    page = client_of(schema_url).get(path).text
    assert jumps(page) == {"reward": [1, 3], "error": [2, 3], "tool failure": [0]}


def test_steps_that_say_nothing_have_rewards_too(schema_url, client_of):
    fields = {"x": "int64"}
    path = store(schema_url, [{"reward": float(step % 2)} for step in range(4)], fields)
    assert jumps(client_of(schema_url).get(path).text) == {"reward": [1, 3]}


def test_rewards_of_most_steps_are_not_places_to_go_to(schema_url, client_of):
    fields = {"x": "int64"}
    steps = [{"reward": 1.0 + step} for step in range(30)]
    assert "Jump to" not in client_of(schema_url).get(store(schema_url, steps, fields)).text


def test_without_any_there_is_nothing_to_go_to(schema_url, client_of):
    path = store(schema_url, [{"messages": ["Hi"], "actions": ["Hello."]}])
    assert "Jump to" not in client_of(schema_url).get(path).text


@pytest.mark.thorough
def test_a_jump_goes_to_the_next_page_that_has_one(schema_url, client_of):
    result = {"role": "tool", "tool_call_id": "c1", "content": "4"}
    failure = {**result, "content": '{"success": false}'}
    path = store(schema_url, [
        {"messages": [failure if step == 230 else result], "actions": [CALL],
         "reward": float(step == 410)}
        for step in range(450)
    ])  # fmt: skip
    client = client_of(schema_url)
    page = client.get(path).text
    assert jumps(page) == {"reward": [], "error": [], "tool failure": []}
    for kind, position in (("reward", 410), ("failure", 230)):
        link = html.unescape(re.search(rf'href="([^"]*jump={kind}[^"]*)"', page)[1])
        found = client.get(link)
        address, _, anchor = found.headers["Location"].partition("#")
        assert (found.status_code, f"at={position}." in address) == (303, True)
        assert f'id="{anchor}"' in client.get(address).text
    link = html.unescape(re.search(r'href="([^"]*jump=error[^"]*)"', page)[1])
    missed = client.get(client.get(link).headers["Location"]).text
    assert "No error in the 250 steps from here on." in missed


def test_a_system_prompt_is_folded_and_opens_for_a_search(schema_url, client_of):
    said = [{"role": "system", "content": f"Be brief. {SCRIPT}\n" * 30}, "2 + 2?"]
    path = store(schema_url, [{"messages": said, "actions": ["4"]}])
    page = client_of(schema_url).get(path).text
    (folded,) = re.findall(r'<details class="instructions">(.*?)</article>', page, re.S)
    assert "characters: Be brief." in folded
    assert "2 + 2?" not in folded
    assert SCRIPT not in page
    searched = client_of(schema_url).get(f"{path}?q=brief").text
    assert '<details class="instructions" open>' in searched


@pytest.mark.parametrize(("text", "fails"), [
    ("Error: no such file", True), ("ValueError: x", True), ("requests.HTTPError: 500", True),
    ("Traceback (most recent call last):\n  File", True), ("out\nTraceback (most recent call last)",
     True), ("failed to open", True), ('{"error": "no"}', True), ('{"success": false}', True),
    ('{"exit_code": 2, "output": ""}', True), ('{"status": "failed"}', True), ("Error", True),
    ("4", False), ("", False), ('{"error": null, "value": 3}', False), ('{"exit_code": 0}', False),
    ("no errors: all is well", False), ('{"error": 0.25}', False),
    ("{not json", False), ('{"ok": true}', False), ("error rate is 0.2", False),
    ("[1]" * 500 + '{"error": "x"}', False), ("{" * 5_000, False), ("\n" * 100_000, False),
])  # fmt: skip
def test_results_that_say_so_are_failures(text, fails):
    assert has_failed(Said("tool", text)) == fails
    assert is_error(Said("user", text)) == fails
    assert not has_failed(Said("user", text))
    assert not is_error(Said("assistant", text))


def test_results_that_are_marked_are_failures():
    marked = {"type": "tool_result", "tool_use_id": "c1", "content": "4", "is_error": True}
    for message in (
        {"role": "user", "content": [marked]},
        {"role": "tool", "content": "4", "status": "error"},
        {"role": "tool", "content": "4", "is_error": True},
    ):
        (said,) = said_of(message)
        assert has_failed(said)
