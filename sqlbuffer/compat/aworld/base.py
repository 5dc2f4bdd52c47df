"""The names of AWorld's module `base`: storages, samplers and `ReplayBuffer`."""

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.util import Finalize
from operator import attrgetter
from typing import Any

from sqlbuffer import buffer, samplers
from sqlbuffer.arguments import Condition
from sqlbuffer.compat.aworld import temporary
from sqlbuffer.compat.aworld.common import ActionModel, ActionType, Observation, StateType
from sqlbuffer.compat.aworld.query_filter import QueryCondition
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.front.sampling import Converter, DefaultConverter
from sqlbuffer.query.query_filter import QueryFilter
from sqlbuffer.steps import DataRow, Experience, ExpMeta, StoreResult

__all__ = [
    "ActionModel",
    "Converter",
    "DataRow",
    "DefaultConverter",
    "ExpMeta",
    "Experience",
    "InMemoryStorage",
    "Observation",
    "QueryCondition",
    "QueryFilter",
    "RandomTaskSample",
    "ReplayBuffer",
    "Sampler",
    "Storage",
    "TaskSampler",
]

logger = logging.getLogger("sqlbuffer")
DEFAULT_CAPACITY = 10_000


class Storage(ABC):
    """Holds rows; AWorld's interface, for storages of your own.

    `add` and `add_batch` of this package return the outcome for the rows. A storage of yours may
    return nothing, as in AWorld.

    Example:
        >>> class Forgetful(Storage):
        ...     def add(self, data): ...
        ...     def add_batch(self, data_batch): ...
        ...     def size(self, query_condition=None): return 0
        ...     def get_paginated(self, page, page_size, query_condition=None): return []
        ...     def get_all(self, query_condition=None): return []
        ...     def get_by_task_id(self, task_id): return []
        ...     def get_bacth_by_task_ids(self, task_ids): return {}
        >>> Forgetful().random_task_ids(4)
        []
    """

    @abstractmethod
    def add(self, data: DataRow) -> StoreResult | None:
        """Store one row."""

    @abstractmethod
    def add_batch(self, data_batch: Sequence[DataRow]) -> StoreResult | None:
        """Store many rows."""

    @abstractmethod
    def size(self, query_condition: Condition = None) -> int:
        """Return how many rows match."""

    @abstractmethod
    def get_paginated(
        self, page: int, page_size: int, query_condition: Condition = None
    ) -> list[DataRow]:
        """Return one page, from 1, of the rows that match."""

    @abstractmethod
    def get_all(self, query_condition: Condition = None) -> list[DataRow]:
        """Return the rows that match."""

    @abstractmethod
    def get_by_task_id(self, task_id: str) -> list[DataRow]:
        """Return the rows of a task."""

    @abstractmethod
    def get_bacth_by_task_ids(self, task_ids: Sequence[str]) -> dict[str, list[DataRow]]:
        """Return `{task_id: rows}` (AWorld's spelling)."""

    def random_task_ids(self, n: int, query_condition: Condition = None) -> list[str]:
        """Return up to n distinct tasks with a row that matches, uniformly; reads all of them."""
        rows = self.get_all(query_condition)
        task_ids = list(dict.fromkeys(row.exp_meta.task_id for row in rows))
        return random.sample(task_ids, min(n, len(task_ids)))


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
        rows_by_task = self.buffer.get_batch_by_task_ids(task_ids)
        return {task_id: _by_insertion(rows) for task_id, rows in rows_by_task.items()}

    def random_task_ids(self, n: int, query_condition: Condition = None) -> list[str]:
        """Return up to n distinct tasks with a row that matches, uniformly; reads no payloads."""
        if n == 0:  # AWorld has an empty batch
            return []
        sampler = _IdsOnly()
        self.buffer.sample_tasks(n, sampler=sampler, condition=query_condition or None)
        return list(sampler.chosen)

    def clear(self) -> None:
        """Delete every row."""
        self.buffer.clear()


class _IdsOnly(samplers.TaskSampler):
    """Keeps the ids that were drawn, and leaves nothing to fetch."""

    def __init__(self) -> None:
        self.chosen: Sequence[str] = ()

    def choose_tasks(self, candidates: Any, batch_size: int) -> Sequence[str]:
        self.chosen = samplers.RandomTaskSample().choose_tasks(candidates, batch_size)
        return ()


