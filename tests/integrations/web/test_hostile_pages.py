"""Names and texts that are meant to break the pages are shown, and do nothing."""

from urllib.parse import quote

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from tests.integrations.web.test_walking import kinds_of, walk
from tests.support import sql

SCRIPT = "<script>alert(1)</script>"
PAYLOADS = [
    SCRIPT,
    "<img src=x onerror=alert(1)>",
    "<img src=https://example.com/seen.png>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "--></style><script>alert(1)</script>",
    "javascript:alert(1)",
    "[click](javascript:alert(1)) ![x](https://example.com/x.png)",
    "{{ 7 * 7 }}{% raw %}${alert(1)}",
    "<a href='https://example.com' ping='https://example.com'>x</a>",
    "<form action=https://example.com><button autofocus>x</button></form>",
    "<iframe src=https://example.com></iframe>",
    "<base href=https://example.com/>",
    "<meta http-equiv=refresh content='0;url=https://example.com'>",
    "<style>@import 'https://example.com/x.css'</style>",
    "<div hx-get='https://example.com' hx-trigger='load' hx-on:load='alert(1)'>",
    "<div data-live='/live' hx-get='/sql?q=SELECT 1' hx-trigger='load'>",
    "..%2F..//a?b=c#d&e;f %00 %ff",
    "\u202eright to left\u2066 \u0000 \u2028 \ufeff",
    "x" * 5_000,
    "\U0001f600" * 300,
]
NAME = f"{SCRIPT}/..%2F?#&'\"{{{{7*7}}}} \u202e數 <img src=x onerror=alert(1)>"


@pytest.fixture
def hostile(schema_url):
    """Return a database whose every name and text is meant to break a page."""

    def steps():
        for step, text in enumerate(PAYLOADS):
            said = text.replace("\0", "\ufffd")
            call = {"function": {"name": said, "arguments": said}, "id": said, "type": said}
            messages = [
                {"role": "system", "content": said},
                {"role": said, "content": said, "name": said},
                {"role": "user", "content": [{"type": "text", "text": said}]},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": said}}]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": said, "tool_call_id": said},
            ]
            meta = ExpMeta(NAME, NAME, NAME, step, 1_700_000_000.0 + step, episode_id=NAME)
            values = {"messages": messages, "extra": {said[:200]: said}}
            yield DataRow(meta, Experience({said[:200]: said}, [said], 1.0, **values))

    with ReplayBuffer(schema_url, NAME, track_samples=True) as buffer:
        buffer.store_batch([*steps()])
        buffer.sample(4)
    fields = {"obs": ("float32", (2,)), "frame": ("uint8", (8, 8, 3))}
    with ReplayBuffer(schema_url, "arrays", fields=fields) as buffer:
        for number, text in enumerate(PAYLOADS[:8]):
            buffer.store_episode(
                {
                    "obs": np.array([[np.nan, np.inf], [-np.inf, 0]], np.float32),
                    "frame": np.zeros((2, 8, 8, 3), np.uint8),
                    "reward": np.array([np.nan, 1e300]),
                },
                task_id=NAME,
                episode_id=f"{number} {text}",
                agent_id=text,
            )
    return schema_url


def test_no_page_runs_shows_or_asks_for_what_users_stored(hostile, visit):
    before = sql.scalar(hostile, "SELECT count(*) FROM v_experiences")
    browser = visit(hostile)
    seen = walk(browser)
    for path in kinds_of(seen):
        page = browser.open(path)
        # What a payload would have made: none of these is in a page of ours.
        for element in ("iframe", "svg[onload]", "img[onerror]", "base", "meta[http-equiv]"):
            assert page.locator(element).count() == 0, (path, element)
        assert page.locator("[hx-get^='https:'], a[href^='javascript:']").count() == 0, path
        page.keyboard.press("j")
        page.mouse.move(200, 200)
    assert sql.scalar(hostile, "SELECT count(*) FROM v_experiences") == before


def test_a_hostile_name_is_shown_as_it_is(hostile, visit):
    browser = visit(hostile)
    page = browser.open(f"/buffer?buffer={quote(NAME, safe='')}")
    assert page.inner_text("h1").strip() == NAME


def test_an_address_with_a_payload_does_nothing(schema_url, visit):
    browser = visit(schema_url)
    for text in PAYLOADS:
        word = quote(text[:1000], safe="")
        for path in (f"/{word}", f"/buffer?buffer={word}", f"/sql?q={word}", f"/?last={word}"):
            browser.page.goto(f"{browser.address}{path}", wait_until="domcontentloaded")
            assert browser.trouble == [], path


def test_values_of_an_answer_are_only_shown(hostile, visit):
    browser = visit(hostile)
    statement = "SELECT task_id, agent_id, messages, state, extra FROM v_experiences LIMIT 40"
    page = browser.open(f"/sql?q={quote(statement)}")
    assert SCRIPT in page.inner_text("[aria-label=Answer]")
