"""Statements of users on a SQLite file, each run in a process that is ended at the time limit."""

import base64
import json
import os
import select
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import finalize

from sqlalchemy.engine import URL

from sqlbuffer.errors import ReadLimitError, StorageBusyError, StorageError, StorageReadOnlyError
from sqlbuffer.storage.database import statement_worker
from sqlbuffer.storage.database.engine import BUSY_TIMEOUT_S, refuse_unread_log
from sqlbuffer.storage.database.sqlite import CONNECTION_PRAGMAS, existing_file
from sqlbuffer.storage.database.statement_worker import LENGTH, message_of, read_exactly
from sqlbuffer.storage.database.urls import is_immutable, shown_url

# The execution option of a connection for the time limit of its transaction; None for no limit.
TIME_S = "sqlbuffer_time_s"

# A statement that makes the process grow by more is ended.
MAX_GROWTH_BYTES = 512 * 2**20
MAX_STATEMENT_BYTES = 100_000


def passed_limit(
    driver: object, error: BaseException | None, time_s: float | None
) -> StorageError | None:
    """Return the error of a statement that passed a limit; None if it failed for another reason.

    Args:
        driver: The driver's connection.
        error: Error that it raised.
        time_s: The time limit in seconds.
    """
    passed = getattr(driver, "passed", None)
    if passed is None and getattr(error, "sqlstate", None) == "57014" and time_s is not None:
        passed = "time"
    if passed == "time":
        return time_passed(time_s)
    if passed == "memory":
        return memory_passed()
    return None


def memory_passed() -> ReadLimitError:
    """Return the error of a statement that took too much memory."""
    return ReadLimitError(
        f"the statement took more than {MAX_GROWTH_BYTES >> 20} MB of memory; "
        "ask for fewer or smaller values"
    )


def time_passed(time_s: float | None) -> ReadLimitError:
    """Return the error of a statement that passed the time limit."""
    limit = "its time limit" if time_s is None else f"the limit of {time_s:g} s"
    return ReadLimitError(f"the statement took longer than {limit}; add a condition or a LIMIT")


def check_text(statement: str) -> None:
    """Raise StorageError for a text that cannot be a statement."""
    try:
        size = len(statement.encode())
    except UnicodeEncodeError:
        raise StorageError("the statement is not valid Unicode; type it again") from None
    if "\0" in statement:
        raise StorageError("the statement has a NUL character; remove it")
    if size > MAX_STATEMENT_BYTES:
        raise StorageError(
            f"the statement has {size:,} bytes; the longest may have {MAX_STATEMENT_BYTES:,}"
        )


# SQLite looks at the limit itself, and says why it ended the statement. Some functions never let it
# look: then the process is ended this much later.
_GRACE_S = 0.2
_FETCH_ROWS, _FETCH_BYTES = 1_000, 2**20


@dataclass(frozen=True)
class StatementLimits:
    """Limits of a user's statement; None is no limit.

    Attributes:
        time_s: Seconds that it may take, with the reading of its rows.
        growth_bytes: Memory that it may take in bytes.
        of_values: Kind and value of each limit of `sqlite3.Connection.setlimit`.
    """

    time_s: float | None = None
    growth_bytes: int | None = None
    of_values: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Stream:
    """Result of a query, valid while its connection is open.

    Attributes:
        columns: Names of the columns.
        rows: The rows, in order, as they are read.
    """

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


