"""The examples of README.md run, in order, as a reader would type them."""

import json
import re

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.pages import SQLITE_URL, all_commands, fenced_blocks, pages, text_of
from tests.support.markdown import ROOT

LONGEST = 150
LARGEST_PICTURE = 150_000
_PICTURE = re.compile(r"!\[(.*?)\]\((.+?)\)")


def test_the_examples_run(read):
    page = read("README.md")
    assert len(page.names["batch"]) == 32
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert len(buffer) == 100
        assert buffer.max_capacity == 10_000
    sampled = json.loads(
        page.printed["sqlbuffer sample replay.db -n 3 --eq agent_id=default --json"]
    )
    assert [row["agent_id"] for row in sampled] == ["default"] * 3


def test_the_code_has_ten_lines():
    (block,) = [block.body for block in fenced_blocks("README.md") if block.language == "python"]
    assert len(block.splitlines()) == 10


def test_the_first_commands_are_the_two_that_show_and_test_it():
    assert list(all_commands("README.md"))[:2] == ["make demo", "make test"]


def test_it_stays_short():
    assert len(text_of("README.md").splitlines()) <= LONGEST


@pytest.mark.parametrize("document", pages())
def test_pictures_are_there_say_what_they_show_and_are_small(document):
    for words, target in _PICTURE.findall(text_of(document)):
        path = (ROOT / document).parent / target
        assert path.is_file(), target
        assert len(words.split()) >= 4, f"{target}: the alternative text says what it shows"
        assert path.stat().st_size <= LARGEST_PICTURE, target


def test_there_are_pictures_of_all_kinds():
    shown = {
        (ROOT / page).parent.joinpath(target).resolve().name
        for page in pages()
        for _, target in _PICTURE.findall(text_of(page))
    }
    there = {path.name for path in (ROOT / "docs" / "images").iterdir()}
    assert there <= shown, f"no page shows {sorted(there - shown)}"
    kinds = {name.partition("-")[0].removesuffix(".svg") for name in shown}
    assert {"overview", "plot", "terminal", "web"} <= kinds
    assert len(shown) >= 6
