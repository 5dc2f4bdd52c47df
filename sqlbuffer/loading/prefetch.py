"""Making things ahead of their use, in a thread."""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextvars import copy_context
from typing import Generic, TypeVar

T = TypeVar("T")

# Seconds that leaving a loop waits for the item that the thread has begun.
LEAVING_S = 5.0


class _Channel(Generic[T]):
    """A queue of made items between the thread that makes them and the thread that takes them."""

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._size, self._is_closed, self._is_finished = size, False, False
        self._error: BaseException | None = None

    def wait_for_room(self) -> bool:
        """Wait until another one may be made; False: none is wanted any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._made) < self._size)
            return not self._is_closed

    def put(self, item: T) -> None:
        with self._changed:
            self._made.append(item)
            self._changed.notify_all()

    def finish(self, error: BaseException | None = None) -> None:
        with self._changed:
            self._is_finished, self._error = True, error
            self._changed.notify_all()

    def take(self) -> tuple[T] | None:
        """Return the next one, or None after the last.

        Raises:
            BaseException: The exception that the maker raised.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._is_finished)
            if self._made:
                item = self._made.popleft()
                self._changed.notify_all()
                return (item,)
            if self._error is not None:
                raise self._error
            return None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._made.clear()
            self._changed.notify_all()


def prefetched(items: Callable[[], Iterator[T]], ahead: int) -> Generator[T, None, None]:
    """Yield the items of an iterator that a thread advances up to `ahead` items further.

    The thread starts when the first item is taken. It ends when the generator is closed: at the end
    of its items, by an exception, by a loop that is left early, or by the garbage collector.
    """
    channel: _Channel[T] = _Channel(ahead)
    pid = os.getpid()
    thread = threading.Thread(
        target=copy_context().run,
        args=(_fill, channel, items),
        name="sqlbuffer-prefetch",
        daemon=True,
    )
    thread.start()
    try:
        while True:
            if os.getpid() != pid:
                raise RuntimeError(
                    "a loop over prefetched batches continues only in the process that began it; "
                    "begin another one after the fork"
                )
            taken = channel.take()
            if taken is None:
                return
            yield taken[0]
    finally:
        if os.getpid() == pid:  # or the lock may be held by a thread that is not there
            channel.close()
            if thread is not threading.current_thread():
                thread.join(LEAVING_S)


def _fill(channel: _Channel[T], items: Callable[[], Iterator[T]]) -> None:
    try:
        made = items()
        while channel.wait_for_room():
            try:
                item = next(made)
            except StopIteration:
                break
            channel.put(item)
            del item  # or it would live until the next one is made
        channel.finish()
    except BaseException as error:
        channel.finish(error)
