"""The words that users search for lead to their pages."""

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import text_of
from tests.support.markdown import ROOT

TABLE = text_of("docs/index.md").partition("## Find a page by a word")[2].partition("\n## ")[0]
LINES = re.findall(r"^\| ([^|]+?) \| \[.*?\]\((.+?\.md)\)", TABLE, re.MULTILINE)
PAGES = {word: page for words, page in LINES for word in words.split(", ")}
# These were searched for, and not found.
MISSED = {
    "TorchRL": "how-to/train-with-torchrl.md",
    "cpprb": "coming-from/cpprb.md",
    "D4RL": "how-to/import-flat-arrays.md",
    "offline": "tutorials/offline-rl.md",
    "multi-agent": "how-to/use-several-agents.md",
    "HER": "how-to/relabel-goals.md",
    "checkpoint": "how-to/restart-from-a-checkpoint.md",
    "whole history": "how-to/share-messages.md",
    "age": "how-to/limit-size.md",
    "TTL": "how-to/limit-size.md",
    "evict": "how-to/limit-size.md",
    "rows are gone": "how-to/limit-size.md",
    "staleness": "how-to/limit-staleness.md",
}


def test_the_words_that_were_missed_are_in_the_contents():
    assert {word: PAGES.get(word) for word in MISSED} == MISSED


@pytest.mark.parametrize("word", MISSED)
def test_a_word_is_in_the_text_of_its_page(word):
    assert re.search(rf"\b{re.escape(word)}\b", text_of(f"docs/{PAGES[word]}"), re.IGNORECASE)


def test_each_word_leads_to_one_page():
    words = [word for cell, _ in LINES for word in cell.split(", ")]
    assert sorted(words) == sorted(set(words))


@pytest.mark.thorough
@pytest.mark.slow
def test_the_search_shows_the_page_of_each_word_first(tmp_path):
    for library in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"allowed: {library} is not installed")
    source, built = tmp_path / "docs", tmp_path / "built"
    for page in ("conf.py", "index.md", *PAGES.values()):
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / page, source / page)
    # Without -W: the links to other pages lead nowhere.
    command = [sys.executable, "-m", "sphinx", "-Q", str(source), str(built)]
    subprocess.run(command, check=True, timeout=250, cwd=ROOT)
    index = _search_index(built)
    first = {word: _first_result(index, word) for word in PAGES}
    assert first == {word: page.removesuffix(".md") for word, page in PAGES.items()}


def _search_index(built: Path):
    text = (built / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("Search.setIndex(").rstrip().removesuffix(")"))


def _first_result(index, word):
    """Return the page of the main entry that equals a word, as Sphinx's search does.

    Its score is 100 times the share of the entry that the word is. Objects have 26 at most, and
    titles and terms 16.
    """
    entries = {
        index["docnames"][file]: round(100 * len(word) / len(entry))
        for entry, places in index["indexentries"].items()
        for file, _, is_main in places
        if word.lower() in entry and is_main and 2 * len(word) >= len(entry)
    }
    best = max(entries.values(), default=0)
    assert best > 26, f"no entry for {word!r}"
    (page,) = [page for page, score in entries.items() if score == best]
    return page
