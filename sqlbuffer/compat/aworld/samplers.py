"""AWorld's samplers of rows and of whole tasks."""

from abc import ABC, abstractmethod
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.compat.aworld.storage.base import Storage
from sqlbuffer.steps.data_rows import DataRow


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
        found = storage.get_bacth_by_task_ids(task_ids)
        return {task_id: self.sorted_by_step(rows) for task_id, rows in found.items() if rows}

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
