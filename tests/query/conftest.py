import shutil
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from tests.conftest import KINDS, close_pool
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
def buffers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Yield one buffer of each kind, for the whole module: each example clears them."""
    path = tmp_path_factory.mktemp("buffers") / "buffer.db"
    template: Path = request.getfixturevalue("sqlite_template")
    shutil.copyfile(template, path)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    postgres_url = server.create_database(template=request.getfixturevalue("postgres_template"))
    urls = dict(zip(KINDS, (f"sqlite:///{path}", postgres_url), strict=True))
    yield {kind: ReplayBuffer(url) for kind, url in urls.items()}
    for url in urls.values():
        close_pool(url)
    server.drop_database(postgres_url)


@pytest.fixture(params=KINDS)
def buffer(request: pytest.FixtureRequest, buffers) -> ReplayBuffer:
    """Return an empty buffer of each kind in turn."""
    buffer: ReplayBuffer = buffers[request.param]
    buffer.clear()
    return buffer
