"""The learner of the demo: it samples rows and whole tasks, with conditions, while others write."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.demo.plan import DemoPlan
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.query_filter import QueryFilter
from sqlbuffer.samplers import RandomSampler, RandomTaskSample
from sqlbuffer.steps import DataRow

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
