"""Putting a database out of memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.postgres import (
    SERVER_VARIABLE,
    PostgresServer,
    running_server,
    start_bundled,
    stop_bundled,
)
from tests.support.sql import scalar


def forget_file(path: Path) -> None:
    """Write a file to the disk and drop it from the operating system's cache, where that can be
    asked for.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


@contextmanager
def server_and_restart() -> Iterator[tuple[PostgresServer, Callable[[], None] | None]]:
    """Yield the server of the tests, and what restarts it cold; None where it is not ours."""
    with running_server() as server:
        yield server, None if SERVER_VARIABLE in os.environ else _restarts(server)


def _restarts(server: PostgresServer) -> Callable[[], None]:
    url = server.create_database()
    folder = Path(scalar(url, "SHOW data_directory"))
    server.drop_database(url)

    def restart() -> None:
        server.close()
        stop_bundled(folder.parent)
        for path in folder.glob("base/*/*"):
            forget_file(path)
        start_bundled(folder.parent)

    return restart
