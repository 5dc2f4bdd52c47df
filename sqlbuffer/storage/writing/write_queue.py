"""Steps of open episodes on their way to the database."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakSet

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import EpisodeExistsError, SQLBufferError
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.database.process_end import at_process_end
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.flow.pacing import let_in_at_end
from sqlbuffer.storage.writing.write_batch import WriteBatch
from sqlbuffer.waits import held

logger = logging.getLogger("sqlbuffer")

# A time that the library made is no content: it makes no conflict.
MADE_TIME = frozenset(("execute_time",))
# A thread with nothing to do stays for so long.
IDLE_S = 1.0
# A batch is stored when it has so many rows or bytes.
FLUSH_ROWS, FLUSH_BYTES = 1_000, 8 * 2**20
# So much may wait behind a slow database; then `add` waits as well.
MAX_ROWS, MAX_BYTES = 10_000, 64 * 2**20

# Stores a batch in one transaction.
Write = Callable[[WriteBatch], StoreResult]
# Waits until some of so many rows may be stored; returns how many.
Admit = Callable[[int], int]


def admit_all(n: int) -> int:
    """Let all rows in."""
    return n


class WriteQueue:
    """Gathers steps and stores them in batches, in the order in which they came: when there are
    enough, and never later than `flush_s` after the first, from a thread that ends with the work.

    What could not be stored stays here and is tried again: a batch that was sent twice is stored
    once.

    Args:
        write: Stores a batch.
        flush_s: How long a step waits at most, unless a rate limiter keeps it waiting.
        admit: The buffer's rate limiter.
    """

    def __init__(self, write: Write, flush_s: float, admit: Admit = admit_all) -> None:
        self._write, self._flush_s, self._admit = write, flush_s, admit
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Be empty: in a forked child, whose parent stores what it has itself."""
        self._mutex = threading.Condition()
        self._writing = threading.Lock()
        self._records: list[Record] = []
        self._endings: list[EpisodeEnd] = []
        self._metas: dict[EpisodeKey, str] = {}
        # The first and the last step of each open episode that are stored.
        self._spans: dict[EpisodeKey, dict[str, int]] = {}
        self._size_bytes = 0
        self._due, self._not_before = float("inf"), 0.0
        self._thread: threading.Thread | None = None
        self._error: SQLBufferError | None = None

    @property
    def n_waiting(self) -> int:
        """How many steps wait."""
        return len(self._records)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._records or self._endings)

    def add(self, record: Record, meta: str | None = None) -> None:
        """Take a step; waits for the database when too many are waiting.

        Args:
            record: The step.
            meta: With the first step of an episode without a row, what the user says of it.

        Raises:
            SQLBufferError: Earlier steps could not be stored since the last call. They wait, and
                this one was not taken.
        """
        with self._mutex:
            self._raise_error()
            self._take(record, meta)
            n_rows, size_bytes = len(self._records), self._size_bytes
            self._ensure_thread()
            if n_rows == FLUSH_ROWS or size_bytes > FLUSH_BYTES:
                self._mutex.notify()
        if n_rows >= MAX_ROWS or size_bytes >= MAX_BYTES:
            self.flush()

    def end(self, ending: EpisodeEnd, last: Record | None = None, meta: str | None = None) -> None:
        """Take the end of an episode, with its last step unless that was added; nothing of the
        database keeps it from being taken.
        """
        with self._mutex:
            if last is not None:
                self._take(last, meta)
            self._endings.append(ending)
            self._ensure_thread()

    def _take(self, record: Record, meta: str | None) -> None:
        self._records.append(record)
        self._size_bytes += len(record.arrays or b"")
        if meta is not None and record.episode_key is not None:
            self._metas[record.episode_key, record.task_id] = meta

    def flush(self, admit: Admit | None = None) -> None:
        """Store all that waits.

        Args:
            admit: Used instead of the buffer's rate limiter.

        Raises:
            SQLBufferError: It could not be stored, and waits.
            EpisodeExistsError: Another writer has stored steps under the same ids; those of this
                one are dropped.
        """
        with held(self._writing):
            with self._mutex:
                records, endings, metas = self._records, self._endings, dict(self._metas)
                size_bytes, self._size_bytes = self._size_bytes, 0
                self._records, self._endings, self._due = [], [], float("inf")
                self._error = None
            if not records and not endings:
                return
            conflicts: list[str] = []
            try:
                while records or endings:
                    n = (admit or self._admit)(len(records)) if records else 0
                    ended = endings if n == len(records) else []
                    conflicts += self._store(records[:n], ended, metas)
                    size_bytes -= sum(len(record.arrays or b"") for record in records[:n])
                    records, endings = records[n:], [] if ended else endings
            except BaseException:
                with self._mutex:
                    self._records[:0], self._endings[:0] = records, endings
                    self._size_bytes += size_bytes
                    self._ensure_thread()
                raise
            if conflicts:
                raise EpisodeExistsError(
                    f"{len(conflicts)} steps are not stored, the buffer holds others under their "
                    f"ids: {', '.join(conflicts[:3])}; another writer has the same episode"
                )

    def _store(
        self,
        records: Sequence[Record],
        endings: Sequence[EpisodeEnd],
        metas: Mapping[EpisodeKey, str],
    ) -> Sequence[str]:
        """Store a batch; return the ids of steps that are not stored, and never will be."""
        ended = [self._resolved(ending) for ending in endings]
        written = self._write(WriteBatch(records, MADE_TIME, ended, metas))
        for record, seq in zip(records, written.seqs.tolist(), strict=True):
            if seq >= 0 and record.episode_key is not None:
                key = (record.episode_key, record.task_id)
                first = next(iter(self._spans.get(key, {record.id: seq}).items()))
                self._spans[key] = dict([first, (record.id, seq)])
                self._metas.pop(key, None)
        for ending in endings:
            self._spans.pop((ending.key, ending.task_id), None)
        with self._mutex:
            self._mutex.notify()  # the thread waited for what is stored now
        return written.conflicting_ids

    def _resolved(self, ending: EpisodeEnd) -> EpisodeEnd:
        """Fill in the numbers of steps that were stored in earlier batches."""
        known = self._spans.get((ending.key, ending.task_id), {})
        first, last = (known.get(str(step), step) for step in (ending.first, ending.last))
        return replace(ending, first=first, last=last)

    def _ensure_thread(self) -> None:
        """Have a thread store what waits in time. (The caller holds the mutex.)"""
        if self._due == float("inf"):
            self._due = time.monotonic() + self._flush_s
        if self._thread is None:
            at_process_end(_flush_all)
            self._thread = threading.Thread(target=self._run, name="sqlbuffer-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process ends: it flushes by itself
                self._thread = None

    def _run(self) -> None:
        while self._wait():
            try:
                self.flush()
            except SQLBufferError as error:
                logger.warning("%d steps could not be stored yet: %s", self.n_waiting, error)
                with self._mutex:
                    self._error = error
                    self._not_before = time.monotonic() + self._flush_s
            except BaseException:
                with self._mutex:
                    self._thread = None
                raise

    def _wait(self) -> bool:
        """Wait until it is time to store; False when there has been nothing for a while."""
        with self._mutex:
            idle_until = time.monotonic() + IDLE_S
            while True:
                now = time.monotonic()
                is_full = len(self._records) >= FLUSH_ROWS or self._size_bytes > FLUSH_BYTES
                due = max(now if is_full else self._due, self._not_before)
                if due <= now:
                    return True
                if not self.is_empty:
                    idle_until = now + IDLE_S
                elif now >= idle_until:
                    self._thread = None
                    return False
                self._mutex.wait(min(due, idle_until) - now if self.is_empty else due - now)

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error


_queues: "WeakSet[WriteQueue]" = WeakSet()


def _flush_all() -> None:
    let_in_at_end()  # a thread that waits for a limiter holds a queue
    for queue in list(_queues):
        try:
            # Nobody comes back for what a limiter keeps out now.
            queue.flush(admit_all)
        except SQLBufferError as error:
            logger.error("lost at the end: %d waiting step(s): %s", queue.n_waiting, error)


def _forget_all() -> None:
    for queue in list(_queues):
        queue.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
