"""Steps of this process that wait to be stored with their neighbours."""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar
from weakref import WeakSet

from sqlbuffer.config import MAX_PENDING
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.errors import (
    EpisodeExistsError,
    EpisodeRefusedError,
    EpisodeTakenError,
    FlowControlError,
    SQLBufferError,
)
from sqlbuffer.processes import at_process_end
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.buffers.writes import WriteOnce
from sqlbuffer.storage.episodes import Beginnings, EpisodeKey
from sqlbuffer.storage.flow import let_in_at_end
from sqlbuffer.waits import holding_lock, pause

logger = logging.getLogger("sqlbuffer")

# Seconds after which a thread without work ends.
IDLE_S = 1.0
# Interval at which a reader checks if the storing thread waits for the rate limiter.
_LOOK_S = 0.01
# Interval at which a writer that waits for room checks if another one still stores.
_STALL_S = 0.1
# A batch is stored when it has half of the steps that may wait, or this many of either.
FLUSH_ROWS, FLUSH_BYTES = 1_024, 8 * 2**20
# This many bytes may wait for a slow database or a rate limiter; then `add` waits as well.
MAX_BYTES = 64 * 2**20
# Writers whose refusal is kept, for their next call.
MOST_REFUSALS = 10_000


class QueuedSteps(Protocol):
    """A row, a step that will be part of a chunk, or a block of such steps."""

    @property
    def n_steps(self) -> int:
        """Number of steps."""

    @property
    def n_bytes(self) -> int:
        """Size of their waiting bytes."""

    @property
    def episodes(self) -> Collection[EpisodeKey]:
        """The episodes of the steps."""

    def without(self, episodes: AbstractSet[EpisodeKey]) -> Self | None:
        """Return the steps of other episodes; None if there are none."""

    def split(self, n_steps: int) -> tuple[Self, Self]:
        """Return the first steps of a block, and the others."""


class GrowingSteps(Protocol):
    """A block to whose end its writer adds rows while it waits.

    Attributes:
        row_steps: Number of steps of a row.
        row_bytes: Size of their bytes.
        n_rows: Number of rows; only the queue adds one.
    """

    row_steps: int
    row_bytes: int
    n_rows: int


S = TypeVar("S", bound=QueuedSteps)
B = TypeVar("B")

# Makes a batch of steps, of endings, and of the beginnings of episodes.
Pack = Callable[[Sequence[S], Sequence[EpisodeEnd], Beginnings], B]
# Stores a batch in one transaction, once for all calls with one `WriteOnce`; returns the numbers of
# its steps in their order.
Write = Callable[[B, WriteOnce[StoreResult]], StoreResult]
# Waits until some of n rows may be stored; returns how many.
Admit = Callable[[int], int]


def admit_all(n: int) -> int:
    """Allow all rows."""
    return n


@dataclass(frozen=True)
class _Frozen(Generic[S, B]):
    """A batch that was packed, the steps and endings in it, and the beginnings of its episodes.

    `once` knows if an earlier flush, which raised an error, may have stored it.
    """

    batch: B
    once: WriteOnce[StoreResult]
    steps: Sequence[S]
    endings: Sequence[EpisodeEnd]
    beginnings: Beginnings
    n_steps: int


