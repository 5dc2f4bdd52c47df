"""The pages on concepts: their examples run, and what they list is there."""

import ast
import re
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.pages import text_of
from tests.support.markdown import ROOT

PAGES = ["overview", "which-call", "columns", "episodes", "guarantees", "folders"]


def cells_of(document: str) -> list[list[str]]:
    """Return the cells of each line of the tables of a page, without heads."""
    lines = re.findall(r"^\|(.+)\|$", text_of(document), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    rule = [i for i, row in enumerate(cells) if set("".join(row)) <= set("- |")]
    heads = {i - 1 for i in rule}
    return [row for i, row in enumerate(cells) if i not in heads and i not in rule]


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_run(read, name):
    read(f"docs/concepts/{name}.md")


@pytest.mark.parametrize("page", ["tests", "write-docs"])
def test_the_pages_for_contributors_name_what_there_is(read, page):
    read(f"docs/contributing/{page}.md")
    text = text_of(f"docs/contributing/{page}.md")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)", text):
        assert f"\n{target}:" in makefile, target
    for module in re.findall(r"`python -m ([\w.]+)`", text):
        assert ROOT.joinpath(*module.split(".")).with_suffix(".py").is_file(), module


def test_each_call_that_is_listed_exists():
    cells = [cell for row in cells_of("docs/concepts/which-call.md") for cell in row]
    names = set(re.findall(r"`(?:with |for row in )?buffer\.(\w+)", " ".join(cells)))
    assert {"add", "store", "store_batch", "extend", "sample_arrays", "lease", "mirror"} <= names
    assert {name for name in names if not hasattr(ReplayBuffer, name)} == set()


def test_every_way_to_write_and_to_draw_is_listed():
    text = text_of("docs/concepts/which-call.md")
    ways = {"add", "store", "store_batch", "extend", "episode", "record", "store_episode"}
    ways |= {"annotate", "copy_to", "sample", "sample_arrays", "sample_transitions"}
    ways |= {"sample_tasks", "loader", "mirror", "lease", "peek", "get_all", "get_paginated"}
    ways |= {"get_by_task_id"}
    assert {way for way in ways if f"{way}(" not in text} == set()


def test_every_guarantee_names_a_test_that_exists():
    rows = cells_of("docs/concepts/guarantees.md")
    assert len(rows) > 25
    for *_, test in rows:
        found = re.fullmatch(r"`(.+?\.py)::(test_\w+)`", test)
        if found is None:
            assert test.startswith("not tested here: "), test
            continue
        path = ROOT / "tests" / found[1]
        assert path.is_file(), test
        names = {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
        assert found[2] in names, test


MAP = "docs/concepts/folders.md"


def test_every_module_and_folder_of_the_package_and_of_storage_is_on_the_map():
    page, package = text_of(MAP), ROOT / "sqlbuffer"
    places = {
        path.relative_to(ROOT).as_posix()
        for folder in (package, package / "storage")
        for path in [*folder.glob("*.py"), *(path.parent for path in folder.glob("*/*.py"))]
        if path.stem != "__init__"
    }
    assert len(places) > 60
    assert {place for place in places if f"`{place}`" not in page} == set()


def test_the_map_is_short_and_names_what_exists():
    page = text_of(MAP)
    assert len(page.splitlines()) <= 60
    named = re.findall(r"`((?:sqlbuffer|tests)/[\w/.]+)`", page)
    assert {place for place in named if not (ROOT / place).exists()} == set()
    for file, name in re.findall(r"`(sqlbuffer/[\w/]+\.py)`: `(\w+)", page):
        assert re.search(rf"(class|def) {name}\b", text_of(file)), (file, name)
    for walk in page.split("\n`buffer.")[1:]:
        assert len(set(re.findall(r"`([\w/]+\.py)`", walk))) <= 14


def test_the_picture_follows_the_colours_of_the_reader():
    svg = Path(ROOT / "docs/images/overview.svg").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in svg
    assert len(svg) < 150_000
    assert 'width="700"' in svg
