"""The interface of a storage."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from sqlbuffer.arguments import Condition
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.steps.store_result import StoreResult


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