class WriteQueue(Generic[S, B]):
    """Collects steps and stores them in batches, in the order in which they were added.

    A batch is stored when there are enough steps, and never later than `flush_s` after the first
    one. The thread that stores it ends with the work. Steps that could not be stored stay here and
    are tried again. A packed batch is sent unchanged until the database has acknowledged it, so it
    is stored once; later steps are in later batches.

    Args:
        pack: Function that makes a batch of steps that may be stored now.
        write: Function that stores a batch.
        begin_write: Function that returns what makes the write of a batch take effect once.
        flush_s: Maximum wait of a step in seconds, unless a rate limiter blocks it.
        admit: The buffer's rate limiter.
        admit_now: The same limiter without a wait.
        max_pending: Largest number of waiting steps: they are lost if the process is killed.
    """

    def __init__(
        self,
        pack: Pack[S, B],
        write: Write[B],
        begin_write: Callable[[], WriteOnce[StoreResult]],
        flush_s: float,
        admit: Admit = admit_all,
        admit_now: Admit = admit_all,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._pack, self._write, self._begin_write = pack, write, begin_write
        self._flush_s = flush_s
        self._admit, self._admit_now = admit, admit_now
        self._most, self._batch_steps = max_pending, min(FLUSH_ROWS, max(1, max_pending // 2))
        self.forget()
        _queues.add(self)

    def forget(self) -> None:
        """Empty the queue, in a forked child: the parent stores its own steps."""
        self._mutex = threading.Condition()
        self._writing = threading.Lock()
        self._steps: list[S] = []
        self._n_steps = 0  # in these
        # The steps of a flush that are not packed yet: they may wait for the limiter.
        self._taken: Sequence[S] = ()
        self._n_taken = 0
        self._endings: list[EpisodeEnd] = []
        # Of each episode the newest writer of this process. No earlier one adds to it.
        self._beginnings: dict[EpisodeKey, EpisodeStart] = {}
        # Of writers whose steps were dropped, and those errors that no call has raised yet.
        self._refusals: dict[str | None, EpisodeRefusedError] = {}
        self._unsaid: dict[str | None, EpisodeRefusedError] = {}
        self._frozen: _Frozen[S, B] | None = None
        self._size_bytes = self._frozen_bytes = 0
        self._due, self._not_before = float("inf"), 0.0
        self._thread: threading.Thread | None = None
        self._error: SQLBufferError | None = None
        self._is_held_back = False  # the rate limiter allows no rows now

    @property
    def n_waiting(self) -> int:
        """Number of waiting steps."""
        frozen = self._frozen
        n_frozen = 0 if frozen is None else frozen.n_steps
        return self._n_steps + self._n_taken + n_frozen

    @property
    def is_empty(self) -> bool:
        """True if no step or ending waits."""
        return not (self._steps or self._taken or self._endings or self._frozen)

    def add(self, step: S, beginning: EpisodeStart | None = None) -> None:
        """Add a step; wait for the database and the limiter before that, if too many are waiting.

        Args:
            step: The step.
            beginning: Its episode, if it is of one.

        Raises:
            FlowControlError: Too many steps wait, and the rate limiter allowed none in time. They
                wait, and this one was not added.
            SQLBufferError: Earlier steps could not be stored since the last call. They wait, and
                this one was not added.
            EpisodeRefusedError: The writer's episode takes no more steps of it.
        """
        self.check(beginning)
        if not self._has_room():
            self.wait_for_room()
        with self._mutex:
            self._raise_error()
            self._take(step, beginning)
            self._ensure_thread()
            if self._n_steps == self._batch_steps or self._size_bytes > FLUSH_BYTES:
                self._mutex.notify_all()

    def add_blocks(
        self, blocks: Sequence[S], begun: Iterable[EpisodeStart], endings: Sequence[EpisodeEnd]
    ) -> None:
        """Add steps of several episodes, for which there is room, and ends of some of them.

        Errors of the database do not prevent this.

        Args:
            blocks: The steps.
            begun: Episodes that this writer begins with these steps, or with later ones.
            endings: The ends.
        """
        with self._mutex:
            for beginning in begun:
                self._own(beginning)
            for block in blocks:
                self._take(block, None)
            self._endings += endings
            if blocks or endings:
                self._ensure_thread()
            if self._is_full(_n_steps(blocks)):
                self._mutex.notify_all()

    def grow(
        self,
        block: GrowingSteps,
        begun: Iterable[EpisodeStart],
        endings: Sequence[EpisodeEnd],
    ) -> bool:
        """Add the row that a block was given behind its last one, and return True.

        Return False, and add nothing, if the block is not the last one that waits, if there is no
        room, or if there is an error to raise: the row belongs in another block, for `add_blocks`.

        Args:
            block: The block.
            begun: Episodes that begin with the row.
            endings: Ends of episodes, before the row or with it.
        """
        if self._error is not None or not self._has_room(block.row_steps):
            return False
        with self._mutex:
            last: object = self._steps[-1] if self._steps else None
            if last is not block:
                return False
            for beginning in begun:
                self._own(beginning)
            block.n_rows += 1
            self._n_steps += block.row_steps
            self._size_bytes += block.row_bytes
            self._endings += endings
            self._ensure_thread()
            if self._is_full(block.row_steps):
                self._mutex.notify_all()
        return True

    def check_each(self, beginnings: Collection[EpisodeStart]) -> None:
        """Raise the errors of several writers whose steps were dropped, as one; see `check`."""
        if not self._refusals:
            return
        refusals = [
            self._refusals[beginning.writer]
            for beginning in beginnings
            if beginning.writer in self._refusals
        ]
        with self._mutex:
            for beginning in beginnings:
                self._unsaid.pop(beginning.writer, None)
        if refusals:
            raise _joined(refusals)

    def widen(self, max_pending: int) -> None:
        """Let this many steps wait, if that is more: a vector of environments fills its chunks."""
        with self._mutex:
            self._most = max(self._most, max_pending)
            self._batch_steps = max(self._batch_steps, self._most // 2)

    def raise_error(self) -> None:
        """Raise the error that the storing thread met, once."""
        if self._error is not None:
            with self._mutex:
                self._raise_error()

    def _is_full(self, n_new: int = 0) -> bool:
        """Return whether the waiting steps are enough for a batch, of which n came just now."""
        is_enough = self._n_steps >= self._batch_steps and self._n_steps - n_new < self._batch_steps
        return is_enough or self._size_bytes > FLUSH_BYTES

    def check(self, beginning: EpisodeStart | None) -> None:
        """Raise the error of a writer whose steps were dropped.

        Raises:
            EpisodeRefusedError: Its episode has ended, or another writer has taken it.
        """
        refusal = None if beginning is None else self._refusals.get(beginning.writer)
        if beginning is not None and refusal is not None:
            self._unsaid.pop(beginning.writer, None)
            raise type(refusal)(str(refusal.args[0]), refusal.episodes)

    def check_all(self) -> None:
        """Raise the errors of writers that no call has raised yet, as one."""
        with self._mutex:
            refusals = list(self._unsaid.values())
            self._unsaid.clear()
        if refusals:
            raise _joined(refusals)

    def wait_for_room(self, n: int = 1) -> None:
        """Wait until n more steps may wait, or all that wait are stored.

        Raises:
            FlowControlError: The rate limiter allowed too few in time.
            SQLBufferError: They could not be stored.
        """
        while not self._has_room(n):
            if self._writing.acquire(blocking=False):
                try:
                    if not self._has_room(n):
                        self._make_room(n)
                    return
                finally:
                    self._writing.release()
            with self._mutex:
                if not self._has_room(n):
                    self._mutex.wait(_STALL_S)
            pause(0.0)

    def _has_room(self, n: int = 1) -> bool:
        frozen = self._frozen
        n_waiting = self._n_steps + self._n_taken + n
        if frozen is not None:
            n_waiting += frozen.n_steps
        return n_waiting <= self._most and self._size_bytes + self._frozen_bytes < MAX_BYTES

    def _make_room(self, n: int) -> None:
        with self._mutex:
            has_waited = isinstance(self._error, FlowControlError)  # in the storing thread
            if not has_waited:
                self._raise_error()
        try:
            self._flush(self._admit_now if has_waited else self._admit, n)
        except FlowControlError as error:
            raise self._not_added(error) from error

    def _raise_error(self) -> None:
        """Raise the error that the storing thread met, once. (The caller holds the mutex.)

        That the limiter held steps up is no error while there is room for more.
        """
        error, self._error = self._error, None
        if isinstance(error, FlowControlError):
            if self._has_room():
                return
            raise self._not_added(error)
        if error is not None:
            raise error

    def _not_added(self, error: FlowControlError) -> FlowControlError:
        return FlowControlError(
            f"{error}; {self.n_waiting} steps wait to be stored, and this one was not added"
        )

    def end(self, ending: EpisodeEnd, beginning: EpisodeStart, last: S | None = None) -> None:
        """Add the end of an episode, with its last step unless that was added.

        Errors of the database do not prevent this.

        Raises:
            EpisodeRefusedError: The episode takes no end of this writer.
        """
        self.check(beginning)
        with self._mutex:
            self._own(beginning)
            if last is not None:
                self._take(last, beginning)
            self._endings.append(ending)
            self._ensure_thread()

    def take_over(self, beginning: EpisodeStart) -> None:
        """Note the newest writer of an episode: what an earlier one still has pending is lost."""
        key = beginning.key, beginning.task_id
        with holding_lock(self._writing), self._mutex:
            earlier = self._beginnings.get(key)
            self._beginnings[key] = beginning
            steps = [rest for step in self._steps if (rest := step.without({key})) is not None]
            n_lost = self._n_steps - _n_steps(steps)
            endings = [ending for ending in self._endings if (ending.key, ending.task_id) != key]
            if earlier is None:
                return
            if n_lost or len(endings) < len(self._endings):
                self._refuse(earlier, _taken_here(earlier, beginning))
                self._steps, self._endings = steps, endings
                self._n_steps -= n_lost
                self._size_bytes = sum(step.n_bytes for step in steps)
            elif beginning.attempt > earlier.attempt:  # nothing is lost: only its own calls raise
                self._refuse(earlier, _taken_here(earlier, beginning), is_lost=False)

    def leave(self, beginning: EpisodeStart) -> None:
        """Store what waits, and forget a writer: its episode is ended in another transaction.

        Raises:
            EpisodeRefusedError: The episode takes no more steps of it.
        """
        self.flush()
        self.check(beginning)
        with self._mutex:
            key = beginning.key, beginning.task_id
            if self._beginnings.get(key) == beginning:
                del self._beginnings[key]

    def _own(self, beginning: EpisodeStart) -> None:
        """Note the writer of an episode. (The caller holds the mutex.)"""
        key = beginning.key, beginning.task_id
        newest = self._beginnings.get(key, beginning)
        if newest.attempt > beginning.attempt:
            raise _taken_here(beginning, newest)
        self._beginnings[key] = beginning

    def _refuse(
        self, beginning: EpisodeStart, refusal: EpisodeRefusedError, *, is_lost: bool = True
    ) -> None:
        """Keep the error of a writer; it has lost steps or not. (The caller holds the mutex.)"""
        self._refusals[beginning.writer] = refusal
        if is_lost:
            self._unsaid[beginning.writer] = refusal
        while len(self._refusals) > MOST_REFUSALS:  # the database refuses the others again
            self._refusals.pop(next(iter(self._refusals)))

    def _take(self, step: S, beginning: EpisodeStart | None) -> None:
        if beginning is not None:
            self._own(beginning)
        self._steps.append(step)
        self._n_steps += step.n_steps
        self._size_bytes += step.n_bytes

    def flush(self, admit: Admit | None = None) -> None:
        """Store all waiting steps.

        Args:
            admit: Limiter to use instead of the buffer's rate limiter.

        Raises:
            SQLBufferError: The steps could not be stored, and still wait.
            EpisodeExistsError: Another writer has stored other steps in their places in the
                episode; the steps of this one are dropped.
        """
        with holding_lock(self._writing):
            self._flush(admit or self._admit)

    def store_now(self) -> None:
        """Store the waiting steps that the rate limiter allows without a wait.

        Readers call this: steps that cannot be stored continue to wait, and the next call of a
        writer raises the error.
        """
        while not self._writing.acquire(timeout=_LOOK_S):
            if self._is_held_back:
                return
        try:
            self._flush(self._admit_now)
        except FlowControlError:
            return
        except SQLBufferError as error:
            self._keep(error)
            self._warn(error)
        finally:
            self._writing.release()

    def _flush(self, admit: Admit, room: int | None = None) -> None:
        """Store waiting steps, until `room` more may wait. (The caller holds the writing lock.)"""
        with self._mutex:
            endings, self._taken = self._endings, self._steps
            self._steps, self._endings, self._due = [], [], float("inf")
            # Counted again: an interrupt may have come between a step and its count.
            self._n_taken, self._n_steps, self._error = _n_steps(self._taken), 0, None
        conflicts: list[str] = []
        try:
            conflicts += self._store_frozen()
            while self._taken or endings:
                if room is not None and self._has_room(room):
                    break
                n = self._admitted(admit, self._n_taken) if self._taken else 0
                ended = endings if n == self._n_taken else []
                self._freeze(n, ended)
                endings = [] if ended else endings
                conflicts += self._store_frozen()
        finally:
            with self._mutex:
                self._steps[:0], self._endings[:0] = self._taken, endings
                self._n_steps += self._n_taken
                self._taken, self._n_taken = (), 0
                if not self.is_empty:
                    self._ensure_thread()
        if conflicts:
            raise EpisodeExistsError(
                f"{len(conflicts)} steps are not stored, as the buffer holds others in their "
                f"places: {', '.join(conflicts[:3])}; another writer has the same episode"
            )

    def _admitted(self, admit: Admit, n: int) -> int:
        """Return how many of n steps the rate limiter allows."""
        self._is_held_back = True
        try:
            return admit(n)
        finally:
            self._is_held_back = False

    def _freeze(self, n: int, endings: Sequence[EpisodeEnd]) -> None:
        """Pack the first n taken steps, which are sent in this form until they are stored."""
        steps, others = _divided(self._taken, n)
        with self._mutex:
            beginnings = dict(self._beginnings)
        # An end without a writer is that of one whose steps were refused meanwhile.
        endings = [ending for ending in endings if (ending.key, ending.task_id) in beginnings]
        named = _named(beginnings, steps, endings)
        n_bytes = sum(step.n_bytes for step in steps)
        self._frozen = self._packed(steps, endings, named, n)
        with self._mutex:
            self._taken = others
            self._n_taken -= n
            self._size_bytes -= n_bytes
            self._frozen_bytes = n_bytes

    def _packed(
        self, steps: Sequence[S], endings: Sequence[EpisodeEnd], beginnings: Beginnings, n: int
    ) -> _Frozen[S, B]:
        batch = self._pack(steps, endings, beginnings)
        return _Frozen(batch, self._begin_write(), steps, endings, beginnings, n)

    def _store_frozen(self) -> Sequence[str]:
        """Store the packed batch; return the ids of steps that will never be stored."""
        while (frozen := self._frozen) is not None:
            try:
                written = self._write(frozen.batch, frozen.once)
            except EpisodeRefusedError as refusal:
                self._drop_refused(frozen, refusal)
                continue
            self._frozen, self._frozen_bytes = None, 0
            with self._mutex:
                self._forget_writers(frozen, {(e.key, e.task_id) for e in frozen.endings})
                self._mutex.notify_all()  # the thread, or a writer, waited for this
            return written.conflicting_ids
        return ()

    def _forget_writers(self, frozen: _Frozen[S, B], keys: AbstractSet[EpisodeKey]) -> None:
        """Forget the writers of a batch that have ended. (The caller holds the mutex.)"""
        for key in keys:
            if self._beginnings.get(key) == frozen.beginnings.get(key):
                self._beginnings.pop(key, None)

    def _drop_refused(self, frozen: _Frozen[S, B], refusal: EpisodeRefusedError) -> None:
        """Pack a batch again without the steps that its episodes refuse: nothing of it is stored.

        The writers of these steps learn of it with their next call.
        """
        keys = set(refusal.episodes)
        steps = [rest for s in frozen.steps if (rest := s.without(keys)) is not None]
        endings = [e for e in frozen.endings if (e.key, e.task_id) not in keys]
        n = _n_steps(steps)
        if n + len(endings) == frozen.n_steps + len(frozen.endings):
            raise refusal
        logger.warning("%d steps are lost: %s", frozen.n_steps - n, refusal)
        with self._mutex:
            self._forget_writers(frozen, keys)
            for key in keys & frozen.beginnings.keys():
                self._refuse(frozen.beginnings[key], refusal)
        self._frozen = None
        if steps or endings:
            named = _named(frozen.beginnings, steps, endings)
            self._frozen = self._packed(steps, endings, named, n)
        else:
            self._frozen_bytes = 0

    def _ensure_thread(self) -> None:
        """Start a thread that stores waiting steps in time. (The caller holds the mutex.)"""
        if self._due == float("inf"):
            self._due = time.monotonic() + self._flush_s
            if self._flush_s < IDLE_S:
                self._mutex.notify_all()  # the thread may sleep until later
        if self._thread is None:
            at_process_end(_flush_all)
            self._thread = threading.Thread(target=self._run, name="sqlbuffer-writer", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process ends: it flushes at its end
                self._thread = None

    def _run(self) -> None:
        while self._wait():
            try:
                self._flush_in_time()
            except BaseException:
                with self._mutex:
                    self._thread = None
                raise

    def _flush_in_time(self) -> None:
        try:
            with holding_lock(self._writing):
                try:
                    self._flush(self._admit)
                except SQLBufferError as error:
                    self._keep(error)  # now: another flush may store the steps
                    raise
        except SQLBufferError as error:
            self._warn(error)

    def _keep(self, error: SQLBufferError) -> None:
        """Keep an error for the next call of a writer. (The caller holds the writing lock.)"""
        with self._mutex:
            self._error = error
            self._not_before = time.monotonic() + self._flush_s
            self._mutex.notify_all()  # a writer may wait for room

    def _warn(self, error: SQLBufferError) -> None:
        logger.warning("%d steps could not be stored yet: %s", self.n_waiting, error)

    def _wait(self) -> bool:
        """Wait until it is time to store; return False after a while without work."""
        with self._mutex:
            idle_until = time.monotonic() + IDLE_S
            while True:
                now = time.monotonic()
                is_full = self._n_steps >= self._batch_steps or self._size_bytes > FLUSH_BYTES
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


def _joined(refusals: Sequence[EpisodeRefusedError]) -> EpisodeRefusedError:
    """Return the errors of several writers as one."""
    others = f" (and {len(refusals) - 1} more episodes)" if len(refusals) > 1 else ""
    named = [episode for refusal in refusals for episode in refusal.episodes]
    return type(refusals[0])(f"{refusals[0].args[0]}{others}", named)


def _taken_here(earlier: EpisodeStart, newest: EpisodeStart) -> EpisodeTakenError:
    """Return the error of a writer that another one of this process has replaced."""
    return EpisodeTakenError(
        f"episode {earlier.key!r} of task {earlier.task_id!r} was continued in this process as "
        f"attempt {newest.attempt}; this is attempt {earlier.attempt}, and takes no more steps",
        [(earlier.key, earlier.task_id)],
    )


def _named(
    beginnings: Beginnings, steps: Sequence[QueuedSteps], endings: Sequence[EpisodeEnd]
) -> Beginnings:
    """Return the beginnings of the episodes of steps and of endings."""
    keys = {(ending.key, ending.task_id) for ending in endings}
    known: Collection[EpisodeKey] | None = None
    for step in steps:
        episodes = step.episodes
        if episodes is not known:  # the blocks of a writer share them while none begins or ends
            keys.update(episodes)
            known = episodes
    return {key: beginning for key, beginning in beginnings.items() if key in keys}


def _n_steps(steps: Sequence[QueuedSteps]) -> int:
    return sum(step.n_steps for step in steps)


def _divided(steps: Sequence[S], n: int) -> tuple[Sequence[S], Sequence[S]]:
    """Return the first n steps, and the others; the limiter may divide a block."""
    place = 0
    while place < len(steps) and steps[place].n_steps <= n:
        n -= steps[place].n_steps
        place += 1
    if n == 0:
        return steps[:place], steps[place:]
    first, rest = steps[place].split(n)
    return [*steps[:place], first], [rest, *steps[place + 1 :]]


_queues: "WeakSet[WriteQueue[Any, Any]]" = WeakSet()


def _flush_all() -> None:
    let_in_at_end()  # a thread that waits for a limiter holds a queue
    for queue in list(_queues):
        try:
            # The process ends, so no later call stores the steps that a limiter blocks now.
            queue.flush(admit_all)
        except SQLBufferError as error:
            logger.error("lost at the end: %d waiting step(s): %s", queue.n_waiting, error)


def _forget_all() -> None:
    for queue in list(_queues):
        queue.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
