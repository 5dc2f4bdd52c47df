"""Follow a buffer for all processes of a machine, or read what another process follows."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from weakref import finalize, ref

from sqlbuffer import errors
from sqlbuffer.errors import (
    BufferConfigError,
    MirrorBehindError,
    StorageError,
    StorageUnreachableError,
)
from sqlbuffer.mirror.accounts import Integers, Reals
from sqlbuffer.mirror.following import Refreshing, check_lag, check_open, may_pass
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.settings import MirrorLag, MirrorSettings, lag_of
from sqlbuffer.mirror.sharing import (
    Counter,
    Publisher,
    Replica,
    SharedPlace,
    identity_of,
    open_replica,
    place_of,
)
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.database.errors import ConnectionLost
from sqlbuffer.storage.following.feed import state_of
from sqlbuffer.storage.store import BufferStore

Made = TypeVar("Made")


# How often a process looks whether the one that follows has ended.
WATCH_S = 0.25


# How long a draw waits for the follower, which is changing the memory or was just lost.
WAIT_S = 60.0


_PAUSE_S = 0.0002


class SharedFollowing:
    """Keeps the steps of a buffer in memory that the processes of a machine share.

    Args:
        store: The buffer.
        settings: Settings of the mirror. The `max_bytes` and `refresh_s` of the process that
            follows count.
        path: The file of the memory; None: shared memory, which is freed with the last process.

    Attributes:
        path: The file.
    """

    def __init__(
        self, store: BufferStore, settings: MirrorSettings, path: str | os.PathLike[str] | None
    ) -> None:
        self._store, self._max_lag_s = store, settings.max_lag_s
        self._settings = settings
        self._about = identity_of(store, settings.identity)
        self._place: SharedPlace = place_of(store, path, self._about)
        self.path = self._place.path
        finalize(self, self._place.close)
        self._pid = os.getpid()
        self._commits = commits_of(store.url, store.info.id)
        self._n_commits, self._was_cut_off = 0, False
        self._lock, self._closed = threading.RLock(), threading.Event()
        # Held while this process begins to follow, and at its end.
        self._role = threading.Lock()
        # One of both, from `start` on.
        self._own: Refreshing | None = None
        self._replica: Replica | None = None

    def start(self) -> None:
        """Follow the buffer, or wait for the memory of the process that does."""
        try:
            while not self._follow() and not self._attach():
                time.sleep(WATCH_S / 10)
        except BaseException:
            self._place.close()
            raise
        if self._own is None:
            thread = threading.Thread(
                target=_watch, args=(ref(self), self._closed), name="sqlbuffer-mirror-watch",
                daemon=True,
            )  # fmt: skip
            thread.start()
            # The process that follows may be about to leave: then the thread continues.
            self._refresh_if_reachable()

    def _follow(self) -> bool:
        """Become the process that follows the buffer, unless another one does."""
        if not self._place.try_to_follow():
            return False
        publisher = Publisher(self._place, self._about)
        refreshing = Refreshing(self._store, self._settings, publisher)
        try:
            refreshing.start()
        except BaseException:
            self._place.stop_following()
            raise
        self._own, self._replica = refreshing, None
        return True

    def _attach(self) -> bool:
        """Map the memory of the following process; return False if there is none yet."""
        try:
            replica = open_replica(self._place.path, self._about, self._settings)
        except FileNotFoundError:
            return False
        except ValueError as error:
            raise BufferConfigError(
                f"{error}, and a process has it open; give another path="
            ) from None
        self._replica = replica
        return True

    def take_over(self) -> bool:
        """Follow the buffer if the process that did has ended; True: this one does now."""
        with suppress(Exception), self._role:  # the next try may succeed, and draws continue
            return self._closed.is_set() or self._follow()
        return False

    def close(self) -> None:
        """Leave; another process continues, if there is one."""
        if self._closed.is_set() or self._pid != os.getpid():
            return
        self._closed.set()
        with self._role, self._lock:
            if self._own is not None:
                self._own.close()
            self._place.close()

    def refresh(self) -> None:
        """Make the process that follows read changes now.

        Raises:
            MirrorFullError: It does not fit.
            StorageError: The database cannot be read.
            MirrorBehindError: The process that follows does not answer.
        """
        self._store.reading.with_retries(self._refresh_once)

    def _refresh_once(self) -> None:
        """Do as `refresh` does, but fail when the connection is lost."""
        if self._own is not None:
            self._own.refresh_once()
            return
        began_ns, n_commits = time.monotonic_ns(), self._commits.n
        deadline = time.monotonic() + WAIT_S
        while self._own is None:
            replica = self._current()
            if replica.segment.get(Counter.LOOKED_NS) >= began_ns:
                self._n_commits = n_commits
                return
            error = _error_of(replica)
            if type(error) is StorageUnreachableError:  # as it would be raised here
                error = ConnectionLost(str(error))
            if error is not None and replica.segment.get(Counter.FAILED_NS) >= began_ns:
                raise error
            if time.monotonic() > deadline:
                raise self._no_answer()
            self._place.wake()
            time.sleep(0.002)
        self._own.refresh_once()

    def read(self, compute: Callable[[StepMemory], Made]) -> Made:
        """Return a function's result for the steps in one state of the buffer.

        If the follower changes the memory before the function returns, the function is called
        again.

        Raises:
            MirrorBehindError: The memory is being changed for a minute.
        """
        deadline = 0.0
        while self._own is None:
            with self._lock:
                replica = self._current()
                generation = replica.segment.get(Counter.GENERATION)
                if not generation & 1:
                    try:
                        replica.update(generation)
                        result = compute(replica.memory)
                    except Exception:
                        # Half of the read data may be of another state.
                        if replica.segment.get(Counter.GENERATION) == generation:
                            raise
                    else:
                        if replica.segment.get(Counter.GENERATION) == generation:
                            return result
                    continue
            deadline = deadline or time.monotonic() + WAIT_S
            if time.monotonic() > deadline:
                raise self._no_answer()
            time.sleep(_PAUSE_S)
        return self._own.read(compute)

    def _current(self) -> Replica:
        """Return the replica of the segment that is in use now."""
        replica = self._replica
        if replica is None or replica.segment.is_replaced:
            with suppress(OSError):  # the next follower has not made it yet
                replica = self._replica = open_replica(
                    self._place.path, self._about, self._settings
                )
        assert replica is not None
        return replica

    def prepare(self) -> None:
        """Make the follower read this process's writes before a draw.

        Raises:
            BufferConfigError: The mirror was closed, or is another process's.
            MirrorBehindError: It is further behind than it may be.
            MirrorFullError: The buffer has outgrown it.
        """
        if self._own is not None:
            self._own.prepare()
            return
        check_open(self._closed, self._pid)
        if self._n_commits != self._commits.n:
            self._refresh_if_reachable()
        error = _error_of(self._current())
        self._was_cut_off = isinstance(error, StorageUnreachableError)
        if error is not None and not may_pass(error):
            raise error
        if self._max_lag_s is not None and self._lag_s > self._max_lag_s:
            self._refresh_if_reachable()
            error = _error_of(self._current())
            check_lag(self._store.info.name, self._lag_s, self._max_lag_s, error)

    def update_priorities(self, seqs: Integers, values: Reals) -> int:
        """Raise BufferConfigError: processes do not share priorities."""
        self.check_prioritized()
        return 0

    def check_prioritized(self, normalize: str = "batch") -> None:
        """Raise BufferConfigError: processes do not share priorities."""
        raise BufferConfigError(
            f"a mirror of buffer {self._store.info.name!r} with shared=True does not draw by "
            f"priority and sets no priorities; open one in each process without shared=True"
        )

    def _refresh_if_reachable(self) -> None:
        with suppress(StorageError):  # draws continue; `lag` shows the error
            self._refresh_once()

    @property
    def is_cut_off(self) -> bool:
        """True if the database was unreachable at the last look, as the last draw knows."""
        if self._own is not None:
            return self._own.is_cut_off
        return self._was_cut_off

    def _no_answer(self) -> MirrorBehindError:
        return MirrorBehindError(
            f"the process that follows buffer {self._store.info.name!r} for this machine does not "
            f"answer for {WAIT_S:g} s; see `fuser {self._place.path}.lock`"
        )

    @property
    def n_live(self) -> int:
        """Number of steps of the mirror."""
        if self._own is not None:
            return self._own.n_live
        return self._current().segment.get(Counter.N_LIVE)

    def lag(self) -> MirrorLag:
        """Return how far behind the memory is."""
        if self._own is not None:
            return self._own.lag()
        segment = self._current().segment
        state = None
        # It is being written, or is too large to be published.
        with suppress(ValueError, TypeError):
            state = state_of(segment.cursor)
        high, error = segment.get(Counter.HIGH), _error_of(self._current())
        return lag_of(self._store.reading, self._lag_s, high, state, error)

    @property
    def _lag_s(self) -> float:
        """Seconds since the last look of the follower that succeeded began."""
        return (time.monotonic_ns() - self._current().segment.get(Counter.LOOKED_NS)) / 1e9


def _error_of(replica: Replica) -> Exception | None:
    """Return why the follower's last look failed."""
    name, _, text = replica.segment.error.partition(": ")
    if not name:
        return None
    kind = getattr(errors, name, StorageError)
    error: Exception = kind(text)
    return error


def _watch(following: "ref[SharedFollowing]", closed: threading.Event) -> None:
    """Take over from the process that follows, when it ends."""
    while not closed.wait(WATCH_S):
        follower = following()
        if follower is None or follower._pid != os.getpid() or follower.take_over():
            return
        del follower
