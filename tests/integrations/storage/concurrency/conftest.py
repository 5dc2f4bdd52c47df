from collections.abc import Iterator

import pytest

from tests.storage.concurrency.conftest import open_folder
from tests.support.servers import OwnServer, own_server, server_programs

__all__ = ["open_folder", "server"]


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """Yield a PostgreSQL server that the test may kill."""
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with own_server(programs) as server:
        yield server
