import pytest

from sqlbuffer import ReplayBuffer
from tests.loading.rows import FIELDS


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer
