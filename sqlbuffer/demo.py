"""The demo: processes play CartPole into one buffer while another samples from it."""

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import numpy as np

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import MissingExtraError, SQLBufferError, install
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.query_filter import QueryFilter
from sqlbuffer.samplers import RandomSampler, RandomTaskSample
from sqlbuffer.steps import DataRow, Experience, ExpMeta
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.sqlite import refuse_memory

__all__ = ["BUFFER", "DemoPlan", "Progress", "Report", "run"]


BUFFER = "demo"
MODEL_VERSIONS = 5


@dataclass(frozen=True)
class DemoPlan:
    """The plan of one run of the demo; the same plan plays the same episodes.

    Attributes:
        url: The database; its buffer `demo` is emptied first.
        writers: Processes that play and store.
        episodes: Episodes that each of them plays.
        capacity: Largest number of rows of the buffer.
        batch_size: Rows of a sampled batch.
        tasks: Whole tasks of a sampled batch of tasks.
        seed: Seed of the environments, the players and the samplers.
    """

    url: str
    writers: int = 4
    episodes: int = 100
    capacity: int = 20_000
    batch_size: int = 256
    tasks: int = 8
    seed: int = 0

    @property
    def total_episodes(self) -> int:
        """Episodes of all writers, each of them a task."""
        return self.writers * self.episodes

    def model_version(self, episode: int) -> int:
        """Return the version of the model that plays an episode: it improves during the run."""
        return episode * MODEL_VERSIONS // self.episodes


# How often each version of the model acts at random: 20 to 180 steps an episode on average.
EXPLORATION = (1.0, 0.75, 0.6, 0.5, 0.4)


def require_gymnasium() -> None:
    """Raise where gymnasium is not installed.

    Raises:
        MissingExtraError: Names the command that installs it.
    """
    if find_spec("gymnasium") is None:
        raise MissingExtraError(f"the demo plays CartPole with gymnasium; run {install('demo')}")


def make_environment() -> Any:
    """Return a CartPole-v1 environment."""
    require_gymnasium()
    import gymnasium

    return gymnasium.make("CartPole-v1")


def play(
    environment: Any, *, task_id: str, agent_id: str, model_version: int, seed: int
) -> list[DataRow]:
    """Play one episode and return its steps.

    Args:
        environment: From `make_environment`.
        task_id: Task of the episode.
        agent_id: Agent that plays.
        model_version: Version of the policy; later versions explore less.
        seed: Seed of the environment and of the exploration.
    """
    rng = np.random.default_rng(seed)
    observation, _ = environment.reset(seed=seed)
    rows: list[DataRow] = []
    ended = False
    while not ended:
        action = _act(observation, EXPLORATION[model_version], rng)
        following, reward, terminated, truncated, _ = environment.step(action)
        ended = terminated or truncated
        meta = ExpMeta(
            task_id,
            "CartPole-v1",
            agent_id,
            len(rows),
            time.time(),
            model_version=model_version,
        )
        data = Experience(observation, [action], reward, terminated=terminated, truncated=truncated)
        rows.append(DataRow(meta, data))
        observation = following
    return rows


def _act(observation: Any, exploration: float, rng: np.random.Generator) -> int:
    """Push towards the side to which the pole falls, or at random."""
    if rng.random() < exploration:
        return int(rng.integers(2))
    _, _, angle, angular_velocity = observation
    return int(angle + angular_velocity > 0)


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


T = TypeVar("T")

RECENT_VERSION = 2
LATE_STEP = 20
AGENTS = ["agent-0", "agent-1"]


@dataclass
class Calls:
    """The results of calls of one kind.

    Attributes:
        name: The call, as written in Python.
        rows: Number of rows of all calls.
        latencies_s: Duration of each call in seconds.
    """

    name: str
    rows: int = 0
    latencies_s: list[float] = field(default_factory=list)

    def timed(self, draw: Callable[[], T]) -> T:
        """Return what `draw` returns and note how long it took."""
        started = time.perf_counter()
        drawn = draw()
        self.latencies_s.append(time.perf_counter() - started)
        return drawn


class Learner:
    """Samples from the buffer in three ways, and checks what comes back.

    Args:
        buffer: The buffer.
        plan: Sizes of the batches, and the seed.
    """

    def __init__(self, buffer: ReplayBuffer, plan: DemoPlan) -> None:
        self._buffer, self._plan = buffer, plan
        self._row_sampler = RandomSampler(seed=plan.seed)
        self._task_sampler = RandomTaskSample(seed=plan.seed)
        self._recent = (
            QueryBuilder()
            .gte("model_version", RECENT_VERSION)
            .and_()
            .gte("exp_meta.step", LATE_STEP)
            .build()
        )
        self._agents = QueryBuilder().in_("exp_meta.agent_id", AGENTS).build()
        self.uniform = Calls(f"sample({plan.batch_size})")
        self.recent = Calls(f"sample({plan.batch_size}, condition=...)")
        self.tasks = Calls(f"sample_tasks({plan.tasks}, condition=...)")

    @property
    def calls(self) -> tuple[Calls, ...]:
        """The calls of every kind."""
        return self.uniform, self.recent, self.tasks

    def step(self) -> None:
        """Draw one batch of each kind.

        Raises:
            SQLBufferError: A batch has wrong contents.
        """
        self._sample_rows(self.uniform, None)
        self._sample_rows(self.recent, self._recent)
        self._sample_tasks()

    def _sample_rows(self, calls: Calls, condition: Tree | None) -> None:
        size, sampler = self._plan.batch_size, self._row_sampler
        rows = calls.timed(lambda: self._buffer.sample(size, sampler=sampler, condition=condition))
        calls.rows += len(rows)
        if len(QueryFilter(condition).filter(rows)) != len(rows):
            raise SQLBufferError(f"{calls.name} returned rows that do not match")

    def _sample_tasks(self) -> None:
        tasks = self.tasks.timed(
            lambda: self._buffer.sample_tasks(
                self._plan.tasks, sampler=self._task_sampler, condition=self._agents
            )
        )
        for task in tasks:
            self.tasks.rows += len(task)
            _check_whole(task)


def _check_whole(task: list[DataRow]) -> None:
    """Raise unless a task has all steps to its end; eviction may have taken the first ones."""
    steps = [row.exp_meta.step for row in task]
    ended = task[-1].exp_data.terminated or task[-1].exp_data.truncated
    if steps != list(range(steps[0], steps[0] + len(steps))) or not ended:
        raise SQLBufferError(f"task {task[0].exp_meta.task_id} came back with steps missing")


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
