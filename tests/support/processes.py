"""Several processes at once, and waiting for what they do."""

import multiprocessing
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

TIMEOUT_S = 60.0
# A process that inherits nothing of ours, like a spawned one. Its parent has imported what most
# need: a spawned one takes 0.7 s of a processor more.
FRESH = "forkserver"
multiprocessing.get_context(FRESH).set_forkserver_preload(
    ["gymnasium", "hypothesis", "psycopg", "pytest", "sqlbuffer.buffer", "sqlbuffer.demo"]
)


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Poll until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.01)


class Workers:
    """Processes that run one function each, released together, and what they returned."""

    def __init__(self, calls: Sequence[tuple[Any, ...]], method: str) -> None:
        context = multiprocessing.get_context(method)
        # Kept: a spawned child looks it up by name, and the name goes with the last reference.
        self._barrier = context.Barrier(len(calls))
        self._pipes, self.processes = [], []
        for function, *arguments in calls:
            receiver, sender = context.Pipe(duplex=False)
            process: BaseProcess = context.Process(
                target=_run, args=(self._barrier, sender, function, arguments), daemon=True
            )
            process.start()
            sender.close()
            self._pipes.append(receiver)
            self.processes.append(process)

    @property
    def running(self) -> bool:
        return any(process.is_alive() for process in self.processes)

    def results(self, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Wait for all of them and return what their functions returned."""
        found = []
        for pipe in self._pipes:
            assert pipe.poll(timeout_s), "a process did not answer"
            found.append(pipe.recv())
        for process in self.processes:
            process.join(TIMEOUT_S)
        for value in found:
            if isinstance(value, BaseException):
                raise value
        return found

    def close(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join(TIMEOUT_S)
            process.close()
        for pipe in self._pipes:
            pipe.close()


@contextmanager
def running(calls: Sequence[tuple[Any, ...]], method: str = "fork") -> Iterator[Workers]:
    """Yield processes that run `(function, *arguments)` each."""
    workers = Workers(calls, method)
    try:
        yield workers
    finally:
        workers.close()


def run_at_once(calls: Sequence[tuple[Any, ...]], method: str = "fork") -> list[Any]:
    """Run `(function, *arguments)` in a process each and return what they returned, in order."""
    with running(calls, method) as workers:
        return workers.results()


def _run(barrier: Any, sender: Any, function: Callable[..., Any], arguments: Any) -> None:
    barrier.wait(TIMEOUT_S)
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    sender.send(result)
    sender.close()


def children_of(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    lines = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True).splitlines()
    pairs = [map(int, line.split()) for line in lines]
    return [pid for pid, ppid in pairs if ppid == parent]


def is_running(pid: int) -> bool:
    """Tell whether a process runs; a dead one that nobody waited for does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")
