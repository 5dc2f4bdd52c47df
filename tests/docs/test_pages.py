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
from tests.support.markdown import ROOT

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
    "docs/concepts/episodes.md",  # in test_concepts.py
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
    "docs/tutorials/offline-rl.md",  # in tests/peers
    "docs/tutorials/quickstart.md",
    "docs/tutorials/team-postgresql.md",  # among the integrations
    "docs/concepts/mirror.md",
    "docs/reference/cli.md",  # in test_cli_page.py
    "docs/reference/errors.md",  # in test_errors_page.py
    "docs/reference/limits.md",  # in test_limits_page.py
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


# Links of the pages lead somewhere.


_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(document):
    return _LINK.findall(_CODE.sub("", text_of(document)))


def anchors(text):
    """Return the names that headings get on the web: small letters, digits, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document, text, targets):
    """Return the targets that are neither a file nor a heading of one."""
    return [target for target in targets if not _leads_somewhere(document, text, target)]


def _leads_somewhere(document, text, target):
    if re.match(r"https?:|mailto:", target):
        return True
    path, _, anchor = target.partition("#")
    place = ROOT / document if not path else (ROOT / document).parent / path
    if not place.is_file():
        return False
    return not anchor or anchor in anchors(text if not path else place.read_text(encoding="utf-8"))


@pytest.mark.thorough
@pytest.mark.parametrize("document", pages())
def test_links_lead_to_files_and_headings(document):
    assert broken(document, text_of(document), links(document)) == []


def test_the_index_leads_to_every_page():
    names = {page.removeprefix("docs/") for page in pages()} - {"README.md", "index.md"}
    assert set(links("docs/index.md")) == names


def test_a_link_to_nowhere_is_found():
    text = "# A heading, `code`\n"
    targets = [
        "#a-heading-code",
        "#none",
        "none.md",
        "docs/reference/views.md",
        "docs/reference/views.md#none",
    ]
    assert broken("README.md", text, targets) == [
        "#none",
        "none.md",
        "docs/reference/views.md#none",
    ]


# Whoever breaks an example of a page breaks a test.


GOOD = """
```python
from sqlbuffer import ReplayBuffer

with ReplayBuffer("sqlite:///replay.db") as buffer:
    buffer.add(task_id="t", step=1)
    print(len(buffer), buffer)  # -> 1 ReplayBuffer(...)
```

```sql
SELECT task_id FROM v_tasks;
```

```console
$ sqlbuffer sql replay.db "SELECT 1 AS one" --csv   # a comment
one
1
$ export SQLBUFFER_URL=sqlite:///replay.db
$ sqlbuffer ls | grep default
```
"""


@pytest.fixture
def page(tmp_path):
    def write(text):
        path = tmp_path / "page.md"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.thorough
@pytest.mark.slow
def test_a_page_is_done_as_it_is_written(page, read):
    done = read(page(GOOD))
    assert done.printed["sqlbuffer ls | grep default"].count("default") == 1
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert len(buffer) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("good", "broken", "message"),
    [
        ('task_id="t"', 'task="t"', "unknown field 'task'"),
        ("# -> 1 Rep", "# -> 2 Rep", "page.md, line 2 shows"),
        ("print(len(buffer), buffer)  # ->", "# ->", "page.md, line 2 shows"),
        ("FROM v_tasks", "FROM v_task", "v_task"),
        ("FROM v_tasks", "FROM v_tasks WHERE steps > 1", "steps > 1"),
        ("$ sqlbuffer sql", "$ sqlbuffer ask", "No such command"),
        ("--csv", "--cvs", "No such option"),
        ("\n1\n", "\n2\n", "page.md: sqlbuffer sql"),
        ("\n1\n", "\n1\n2\n", "page.md: sqlbuffer sql"),
        ("grep default", "grep other", "grep other"),
        ("$ export SQLBUFFER_URL=sqlite:///replay.db\n", "", "no database is named"),
        ("$ export", "$ make nothing\n$ export", "no target nothing"),
        ("$ export", "$ pip install .[nothing]\n$ export", "no extra nothing"),
        ("$ export", "$ sqlbuffer demo --players 3\n$ export", "No such option"),
    ],
)
def test_a_broken_example_fails(page, read, good, broken, message):
    assert GOOD.count(good) == 1
    with pytest.raises(Exception, match=message):
        read(page(GOOD.replace(good, broken)))


@pytest.mark.parametrize("mark", ["<<<<<<<", ">>>>>>>"])
def test_no_page_has_the_marks_of_a_merge(mark: str) -> None:
    marked = [page for page in pages() if re.search(f"^{mark} ", text_of(page), re.MULTILINE)]
    assert marked == []
