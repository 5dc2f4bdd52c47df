"""Conversations in a real browser: what is shown is what is stored."""

import json

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.support import sql


def address_of(url, buffer, place=0):
    """Return the address of an episode of a buffer."""
    question = (
        "SELECT e.id FROM episodes e JOIN buffers b ON b.id = e.buffer_id "
        "WHERE b.name = :buffer ORDER BY e.id"
    )
    numbers = [number for (number,) in sql.run(url, question, buffer=buffer)]
    return f"/buffers/{buffer}/episodes/{numbers[place]}"


def test_a_conversation_has_each_turn_once_with_its_reward(filled, visit):
    browser = visit(filled)
    page = browser.open(address_of(filled, "talks"))
    question = (
        "SELECT step, reward FROM v_experiences WHERE buffer = 'talks' AND episode_id = 'e0' "
        "ORDER BY step"
    )
    stored = sql.run(filled, question)
    steps = page.locator("section.step")
    shown = [
        (
            int(step.locator(".number").inner_text().split()[1]),
            float(step.locator("b").inner_text()),
        )
        for step in steps.all()
    ]
    assert shown == stored == [(0, 0.0), (1, 1.0), (2, 2.0)]
    said = page.locator(".turn.user .said").all_text_contents()
    assert said[-1] == "Add 2. 2"
    calls = page.locator(".call:has(.tool-name)")
    assert json.loads(calls.first.locator(".said").first.text_content()) == {"a": 0}
    assert page.locator(".turn.system").count() == 1  # the others are folded
    assert browser.violations() == []


def test_two_conversations_are_compared(filled, visit):
    browser = visit(filled)
    with ReplayBuffer(filled, "talks") as buffer:
        for name, answer in (("left", "I say yes."), ("right", "I say no.")):
            said = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": answer}]
            values = Experience({}, ["say"], 1.0, messages=said, terminated=True)
            buffer.store(DataRow(ExpMeta(name, "c", "a", 0, 1.7e9, episode_id=name), values))
    left, right = (address_of(filled, "talks", place).rsplit("/", 1)[1] for place in (-2, -1))
    page = browser.open(f"/buffers/talks/difference?a={left}&b={right}")
    text = page.inner_text("main")
    assert "I say yes." in text
    assert "I say no." in text
    assert browser.violations() == []


def test_a_conversation_of_two_megabytes_is_folded_and_whole_on_demand(schema_url, visit):
    words = "All work and no play. " * 90_000
    with ReplayBuffer(schema_url, "talks") as buffer:
        said = [{"role": "user", "content": words}, {"role": "assistant", "content": "The end."}]
        values = Experience({}, ["say"], 1.0, messages=said, terminated=True)
        buffer.store(DataRow(ExpMeta("t", "c", "a", 0, 1.7e9, episode_id="large"), values))
    browser = visit(schema_url)
    page = browser.open(address_of(schema_url, "talks"))
    assert "The end." in page.inner_text("main")
    assert len(page.content()) < 500_000
    whole = page.locator("a[href*='/text']").first.get_attribute("href")
    page.goto(f"{browser.address}{whole}")
    assert page.inner_text("body").count("All work and no play.") > 1_000
