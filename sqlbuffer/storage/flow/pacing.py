"""Wait for the rate limiter of a buffer, and publish this process's sampled rows.

No counter is written by all processes. The inserted rows are the numbers that the buffer has given.
The sampled rows are the sum over one row for each process. Processes that read at the same time see
the same counts, so each may pass a limit by the batch that it has in flight.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from sqlbuffer.errors import FlowControlError, SQLBufferError, StorageReadOnlyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.rate_limits import FlowState, Policy, RatioWindow, Role
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.holders import new_name
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.transactions import is_joined, reading
from sqlbuffer.storage.dialects.connections import hurried, writing
from sqlbuffer.storage.flow import limiters
from sqlbuffer.storage.flow.limiters import FlowReading
from sqlbuffer.storage.flow.waiting_mark import WaitingMark
from sqlbuffer.waits import pause

T = TypeVar("T")


# Interval at which a waiting call reads the counts, first and at the end.
FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 0.05, 0.25, 1.05
# Interval at which a process without a limiter publishes its sampled rows, and checks for a
# limiter.
PUBLISH_S = 5.0
# Seconds to wait for other writers if a caller waits for the result.
ASKED_S = 1.0
TIDY_S = 600.0

_process_ends = threading.Event()


def let_in_at_end() -> None:
    """Make waiting writers of this process store without a wait, because the process ends."""
    _process_ends.set()


class Pacer:
    """Counts and waits for one opened buffer.

    Args:
        store: The buffer.
    """

    def __init__(self, store: OpenBuffer) -> None:
        self._store = store
        self._mutex = ForkLock()
        self._policy: Policy | None = store.info.config.flow.rate_limiter
        self._begin()

    def _begin(self) -> None:
        """Start with no counts, in a new process or a forked child."""
        self._pid = os.getpid()
        self._holder = new_name()
        self._rows = self._batches = self._correction = 0
        self._may_publish = True
        now = time.monotonic()
        self._published_at, self._tidied_at = now, now - TIDY_S

    @contextmanager
    def sampling(self, n: int, wait_s: float | None = None) -> Iterator[Callable[[int], None]]:
        """Wait until n rows may be sampled, and count them before they are returned.

        Args:
            n: Number of rows.
            wait_s: Maximum wait in seconds; None for the opener's.

        Yields:
            A function that takes the number of rows drawn; without a call the number is 0.

        Raises:
            FlowControlError: The rows may not be sampled in time.
        """
        limited = n > 0 and self.reserve(n, wait_s)
        drawn = 0

        def note(n_rows: int) -> None:
            nonlocal drawn
            drawn = n_rows

        try:
            yield note
        finally:
            if limited and drawn != n:
                self.correct(drawn - n)
            if drawn:
                self.note(drawn, 1)
                if time.monotonic() - self._published_at >= PUBLISH_S:
                    self.publish_counts()

    @property
    def is_limited(self) -> bool:
        """True if rows wait for a limiter, as far as this process knows."""
        return self._policy is not None

    def reserve(self, n: int, wait_s: float | None = None) -> bool:
        """Wait until n rows may be sampled, and count them; see `sampling`.

        Returns:
            True if they are counted; False if the buffer has no limit.
        """
        self._see_fork()
        return self._wait("sample", n, wait_s) is not None

    def give_back(self, n: int) -> None:
        """Undo the count of a batch of n rows that was not returned."""
        if self._policy is not None:
            self.correct(-n)
        self.note(-n, -1)

    def before_insert(self, n: int) -> None:
        """Wait until n rows may be inserted.

        Raises:
            FlowControlError: The rows may not be inserted in time.
        """
        self._see_fork()
        if n:
            self._look_sometimes()
            self._wait("insert", n)

    def admit(self, n: int, wait_s: float | None = None) -> int:
        """Wait until some of n rows may be inserted, and return how many.

        It is for callers that can store the others later. It waits for `wait_s` at most; None for
        the opener's wait.

        Raises:
            FlowControlError: No row may be inserted in time.
        """
        self._see_fork()
        self._look_sometimes()
        allowed = self._wait("insert", n, wait_s, partly=True)
        return n if allowed is None else allowed

    def state(self) -> FlowState:
        """Return the current state of the rate limiter."""
        self.publish_now()
        return self._retried(self._state)

    def publish_now(self) -> None:
        """Publish the sampled rows, for a caller that reads the counts next."""
        self._see_fork()
        self.publish_counts(ASKED_S)

    def publish_rest(self) -> None:
        """Publish the sampled rows that are not published yet, before the buffer is closed."""
        self._see_fork()
        self._published_at = time.monotonic()
        self._write_counts(ASKED_S)

    def _state(self) -> FlowState:
        store = self._store
        with translated(store.url), reading(store.engine) as connection:
            return limiters.state(connection, store.info.id)

    def set_policy(self, policy: Policy | None) -> None:
        """Set another policy, or none, for all processes of the buffer."""

        def change() -> None:
            store = self._store
            with (
                translated(store.url),
                writing(store.engine, store.options.durability) as connection,
            ):
                limiters.set_policy(connection, store.info.id, policy)

        self._retried(change)
        self._policy = policy

    def publish_counts(self, wait_s: float = 0.0) -> None:
        """Publish the rows sampled since the last time, unless that takes a longer wait."""
        self._published_at = time.monotonic()
        with suppress(SQLBufferError):
            self._policy = self._read().policy
        self._write_counts(wait_s)

    def _write_counts(self, wait_s: float) -> None:
        if not ((self._batches or self._rows) and self._may_publish):
            return
        with self._mutex:
            rows, batches, self._rows, self._batches = self._rows, self._batches, 0, 0
        try:
            self._write_sampled(rows, batches, wait_s)
        except BaseException as error:
            self.note(rows, batches)
            if not isinstance(error, SQLBufferError):
                raise
            # Busy or unreachable: try the next time.
            self._may_publish = not isinstance(error, StorageReadOnlyError)

    def note(self, rows: int, batches: int) -> None:
        """Count sampled rows and batches, for readers of the counts."""
        with self._mutex:
            self._rows, self._batches = self._rows + rows, self._batches + batches

    def _write_sampled(self, rows: int, batches: int, wait_s: float) -> None:
        store = self._store
        with (
            translated(store.url),
            hurried(store.engine, wait_s) as connection,
        ):
            limiters.add_sampled(connection, store.info.id, self._holder, rows, batches)
            if self._published_at - self._tidied_at >= TIDY_S:
                limiters.tidy(connection, store.info.id)
                self._tidied_at = self._published_at

    def _look_sometimes(self) -> None:
        """Check from time to time for a limiter that was set after the opening."""
        if self._policy is None and time.monotonic() - self._published_at >= PUBLISH_S:
            self.publish_counts()

    def _see_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _wait(
        self, role: Role, n: int, wait_s: float | None = None, *, partly: bool = False
    ) -> int | None:
        """Return how many rows may pass, after a wait if needed; None if there is no limit."""
        if self._policy is None:
            return None
        wait_s = self._store.options.wait_s if wait_s is None else wait_s
        wait_s = 0.0 if is_joined() else wait_s  # others may wait for the transaction
        deadline = time.monotonic() + wait_s
        mark = WaitingMark(self._holder, partial(self.write_mark, role, n), self.clear_mark)
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                allowed, reading = self._try(role, n, partly, is_first=not mark.is_set)
                self._policy = reading.policy
                if reading.policy is None:
                    return None
                if allowed or (partly and _process_ends.is_set()):
                    return allowed or n
                self._check_possible(reading, role, 1 if partly else n)
                now = time.monotonic()
                if now >= deadline:
                    raise FlowControlError(self._complaint(reading, role, n, wait_s))
                mark.beat()
                pause(min(pause_s, deadline - now))
                pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)
        finally:
            mark.clear()

    def _try(self, role: Role, n: int, partly: bool, *, is_first: bool) -> tuple[int, FlowReading]:
        """Return how many of n rows may pass, counted if needed; and the counts."""
        counted = role == "sample" or isinstance(self._policy, RatioWindow)
        if not (counted and is_first):  # the usual case: a read without a lock
            allowed, reading = self._retried(lambda: self._look(role, n, partly))
            if not (counted and allowed):
                return allowed, reading
        once: WriteOnce[tuple[int, FlowReading]] = self._store.once()
        with self._owing() as owed:
            return self._retried(lambda: self._take(once, role, n, partly, owed))

    def _look(self, role: Role, n: int, partly: bool) -> tuple[int, FlowReading]:
        reading = self._read()
        self._check_countable(reading)
        return reading.allowed(role, n, partly=partly), reading

    def _read(self) -> FlowReading:
        store = self._store
        with translated(store.url), reading(store.engine) as connection:
            return limiters.read(connection, store.info.id)

    def _take(
        self,
        once: WriteOnce[tuple[int, FlowReading]],
        role: Role,
        n: int,
        partly: bool,
        owed: int,
    ) -> tuple[int, FlowReading]:
        store = self._store

        def work(connection: Connection) -> tuple[int, FlowReading]:
            reading = limiters.read(connection, store.info.id)
            allowed = reading.allowed(role, n, partly=partly)
            if reading.policy is not None:
                self._count(connection, reading.policy, role, allowed, owed)
            return allowed, reading

        try:
            return once.run(store.engine, "relaxed", work)
        except StorageReadOnlyError:
            self._check_countable(self._read())
            raise

    def _count(self, connection: Connection, policy: Policy, role: Role, n: int, owed: int) -> None:
        """Count n rows, and the samples that are not published yet."""
        buffer_id = self._store.info.id
        sampled = owed + (n if role == "sample" else 0)
        if not (sampled or n):
            return
        limiters.add_limited(connection, buffer_id, self._holder, sampled)
        if isinstance(policy, RatioWindow):
            pushed = n if role == "insert" else 0
            limiters.add_decayed(connection, buffer_id, self._holder, policy, pushed, sampled)

    @contextmanager
    def _owing(self) -> Iterator[int]:
        """Take the samples that are not published yet; they are kept if the block fails."""
        with self._mutex:
            owed, self._correction = self._correction, 0
        try:
            yield owed
        except BaseException:
            with self._mutex:
                self._correction += owed
            raise

    def correct(self, n: int) -> None:
        """Count n more rows than were allowed, or fewer if n is negative."""
        with self._mutex:
            self._correction += n
        # If this fails, the next batch counts it.
        with suppress(SQLBufferError), self._owing() as owed:
            self._take(self._store.once(), "insert", 0, partly=False, owed=owed)

    def _check_countable(self, reading: FlowReading) -> None:
        if reading.policy is not None and reading.on_standby:
            raise StorageReadOnlyError(
                f"buffer {self._store.info.name!r} has a rate limiter ({reading.policy}), and the "
                f"server is a standby, where rows cannot be counted; store and sample on the "
                f"primary, or remove the limiter there (set_rate_limiter(None))"
            )

    def _check_possible(self, reading: FlowReading, role: Role, n: int) -> None:
        assert reading.policy is not None
        refusal = reading.policy.refusal(reading.counts, role, n)
        if refusal is not None:
            raise FlowControlError(f"buffer {self._store.info.name!r}: {refusal}")

    def _complaint(self, reading: FlowReading, role: Role, n: int, wait_s: float) -> str:
        behind, remedy = (
            ("collectors are", "add collectors")
            if role == "sample"
            else ("learners are", "add learners")
        )
        if n > 1:
            remedy += f", {'sample' if role == 'sample' else 'store'} fewer rows in one call"
        done, waited = ("sampled", "sample") if role == "sample" else ("inserted", "store")
        when = f"within {wait_s:g} s" if wait_s else "now"
        counts = f"{reading.inserted:,} rows inserted and {reading.sampled:,} sampled"
        if isinstance(reading.policy, RatioWindow):
            left = reading.counts
            counts += f" (of which {left.inserted:.1f} and {left.sampled:.1f} still count)"
        return (
            f"buffer {self._store.info.name!r}: {n:,} rows may not be {done} {when}: the {behind} "
            f"behind, with {counts} under {reading.policy}; {remedy}, wait longer (wait_s), or "
            f"change the limiter (set_rate_limiter); buffer.flow() shows who waits to {waited}"
        )

    def _retried(self, work: Callable[[], T]) -> T:
        store = self._store
        return retried(work, store.options.retry_s, store.forget_connections)

    def write_mark(self, role: Role, n: int, holder: str) -> None:
        """Store that a call waits, or that it still does."""
        store = self._store
        with (
            suppress(SQLBufferError),
            translated(store.url),
            hurried(store.engine, ASKED_S) as connection,
        ):
            limiters.mark_waiting(connection, store.info.id, holder, self._pid, role, n)

    def clear_mark(self, holder: str) -> None:
        """Store that a call waits no longer; otherwise its mark expires."""
        store = self._store
        with (
            suppress(SQLBufferError),
            translated(store.url),
            writing(store.engine, "relaxed") as connection,
        ):
            limiters.clear_waiting(connection, store.info.id, holder)
