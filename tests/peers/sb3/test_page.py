"""The page of the documentation runs with the real library."""

from tests.docs.conftest import read
from tests.docs.pages import text_of
from tests.support.sql import run

__all__ = ["read"]
URL = "sqlite:///replay.db"


def test_the_page_runs_as_it_is_written(read):
    page = read("docs/how-to/train-with-stable-baselines3.md")
    page.names["env"].close()
    agents = "SELECT buffer, agent_id, count(*) FROM v_experiences GROUP BY 1, 2 ORDER BY 1, 2"
    assert run(URL, agents) == [
        ("bits", "default", 100),
        ("cartpole", "collector-1", 100),
        ("cartpole", "default", 352),
    ]
    assert run(URL, "SELECT DISTINCT status FROM v_episodes") == [("complete",)]


def test_the_page_for_those_who_come_from_it_runs_as_it_is_written(read):
    read("docs/coming-from/stable-baselines3.md")
    assert run(URL, "SELECT DISTINCT status FROM v_episodes") == [("complete",)]
    assert run(URL, "SELECT count(*) FROM v_experiences") == [(200,)]
    text = text_of("docs/coming-from/stable-baselines3.md")
    classes = ("ReplayBuffer", "DictReplayBuffer", "NStepReplayBuffer", "HerReplayBuffer")
    assert [name for name in classes if name not in text] == []
