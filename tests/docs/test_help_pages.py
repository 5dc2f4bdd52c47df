"""Answers are short, the troubleshooting page has the messages that users see, terms are sorted."""

import ast
import pickle
import re

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.cli.errors import EXIT_CODES
from sqlbuffer.errors import SQLBufferError
from tests.docs import cli_page
from tests.docs.pages import text_of
from tests.support.markdown import ROOT

QUESTIONS = re.findall(r"^## (.+?)\n\n(.+?)(?=\n\n##|\n*\Z)", text_of("docs/faq.md"), re.M | re.S)
MESSAGES = re.findall(r"^### `(.+)`$", text_of("docs/troubleshooting.md"), re.MULTILINE)
ENTRIES = re.split(r"^### ", text_of("docs/troubleshooting.md"), flags=re.MULTILINE)[1:]
# SQLite's, PostgreSQL's, pgbouncer's and Python's own.
FOREIGN = {
    "An attempt has been made to start a new process before",
    "canceling statement due to conflict with recovery",
    "database is locked",
    "sorry, too many clients already",
    "unable to open database file",
    "unsupported startup parameter: options",
}


def test_there_are_fifteen_questions_or_more():
    assert len(QUESTIONS) >= 15
    assert all(question.endswith("?") for question, _ in QUESTIONS)


@pytest.mark.parametrize(("question", "answer"), QUESTIONS)
def test_an_answer_has_two_to_four_sentences(question, answer):
    assert 2 <= len(re.findall(r"\.(?:\s|$)", answer)) <= 4


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.partition("\n")[0])
def test_an_entry_has_a_cause_and_a_remedy(entry):
    assert re.search(r"\n- \*\*Cause:\*\* .+\n- \*\*Remedy:\*\* ", entry, re.DOTALL)


def _texts(path):
    """Yield the strings of a module; what is filled in is an ellipsis."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.fixture(scope="module")
def texts():
    return "\n".join(text for path in (ROOT / "sqlbuffer").rglob("*.py") for text in _texts(path))


# Made of parts; test_what_goes_wrong_first_is_on_the_page has it.
FILLED_IN = {"rows may not be sampled now: the collectors are behind"}


@pytest.mark.thorough
@pytest.mark.parametrize("message", sorted(set(MESSAGES) - FOREIGN - FILLED_IN))
def test_a_message_is_one_that_the_package_has(texts, message):
    assert re.search(".*".join(map(re.escape, message.split("..."))), texts)


def _message_of(call):
    with pytest.raises((SQLBufferError, TypeError)) as caught:
        call()
    return str(caught.value)


def _matches(message):
    pattern = [".*".join(map(re.escape, shown.split("..."))) for shown in MESSAGES]
    return any(re.search(each, message, re.DOTALL) for each in pattern)


def test_what_goes_wrong_first_is_on_the_page(tmp_path, make_database_url):
    url = f"sqlite:///{tmp_path}/replay.db"
    limiter = RateLimiter(samples_per_insert=1, min_size=1)
    with (
        ReplayBuffer(url, max_capacity=10) as buffer,
        ReplayBuffer(url, "later", min_size=5) as later,
        ReplayBuffer(url, "paced", rate_limiter=limiter, wait_s=0) as paced,
        ReplayBuffer("sqlite://") as in_memory,
    ):
        calls = [
            lambda: ReplayBuffer(f"sqlite:///{tmp_path}/nothing/replay.db"),
            lambda: ReplayBuffer("postgresql://me@127.0.0.1:1/replay", retry_s=0),
            lambda: ReplayBuffer(make_database_url("postgresql", schema=False)),
            lambda: ReplayBuffer(url, max_capacity=20),
            lambda: ReplayBuffer(url, "other", create=False),
            lambda: buffer.add(task_id="a\0b"),
            lambda: buffer.sample(5, strict=True),
            lambda: buffer.mirror(),
            lambda: later.sample(1),
            lambda: paced.sample(1),
            lambda: pickle.dumps(in_memory),
        ]
        messages = [_message_of(call) for call in calls]
    assert [message for message in messages if not _matches(message)] == []


def test_terms_are_sorted():
    terms = re.findall(r"^- \*\*(.+?)\*\*: ", text_of("docs/glossary.md"), re.MULTILINE)
    assert len(terms) >= 35
    assert terms == sorted(terms)


# docs/reference/cli.md is written from the commands, and each option is explained.


def test_the_page_is_what_the_commands_are():
    assert text_of(cli_page.PAGE) == cli_page.page(), "run `python -m tests.docs.cli_page`"


@pytest.mark.parametrize(("name", "command"), cli_page.commands())
def test_each_argument_and_option_has_help(name, command):
    assert command.help, name
    assert [own.name for own in command.params if not own.help] == []


def test_each_exit_code_has_a_meaning():
    assert {code for _, code in EXIT_CODES} <= set(cli_page.MEANINGS)
