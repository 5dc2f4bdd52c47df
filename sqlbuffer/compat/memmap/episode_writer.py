"""Writes the open episodes of one process to the database."""

import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import Transaction
from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.rows import MetaCoder, RowCoder
from sqlbuffer.compat.memmap.slots import (
    SEEN_S,
    WRITERS,
    BookChange,
    Claim,
    SlotBook,
    SlotLostError,
    SlotsFullError,
)
from sqlbuffer.errors import BufferNotFoundError, SQLBufferError
from sqlbuffer.processes import at_process_end, forget, new_holder

logger = logging.getLogger("sqlbuffer")

# Longest time in seconds until a step is stored that is stored only when it is needed.
NEVER_S = 1e6
# Seconds after which a thread without work ends: to start one takes longer than to store a step.
IDLE_S = 1.0
# Waiting steps are stored when there are this many, or this many bytes of them.
MAX_STEPS, MAX_WAITING_BYTES = 1_024, 8 * 2**20


@dataclass(eq=False)
class OpenEpisode:
    """An episode that is being written.

    Attributes:
        claim: The slot that it has.
        slot: The number of the slot.
        meta: Its meta values, structured, of shape ().
        length: Steps so far.
        rows: The packed steps that are not stored yet, one after the other.
        n_stored: Number of stored steps.
        is_begun: The slot shows it.
        is_dirty: The meta values are not stored yet.
    """

    claim: Claim
    slot: int
    meta: NDArray[Any]
    length: int = 0
    rows: list[bytes] = field(default_factory=list)
    n_stored: int = 0
    is_begun: bool = False
    is_dirty: bool = True

    @property
    def has_steps(self) -> bool:
        """It has stored steps, or waiting ones."""
        return self.n_steps > 0

    @property
    def n_steps(self) -> int:
        """Number of its steps, stored ones and waiting ones."""
        return self.n_stored + len(self.rows)


