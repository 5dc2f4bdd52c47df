import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.web import app
from tests.support.web_client import WebClient

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}/..%2F?#&'\"{{{{7*7}}}} \u202e數"


def row(step, *, task="t", agent="a", reward=1.0, **values):
    values = {"state": {"x": step}, "actions": [1], "reward_t": reward, **values}
    return DataRow(ExpMeta(task, None, agent, step, 1_700_000_000.0 + step), Experience(**values))


@pytest.fixture
def hostile_url(schema_url):
    """Return a database with a buffer whose every name and text is meant to break a page."""
    with ReplayBuffer(schema_url, name=HOSTILE, max_capacity=50) as buffer:
        texts = {"messages": [{"role": "user", "content": HOSTILE}], "extra": {HOSTILE: HOSTILE}}
        buffer.store_batch([row(step, task=HOSTILE, agent=HOSTILE, **texts) for step in range(3)])
    return schema_url


@pytest.fixture
def client_of():
    """Return what makes a client of the page of a database."""
    return lambda url, **settings: WebClient(app(url, **settings))
