"""AWorld's default storage: private, and removed with its owner."""

from multiprocessing.util import Finalize

from sqlbuffer.compat.aworld.storage import temporary
from sqlbuffer.compat.aworld.storage.sql import DEFAULT_CAPACITY, SQLStorage


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
