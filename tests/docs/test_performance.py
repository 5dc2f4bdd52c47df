"""The page on performance shows what the benchmarks found."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tests.benchmarks import plots
from tests.benchmarks.__main__ import DOCUMENT
from tests.benchmarks.report import sections
from tests.docs.pages import text_of


def test_the_json_of_the_benchmarks_has_what_their_page_has():
    stored = json.loads(DOCUMENT.with_suffix(".json").read_text(encoding="utf-8"))
    assert stored == sections(DOCUMENT.read_text(encoding="utf-8"))
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
