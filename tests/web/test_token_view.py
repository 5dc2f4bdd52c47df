"""The tokens of an episode: each once, with its numbers, a bounded page at a time."""

import html
import random
import re
from itertools import chain
from urllib.parse import quote

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS, rollouts
from sqlbuffer.web.tokens import TOKENS_A_PAGE, tokens_page
from tests.support.sql import run
from tests.web.conftest import SCRIPT

TOKEN = re.compile(r'<span class="token (t-\w+)" title="([^"]*)">([^<]*)</span>')
NUMBERS = re.compile(
    r"place ([\d,]+), id (\S+)(?:, log-probability ([^,]+))?, (prompt|in the loss|masked)"
    r"(?:, version (\d+))?"
)


def numbers(url):
    return dict(run(url, "SELECT key, id FROM episodes"))


def shown(page):
    """Return class, numbers and text of each token of a page."""
    return [
        (tint, NUMBERS.fullmatch(title).groups(), html.unescape(text))
        for tint, title, text in TOKEN.findall(page)
    ]


def later_of(page):
    found = re.search(r'<a href="([^"]+)"[^>]*>Later', page)
    return html.unescape(found[1]) if found else None


def store(url, turns, *, fields=LLM_FIELDS, version=3, key="e"):
    with (
        ReplayBuffer(url, "tokens", fields=fields) as buffer,
        buffer.episode("t", episode_id=key, model_version=version) as episode,
    ):
        for turn in turns:
            episode.append(**turn)
    return f"/buffers/tokens/episodes/{numbers(url)[key]}?view=tokens"


TWO_TURNS = [
    {"prompt_ids": [1, 2], "completion_ids": [5, 9], "logprobs": [-0.05, -3.0],
     "loss_mask": [True, False], "extra": {"completion_tokens": ["<b>", "\n"]}},
    {"prompt_ids": [1, 2, 5, 9, 6], "completion_ids": [7], "logprobs": [float("nan")],
     "loss_mask": [True]},
]  # fmt: skip


def test_tokens_are_shown_once_with_their_numbers_and_texts(schema_url, client_of):
    path, client = store(schema_url, TWO_TURNS), client_of(schema_url)
    page = client.get(path).text
    assert "6 tokens in one sequence, 2 in the loss, mean log-probability -0.05" in page
    assert shown(page) == [
        ("t-none", ("0", "1", None, "prompt", None), "1"),
        ("t-none", ("1", "2", None, "prompt", None), "2"),
        ("t-p0", ("2", "5", "-0.05", "in the loss", "3"), "<b>"),
        ("t-p4", ("3", "9", "-3", "masked", None), "↵\n"),
        ("t-none", ("4", "6", None, "prompt", None), "6"),
        ("t-none", ("5", "7", None, "in the loss", "3"), "7"),
    ]
    by_mask = [tint for tint, *_ in shown(client.get(f"{path}&color=mask").text)]
    assert by_mask == ["t-none", "t-none", "t-on", "t-off", "t-none", "t-on"]
    by_version = [tint for tint, *_ in shown(client.get(f"{path}&color=version").text)]
    assert by_version == ["t-none", "t-none", "t-v0", "t-none", "t-none", "t-v0"]
    table = client.get(f"{path}&table=1").text
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in table.split("<tr>")[1:]]
    plain = [[re.sub(r"<[^>]+>", "", cell) for cell in line] for line in cells]
    assert ["2", "5", "&lt;b&gt;", "-0.05", "in the loss", "3"] in plain


def test_colors_are_links_that_keep_their_place(schema_url, client_of):
    path, client = store(schema_url, TWO_TURNS), client_of(schema_url)
    page = client.get(f"{path}&color=version&table=1").text
    links = [html.unescape(link) for link in re.findall(r'<a href="([^"]*view=tokens[^"]*)"', page)]
    assert all("table=1" in link for link in links if "color=mask" in link)
    assert {client.get(link).status_code for link in links} == {200}
    assert 'aria-current="true">version</a>' in page


def test_a_long_sequence_is_paged_both_ways(schema_url, client_of):
    n = 2 * TOKENS_A_PAGE + 10
    turn = {"prompt_ids": list(range(7)), "completion_ids": list(range(n)), "logprobs": [-1.0] * n}
    path, client = store(schema_url, [turn]), client_of(schema_url)
    places, pages = [], []
    while path:
        pages.append(client.get(path))
        places.append([int(each[1][0].replace(",", "")) for each in shown(pages[-1].text)])
        assert len(pages[-1].content) < 400_000
        path = later_of(pages[-1].text)
    assert [*chain.from_iterable(places)] == list(range(n + 7))
    assert [len(part) for part in places] == [TOKENS_A_PAGE, TOKENS_A_PAGE, 17]
    earlier = html.unescape(re.search(r'<a href="([^"]+)"[^>]*>← Earlier', pages[2].text)[1])
    assert shown(client.get(earlier).text) == shown(pages[1].text)


@pytest.mark.parametrize("fields", [
    {"completion_ids": LLM_FIELDS["completion_ids"], "logprobs": LLM_FIELDS["logprobs"]},
    {"completion_ids": LLM_FIELDS["completion_ids"]},
    {"prompt_ids": LLM_FIELDS["prompt_ids"]},
])  # fmt: skip
def test_some_of_the_fields_are_enough(schema_url, client_of, fields):
    turns = [{name: value for name, value in turn.items() if name in fields} for turn in TWO_TURNS]
    page = client_of(schema_url).get(store(schema_url, turns, fields=fields)).text
    (name,) = [name for name in fields if name.endswith("_ids")]
    ids = [[numbers[1] for _, numbers, _ in shown(page)]]
    assert ids == [[str(i) for turn in turns for i in turn[name]]]
    assert ("Each turn is shown alone" in page) == ("completion_ids" in fields)


