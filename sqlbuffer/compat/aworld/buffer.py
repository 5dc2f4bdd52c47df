"""`ReplayBuffer` with AWorld's calls."""

import logging
from collections.abc import Sequence
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.compat.aworld.samplers import RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.compat.aworld.storage.base import Storage
from sqlbuffer.compat.aworld.storage.in_memory import InMemoryStorage
from sqlbuffer.compat.aworld.storage.sql import SQLStorage
from sqlbuffer.front.converters import Converter, DefaultConverter
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.store_result import StoreResult

logger = logging.getLogger("sqlbuffer")


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