class EpisodeWriter:
    """Writes episodes to the slots of a buffer.

    Steps wait in memory until the episode ends, until they are read, or until they have waited for
    a time. All that waits is stored in one transaction, together with the slots.

    Args:
        book: The slots of the buffer.
        rows: Encodes its steps.
        metas: Encodes its meta values.
        flush_s: Longest time in seconds until a step is stored.
    """

    def __init__(self, book: SlotBook, rows: RowCoder, metas: MetaCoder, flush_s: float) -> None:
        self._book, self._rows, self._metas, self._flush_s = book, rows, metas, flush_s
        self._blank = rows.blank.tobytes()
        self._begin()

    def _begin(self) -> None:
        """Start with no open episodes, in a new writer or in a forked child."""
        self._pid = os.getpid()
        self.holder = new_holder(self)
        self.open: list[OpenEpisode] = []
        # Ended episodes that are not stored yet, each with its length.
        self._ended: list[tuple[OpenEpisode, int]] = []
        self._seen_at = float("-inf")
        self._numbers = count(int.from_bytes(os.urandom(4), "big") << 21)
        self._n_waiting = 0
        self._error: SQLBufferError | None = None
        # Held while something is stored.
        self._storing = threading.RLock()
        self._mutex = threading.Condition()
        self._due, self._waiting_since = float("inf"), float("-inf")
        self._thread: threading.Thread | None = None
        _writers.add(self)

    def check_process(self) -> None:
        """In a forked child: leave open episodes to the parent."""
        if self._pid != os.getpid():
            self._begin()

    @property
    def is_own(self) -> bool:
        """Whether this process opened the open episodes."""
        return self._pid == os.getpid()

    @property
    def is_idle(self) -> bool:
        """Whether there is no open episode and no pending step."""
        return not self.open and not self._ended

    @contextmanager
    def _changing(self, tx: Transaction, slots: Sequence[int] = ()) -> Iterator[BookChange]:
        change = BookChange(self._book, tx, slots)
        if time.monotonic() - self._seen_at >= SEEN_S:
            change.changed[f"{WRITERS}{self.holder}"] = time.time()
        yield change
        change.store()

    def _transaction(self, work: Any) -> Any:
        """Return the result of work in a transaction.

        Raises:
            MemmapError: The buffer is full, or another process took a slot.
        """
        began = time.monotonic()
        try:
            result = self._book.core.transaction(work)
        except SlotsFullError:
            raise self.full() from None
        except SlotLostError:
            raise MemmapError(
                "an episode is lost: this process gave no sign of life for a long time, and "
                "another process took its slot"
            ) from None
        if began - self._seen_at >= SEEN_S:
            self._seen_at = began
        return result

    def claim(self, n: int) -> list[OpenEpisode]:
        """Begin n more episodes in addition to the open ones.

        Raises:
            MemmapError: The buffer is full.
        """
        self.check_process()
        at_process_end(_end_all, priority=1)

        def work(tx: Transaction) -> list[Claim]:
            with self._changing(tx) as change:
                return change.claim(n, self.holder, self._numbers)

        made = [self._opened(claim) for claim in self._transaction(work)]
        self.open += made
        return made

    def _opened(self, claim: Claim) -> OpenEpisode:
        slot = claim.turn % self._book.n_slots
        return OpenEpisode(claim, slot, self._metas.blank.copy())

    def n_left(self) -> int:
        """Return how many slots can be claimed."""
        n_slots: int = self._book.core.transaction(
            lambda tx: sum(1 for _ in BookChange(self._book, tx).claimable(self.holder))
        )
        return n_slots

    def full(self) -> MemmapError:
        """Return the error of a buffer without a free slot."""
        n = self._book.n_slots
        if self._book.is_circular:
            return MemmapError(
                f"the replay buffer is full: other writers have open episodes in all of its {n} "
                f"slots; make it with more `max_episodes`"
            )
        return MemmapError(
            f"The replay buffer is full ({n} episodes) and is not set to be circular. Please set "
            f"`circular = True` or clear the buffer."
        )

    def add(self, open_: OpenEpisode, t: int, row: bytes) -> None:
        """Add a step to an open episode; steps that were left out have defaults."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._n_waiting >= MAX_STEPS or self._n_waiting * len(row) >= MAX_WAITING_BYTES:
            self._flush()
        with self._mutex:
            missing = t - open_.n_steps
            if missing:
                open_.rows += [self._blank] * missing
            open_.rows.append(row)
            open_.length = max(open_.length, t + 1)
            self._n_waiting += 1 + missing
            if self._due == float("inf") and self._flush_s < NEVER_S:
                self._ensure_thread()

    def finish(self, lengths: Sequence[int]) -> None:
        """End the first of the open episodes, drop the others, and store all of it.

        Args:
            lengths: The length of each that ends; more are begun, where fewer are open.
        """
        if len(lengths) > len(self.open):
            self.claim(len(lengths) - len(self.open))
        self._end(lengths)
        self.drop()
        self._flush()

    def _end(self, lengths: Sequence[int]) -> None:
        ended, self.open = self.open[: len(lengths)], self.open[len(lengths) :]
        self._ended += zip(ended, lengths, strict=True)

    def store_whole(self, rows: NDArray[Any], meta: NDArray[Any]) -> None:
        """Store a whole episode in one transaction, in the next slot.

        Raises:
            MemmapError: The buffer is full.
        """
        self.check_process()
        self._flush()

        number = next(self._numbers)
        key, writer = self._book.key(number), self._book.core._writer
        reward = self._rows.rewards(rows)
        has_reward = reward is None or not np.isnan(reward).any()
        batch = None
        if has_reward:
            batch = writer.encoded_episode(
                self._rows.arrays(rows, reward), episode_id=key, task_id=key, group_id=None,
                parent_id=None, keys={}, final=None, episode_reward=None, casting="same_kind",
                meta=self._metas.shown(meta), is_new=True,
            )  # fmt: skip

        def work(tx: Transaction) -> None:
            # Before the slots are locked: several writers can store at the same time.
            if batch is None:
                self._extend(tx, [(key, rows)])
            else:
                tx.joined(lambda: writer.store(batch))
            with self._changing(tx) as change:
                claim = change.claim(1, self.holder, iter([number]))[0]
                open_ = OpenEpisode(
                    claim, claim.turn % self._book.n_slots, meta, n_stored=len(rows)
                )
                self._show(change, [open_], [(open_, len(rows))], are_ended=batch is not None)

        with self._storing:
            self._transaction(work)

    def drop(self) -> None:
        """Drop the open episodes: their steps are deleted, and their slots are free."""
        if not self.open:
            return
        self._flush()
        with self._storing:
            dropped, self.open = self.open, []
            with self._mutex:
                self._n_waiting -= sum(len(open_.rows) for open_ in dropped)

            def work(tx: Transaction) -> None:
                with self._changing(tx, [open_.slot for open_ in dropped]) as change:
                    change.release([open_.claim for open_ in dropped])

            self._transaction(work)

    def flush(self) -> None:
        """Store all that waits."""
        if self.is_own:
            self._flush()

    def _flush(self) -> None:
        """Store the steps that wait, the meta values that changed, and the ends of episodes."""
        with self._storing:
            ended = list(self._ended)
            with self._mutex:
                self._due = float("inf")
                episodes = [*(open_ for open_, _ in ended), *self.open]
                taken = [(open_, len(open_.rows), b"".join(open_.rows)) for open_ in episodes]
            changed = [
                (open_, np.frombuffer(raw, self._rows.layout.record))
                for open_, n, raw in taken
                if n or (open_.is_dirty and open_.is_begun)
            ]
            if not changed and not ended:
                return
            slots = [open_.slot for open_ in episodes]

            steps = [
                (self._book.key(open_.claim.number), rows) for open_, rows in changed if len(rows)
            ]
            stored = list({id(open_): open_ for open_, _ in (*changed, *ended)}.values())
            dirty = [open_ for open_, _ in changed if open_.is_dirty]
            shown = [*dirty, *(open_ for open_, _ in ended if open_ not in dirty)]

            def work(tx: Transaction) -> None:
                self._extend(tx, steps)
                with self._changing(tx, slots) as change:
                    change.check_own([open_.claim for open_ in stored])
                    self._show(change, shown, ended)

            for open_ in dirty:
                open_.is_dirty = False
            try:
                self._transaction(work)
            except BaseException:
                for open_ in dirty:
                    open_.is_dirty = True
                raise
            self._ended = self._ended[len(ended) :]
            with self._mutex:
                for open_, n, _ in taken:
                    del open_.rows[:n]
                    open_.n_stored += n
                    self._n_waiting -= n
            for open_, _ in changed:
                open_.is_begun = True

    def _show(
        self,
        change: BookChange,
        episodes: Sequence[OpenEpisode],
        ended: Sequence[tuple[OpenEpisode, int]],
        *,
        are_ended: bool = False,
    ) -> None:
        """Let slots show episodes whose steps are stored, in the same transaction.

        With `are_ended`, the ends are stored already.
        """
        if new := [open_ for open_ in episodes if not open_.is_begun]:
            change.begin([open_.claim for open_ in new])
        ids = {id(open_): self._book.key(open_.claim.number) for open_ in episodes}
        for open_ in episodes:
            change.set_meta(open_.slot, open_.meta.tobytes())
        if ended:
            change.finish([(open_.claim, n, open_.has_steps) for open_, n in ended])
        if ended and not are_ended:
            keys = [ids[id(open_)] for open_, _ in ended]
            metas = [self._metas.shown(open_.meta) for open_, _ in ended]
            change.tx.end_episodes(keys, metas=metas)
        is_ended = {id(open_) for open_, _ in ended}
        if said := [open_ for open_ in episodes if id(open_) not in is_ended]:
            metas = [self._metas.shown(open_.meta) for open_ in said]
            change.tx.annotate_episodes([ids[id(open_)] for open_ in said], None, metas=metas)

    def _extend(self, tx: Transaction, steps: Sequence[tuple[str, NDArray[Any]]]) -> None:
        """Append steps to several episodes in one call."""
        if not steps:
            return
        rows = steps[0][1] if len(steps) == 1 else np.concatenate([part for _, part in steps])
        keys: Any = steps[0][0]
        if len(steps) > 1:
            keys = [key for key, part in steps for _ in range(len(part))]
        reward = self._rows.rewards(rows)
        if reward is None or not np.isnan(reward).any():
            tx.extend(self._rows.arrays(rows, reward), task_id=keys, episode_id=keys)
            return
        # A step without a reward has none in its column, which holds all steps of a call.
        has_none = np.isnan(reward)
        breaks = [0, *(np.flatnonzero(np.diff(has_none)) + 1).tolist(), len(rows)]
        for start, stop in pairwise(breaks):
            run_keys = keys if isinstance(keys, str) else keys[start:stop]
            run_reward = None if has_none[start] else reward[start:stop]
            tx.extend(
                self._rows.arrays(rows[start:stop], run_reward),
                task_id=run_keys,
                episode_id=run_keys,
            )

    def close(self) -> None:
        """End the open episodes that have steps, drop the others, and store what waits.

        A buffer that was dropped in the meantime has nothing to keep.
        """
        if self.is_own:
            with suppress(BufferNotFoundError):
                self.finish(self._lengths())
                self._book.core.documents.delete(f"{WRITERS}{self.holder}")
            forget(self.holder)

    def end_at_exit(self) -> None:
        """End the open episodes that have steps, and store them, at the end of the process.

        The slots of the others are free as soon as this process is gone.
        """
        if not self.is_own or self.is_idle:
            return
        self._end(self._lengths())
        self.open = []
        try:
            self._flush()
        except BufferNotFoundError:
            pass
        except SQLBufferError as error:
            logger.error("lost at the end: %d waiting step(s): %s", self._n_waiting, error)

    def _lengths(self) -> list[int]:
        """Return the lengths of the open episodes that have steps, which are the first ones."""
        return [open_.length for open_ in self.open if open_.length]

    def _ensure_thread(self) -> None:
        """Have waiting steps stored in time. (The caller holds the mutex.)"""
        self._waiting_since = time.monotonic()
        self._due = self._waiting_since + self._flush_s
        if self._thread is None:
            self._thread = threading.Thread(
                target=_store_in_time, args=(ref(self),), name="sqlbuffer-memmap", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:  # the process ends
                self._thread = None

    def store_in_time(self) -> bool:
        """Store what waits for long enough; return False after a while in which nothing waits."""
        with self._mutex:
            now = time.monotonic()
            rest = self._due - now
            if rest == float("inf") and now - self._waiting_since > IDLE_S:
                self._thread = None
                return False
        if rest > 0:
            time.sleep(min(rest, 0.1))
            return True
        try:
            self._flush()
        except BufferNotFoundError:
            with self._mutex:
                self._thread = None
            return False
        except (SQLBufferError, MemmapError) as error:
            logger.warning("%d steps could not be stored yet: %s", self._n_waiting, error)
            with self._mutex:
                self._error, self._due = error, time.monotonic() + self._flush_s
        return True


def _store_in_time(writer: "ref[EpisodeWriter]") -> None:
    while (strong := writer()) is not None and strong.store_in_time():
        del strong


_writers: "WeakSet[EpisodeWriter]" = WeakSet()


def _end_all() -> None:
    for writer in list(_writers):
        writer.end_at_exit()
