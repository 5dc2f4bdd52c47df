import shutil
from contextlib import ExitStack
from functools import cache

import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import KINDS, close_pool
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def buffer_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Yield a function that returns the module's buffer of a kind: each example clears it."""

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
        yield cache(lambda kind: ReplayBuffer(make_url(kind)))


@pytest.fixture(scope="module")
def buffers(buffer_of) -> dict[str, ReplayBuffer]:
    return {kind: buffer_of(kind) for kind in KINDS}


@pytest.fixture(params=KINDS)
def buffer(request: pytest.FixtureRequest, buffer_of) -> ReplayBuffer:
    """Return an empty buffer of each kind in turn."""
    buffer: ReplayBuffer = buffer_of(request.param)
    buffer.clear()
    return buffer
