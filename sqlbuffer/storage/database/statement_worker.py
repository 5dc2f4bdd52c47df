"""Runs statements of users on a SQLite file, as a program in a process of its own.

Some functions of SQLite run for seconds without a look at any limit, such as `instr` of two long
texts. Only the end of its process stops such a statement; see `statement_process`.

The program is started as a file. It imports the standard library alone: so it starts in 40 ms, and
not in the second that the imports of the package take.

It reads requests from its standard input, and writes their answers to its standard output: JSON
behind its length. The answer to `{"run": statement, ...}` is `{"columns": [...]}`, that to
`{"fetch": most}` is `{"rows": [...], "is_last": ...}`, and `{"end": true}` has none. An error is
`{"error": [kind, text, class, name]}`, and bytes are `{"bytes": base64}`.
"""

import base64
import json
import os
import select
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

# Steps of SQLite's machine between two checks of the limits. A step makes at most one value. Python
# notices Ctrl-C there, too.
STEPS_BETWEEN_LOOKS = 500
LENGTH = struct.Struct(">I")
_LOOK_FOR_PARENT_S = 1.0

_ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_WRITES = {
    "ANALYZE", "ATTACH", "DELETE", "DETACH", "INSERT", "PRAGMA", "REINDEX", "SAVEPOINT",
    "TRANSACTION", "UPDATE",
}  # fmt: skip
_ACTIONS = {
    getattr(sqlite3, name): name.removeprefix("SQLITE_").replace("_", " ")
    for name in dir(sqlite3)
    if name.startswith(("SQLITE_CREATE", "SQLITE_DROP", "SQLITE_ALTER"))
    or name.removeprefix("SQLITE_") in _WRITES
}
# They load code, or return the address of code. The last three exist in SQLite's own shell.
_REFUSED = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}


