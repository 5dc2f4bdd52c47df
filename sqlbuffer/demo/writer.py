"""The processes that play and store, and their reports to the parent."""

import multiprocessing
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.demo.cartpole import make_environment, play
from sqlbuffer.demo.plan import BUFFER, DemoPlan
from sqlbuffer.errors import SQLBufferError

EPISODE_SEEDS = 1_000_000


@dataclass(frozen=True)
class Stored:
    """One acknowledged `store_batch`: an episode.

    Attributes:
        rows: Rows that the buffer says it inserted.
        latency_s: Duration of the call in seconds.
    """

    rows: int
    latency_s: float


@dataclass(frozen=True)
class Failed:
    """Why a writer gave up."""

    error: type[SQLBufferError]
    message: str


class Writers:
    """The writer processes, which end, by force if necessary, at the end of the `with` block.

    Args:
        plan: Plan of the run.
    """

    def __init__(self, plan: DemoPlan) -> None:
        self._plan = plan
        self._processes: dict[Any, BaseProcess] = {}

    def __enter__(self) -> "Writers":
        context = multiprocessing.get_context("spawn")
        with _interrupts_ignored():
            for number in range(self._plan.writers):
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=write, args=(self._plan, number, sender), name=f"writer {number}"
                )
                process.start()
                sender.close()  # the child's death shall end the pipe
                self._processes[receiver] = process
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
        for receiver, process in self._processes.items():
            process.join()
            receiver.close()

    @property
    def running(self) -> bool:
        """Whether a writer may still store rows."""
        return bool(self._processes)

    def reports(self, timeout_s: float) -> Iterator[Stored]:
        """Yield reports of new stored rows, waiting up to `timeout_s` for the first.

        Raises:
            SQLBufferError: A writer failed or died.
        """
        while ready := wait(list(self._processes), timeout_s):
            timeout_s = 0
            for receiver in ready:
                report = _receive(receiver)
                if report is None:
                    self._finish(receiver)
                elif isinstance(report, Failed):
                    raise report.error(f"{self._processes[receiver].name}: {report.message}")
                else:
                    yield report

    def _finish(self, receiver: Any) -> None:
        process = self._processes.pop(receiver)
        process.join()
        receiver.close()
        if process.exitcode:
            raise SQLBufferError(
                f"{process.name} died with exit code {process.exitcode}; run the demo again"
            )


def _receive(receiver: Any) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        return None


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let children start that ignore Ctrl-C: the parent ends them."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def write(plan: DemoPlan, number: int, reports: "Connection[Any, Any]") -> None:
    """Play and store the episodes of one writer; a writer process runs this."""
    try:
        for report in _stored_episodes(plan, number):
            reports.send(report)
    except BrokenPipeError:
        return  # the parent has gone
    except SQLBufferError as error:
        reports.send(Failed(type(error), str(error)))
    except Exception as error:
        reports.send(Failed(SQLBufferError, f"{type(error).__name__}: {error}"))


def _stored_episodes(plan: DemoPlan, number: int) -> Iterator[Stored]:
    environment = make_environment()
    with ReplayBuffer(plan.url, name=BUFFER) as buffer:
        for episode in range(plan.episodes):
            rows = play(
                environment,
                task_id=f"cartpole-{number}-{episode:04d}",
                agent_id=f"agent-{number}",
                model_version=plan.model_version(episode),
                seed=(plan.seed * plan.writers + number) * EPISODE_SEEDS + episode,
            )
            started = time.perf_counter()
            result = buffer.store_batch(rows)
            yield Stored(result.inserted, time.perf_counter() - started)
