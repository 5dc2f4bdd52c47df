"""A buffer whose rows are leased."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection, func, select

from sqlbuffer.storage.buffers.buffer_window import select_sampled_window
from sqlbuffer.storage.dialects.connections import claiming
from sqlbuffer.storage.leases.tables import queue_items
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.schema.server_clock import is_past
from sqlbuffer.storage.use_counts.sampling_session import SamplingSessions

T = TypeVar("T")


@dataclass
class Ledger:
    """The leases that one process has ended, so that a later call can delete their rows."""

    done: list[str] = field(default_factory=list)
    cleaned_at: float = 0.0
    clock_checked_at: float = -math.inf


class LeaseKeeping:
    """Leases the rows of a buffer.

    Args:
        source: Opens the rows of the buffer.
        sessions: Waits for the rate limiter, and counts and logs the claimed rows.
        remove_expired: Function that removes rows that may never be sampled again, if it is time.

    Attributes:
        ledger: Leases that this process has ended.
        reading: Reads rows, without their parts.
    """

    def __init__(
        self,
        source: CandidateSource,
        sessions: SamplingSessions,
        remove_expired: Callable[[], None],
    ) -> None:
        self.buffer, self.restrictions = source.buffer, source.restrictions
        self.source, self.sessions = source, sessions
        self.reading = replace(source.whole_rows.reading, complete=None)
        self.remove_expired = remove_expired
        self.ledger = Ledger()

    @cached_property
    def _window_and_first(self) -> str:
        info, queue = self.buffer.info, queue_items.c
        first = select(func.min(queue.seq)).where(queue.buffer_id == info.id)
        window = select_sampled_window(info.id, info.config.retention.evict_by, steps_of(info))
        return self.buffer.text_of(window.add_columns(first.scalar_subquery()))

    @contextmanager
    def claiming(self, *, with_first: bool = False) -> Iterator[Connection]:
        """Begin a transaction that claims rows and first reads the window.

        With `with_first` it also reads the first row of the queue. It does not wait for the disk:
        if a server crash loses a claim, its rows are free, and its acknowledgement is refused.
        """
        query = self._window_and_first if with_first else self.source.window_query
        with claiming(self.buffer.engine, "relaxed", query) as connection:
            yield connection


def not_leased(buffer_id: int, steps: Any) -> Any:
    """Return the expression for a step of a table of steps without a lease."""
    own = queue_items.c
    held = select(1).where(
        own.buffer_id == buffer_id, own.seq == steps.c.seq, ~is_past(own.leased_until)
    )
    return ~held.correlate(steps).offset(0).exists()
