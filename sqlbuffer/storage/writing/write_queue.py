"""Steps of open episodes on their way to the database."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.errors import EpisodeExistsError, FlowControlError, SQLBufferError
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.database.process_end import at_process_end
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.flow.pacing import let_in_at_end
from sqlbuffer.waits import held

logger = logging.getLogger("sqlbuffer")

# A thread with nothing to do stays for so long.
IDLE_S = 1.0
# How often a reader looks whether the thread that stores waits for the rate limiter.
_LOOK_S = 0.01
# A batch is stored when it has so many steps or bytes.
FLUSH_ROWS, FLUSH_BYTES = 1_024, 8 * 2**20
# So much may wait behind a slow database; then `add` waits as well.
MAX_ROWS, MAX_BYTES = 10_000, 64 * 2**20


class QueuedStep(Protocol):
    """A step of an episode: a row, or a step on its way to a chunk."""

    @property
    def episode_key(self) -> str | None:
        """The user's id of the episode."""

    @property
    def task_id(self) -> str:
        """The task."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def n_bytes(self) -> int:
        """Bytes that wait with it."""


S = TypeVar("S", bound=QueuedStep)
B = TypeVar("B")

# Makes a batch of steps, of endings, and of what the user says of episodes.
Pack = Callable[[Sequence[S], Sequence[EpisodeEnd], Mapping[EpisodeKey, str]], B]
# Stores a batch in one transaction; returns the numbers of its steps in their order.
Write = Callable[[B], StoreResult]
# Waits until some of so many rows may be stored; returns how many.
Admit = Callable[[int], int]


def admit_all(n: int) -> int:
    """Let all rows in."""
    return n


@dataclass(frozen=True)
class _Frozen(Generic[S, B]):
    """A batch that was packed, and the steps and endings in it."""

    batch: B
    steps: Sequence[S]
    endings: Sequence[EpisodeEnd]


class WriteQueue(Generic[S, B]):
    """Gathers steps and stores them in batches, in the order in which they came: when there are
    enough, and never later than `flush_s` after the first, from a thread that ends with the work.

    What could not be stored stays here and is tried again. A batch that was packed is sent as it is
    until the database has acknowledged it, so it is stored once; later steps go into later batches.

    Args:
        pack: Makes a batch of steps that may be stored now.
        write: Stores a batch.
        flush_s: How long a step waits at most, unless a rate limiter keeps it waiting.
        admit: The buffer's rate limiter.
        admit_now: The same without a wait.
    """

    def __init__(
        self,
        pack: Pack[S, B],
        write: Write[B],
        flush_s: float,
        admit: Admit = admit_all,
        admit_now: Admit = admit_all,
    ) -> None:
        self._pack, self._write, self._flush_s = pack, write, flush_s
        self._admit, self._admit_now = admit, admit_now
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Be empty: in a forked child, whose parent stores what it has itself."""
        self._mutex = threading.Condition()
        self._writing = threading.Lock()
        self._steps: list[S] = []
        self._endings: list[EpisodeEnd] = []
        self._metas: dict[EpisodeKey, str] = {}
        # The first and the last step of each open episode that are stored.
        self._spans: dict[EpisodeKey, dict[str, int]] = {}
        self._frozen: _Frozen[S, B] | None = None
        self._size_bytes = self._frozen_bytes = 0
        self._due, self._not_before = float("inf"), 0.0
        self._thread: threading.Thread | None = None
        self._error: SQLBufferError | None = None
        self._is_held_back = False  # the rate limiter lets nothing through now

    @property
    def n_waiting(self) -> int:
        """How many steps wait."""
        frozen = self._frozen
        return len(self._steps) + (0 if frozen is None else len(frozen.steps))

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._steps or self._endings or self._frozen)

    def add(self, step: S, meta: str | None = None) -> None:
        """Take a step; waits for the database when too many are waiting.

        Args:
            step: The step.
            meta: With the first step of an episode without a row, what the user says of it.

        Raises:
            SQLBufferError: Earlier steps could not be stored since the last call. They wait, and
                this one was not taken.
        """
        if self.take(step, meta):
            self.flush()

    def take(self, step: S, meta: str | None = None) -> bool:
        """Take a step, and return True if too many are waiting: then `flush` is to be called.

        Args:
            step: The step.
            meta: See `add`.

        Raises:
            SQLBufferError: As `add`; this step was not taken.
        """
        with self._mutex:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._take(step, meta)
            n_steps, size_bytes = len(self._steps), self._size_bytes
            self._ensure_thread()
            if n_steps == FLUSH_ROWS or size_bytes > FLUSH_BYTES:
                self._mutex.notify()
        return self.n_waiting >= MAX_ROWS or size_bytes + self._frozen_bytes >= MAX_BYTES

    def end(self, ending: EpisodeEnd, last: S | None = None, meta: str | None = None) -> None:
        """Take the end of an episode, with its last step unless that was added; nothing of the
        database keeps it from being taken.
        """
        with self._mutex:
            if last is not None:
                self._take(last, meta)
            self._endings.append(ending)
            self._ensure_thread()

    def _take(self, step: S, meta: str | None) -> None:
        self._steps.append(step)
        self._size_bytes += step.n_bytes
        if meta is not None and step.episode_key is not None:
            self._metas[step.episode_key, step.task_id] = meta

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
            self._flush(admit or self._admit)

    def store_now(self) -> None:
        """Store what waits, as far as the rate limiter lets it through at once.

        A reader calls this: what cannot be stored waits on, and the next call of a writer raises.
        """
        while not self._writing.acquire(timeout=_LOOK_S):
            if self._is_held_back:
                return
        try:
            self._flush(self._admit_now)
        except FlowControlError:
            return
        except SQLBufferError as error:
            self._note(error)
        finally:
            self._writing.release()

    def _flush(self, admit: Admit) -> None:
        """Store all that waits. (The caller holds the lock of the writing.)"""
        with self._mutex:
            steps, endings = self._steps, self._endings
            size_bytes, self._size_bytes = self._size_bytes, 0
            self._steps, self._endings, self._due = [], [], float("inf")
            self._error = None
        conflicts: list[str] = []
        try:
            conflicts += self._store_frozen()
            while steps or endings:
                n = self._admitted(admit, len(steps)) if steps else 0
                ended = endings if n == len(steps) else []
                size_bytes -= self._freeze(steps[:n], ended)
                steps, endings = steps[n:], [] if ended else endings
                conflicts += self._store_frozen()
        except BaseException:
            with self._mutex:
                self._steps[:0], self._endings[:0] = steps, endings
                self._size_bytes += size_bytes
                self._ensure_thread()
            raise
        if conflicts:
            raise EpisodeExistsError(
                f"{len(conflicts)} steps are not stored, the buffer holds others under their "
                f"ids: {', '.join(conflicts[:3])}; another writer has the same episode"
            )

    def _admitted(self, admit: Admit, n: int) -> int:
        """Return how many of n steps the rate limiter lets through."""
        self._is_held_back = True
        try:
            return admit(n)
        finally:
            self._is_held_back = False

    def _freeze(self, steps: Sequence[S], endings: Sequence[EpisodeEnd]) -> int:
        """Pack steps, which are sent like this until they are stored; return their bytes."""
        with self._mutex:
            metas = dict(self._metas)
        batch = self._pack(steps, [self._resolved(ending) for ending in endings], metas)
        self._frozen_bytes = sum(step.n_bytes for step in steps)
        self._frozen = _Frozen(batch, steps, endings)
        return self._frozen_bytes

    def _store_frozen(self) -> Sequence[str]:
        """Store the batch that is packed; return the ids of steps that never will be stored."""
        frozen = self._frozen
        if frozen is None:
            return ()
        written = self._write(frozen.batch)
        self._frozen, self._frozen_bytes = None, 0
        seqs = written.seqs.tolist()
        for key, places in _ends(frozen.steps, seqs).items():
            known = self._spans.get(key)
            if known is None:
                self._metas.pop(key, None)
            numbers = [(frozen.steps[i].id, seqs[i]) for i in places]
            self._spans[key] = dict([next(iter((known or dict(numbers)).items())), numbers[1]])
        for ending in frozen.endings:
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
                self._note(error)
            except BaseException:
                with self._mutex:
                    self._thread = None
                raise

    def _note(self, error: SQLBufferError) -> None:
        """Tell of what could not be stored, here and in the next call of a writer."""
        logger.warning("%d steps could not be stored yet: %s", self.n_waiting, error)
        with self._mutex:
            self._error = error
            self._not_before = time.monotonic() + self._flush_s

    def _wait(self) -> bool:
        """Wait until it is time to store; False when there has been nothing for a while."""
        with self._mutex:
            idle_until = time.monotonic() + IDLE_S
            while True:
                now = time.monotonic()
                is_full = len(self._steps) >= FLUSH_ROWS or self._size_bytes > FLUSH_BYTES
                due = max(now if is_full else self._due, self._not_before)
                if due <= now:
                    return True
                is_idle = due == float("inf")
                if not is_idle:
                    idle_until = now + IDLE_S
                elif now >= idle_until:
                    self._thread = None
                    return False
                self._mutex.wait((idle_until if is_idle else due) - now)


def _ends(steps: Sequence[QueuedStep], seqs: Sequence[int]) -> dict[EpisodeKey, tuple[int, int]]:
    """Return for each episode the places of the first and the last step that have a number."""
    found: dict[EpisodeKey, tuple[int, int]] = {}
    # A buffer that was dropped has no numbers.
    for i, (step, seq) in enumerate(zip(steps, seqs, strict=False)):
        if seq >= 0 and step.episode_key is not None:
            key = (step.episode_key, step.task_id)
            found[key] = (found[key][0] if key in found else i, i)
    return found


_queues: "WeakSet[WriteQueue[Any, Any]]" = WeakSet()


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
