"""The page of the documentation runs with the real library."""

from tests.docs.conftest import read
from tests.support.sql import run

__all__ = ["read"]
URL = "sqlite:///replay.db"


def test_the_page_runs_as_it_is_written(read):
    page = read("docs/how-to/train-with-stable-baselines3.md")
    page.names["env"].close()
    agents = "SELECT buffer, agent_id, count(*) FROM v_experiences GROUP BY 1, 2 ORDER BY 1, 2"
    assert run(URL, agents) == [
        ("cartpole", "collector-1", 100),
        ("cartpole", "default", 300),
        ("pendulum", "default", 300),
    ]
    assert run(URL, "SELECT DISTINCT status FROM v_episodes") == [("complete",)]