class StatementProcess:
    """A process that runs statements of users, one at a time; see `statement_worker`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", statement_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for this process
        )
        self._is_awaited, self._n_read = False, 0
        self._end = finalize(self, _end, self._process, os.getpid())

    @property
    def is_running(self) -> bool:
        """Whether the process runs and can take the next statement."""
        return self._process.poll() is None and not self._is_awaited

    @contextmanager
    def answering(self, url: URL, statement: str, limits: StatementLimits) -> Iterator[Stream]:
        """Yield the result of a statement on a file, in a transaction.

        Raises:
            ReadLimitError: A limit was passed.
            StorageReadOnlyError: The statement does more than read.
            sqlite3.Error: The statement is wrong.
        """
        refuse_unread_log(url)
        path = existing_file(url)
        ends_at = None if limits.time_s is None else time.monotonic() + limits.time_s + _GRACE_S
        request = {
            "run": statement,
            "path": str(path),
            "uri": f"{path.as_uri()}?mode=ro{'&immutable=1' if is_immutable(url) else ''}",
            "pragmas": CONNECTION_PRAGMAS,
            "timeout_s": BUSY_TIMEOUT_S,
            "time_s": limits.time_s,
            "growth_bytes": limits.growth_bytes,
            "limits": limits.of_values,
        }
        answer = self._ask(request, ends_at, limits)
        try:
            yield Stream(answer["columns"], self._rows(ends_at, limits))
        finally:
            if self.is_running:
                self._send({"end": True})

    def _rows(self, ends_at: float | None, limits: StatementLimits) -> Iterator[tuple[Any, ...]]:
        n, is_last = 1, False
        while not is_last:
            answer = self._ask({"fetch": n}, ends_at, limits)
            yield from map(tuple, answer["rows"])
            # Fewer at a time if they are large.
            n = max(1, min(_FETCH_ROWS, _FETCH_BYTES * n // self._n_read))
            is_last = answer["is_last"]

    def _ask(self, request: Any, ends_at: float | None, limits: StatementLimits) -> dict[str, Any]:
        """Send a request and return its answer."""
        self._is_awaited = True
        try:
            self._send(request)
            (self._n_read,) = LENGTH.unpack(self._read(LENGTH.size, ends_at))
            text = self._read(self._n_read, ends_at)
            answer: dict[str, Any] = json.loads(text, object_hook=_value)
        except TimeoutError:
            raise time_passed(limits.time_s) from None
        self._is_awaited = False
        if "error" in answer:
            raise _error_of(limits, *answer["error"])
        return answer

    def _send(self, request: Any) -> None:
        assert self._process.stdin is not None
        rest = memoryview(message_of(request))
        with suppress(BrokenPipeError):  # reading says how the process ended
            while rest:
                rest = rest[self._process.stdin.write(rest) or 0 :]

    def _read(self, n: int, ends_at: float | None) -> bytes:
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(source, select.POLLIN)

        def wait() -> None:
            left_s = None if ends_at is None else max(0.0, ends_at - time.monotonic())
            if not poll.poll(None if left_s is None else left_s * 1_000):
                raise TimeoutError

        read = read_exactly(source, n, wait)
        if len(read) < n:
            status = self._process.wait()
            raise StorageError(
                f"the process that ran the statement ended with status {status}; try again, or ask "
                "for less"
            )
        return read

    def kill(self) -> None:
        """End the process, whatever it does; a thread that waits for it gets an error."""
        self._process.kill()

    def end(self) -> None:
        """End the process and close its pipes."""
        self._end()


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that started it
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


class StatementProcesses:
    """Processes that run statements of users: started when they are needed, and kept for the next.

    Args:
        size: Maximum number of processes.
        wait_s: Seconds that a thread waits for a process if all are in use.
    """

    def __init__(self, size: int, wait_s: float) -> None:
        self._size, self._wait_s = size, wait_s
        self._free = threading.BoundedSemaphore(size)
        self._idle: list[StatementProcess] = []
        self._busy: set[StatementProcess] = set()
        self._owner, self._is_closed = os.getpid(), False

    @contextmanager
    def answering(self, url: URL, statement: str, limits: StatementLimits) -> Iterator[Stream]:
        """Yield the result of a statement; see `StatementProcess.answering`.

        Raises:
            StorageBusyError: No process became free in time.
        """
        if not self._free.acquire(timeout=self._wait_s):
            raise StorageBusyError(
                f"{shown_url(url)}: {self._size} statements run, and none ended within "
                f"{self._wait_s:g} s; try again"
            )
        try:
            process = self._taken()
            try:
                with process.answering(url, statement, limits) as rows:
                    yield rows
            finally:
                self._give_back(process)
        finally:
            self._free.release()

    def _taken(self) -> StatementProcess:
        if self._owner != os.getpid():
            # They are those of the process that forked this one.
            self._owner, self._idle, self._busy = os.getpid(), [], set()
        process = self._idle.pop() if self._idle else StatementProcess()
        if not process.is_running:
            process.end()
            process = StatementProcess()
        self._busy.add(process)
        return process

    def _give_back(self, process: StatementProcess) -> None:
        self._busy.discard(process)
        if process.is_running and not self._is_closed:
            self._idle.append(process)
        else:
            process.end()

    def close(self) -> None:
        """End all processes; statements that run get an error."""
        self._is_closed = True
        for process in list(self._busy):
            process.kill()  # its thread closes the pipes
        while self._idle:
            self._idle.pop().end()


def _value(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["bytes"]) if "bytes" in value else value


def _error_of(
    limits: StatementLimits, kind: str, text: str = "", class_: str = "", name: str = ""
) -> Exception:
    if kind == "time":
        return time_passed(limits.time_s)
    if kind == "memory":
        return memory_passed()
    if kind == "denied":
        return StorageReadOnlyError(
            f"{text} is refused: this connection is read-only; write a SELECT"
        )
    most_bytes = dict(limits.of_values).get(sqlite3.SQLITE_LIMIT_LENGTH)
    if most_bytes is not None and class_ == "DataError" and "too big" in text:
        return ReadLimitError(
            f"the statement makes a value of more than {most_bytes >> 20} MiB; ask for a part of "
            "it, as by substr"
        )
    error: sqlite3.Error = getattr(sqlite3, class_)(text)
    error.sqlite_errorname = name
    return error
