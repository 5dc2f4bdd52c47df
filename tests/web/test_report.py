import base64
import hashlib
import html
import math
import re
import time
from datetime import datetime
from html.parser import HTMLParser

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.web.report import report
from tests.web.conftest import HOSTILE, SCRIPT

ENDING = "</script><script>alert(2)</script><!--"


def store_returns(url, name, returns, **keys):
    fields = {"obs": "int64"} if keys.get("typed") else None
    with ReplayBuffer(url, name=name, fields=fields) as buffer:
        for number, value in enumerate(returns):
            task = keys.get("task", f"t{number % 2}")
            with buffer.episode(task, keys.get("agent"), episode_id=f"e{number}") as episode:
                episode.append(**{"obs" if fields else "state": 1}, reward=value)


def table_of(text, title):
    body = text.split(f"<h2>{title}</h2>")[1].split("</table>")[0].split("<tbody>")[1]
    return [
        [
            html.unescape(re.sub(r"<.*?>", "", cell)).strip()
            for cell in re.findall(r"<td.*?</td>", line)
        ]
        for line in body.split("<tr>")[1:]
    ]


class Scripts(HTMLParser):
    """Notes the scripts and styles of a file, and what other files it names."""

    def __init__(self, text):
        super().__init__()
        self.found, self.named, self.policy = [], [], ""
        self._kind = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.named += [values[name] for name in ("src", "href", "action") if name in values]
        assert not [name for name in values if name.startswith("on") or name == "style"]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag in ("script", "style"):
            self._kind = (tag, values.get("type"))
            self.found.append([self._kind, ""])

    def handle_endtag(self, tag):
        self._kind = None

    def handle_data(self, data):
        if self._kind is not None:
            self.found[-1][1] += data


@pytest.mark.thorough
def test_has_the_best_and_the_worst_episodes_and_the_groups(schema_url):
    store_returns(schema_url, "train", [float(n) for n in range(50)])
    text = report(schema_url, "train").decode()
    best, worst = (table_of(text, f"{which} episodes") for which in ("Best", "Worst"))
    assert [row[0] for row in best] == [str(n) for n in range(49, 29, -1)]
    assert [row[0] for row in worst] == [str(n) for n in range(20)]
    assert best[0][2:4] == ["t1", "e49"]
    assert table_of(text, "Groups") == [
        ["t1", "25", "25", "1", "49", "48"],
        ["t0", "25", "24", "0", "48", "48"],
    ]
    assert text.count("data-curve=") == 4


def test_a_group_without_spread_is_flagged_and_returns_that_are_no_numbers_are_left_out(schema_url):
    store_returns(schema_url, "train", [1.0, 1.0, 1.0, 1.0, float("nan"), float("inf"), None])
    text = report(schema_url).decode()
    assert [row[-1] for row in table_of(text, "Groups")] == ["\u2013"] * 2
    assert len(table_of(text, "Best episodes")) == 4
    assert "All 4 with a finite reward." in text
    assert "Worst episodes" not in text


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("typed", [False, True], ids=["json", "typed"])
def test_infinite_returns_hide_no_other_episode(schema_url, typed):
    returns = [float(n) for n in range(25)] + [math.inf] * 30 + [-math.inf] * 30 + [None] * 30
    store_returns(schema_url, "train", returns, typed=typed)
    text = report(schema_url, "train").decode()
    best, worst = (table_of(text, f"{which} episodes") for which in ("Best", "Worst"))
    assert [row[0] for row in best] == [str(n) for n in range(24, 4, -1)]
    assert [row[0] for row in worst] == [str(n) for n in range(5)]
    assert "The first 20 by reward, of those with a finite reward." in text
    assert "The 5 others with a finite reward: no episode is listed twice." in text


def test_nothing_of_a_user_runs_and_no_other_file_is_named(schema_url):
    store_returns(schema_url, HOSTILE + ENDING, [1.0, 2.0], task=HOSTILE + ENDING, agent=ENDING)
    text = report(schema_url).decode()
    assert SCRIPT not in text
    assert ENDING not in text
    assert html.escape(ENDING) in text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
    parsed = Scripts(text)
    assert parsed.named == ["data:,"]
    assert "unsafe" not in parsed.policy
    for (tag, kind), body in parsed.found:
        if kind == "application/json":
            continue
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in re.search(rf"{tag}-src (.*?);", parsed.policy)[1]
    assert [tag for (tag, kind), _ in parsed.found if kind is None] == ["style"] + ["script"] * 3


@pytest.mark.thorough
def test_without_a_buffer_all_of_them_are_in_it(schema_url):
    assert "The database has no buffers." in report(schema_url).decode()
    for name in ("one", "two"):
        store_returns(schema_url, name, [1.0])
    text = report(schema_url).decode()
    assert re.findall(r"<h1 id=.*?>(.*?)</h1>", text) == ["one", "two"]
    assert re.findall(r'href="#(buffer-.*?)".*?>(\w+)</span></a>', text) == [
        ("buffer-1", "one"), ("buffer-2", "two"),
    ]  # fmt: skip
    # The file is read at another time.
    assert " ago" not in text.split("<main")[1]
    newest = re.search(r"newest step <b>(.*?)</b> <span class=.quiet.>(.*?) UTC</span>", text)
    assert datetime.fromisoformat(f"{newest[2]} {newest[1]}+00:00").timestamp() == pytest.approx(
        time.time(), abs=60
    )
    ids = re.findall(r' id="(.*?)"', text)
    assert len(ids) == len(set(ids))
    with pytest.raises(BufferNotFoundError, match="'three'"):
        report(schema_url, "three")
