import pytest

from sqlbuffer import ReplayBuffer


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer
