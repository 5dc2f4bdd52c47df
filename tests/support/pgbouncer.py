"""pgbouncer in transaction mode before a PostgreSQL server."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy import URL, make_url

from tests.support.processes import wait_until

PORT = 6432  # of a socket in a folder of ours

_CONFIGURATION = """
[databases]
* = {server}

[pgbouncer]
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 300
auth_type = any
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
"""


def pgbouncer_program() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def pgbouncer(program: str, url: str, pool_size: int = 20) -> Iterator[str]:
    """Yield the URL by which the database of `url` is reached through a pgbouncer.

    Its settings are those that pgbouncer comes with, but for the mode and the sizes.
    """
    server = make_url(url)
    user = _user(server)
    # A short path, and not in pytest's folder, which the program's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-pb-"))
    try:
        configuration, log = folder / "pgbouncer.ini", folder / "log"
        configuration.write_text(
            _CONFIGURATION.format(
                server=_connection_string(server), pool_size=pool_size, port=PORT, folder=folder
            )
        )
        if user is not None:
            os.chown(folder, user, -1)
            os.chown(configuration, user, -1)
        with open(log, "wb") as output:
            process = subprocess.Popen(
                [program, configuration], stdout=output, stderr=output, user=user, cwd="/"
            )
        through = server.set(host=None, port=None, query={"host": str(folder), "port": str(PORT)})
        try:
            wait_until(lambda: _answers(process, through, log), "pgbouncer to take connections")
            yield through.render_as_string(hide_password=False)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _user(server: URL) -> int | None:
    """Return the user to run as where it cannot be root: one that may enter the server's socket."""
    if os.geteuid() != 0:
        return None
    host = server.query.get("host")
    owner = os.stat(str(host)).st_uid if host and str(host).startswith("/") else 0
    return owner or 65534


def _connection_string(server: URL) -> str:
    parts = {
        "host": server.query.get("host", server.host),
        "port": server.port,
        "user": server.username,
        "password": server.password,
    }
    return " ".join(f"{name}={value}" for name, value in parts.items() if value)


def _answers(process: "subprocess.Popen[bytes]", url: URL, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        psycopg.connect(url.render_as_string(hide_password=False), connect_timeout=10).close()
    except psycopg.OperationalError:
        return False
    return True
