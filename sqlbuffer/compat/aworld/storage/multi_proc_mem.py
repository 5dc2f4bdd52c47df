"""AWorld's storage that several processes share."""

from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from multiprocessing import current_process
from multiprocessing.managers import BaseProxy
from typing import Any

from sqlbuffer.compat.aworld import temporary
from sqlbuffer.compat.aworld.base import DEFAULT_CAPACITY, SQLStorage

_URL, _KEEPER = "sqlbuffer.url", "sqlbuffer.keeper"


class MultiProcMemoryStorage(SQLStorage):
    """Rows that every process with the same `data_dict` shares.

    They are in a temporary SQLite file. It is removed when the process that holds the dict ends:
    the manager's process for a proxy of `multiprocessing.Manager()`, this process for a plain dict.
    Child processes never remove it.

    Args:
        data_dict: Dict that names the file. The first storage that gets it empty makes the file.
            All storages of the same dict, in any process, have the same rows.
        fifo_queue: Not used: the database itself orders rows by age.
        lock: Lock that is held while the file is found or made. Later the database admits one
            writer at a time. It need not be reentrant.
        max_capacity: Largest number of rows, the same in every process; the oldest leave first.

    Raises:
        BufferConfigError: The rows are already stored with another capacity.

    Example:
        >>> import threading
        >>> shared = {}
        >>> storage = MultiProcMemoryStorage(shared, [], threading.Lock(), max_capacity=100)
        >>> storage.get_by_task_id("unknown")
        []
    """

    def __init__(
        self,
        data_dict: MutableMapping[str, Any],
        fifo_queue: Any,
        lock: AbstractContextManager[Any],
        max_capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        # Kept for its life, not its content: a manager ends when its last proxy goes.
        self._data_dict = data_dict
        with lock:
            url = data_dict.get(_URL) or _new_url(data_dict)
            super().__init__(url, max_capacity=max_capacity)


def _new_url(data_dict: MutableMapping[str, Any]) -> str:
    directory = temporary.new_directory()
    if isinstance(data_dict, BaseProxy):
        data_dict[_KEEPER] = _Keeper(directory)
    else:
        temporary.remove_with(None, directory)
    data_dict[_URL] = temporary.url_in(directory)
    return temporary.url_in(directory)


class _Keeper:
    """Removes the directory at the end of the manager's server process, once it was sent there."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # `multiprocessing.managers` sets it in a server; a process that only reads the dict has
        # none.
        if getattr(current_process(), "_manager_server", None) is not None:
            temporary.remove_with(None, self._directory)
