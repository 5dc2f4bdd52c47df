"""`SQLStorage`: rows in a SQL database, with AWorld's calls."""

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.compat.aworld.common import ActionType, StateType
from sqlbuffer.compat.aworld.storage.base import Storage
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.samplers import RandomTaskSample, TaskSampler
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.store_result import StoreResult

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates

DEFAULT_CAPACITY = 10_000


class SQLStorage(Storage):
    """A named buffer of a database, shared by every process that opens it and kept when they end.

    Every method returns rows in insert order. States and actions that are `Observation` and
    `ActionModel` come back as such. `buffer` is the same data by this library's own calls:
    `delete`, `resize`, `sql` and so on.

    Args:
        url: Database URL: `sqlite:///replay.db`, `postgresql://user@host/database`.
        name: One database holds many buffers.
        max_capacity: Rows held at most; the oldest leave first. Omitted: what is stored, 10,000 for
            a new buffer.

    Raises:
        BufferConfigError: The buffer is stored with another capacity.
        SchemaMissingError: A PostgreSQL database without the schema.
        StorageUnreachableError: No database answers.

    Example:
        >>> from sqlbuffer.compat.aworld import DataRow, Experience, ExpMeta
        >>> storage = SQLStorage("sqlite://")
        >>> meta = ExpMeta("task_1", "search", "agent_1", 1, 1700000000.0, "agent_0")
        >>> storage.add(DataRow(meta, Experience({"x": 1}, [0]))).inserted
        1
        >>> [row.exp_data.state for row in storage.get_by_task_id("task_1")]
        [{'x': 1}]
        >>> storage.buffer.close()
    """

    def __init__(self, url: str, name: str = "default", max_capacity: int | None = None) -> None:
        self.buffer = _open(url, name, max_capacity)

    def add(self, data: DataRow) -> StoreResult:
        """Store one row, unless its id is held.

        Raises:
            ValueError: No row, or a row without `exp_meta`.
            FieldError: A value cannot be stored.
        """
        return self.add_batch([data])

    def add_batch(self, data_batch: Sequence[DataRow]) -> StoreResult:
        """Store rows in one transaction: all those whose ids are not held, or none.

        Raises:
            ValueError: No row, or a row without `exp_meta`; nothing is written.
            FieldError: A value cannot be stored; nothing is written.
        """
        rows = list(data_batch)
        for row in rows:
            _check(row)
        return self.buffer.store_batch(rows)

    def size(self, query_condition: Condition = None) -> int:
        """Return how many rows match."""
        return self.buffer.size(query_condition or None)

    def get_paginated(
        self, page: int, page_size: int, query_condition: Condition = None
    ) -> list[DataRow]:
        """Return one page of the rows that match, in insert order.

        Args:
            page: Number of the page, from 1; a page after the last one is empty.
            page_size: Number of rows in a page.
            query_condition: Condition that rows must match.

        Raises:
            ValueError: The page or the page size is below 1.
        """
        return self.buffer.get_paginated(page, page_size, query_condition or None)

    def get_all(self, query_condition: Condition = None) -> list[DataRow]:
        """Return the rows that match, in insert order; `buffer.get_all` streams them."""
        return list(self.buffer.get_all(query_condition or None))

    def get_by_task_id(self, task_id: str) -> list[DataRow]:
        """Return the rows of a task in insert order; none for an unknown task."""
        return _by_insertion(self.buffer.get_by_task_id(task_id))

    def get_bacth_by_task_ids(self, task_ids: Sequence[str]) -> dict[str, list[DataRow]]:
        """Return `{task_id: rows}` in the order of the ids, the rows of each task in insert order;
        an unknown task has no rows.
        """
        found = self.buffer.get_batch_by_task_ids(task_ids)
        return {task_id: _by_insertion(rows) for task_id, rows in found.items()}

    def random_task_ids(self, n: int, query_condition: Condition = None) -> list[str]:
        """Return up to n distinct tasks with a row that matches, uniformly; reads no payloads."""
        sampler = _IdsOnly()
        self.buffer.sample_tasks(n, sampler=sampler, condition=query_condition or None)
        return list(sampler.chosen)

    def clear(self) -> None:
        """Delete every row."""
        self.buffer.clear()


class _IdsOnly(TaskSampler):
    """Keeps the ids that were drawn, and leaves nothing to fetch."""

    def __init__(self) -> None:
        self.chosen: Sequence[str] = ()

    def choose_tasks(self, candidates: "Candidates", batch_size: int) -> Sequence[str]:
        self.chosen = RandomTaskSample().choose_tasks(candidates, batch_size)
        return ()


def _open(url: str, name: str, max_capacity: int | None) -> ReplayBuffer:
    def opened(capacity: int | None) -> ReplayBuffer:
        return ReplayBuffer(
            url,
            name=name,
            max_capacity=capacity,
            state_type=StateType,
            action_type=ActionType,
        )

    if max_capacity is not None:
        return opened(max_capacity)
    try:
        return opened(DEFAULT_CAPACITY)
    except BufferConfigError:  # it is there, with another capacity
        return opened(None)


def _by_insertion(rows: list[DataRow]) -> list[DataRow]:
    return sorted(rows, key=attrgetter("seq"))


def _check(data: DataRow) -> None:
    if not data:
        raise ValueError("Data is required")
    if isinstance(data, DataRow) and not data.exp_meta:
        raise ValueError("exp_meta is required")