def _open(url: str, name: str, max_capacity: int | None) -> buffer.ReplayBuffer:
    def opened(capacity: int | None) -> buffer.ReplayBuffer:
        return buffer.ReplayBuffer(
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


class InMemoryStorage(SQLStorage):
    """Rows in a private database, removed when the storage is collected or its process ends.

    The name is AWorld's. The rows are in a temporary SQLite file, so that child processes that are
    given the storage, by fork or by pickling, write to the same rows; keep the storage for as long
    as they run.

    Args:
        max_capacity: Rows held at most; the oldest leave first.

    Example:
        >>> storage = InMemoryStorage(max_capacity=100)
        >>> storage.size(), storage.get_all()
        (0, [])
    """

    def __init__(self, max_capacity: int = DEFAULT_CAPACITY) -> None:
        directory = temporary.new_directory()
        temporary.remove_with(self, directory)
        super().__init__(temporary.url_in(directory), max_capacity=max_capacity)
        # Registered later, so called earlier: the connections are closed before the file goes.
        Finalize(self, self.buffer.close, exitpriority=0)


class Sampler:
    """Chooses rows.

    Example:
        >>> class Latest(Sampler):
        ...     def sample(self, storage, batch_size, query_condition=None):
        ...         return storage.get_all(query_condition)[-batch_size:]
    """

    def sample(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[Any]:
        """Return up to `batch_size` of the rows that match.

        Raises:
            NotImplementedError: The subclass has no `sample`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define sample()")


class TaskSampler(Sampler, ABC):
    """Chooses tasks; all rows of a chosen task come back.

    Example:
        >>> class FirstTasks(TaskSampler):
        ...     def sample_task_ids(self, storage, batch_size, query_condition=None):
        ...         rows = storage.get_all(query_condition)
        ...         return list(dict.fromkeys(row.exp_meta.task_id for row in rows))[:batch_size]
    """

    @abstractmethod
    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return the ids of up to `batch_size` tasks with a row that matches."""

    def sample(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[Any]:
        """Return a list of tasks, each a list of rows in the order of `sorted_by_step`."""
        return list(self.sample_tasks(storage, batch_size, query_condition).values())

    def sample_tasks(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> dict[str, list[DataRow]]:
        """Return `{task_id: rows}`, each as `sorted_by_step`; ids without rows are left out."""
        task_ids = self.sample_task_ids(storage, batch_size, query_condition)
        rows_by_task = storage.get_bacth_by_task_ids(task_ids)
        return {
            task_id: self.sorted_by_step(rows) for task_id, rows in rows_by_task.items() if rows
        }

    def sorted_by_step(self, task_experience: list[DataRow]) -> list[DataRow]:
        """Return the rows in the order of (episode, step, execute_time); None comes first."""
        return sorted(task_experience, key=_task_order)


def _task_order(row: DataRow) -> tuple[Any, ...]:
    meta = row.exp_meta
    parts = (meta.episode_id, meta.step, meta.execute_time)
    return tuple((False, 0) if part is None else (True, part) for part in parts)


class RandomTaskSample(TaskSampler):
    """Draws distinct tasks uniformly, independent of their numbers of rows.

    Example:
        >>> from sqlbuffer.compat.aworld import ReplayBuffer
        >>> ReplayBuffer().sample_task(sampler=RandomTaskSample(), batch_size=2)
        []
    """

    def sample_task_ids(
        self, storage: Storage, batch_size: int, query_condition: Condition = None
    ) -> list[str]:
        """Return up to `batch_size` distinct task ids; all of them if there are no more.

        Raises:
            ValueError: The batch size is negative.
        """
        return storage.random_task_ids(batch_size, query_condition)


class ReplayBuffer:
    """Stores rows and samples them.

    Args:
        storage: Where the rows are. Without one and without a URL, in an `InMemoryStorage` of its
            own.
        url: Database URL, instead of a storage: the rows are those of `SQLStorage(url)`, shared and
            kept.

    Raises:
        ValueError: Both a storage and a URL.

    Example:
        >>> from sqlbuffer.compat.aworld import DataRow, Experience, ExpMeta, QueryBuilder
        >>> buffer = ReplayBuffer()
        >>> meta = ExpMeta("task_1", "search", "agent_1", 1, 1700000000.0, "agent_0")
        >>> buffer.store(DataRow(meta, Experience({"x": 1}, [0]))).inserted
        1
        >>> query = QueryBuilder().eq("exp_meta.task_id", "task_1").build()
        >>> tasks = buffer.sample_task(query_condition=query, batch_size=10)
        >>> [[row.exp_data.state for row in task] for task in tasks]
        [[{'x': 1}]]
    """

    def __init__(self, storage: Storage | None = None, *, url: str | None = None) -> None:
        if storage is not None and url is not None:
            raise ValueError("give storage=... or url=..., not both")
        if storage is None:
            storage = InMemoryStorage() if url is None else SQLStorage(url)
        self._storage = storage

    def store(self, data: DataRow) -> StoreResult | None:
        """Store one row.

        Raises:
            ValueError: No row.
        """
        if not data:
            raise ValueError("Data is required")
        return self._storage.add(data)

    def store_batch(self, data_batch: Sequence[DataRow]) -> StoreResult | None:
        """Store rows; without any, log a warning."""
        if not data_batch:
            logger.warning("Data batch is required")
            return None
        return self._storage.add_batch(data_batch)

    def sample_task(
        self,
        sampler: TaskSampler | None = None,
        query_condition: Condition = None,
        converter: Converter[Any] | None = None,
        batch_size: int = 1000,
    ) -> list[Any]:
        """Draw whole tasks.

        Args:
            sampler: Sampler that chooses the tasks; `RandomTaskSample()` by default.
            query_condition: Condition that a row of a task must match; all rows of the task are
                returned.
            converter: Converter that is called once for each task.
            batch_size: Number of tasks; if there are fewer, all are returned.

        Returns:
            A list of tasks, each a list of rows in order, or the converter's results.
        """
        sampler = RandomTaskSample() if sampler is None else sampler
        converter = DefaultConverter() if converter is None else converter
        tasks = sampler.sample_tasks(self._storage, batch_size, query_condition)
        return [converter.to_dataset_row(task) for task in tasks.values()]

    def sample(
        self,
        sampler: Sampler | None = None,
        query_condition: Condition = None,
        converter: Converter[Any] | None = None,
        batch_size: int = 1000,
    ) -> Any:
        """Draw a batch.

        Args:
            sampler: Sampler that chooses rows or tasks; `RandomTaskSample()` by default.
            query_condition: Condition that rows must match, or with a task sampler the tasks.
            converter: Converter that is called once, on the whole batch.
            batch_size: Number of rows, or of tasks with a task sampler.

        Returns:
            The sampled items, a list of tasks by default, or the converter's result.
        """
        sampler = RandomTaskSample() if sampler is None else sampler
        converter = DefaultConverter() if converter is None else converter
        return converter.to_dataset_row(sampler.sample(self._storage, batch_size, query_condition))
