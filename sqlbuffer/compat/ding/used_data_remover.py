"""Removes the files of items that are no longer used."""

import contextlib
import logging
import os
import queue
import threading
from typing import Any

logger = logging.getLogger("sqlbuffer")


class UsedDataRemover:
    """Deletes the files that used items name, in a separate thread.

    In DI-engine's parallel mode an item's payload is a file, and the item a dict whose `data_id` is
    the path.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp()) / "payload"
        >>> _ = path.write_bytes(b"123")
        >>> remover = UsedDataRemover()
        >>> remover.start()
        >>> remover.add_used_data({"data_id": str(path)})
        >>> remover.close()
        >>> path.exists()
        False
    """

    def __init__(self) -> None:
        self._paths: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: It runs already.
        """
        if self._thread is not None:
            raise RuntimeError("the remover runs already; close it before it is started again")
        self._thread = threading.Thread(
            target=self._run, name="sqlbuffer-used-data-remover", daemon=True
        )
        self._thread.start()

    def add_used_data(self, data: Any) -> None:
        """Mark the file of an item for deletion, by the thread or by `close`.

        Raises:
            AssertionError: The item is not a dict with a `data_id`.
        """
        if not isinstance(data, dict) or "data_id" not in data:
            raise AssertionError(f"a used item is a dict with 'data_id', got {data!r:.200}")
        self._paths.put(data["data_id"])

    def close(self) -> None:
        """Delete the files of all items that were added, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._paths.put(None)
            thread.join()
        with contextlib.suppress(queue.Empty):
            while True:
                _remove(self._paths.get_nowait())

    def _run(self) -> None:
        while (path := self._paths.get()) is not None:
            _remove(path)


def _remove(path: Any) -> None:
    if path is None:
        return
    try:
        os.remove(path)
    except FileNotFoundError:
        pass
    except (OSError, TypeError, ValueError) as error:
        logger.warning("the file %r of a used item is not removed: %s", path, error)
