"""Agreement between the worker processes of one machine."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import finalize

_BEGIN = "begin"


class Meeting:
    """A folder of small files that are written once, by the first worker that needs them.

    The parent process runs no code when torch forks its workers or restarts them, and the workers
    read the database at different moments. Therefore the first worker that begins an iteration
    fixes its range for all. A meeting pickles as its path. The folder is made by a worker, and
    removed by the process that made the meeting.

    Example:
        >>> meeting = Meeting()
        >>> meeting.agree("range", lambda: [0, 10]), meeting.agree("range", lambda: [5, 20])
        ([0, 10], [0, 10])
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"sqlbuffer-{uuid4().hex}"
        finalize(self, _remove, self._folder, os.getpid())

    def agree(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the JSON value of a name: what `make` returned to the first who asked."""
        path = self._folder / name
        if not path.exists():
            self._write_once(path, json.dumps(make()))
        return json.loads(path.read_text(encoding="utf-8"))

    def join(self, token: str, worker: int, first: int) -> int:
        """Return the number of the iteration that a worker takes part in.

        Args:
            token: Text that the workers of one iteration share, and perhaps those of another one.
            worker: Number of the worker; it joins an iteration once.
            first: Smallest possible number.
        """
        begin = self._folder / _BEGIN
        if begin.exists():
            first = max(first, int(begin.read_text(encoding="utf-8")))
        for number in count(first):
            if self.agree(f"run-{number}", lambda: token) != token:
                continue
            if self._write_once(self._folder / f"run-{number}-worker-{worker}", ""):
                return number
        raise AssertionError  # count() has no end

    def begin_at(self, number: int) -> None:
        """Let the next iteration that workers join have at least this number."""
        self.agree(_BEGIN, lambda: number)

    def _write_once(self, path: Path, text: str) -> bool:
        """Write a whole file; return False if it exists already."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        own = path.with_name(f"{path.name}.{uuid4().hex}")
        own.write_text(text, encoding="utf-8")
        try:
            os.link(own, path)
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        shutil.rmtree(folder, ignore_errors=True)
