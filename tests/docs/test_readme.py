"""The examples of README.md run, in order, as a reader would type them."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.benchmarks import plots
from tests.benchmarks.__main__ import DOCUMENT
from tests.benchmarks.report import short
from tests.docs.pages import SQLITE_URL, all_commands, fenced_blocks, pages, text_of
from tests.docs.tutorial_pictures import PICTURES, curves
from tests.support.markdown import ROOT
from tests.support.sql import run

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


def test_the_ten_lines_print_the_same_when_they_run_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = [block.body for block in fenced_blocks("README.md") if block.language == "python"]
    shown = re.findall(r"# -> (.*)", block)
    for _ in range(2):
        exec(compile(block, "README.md", "exec"), {})
        assert capsys.readouterr().out.splitlines() == shown


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


# The page on performance shows what the benchmarks found.


def test_the_page_of_the_benchmarks_has_what_their_json_has():
    stored = json.loads(DOCUMENT.with_suffix(".json").read_text(encoding="utf-8"))
    marked = r"<!-- begin (.+?) -->\n\n(.*?)\n\n<!-- end \1 -->"
    shown = dict(re.findall(marked, DOCUMENT.read_text(encoding="utf-8"), re.DOTALL))
    assert shown == {name: short(section) for name, section in stored.items()}
    assert {"figures", "peers"} <= set(stored)


def test_plots_are_current_run_make_plots():
    found = plots.found_figures()
    for name, draw in plots.PLOTS.items():
        svg = (plots.FOLDER / name).read_text(encoding="utf-8")
        assert svg == draw(found), f"{name}: run `make plots`"
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert "prefers-color-scheme: dark" in svg


def test_the_table_is_current_and_has_ten_rows():
    first, last = plots.MARKERS
    shown = text_of("docs/performance.md").partition(first)[2].partition(last)[0].strip()
    assert shown == plots.summary(plots.found_figures()), "run `make plots`"
    assert len(shown.splitlines()) == 2 + 10


def test_each_plot_is_on_the_page():
    shown = re.findall(r"!\[Plot: .+?\]\(images/(.+?)\)", text_of("docs/performance.md"))
    assert shown == list(plots.PLOTS)


def test_a_measurement_that_is_missing_is_named():
    with pytest.raises(ValueError, match="'nothing'"):
        plots.rows_of({"tables": [[{"Measurement": "some", "Database": "SQLite"}]]}, "nothing")
    with pytest.raises(ValueError, match="no number in 'none'"):
        plots.number("none")


def test_numbers_are_read_from_cells():
    assert plots.number("56,400 rows/s, p99 6.5 ms") == 56_400
    assert plots.pairs("1: 2.8 ms, 1.00 times; 2: 3 ms") == {"1": "2.8 ms, 1.00 times", "2": "3 ms"}


# Tutorials: agent-rollouts runs here; the others in tests/integrations and tests/peers.


@pytest.mark.thorough
@pytest.mark.slow
def test_agent_rollouts(read):
    page = read("docs/tutorials/agent-rollouts.md")
    trained = page.names["trained"]
    assert len(trained) == 32
    uses = "SELECT DISTINCT n_uses FROM queue_items WHERE NOT used_up"
    assert run(SQLITE_URL, uses) == [(0,)]  # the turn of the player that was killed


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=str)
def test_a_tutorial_says_where_to_go_next(path):
    assert re.search(r"^## Where to go next$", path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_picture_is_the_one_of_its_tutorial(name):
    page, _ = PICTURES[name]
    assert f"../images/{name}" in text_of(page)
    picture = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in picture
    assert "#000000" not in picture
    assert len(picture) < 100_000


def test_the_curve_of_the_dqn_page_is_of_a_run_as_the_page_tells():
    points, means = curves((ROOT / "docs" / "images" / "tutorial-dqn.svg").read_text("utf-8"))
    steps, returns = points.round().T
    # In CartPole the return of an episode is its number of steps; the last one was still open.
    assert np.abs(points - points.round()).max() < 0.01
    assert np.diff(steps, prepend=0).tolist() == returns.tolist()
    assert 10_000 - 500 < steps[-1] <= 10_000
    assert means[:, 0] == pytest.approx(steps[9:], abs=0.01)
    assert means[:, 1] == pytest.approx(np.convolve(returns, np.full(10, 0.1), "valid"), abs=0.01)
    first, last = returns[:20].mean(), returns[-20:].mean()
    assert (first < 40, last > 4 * first) == (True, True)
    assert f"rose from {first:.0f} to {last:.0f}" in text_of("docs/tutorials/dqn.md")


def test_the_program_of_the_dqn_page_is_as_short_as_its_title_says():
    program = text_of("docs/tutorials/dqn.md").split("# dqn.py\n")[1].split("```")[0]
    assert 35 <= len([line for line in program.splitlines() if line.strip()]) <= 40
