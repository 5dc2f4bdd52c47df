"""The programs in the containers of compose.yaml: `python services.py setup`, `python services.py
exporter`, and the page in the browser, `uvicorn --factory services:page`.

They also run without containers. The database is the one in SQLBUFFER_URL. PGPASSWORD_FILE names a
file with its password, and SECRETS the folder of the other secrets.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, SQLBufferError
from sqlbuffer.monitoring import PrometheusCollector

# Login -> the roles that it is a member of. Each has a secret, `<login>_password`.
LOGINS = {
    "rollouts": ["sqlbuffer_writer"],
    "trainer": ["sqlbuffer_learner"],
    "analyst": ["sqlbuffer_analyst"],
    # It sees the transactions of all others, as `sqlbuffer doctor` needs to.
    "monitor": ["sqlbuffer_analyst", "pg_read_all_stats"],
    "pgbouncer": [],
}
EXPORTER_PORT = 9108
STATUSES = {"OK": 0, "WARN": 1, "FAIL": 2}


def main() -> None:
    """Run the program that the first argument names."""
    use_password_file()
    programs = {"setup": set_up, "exporter": export}
    name = sys.argv[1] if len(sys.argv) == 2 else ""
    if name not in programs:
        sys.exit(f"usage: python services.py {' | '.join(programs)}")
    programs[name]()


def use_password_file() -> None:
    """Set PGPASSWORD, which every client of PostgreSQL reads, from the file that is named."""
    if path := os.environ.get("PGPASSWORD_FILE"):
        os.environ["PGPASSWORD"] = Path(path).read_text(encoding="utf-8").strip()


def secret(name: str) -> str:
    """Return a secret."""
    folder = Path(os.environ.get("SECRETS", "/run/secrets"))
    found = (folder / name).read_text(encoding="utf-8").strip()
    if not found:
        sys.exit(f"the secret {folder / name} is empty")
    return found


def set_up() -> None:
    """Create or upgrade the schema, then the roles and the logins. It may run again at any time."""
    from sqlbuffer.storage.migrations import migrate
    from sqlbuffer.storage.schema.metadata import roles_script

    url = os.environ["SQLBUFFER_URL"]
    migrate.upgrade(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(roles_script())
        for login, groups in LOGINS.items():
            _create_login(connection, login, groups)
        script = Path(__file__).with_name("pgbouncer.sql").read_text(encoding="utf-8")
        connection.execute(script)
    print(f"the schema is at revision {migrate.HEAD}; the logins are {', '.join(LOGINS)}")


def _create_login(connection: psycopg.Connection, login: str, groups: list[str]) -> None:
    name, password = sql.Identifier(login), secret(f"{login}_password")
    # Hashed here: the password itself would be in the server's log.
    hashed = connection.pgconn.encrypt_password(
        password.encode(), login.encode(), b"scram-sha-256"
    ).decode()
    is_there = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [login]).fetchone()
    statement = (
        "ALTER ROLE {} LOGIN PASSWORD {}" if is_there else "CREATE ROLE {} LOGIN PASSWORD {}"
    )
    connection.execute(sql.SQL(statement).format(name, sql.Literal(hashed)))
    for group in groups:
        connection.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(group), name))


def page() -> Any:
    """Return the page in the browser, as an ASGI application."""
    from sqlbuffer import web

    use_password_file()
    hosts = os.environ.get("WEB_HOSTS", "localhost").split()
    return web.app(os.environ["SQLBUFFER_URL"], token=secret("web_token"), hosts=hosts)


def export() -> None:
    """Serve the figures of all buffers to Prometheus, until the process ends."""
    PrometheusCollector()  # its error names the extra that is missing
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry(auto_describe=False)
    registry.register(DatabaseCollector(os.environ["SQLBUFFER_URL"]))
    # The figures have no login. In a container, the network of the containers is the limit.
    host = os.environ.get("HOST", "127.0.0.1")
    start_http_server(int(os.environ.get("PORT", EXPORTER_PORT)), addr=host, registry=registry)
    signal.pause()


class DatabaseCollector:
    """Figures of all buffers of a database, of its size, and of the quick checks of `doctor`.

    Buffers may come and go. A database that does not answer is a figure too: `sqlbuffer_up` is 0.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: dict[str, ReplayBuffer] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of a scrape."""
        from prometheus_client.core import GaugeMetricFamily

        up, families = 1.0, []
        try:
            families = [*self._of_buffers(), *self._of_database()]
        except SQLBufferError as error:
            up = 0.0
            print(f"no figures: {error}", file=sys.stderr)
        yield GaugeMetricFamily("sqlbuffer_up", "1 if the database answered.", value=up)
        yield from families

    def _of_buffers(self) -> Iterator[Any]:
        names = ReplayBuffer.list(self._url, retry_s=0)
        for name in self._opened.keys() - set(names):
            self._opened.pop(name).close()
        for name in names:
            if name not in self._opened:
                self._opened[name] = ReplayBuffer(self._url, name, create=False, retry_s=0)
        try:
            # A list: nothing is sent before everything is known.
            yield from list(PrometheusCollector(*self._opened.values()).collect())
        except BufferNotFoundError:  # dropped since they were listed; the next scrape has the rest
            self._opened.clear()

    def _of_database(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        from sqlbuffer.storage.database.engine import engine_for, resolve_url
        from sqlbuffer.storage.database.errors import translated
        from sqlbuffer.storage.inspect.doctor import glance
        from sqlbuffer.storage.migrations import status

        size = status.server(self._url).size_bytes
        yield GaugeMetricFamily("sqlbuffer_database_bytes", "Size of the database.", value=size)
        checks = GaugeMetricFamily(
            "sqlbuffer_check_status",
            "Status of a check of doctor: 0 OK, 1 WARN, 2 FAIL.",
            labels=["check"],
        )
        resolved = resolve_url(self._url)
        with translated(resolved), engine_for(resolved).connect() as connection:
            for finding in glance(connection, resolved):
                checks.add_metric([finding.name], STATUSES[finding.status])
        yield checks


if __name__ == "__main__":
    main()
