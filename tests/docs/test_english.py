"""The prose of the project is easy to read: few of the constructions of `english`."""

import pytest

from tests.docs.english import Prose, proses

MOST_PER_10_000_WORDS = 6


@pytest.fixture(scope="module")
def texts() -> dict[str, list[Prose]]:
    return proses()


@pytest.mark.parametrize("kind", ["docs", "docstrings", "comments", "messages"])
def test_few_sentences_make_people_read_twice(texts, kind):
    findings = [finding for text in texts[kind] for finding in text.findings()]
    rate = len(findings) * 10_000 / sum(text.n_words for text in texts[kind])
    listed = "\n".join(map(str, findings))
    assert rate <= MOST_PER_10_000_WORDS, f"{kind}: {rate:.1f} per 10,000 words\n{listed}"
