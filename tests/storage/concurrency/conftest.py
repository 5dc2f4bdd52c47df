import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers import OwnServer, own_server, server_programs


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """Yield a PostgreSQL server that the test may kill."""
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with own_server(programs) as server:
        yield server


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that other users may enter, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="sqlbuffer-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)
