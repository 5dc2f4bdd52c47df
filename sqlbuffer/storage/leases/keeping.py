"""A buffer whose rows are leased."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.buffers.buffer_window import SampledWindow, select_sampled_window
from sqlbuffer.storage.buffers.open_buffer import text_of
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.dialects.connections import claiming
from sqlbuffer.storage.flow.pacing import Pacer
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.schema.server_clock import is_past
from sqlbuffer.storage.use_counts.counted_buffer import CountedBuffer

T = TypeVar("T")


@dataclass
class Ledger:
    """What one process remembers of leases between calls: those that it has ended, whose rows it
    can delete.
    """

    done: list[str] = field(default_factory=list)
    cleaned_at: float = 0.0
    clock_checked_at: float = -math.inf


class LeaseKeeping(CountedBuffer):
    """A buffer whose rows are leased.

    Attributes:
        ledger: What this process remembers of leases between calls.
        pacer: The buffer's rate limiter.
        remove_expired_if_due: Lets rows leave that may never be sampled again, when it is time.
    """

    ledger: Ledger
    pacer: Pacer
    remove_expired_if_due: Callable[[], None]

    @property
    def epoch(self) -> int:
        """That of the server; see `begin_epoch`."""
        return server_epoch(self.engine)

    @cached_property
    def _window_and_first(self) -> str:
        queue = queue_items.c
        first = select(func.min(queue.seq)).where(queue.buffer_id == self.info.id)
        window = select_sampled_window(self.info.id, self.info.evict_by)
        return text_of(window.add_columns(first.scalar_subquery()), self.engine)

    @contextmanager
    def claiming(self, *, with_first: bool = False) -> Iterator[Connection]:
        """A transaction that claims rows, begun with a look at the window, and behind it at the
        first row of the queue where that is asked for.

        It does not wait for the disk: where a server that dies forgets a claim, its rows are free,
        and its acknowledgement is refused.
        """
        query = self._window_and_first if with_first else self._sampled_window
        with claiming(self.engine, "relaxed", query) as connection:
            yield connection

    def window_answered(self, found: Sequence[Any]) -> SampledWindow:
        """Return the window that a select of it found.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        if not found:
            raise self._dropped()
        return SampledWindow(*found[0])

    def lower_end(self, connection: Connection) -> int:
        """Return the number up to which rows have left."""
        return self._window(connection).low

    def with_retries(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, called anew after a lost connection."""
        return retried(work, self.options.retry_s, self.forget_connections)

    def check_sampled(self) -> None:
        """Raise where rows are handed out by leases alone.

        Raises:
            BufferConfigError: Their uses are limited, and counted as leases are acknowledged.
        """
        if self.info.leases and self.info.max_use is not None:
            raise BufferConfigError(
                f"buffer {self.info.name!r} hands out its rows by lease(), which counts their uses "
                f"(leases=True with max_use={self.info.max_use}); use buffer.lease(n), or a buffer "
                f"without max_use"
            )


def not_leased(buffer_id: int) -> Any:
    """Return the expression for a row of `experiences` that nobody holds."""
    own = queue_items.c
    held = select(1).where(
        own.buffer_id == buffer_id, own.seq == experiences.c.seq, ~is_past(own.leased_until)
    )
    return ~held.correlate(experiences).offset(0).exists()
