"""The pages of the documentation run with the real library."""

import pytest

from tests.docs.conftest import read
from tests.docs.pages import SQLITE_URL
from tests.support.sql import run

__all__ = ["read"]
pytestmark = pytest.mark.filterwarnings("ignore")


def test_the_page_runs_as_it_is_written(read):
    page = read("docs/how-to/train-with-torchrl.md")
    page.names["env"].close()
    counts = "SELECT buffer, count(*) FROM v_experiences GROUP BY 1 ORDER BY 1"
    assert run(SQLITE_URL, counts) == [("cartpole", 400), ("own", 20), ("prioritized", 20)]
    assert run(SQLITE_URL, "SELECT DISTINCT status FROM v_episodes") == [("complete",)]


def test_coming_from_torchrl(read):
    read("docs/coming-from/torchrl.md")
    episodes = "SELECT buffer, count(*), sum(length) FROM v_episodes GROUP BY 1"
    assert ("walk", 3, 30) not in run(SQLITE_URL, episodes)  # random frames follow nothing
    assert run(SQLITE_URL, "SELECT count(*) FROM v_experiences") == [(60,)]
