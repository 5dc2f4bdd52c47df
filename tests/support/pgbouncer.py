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

from tests.support.deployment import pooler_settings
from tests.support.processes import wait_until

PORT = 6432  # of a socket in a folder of ours


def pgbouncer_program() -> str | None:
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def pgbouncer(
    program: str, url: str, *, userlist: str | None = None, **settings: object
) -> Iterator[str]:
    """Yield the URL by which the database of `url` is reached through a pgbouncer.

    Its settings are those of deploy/pgbouncer.ini.

    Args:
        program: The program.
        url: The database.
        userlist: The file with the secret of the role that looks up others, and then clients log
            in. Without it clients need no password, and pgbouncer connects as the user of `url`.
        settings: Settings that are to be others.
    """
    server = make_url(url)
    user = _user(server)
    # A short path, and not in pytest's folder, which the program's user may not enter.
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-pb-"))
    try:
        configuration, log = folder / "pgbouncer.ini", folder / "log"
        # Each logs in as itself, unless the user of `url` stands for all.
        target = _connection_string(server, with_user=userlist is None)
        configuration.write_text(
            pooler_settings(folder, target, userlist=userlist, others=settings)
        )
        if user is not None:
            for path in (folder, *folder.iterdir()):
                os.chown(path, user, -1)
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


def _connection_string(server: URL, *, with_user: bool) -> str:
    user = {"user": server.username, "password": server.password} if with_user else {}
    parts = {"host": server.query.get("host", server.host), "port": server.port, **user}
    return " ".join(f"{name}={value}" for name, value in parts.items() if value)


def _answers(process: "subprocess.Popen[bytes]", url: URL, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        psycopg.connect(url.render_as_string(hide_password=False), connect_timeout=10).close()
    except psycopg.OperationalError:
        return False
    return True