def test_values_that_do_not_fit_are_named_and_the_ids_are_shown(schema_url, client_of):
    turns = [TWO_TURNS[0] | {"logprobs": [-1.0]}]
    page = client_of(schema_url).get(store(schema_url, turns)).text
    assert "logprobs has 1 values for 2 completion tokens" in page
    assert [numbers[1] for _, numbers, _ in shown(page)] == ["1", "2", "5", "9"]


def test_buffers_without_tokens_have_no_such_view(schema_url, client_of):
    with ReplayBuffer(schema_url, "talks") as buffer:
        buffer.add(task_id="t", episode_id="e", messages=["Hi"])
    page = client_of(schema_url).get(f"/buffers/talks/episodes/{numbers(schema_url)['e']}")
    assert "view=tokens" not in page.text
    page = client_of(schema_url).get(f"{page.url.path}?view=tokens")
    assert (page.status_code, "Hi" in page.text) == (200, True)


@pytest.mark.thorough
def test_steps_without_tokens_and_odd_addresses_say_so(schema_url, client_of):
    path = store(schema_url, [{"messages": ["Hi"]}])
    client = client_of(schema_url)
    assert "the steps of this page have no token ids" in client.get(path).text
    for query in ("token=9.9", "token=-1.-1", "token=x", "color=x", "at=99", "last=1", "before=x",
                  "token=99999999999.1", f"token={2**62}.{2**62}"):  # fmt: skip
        assert client.get(f"{path}&{query}").status_code == 200


def test_texts_of_tokens_are_only_shown(schema_url, client_of):
    turn = {"prompt_ids": [1], "completion_ids": [2, 3]}
    texts = {"prompt_tokens": [SCRIPT], "tokens": ["\x00\u202e", '" onmouseover="alert(1)']}
    page = client_of(schema_url).get(store(schema_url, [turn | {"extra": texts}])).text
    assert SCRIPT not in page
    assert [text for *_, text in shown(page)] == [SCRIPT, "␀\ufffd", '" onmouseover="alert(1)']


@pytest.mark.thorough
def test_the_lines_of_the_view_find_the_same_tokens(schema_url, client_of):
    page = client_of(schema_url).get(store(schema_url, TWO_TURNS)).text
    (line,) = re.findall(r"<code>(.*?)</code>", page, re.S)
    names = {"found": []}
    line = html.unescape(line).replace("***", "").replace("print(", "found.extend(")
    exec(line, names)
    names["buffer"].close()
    (sequence,) = names["found"]
    assert sequence.ids.tolist() == [int(numbers[1]) for _, numbers, _ in shown(page)]


def random_rows(rng):
    """Return turns of a rollout that grow, branch, or leave values out."""
    rows, context = [], [1]
    for step in range(rng.randint(1, 8)):
        if rng.random() < 0.3:
            context = [rng.randint(0, 9) for _ in range(rng.randint(1, 5))]
        n = rng.randint(0, 5)
        tokens = {
            "prompt_ids": list(context),
            "completion_ids": [rng.randint(0, 9) for _ in range(n)],
            "logprobs": [-rng.random() for _ in range(n)] if rng.random() < 0.7 else [],
            "loss_mask": [rng.random() < 0.7 for _ in range(n)] if rng.random() < 0.7 else [],
        }
        meta = ExpMeta("t", None, "a", step, 0.0, episode_id="e", model_version=rng.randint(0, 9))
        values = {name: np.array(value) for name, value in tokens.items()}
        rows.append(DataRow(meta, Experience(), fields=values))
        context = [*context, *tokens["completion_ids"], rng.randint(0, 9)]
    return rows


def test_random_rollouts_have_the_tokens_that_a_trainer_gets(monkeypatch):
    rng = random.Random(5)
    monkeypatch.setattr("sqlbuffer.web.tokens.TOKENS_A_PAGE", 4)
    for _ in range(100):
        rows = random_rows(rng)
        if not any(len(row.fields["completion_ids"]) for row in rows):
            continue
        wanted = [
            (number, place, str(ids), bool(mask), version)
            for number, sequence in enumerate(rollouts([rows])[0].sequences)
            for place, (ids, mask, version) in enumerate(
                zip(sequence.ids, sequence.loss_mask, sequence.versions, strict=True)
            )
        ]
        found, starts, start = [], [], (0, 0)
        while start is not None:
            page = tokens_page(rows, "mask", start)
            for run_ in page.runs:
                for token in run_.tokens:
                    version = -1 if token.version is None else token.version
                    of = (run_.sequence, token.place, token.id, bool(token.mask), version)
                    found.append(of)
            if len(starts) > 0:
                assert page.earlier == starts[-1]
            starts.append(start)
            start = page.later
        assert found == wanted
        sums = [(facts.n_tokens, facts.n_sampled) for facts in page.sequences]
        assert sums == [(len(s), s.n_sampled) for s in rollouts([rows])[0].sequences]


def test_addresses_of_buffers_with_odd_names(schema_url, client_of):
    with ReplayBuffer(schema_url, "a/b?", fields=LLM_FIELDS) as buffer:
        buffer.extend({"completion_ids": [[1, 2]]}, task_id="x&y")
    path = f"/buffers/{quote('a/b?', safe='')}/task?task={quote('x&y')}&view=tokens"
    assert [each[1][1] for each in shown(client_of(schema_url).get(path).text)] == ["1", "2"]
