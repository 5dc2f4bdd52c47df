"""One run of the demo, from the empty buffer to the figures."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.demo.cartpole import require_gymnasium
from sqlbuffer.demo.learner import Calls, Learner
from sqlbuffer.demo.plan import BUFFER, DemoPlan
from sqlbuffer.demo.writer import Stored, Writers
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.sqlite_files import refuse_memory

# The learner rests this long where no writer reports, and so leaves the processors to them.
PAUSE_S = 0.05


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        episodes: Episodes stored.
        rows: Rows that the writers had acknowledged.
        batches: Batches sampled.
    """

    episodes: int = 0
    rows: int = 0
    batches: int = 0


@dataclass
class Report:
    """The result of a run.

    Attributes:
        inserts: The `store_batch` calls of all writers.
        samples: The learner's calls, by kind.
        written: Rows that the writers had acknowledged.
        held: Rows that the buffer holds at the end.
        playing_s: Seconds from the first acknowledged episode to the last one.
    """

    inserts: Calls = field(default_factory=lambda: Calls("store_batch(episode)"))
    samples: tuple[Calls, ...] = ()
    written: int = 0
    held: int = 0
    playing_s: float = 0.0

    @property
    def evicted(self) -> int:
        """Rows that made room for later ones."""
        return self.written - self.held


def run(plan: DemoPlan, on_progress: Callable[[Progress], None]) -> Report:
    """Empty the buffer `demo`, fill it from several processes, and sample from it at the same time.

    Args:
        plan: Plan of the run.
        on_progress: Called after every round of sampling.

    Raises:
        MissingExtraError: gymnasium is not installed.
        SQLBufferError: A writer failed, or the counts do not add up.
        URLError: A database in memory, which processes cannot share.
    """
    require_gymnasium()
    refuse_memory(resolve_url(plan.url))
    with ReplayBuffer(plan.url, name=BUFFER, evict_by="row", create=True) as buffer:
        buffer.clear()
        buffer.resize(plan.capacity)
        report = _play_and_sample(plan, buffer, on_progress)
        report.written = report.inserts.rows
        report.held = len(buffer)
        _check(plan, report)
    return report


def _play_and_sample(
    plan: DemoPlan, buffer: ReplayBuffer, on_progress: Callable[[Progress], None]
) -> Report:
    report, learner, progress = Report(), Learner(buffer, plan), Progress()
    report.samples = learner.calls
    first = time.perf_counter()
    with Writers(plan) as writers, _interrupts_noted() as interrupts:
        while writers.running:
            if interrupts:
                raise KeyboardInterrupt
            for stored in writers.reports(PAUSE_S):
                first = first if progress.episodes else time.perf_counter() - stored.latency_s
                _note(report.inserts, stored)
                progress.episodes += 1
            progress.rows = report.inserts.rows
            if progress.episodes and writers.running:
                learner.step()
                progress.batches += len(learner.calls)
            on_progress(progress)
            report.playing_s = time.perf_counter() - first
    return report


@contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Yield a list that has an item once there was a Ctrl-C; a second one raises as ever.

    Where an interrupt is raised while the interpreter runs a callback, it is lost.
    """
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, previous)


def _note(inserts: Calls, stored: Stored) -> None:
    inserts.rows += stored.rows
    inserts.latencies_s.append(stored.latency_s)


def _check(plan: DemoPlan, report: Report) -> None:
    """Raise unless the buffer holds the newest rows, as many as fit."""
    episodes, expected = len(report.inserts.latencies_s), min(report.written, plan.capacity)
    if episodes != plan.total_episodes:
        raise SQLBufferError(f"{episodes} of {plan.total_episodes} episodes were stored")
    if report.held != expected:
        raise SQLBufferError(f"the buffer holds {report.held} rows and should hold {expected}")
