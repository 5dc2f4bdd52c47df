"""Every example of the pages in `docs/` runs, in order, as a reader would type it."""

import re
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.pages import (
    SERVER_URL,
    SQLITE_URL,
    all_commands,
    fenced_blocks,
    pages,
    text_of,
)

# Each has a test that reads it: here, in test_readme.py, among the integrations, or in tests/peers.
# Figures are checked where they are made.
READ = {
    "README.md",
    "docs/faq.md",  # in test_help_pages.py, as the next two
    "docs/troubleshooting.md",
    "docs/glossary.md",
    "docs/index.md",
    "docs/performance.md",
    "docs/concepts/columns.md",  # in test_concepts.py
    "docs/concepts/folders.md",  # in test_concepts.py
    "docs/concepts/guarantees.md",  # in test_concepts.py
    "docs/concepts/overview.md",  # in test_concepts.py
    "docs/concepts/which-call.md",  # in test_concepts.py
    "docs/contributing/benchmarks.md",
    "docs/contributing/tests.md",  # in test_concepts.py
    "docs/contributing/write-docs.md",  # in test_concepts.py
    "docs/tutorials/agent-rollouts.md",  # in test_tutorials.py
    "docs/tutorials/dataframes.md",  # in tests/peers
    "docs/tutorials/dqn.md",  # in tests/peers
    "docs/tutorials/quickstart.md",
    "docs/tutorials/team-postgresql.md",  # among the integrations
    "docs/concepts/mirror.md",
    "docs/reference/cli.md",  # in test_cli_page.py
    "docs/reference/errors.md",  # in test_errors_page.py
    "docs/reference/tables.md",  # in test_schema.py
    "docs/reference/views.md",  # in test_schema.py
    "docs/reference/settings.md",
}
# Made of docstrings, whose examples run; see test_api_pages.py.
API = {page for page in pages() if page.startswith("docs/reference/api/")}
# See test_how_to.py and test_coming_from.py.
TASKS = {page for page in pages() if page.startswith(("docs/how-to/", "docs/coming-from/"))}
LANGUAGES = {"python", "console", "sql", "postgresql", "text"}


def test_every_page_is_read_by_a_test():
    assert set(pages()) == READ | API | TASKS


@pytest.mark.parametrize("document", sorted(READ | TASKS))
def test_blocks_are_of_a_kind_that_tests_know(document):
    fences = re.findall(r"^```.*$", text_of(document), re.MULTILINE)
    blocks = fenced_blocks(document)
    assert len(fences) == 2 * len(blocks), "a fence without a language, or without an end"
    assert {block.language for block in blocks} <= LANGUAGES


def test_settings(read):
    page = read("docs/reference/settings.md")
    stored = page.names["config"]
    assert ReplayBuffer("sqlite:///other.db", "train", create=False).config == stored
    assert ReplayBuffer(SQLITE_URL, "small").max_capacity == 50


def test_settings_names_each_setting_with_its_group_and_default():
    from sqlbuffer.config import DEFAULT_CONFIG, DEFAULT_CONNECTION, PLACES

    stored, own = (
        re.findall(r"^\|.*`.*\|$", part, re.MULTILINE)
        for part in text_of("docs/reference/settings.md").split("## Settings of an opener")
    )
    assert len(stored) == len(PLACES)
    group = ""
    for line, (setting, (group_of, name)) in zip(stored, PLACES.items(), strict=True):
        first, second, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
        group = first.strip("`") or group
        shown = f"`{setting}`" if name == setting else f"`{setting}` (`{name}`)"
        assert (group, second) == (group_of, shown)
        value = DEFAULT_CONFIG.settings()[setting]
        words = {"None": ("unlimited", "none"), "{}": ("none",), "()": ("`obs`",)}
        number = f"{value:,.10g}" if type(value) in (int, float) else f"`{value}`"
        assert default in words.get(str(value), (str(value), number))
    assert [line.split("`")[1] for line in own] == list(type(DEFAULT_CONNECTION).model_fields)


@pytest.mark.thorough
@pytest.mark.slow
def test_watching(read):
    pytest.importorskip("tensorboardX", reason="allowed: tensorboardX is not installed")
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    page = read("docs/how-to/watch-a-run.md")
    (events,) = Path("runs/first").iterdir()
    assert events.stat().st_size > 500
    assert page.names["stats"].sample_rate > 0


def test_watching_names_every_figure():
    from sqlbuffer.stats import Stats

    text = text_of("docs/how-to/watch-a-run.md")
    names = {*Stats.__dataclass_fields__, "fill", "samples_per_insert"} - {"buffer", "window_s"}
    assert [name for name in names if f"`{name}`" not in text] == []


def test_quickstart(read, postgres_url):
    page = read("docs/tutorials/quickstart.md", {SERVER_URL: postgres_url})
    assert len(page.names["batch"]) == 32
    assert {row.exp_meta.task_id for row in page.names["batch"]} <= {f"task-{n}" for n in range(5)}
    assert set(page.names["columns"]) == {"actions", "reward_t", "terminated"}
    assert ReplayBuffer.list(SQLITE_URL) == ["default", "typed"]
    assert ReplayBuffer.list(postgres_url) == ["default"]
    with ReplayBuffer(postgres_url) as buffer:
        assert list(buffer) == page.names["rows"]
    listing = page.printed["sqlbuffer ls replay.db"]
    assert "default" in listing
    assert "typed" in listing
    shown = page.printed["sqlbuffer show replay.db task-4 --buffer default"]
    assert "task-4" in shown
    assert shown.count("0.5") >= 25


@pytest.mark.parametrize("document", ["docs/performance.md", "docs/contributing/benchmarks.md"])
def test_pages_on_performance_name_commands_that_there_are(read, document):
    page = read(document)
    assert {line.split()[0] for line in all_commands(document)} == {"make"}
    assert page.printed == {}
