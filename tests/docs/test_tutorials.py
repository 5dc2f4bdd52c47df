"""Tutorials: agent-rollouts runs here; the others in tests/integrations and tests/peers."""

import re

import numpy as np
import pytest

from tests.docs.pages import SQLITE_URL, text_of
from tests.docs.tutorial_pictures import PICTURES, curves
from tests.support.markdown import ROOT
from tests.support.sql import run


@pytest.mark.thorough
@pytest.mark.slow
def test_agent_rollouts(read):
    page = read("docs/tutorials/agent-rollouts.md")
    assert page.names["batch"].groups[0][0].exp_meta.task_id == "sum-2"
    # The lease of the trainer that was killed has run out, and every rollout was trained on once.
    assert run(SQLITE_URL, "SELECT count(*) FROM v_leases WHERE alive") == [(0,)]
    assert run(SQLITE_URL, "SELECT n_uses, count(*) FROM queue_items GROUP BY 1") == [(1, 64)]


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
