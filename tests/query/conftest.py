import shutil
from contextlib import ExitStack
from functools import cache

import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import KINDS, close_pool
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def url_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Yield a function that returns the URL of the module's database of a kind."""

    def make_url(kind: str) -> str:
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("buffers") / "buffer.db"
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
            url = f"sqlite:///{path}"
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            template = request.getfixturevalue("postgres_template")
            url = server.create_database(template=template)
            stack.callback(server.drop_database, url)
        stack.callback(close_pool, url)
        return url

    with ExitStack() as stack:
        yield cache(make_url)


@pytest.fixture(scope="module")
def buffer_of(url_of):
    """Return a function that returns the module's buffer of a kind: each example clears it."""
    return cache(lambda kind: ReplayBuffer(url_of(kind)))


@pytest.fixture(scope="module")
def urls(url_of) -> dict[str, str]:
    return {kind: url_of(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def buffers(buffer_of) -> dict[str, ReplayBuffer]:
    return {kind: buffer_of(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return each kind of database in turn."""
    kind: str = request.param
    return kind


@pytest.fixture
def url(kind: str, url_of) -> str:
    """Return the URL of the database of `buffer`."""
    url: str = url_of(kind)
    return url


@pytest.fixture
def buffer(kind: str, buffer_of) -> ReplayBuffer:
    """Return an empty buffer of each kind in turn."""
    buffer: ReplayBuffer = buffer_of(kind)
    buffer.clear()
    return buffer