def memory_peak_bytes() -> int:
    """Return the peak memory of this process in bytes; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Guard:
    """Lets a connection do only what a SELECT needs, within limits.

    The file is opened with `mode=ro`. With that alone `VACUUM INTO` and `ATTACH` write files, and a
    PRAGMA switches `query_only` off.

    Args:
        looks: PRAGMAs that are allowed, with their arguments; `*` is any.

    Attributes:
        passed: Limit that ended a statement: `time` or `memory`.
        denied: Last action that was refused.
    """

    def __init__(self, looks: Set[tuple[str, str | None]] = frozenset()) -> None:
        self._looks = looks
        self._is_trusted = False
        self.passed: str | None = None
        self.denied: str | None = None
        self._ends_at, self._most_bytes = float("inf"), sys.maxsize

    def watch(self, connection: sqlite3.Connection) -> None:
        """Guard a connection from now on."""
        # At their first use SQLite asks the authorizer if it may write the schema.
        connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')").fetchall()
        connection.set_authorizer(self._authorize)
        connection.set_progress_handler(self._look, STEPS_BETWEEN_LOOKS)

    def limit(self, time_s: float | None, growth_bytes: int | None) -> None:
        """Begin a statement with these limits; None is no limit."""
        self.passed = self.denied = None
        if time_s is not None:
            self._ends_at = time.monotonic() + time_s
        if growth_bytes is not None:
            self._most_bytes = memory_peak_bytes() + growth_bytes

    def unlimit(self) -> None:
        """Remove the limits."""
        self._ends_at, self._most_bytes = float("inf"), sys.maxsize

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """Allow everything in the block."""
        before, self._is_trusted = self._is_trusted, True
        try:
            yield
        finally:
            self._is_trusted = before

    def _authorize(self, action: int, first: Any, second: Any, *_: Any) -> int:
        is_allowed = action in _ALLOWED and not (
            action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _REFUSED
        )
        is_look = action == sqlite3.SQLITE_PRAGMA and bool(
            {(first, second), (first, "*")} & self._looks
        )
        if self._is_trusted or is_allowed or is_look:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            self.denied = f"{second}()"
        else:
            self.denied = f"{_ACTIONS.get(action, action)} {first or ''}".strip()
        return sqlite3.SQLITE_DENY

    def _look(self) -> bool:
        """Return True to end the statement."""
        if time.monotonic() > self._ends_at:
            self.passed = "time"
        elif memory_peak_bytes() > self._most_bytes:
            self.passed = "memory"
        return self.passed is not None


class _Runner:
    """Runs one statement at a time, each in a transaction of its own."""

    def __init__(self) -> None:
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[Any, ...] = ()
        self._guard = Guard()
        self._cursor: sqlite3.Cursor | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer to a request; None for one that has none."""
        try:
            if "run" in request:
                return self._run(request)
            if "fetch" in request:
                return self._fetch(request["fetch"])
        except (sqlite3.Error, sqlite3.Warning, MemoryError, OSError) as error:
            described = self._described(error)
            self._end()
            return {"error": described}
        self._end()
        return None

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        self._end()
        connection = self._opened(request)
        self._guard.limit(request["time_s"], request["growth_bytes"])
        with self._guard.trusted():
            connection.execute("BEGIN")
        self._cursor = connection.execute(request["run"])
        return {"columns": [column[0] for column in self._cursor.description or ()]}

    def _opened(self, request: dict[str, Any]) -> sqlite3.Connection:
        """Return the connection to a file; a new one if another file has replaced it."""
        status = os.stat(request["path"])
        file = request["uri"], status.st_dev, status.st_ino
        if self._connection is not None and self._file == file:
            return self._connection
        if self._connection is not None:
            self._connection.close()
        connection = sqlite3.connect(
            request["uri"],
            uri=True,
            timeout=request["timeout_s"],
            isolation_level=None,
            cached_statements=0,
        )
        # Text that another program stored may not be UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for pragma in request["pragmas"]:
            connection.execute(pragma)
        self._guard = Guard()
        self._guard.watch(connection)
        for kind, limit in request["limits"]:
            connection.setlimit(kind, limit)
        self._connection, self._file = connection, file
        return connection

    def _fetch(self, most: int) -> dict[str, Any]:
        rows = [] if self._cursor is None else self._cursor.fetchmany(most)
        if len(rows) < most:
            self._end()
        return {"rows": rows, "is_last": len(rows) < most}

    def _end(self) -> None:
        """End the statement and its transaction, which would keep old states of the rows."""
        self._cursor = None
        self._guard.unlimit()
        if self._connection is not None and self._connection.in_transaction:
            with self._guard.trusted():
                self._connection.rollback()

    def _described(self, error: BaseException) -> list[str]:
        """Return the kind of an error, and its text, class and name."""
        if self._guard.denied is not None:
            return ["denied", self._guard.denied]
        if self._guard.passed is not None:
            return [self._guard.passed]
        if isinstance(error, MemoryError):
            return ["memory"]
        if isinstance(error, OSError):
            return ["sqlite", f"unable to open database file: {error}", "OperationalError", ""]
        # One of the two classes is that of a second statement, by version of Python.
        name = "ProgrammingError" if isinstance(error, sqlite3.Warning) else type(error).__name__
        return ["sqlite", str(error), name, getattr(error, "sqlite_errorname", "")]


def read_exactly(source: int, n: int, wait: Callable[[], None]) -> bytes:
    """Return n bytes of a pipe, fewer at its end.

    Args:
        source: Its descriptor.
        n: Number of bytes.
        wait: Function that returns when there is something to read.
    """
    parts = bytearray()
    while len(parts) < n:
        wait()
        part = os.read(source, n - len(parts))
        if not part:
            break
        parts += part
    return bytes(parts)


def message_of(value: Any) -> bytes:
    """Return a value as it is sent."""
    text = json.dumps(value, separators=(",", ":"), default=_of_bytes).encode()
    return LENGTH.pack(len(text)) + text


def _of_bytes(value: bytes) -> dict[str, str]:
    return {"bytes": base64.b64encode(value).decode()}


def main() -> None:
    """Answer requests until the process that sends them ends."""
    requests: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_receive, args=(requests, os.getppid()), daemon=True).start()
    runner, out = _Runner(), sys.stdout.buffer
    while True:
        answer = runner.answer(requests.get())
        if answer is not None:
            out.write(message_of(answer))
            out.flush()


def _receive(requests: "SimpleQueue[dict[str, Any]]", parent: int) -> None:
    """Pass requests on. End this process with its parent, also while a statement runs."""
    source = sys.stdin.fileno()

    def wait() -> None:
        while not select.select([source], [], [], _LOOK_FOR_PARENT_S)[0]:
            # Another process that the parent forked may hold the other end of the pipe.
            if os.getppid() != parent:
                os._exit(0)

    while header := read_exactly(source, LENGTH.size, wait):
        (size,) = LENGTH.unpack(header)
        requests.put(json.loads(read_exactly(source, size, wait)))
    os._exit(0)


if __name__ == "__main__":
    main()
