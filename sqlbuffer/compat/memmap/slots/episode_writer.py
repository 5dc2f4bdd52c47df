"""Writes the open episodes of one process to the database."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from numpy.typing import NDArray

from sqlbuffer.compat.memmap.config.buffer_config import Config
from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.rows.row_codec import MetaCoder, PackedRow, RowCoder
from sqlbuffer.encoding.column_chunks import PackedStep
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.processes import at_process_end
from sqlbuffer.steps import StoreResult, uuid7
from sqlbuffer.storage.database import holders
from sqlbuffer.storage.episodes import EpisodeKey
from sqlbuffer.storage.extensions.slots.episode_slots import Slots
from sqlbuffer.storage.extensions.slots.slot_batch import Resumption, SlotBatch, slot_batch
from sqlbuffer.storage.extensions.slots.slot_claims import (
    Opening,
    SlotClaims,
    SlotEnding,
    SlotLostError,
    SlotsFullError,
)
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.chunks import ChunkBatch
from sqlbuffer.storage.writing.write_queue import WriteQueue

T = TypeVar("T")


@dataclass
class OpenEpisode:
    """An episode that is being written.

    Attributes:
        turn: The turn of its slot.
        slot: The slot.
        key: Its id in the database.
        meta: Its meta values, structured, of shape ().
        length: Steps so far.
        last_t: The last one that has a row; -1 without any.
        first_t: The first one.
        return_: Sum of its rewards.
        is_dirty: The meta values are not stored yet.
        start: How the steps begin that come next: the episode, or what follows steps that were left
            out.
    """

    turn: int
    slot: int
    key: str
    meta: NDArray[Any]
    length: int = 0
    last_t: int = -1
    first_t: int = -1
    return_: float | None = None
    is_dirty: bool = False
    start: EpisodeStart = field(init=False)

    def __post_init__(self) -> None:
        self.start = EpisodeStart(self.key, self.key, "default")

    def count(self, t: int, reward: float | None) -> None:
        """Count a step."""
        if self.first_t < 0:
            self.first_t = t
        self.last_t, self.length = t, max(self.length, t + 1)
        if reward is not None:
            self.return_ = (self.return_ or 0.0) + reward

    @property
    def is_begun(self) -> bool:
        """It has a step."""
        return self.last_t >= 0


class EpisodeWriter:
    """Writes episodes to the slots of a buffer; the steps go through a queue.

    Args:
        store: The buffer.
        config: Its configuration.
        rows: Encodes its steps.
        metas: Encodes its meta values.
        flush_s: Longest time in seconds until a step is stored.
    """

    def __init__(
        self, store: BufferStore, config: Config, rows: RowCoder, metas: MetaCoder, flush_s: float
    ) -> None:
        self._store, self._config, self._flush_s = store, config, flush_s
        self._rows, self._metas = rows, metas
        self._begin()

    def _begin(self) -> None:
        """Be a writer that has nothing open: a new one, or a forked child."""
        self._pid = os.getpid()
        self.holder = holders.new_holder(self)
        config = self._config
        self.claims = SlotClaims(self._store, config.max_episodes, config.circular, self.holder)
        self.open: list[OpenEpisode] = []
        self._is_closing = False
        self._openings: dict[str, Opening] = {}
        self._mutex = threading.Lock()
        self._queue = WriteQueue(self._packed, self._write, self._flush_s)
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
        return not self.open and self._queue.is_empty

    def claim(self, n: int) -> list[OpenEpisode]:
        """Begin n more episodes in addition to the open ones.

        Raises:
            MemmapError: The buffer is full.
        """
        self.check_process()
        at_process_end(_end_all, priority=1)  # before the queue stores what waits
        try:
            turns = self.claims.claim(n)
        except SlotsFullError:
            raise self.full() from None
        made = [
            OpenEpisode(turn, turn % self._config.max_episodes, uuid7(), self._metas.blank.copy())
            for turn in turns
        ]
        self.open += made
        return made

    def full(self) -> MemmapError:
        """Return the error of a buffer without a free slot."""
        n = self._config.max_episodes
        if self._config.circular:
            return MemmapError(
                f"the replay buffer is full: other writers have open episodes in all of its {n} "
                f"slots; make it with more `max_episodes`"
            )
        return MemmapError(
            f"The replay buffer is full ({n} episodes) and is not set to be circular. Please set "
            f"`circular = True` or clear the buffer."
        )

    def add(self, open_: OpenEpisode, t: int, row: PackedRow) -> None:
        """Add a step to an open episode."""
        meta = None
        if not open_.is_begun:
            meta = self._metas.to_json(open_.meta)
            open_.is_dirty = False
            opening = Opening(open_.turn, open_.key, open_.meta.tobytes())
            with self._mutex:
                self._openings[open_.key] = opening
        elif t > open_.last_t + 1:
            open_.start = Resumption(open_.key, open_.key, "default", first_t=t)
        step = PackedStep(
            open_.start, t, time.time(), row.raw, row.reward, None, None, row.terminated,
            row.truncated, None, None, len(row.raw),
        )  # fmt: skip
        self._queue.add(step, meta)
        open_.count(t, row.reward)

    def finish(self, lengths: Sequence[int]) -> None:
        """End the first of the open episodes, drop the others, and store all of it.

        Args:
            lengths: The length of each that ends; more are begun, where fewer are open.
        """
        if len(lengths) > len(self.open):
            self.claim(len(lengths) - len(self.open))
        self._end(lengths)
        self.drop()
        self._queue.flush()

    def _end(self, lengths: Sequence[int]) -> None:
        """Give the ends of the first of the open episodes to the queue."""
        ended, self.open = self.open[: len(lengths)], self.open[len(lengths) :]
        for open_, length in zip(ended, lengths, strict=True):
            open_.length = length
            self._queue.end(self.ending(open_))

    def ending(self, open_: OpenEpisode) -> SlotEnding:
        """Return how an open episode ends."""
        key = open_.key if open_.is_begun else ""
        json = self._metas.to_json(open_.meta) if open_.is_dirty else None
        return SlotEnding(
            key, key, "complete", open_.length, open_.return_,
            open_.first_t, open_.last_t, None, turn=open_.turn, meta=open_.meta.tobytes(),
            said=json, is_begun=open_.is_begun,
        )  # fmt: skip

    def store_whole(self, rows: NDArray[Any], meta: NDArray[Any]) -> None:
        """Store a whole episode in one transaction, in the next slot.

        Raises:
            MemmapError: The buffer is full.
        """
        self.check_process()
        self._queue.flush()
        key, packed, json = uuid7(), meta.tobytes(), self._metas.to_json(meta)
        n, (rewards, *_) = len(rows), self._rows.own_columns(rows)
        given = [reward for reward in rewards or () if reward is not None]
        ending = EpisodeEnd(
            key, key, "complete", n, sum(given) if given else None, 0, n - 1, None,
        )  # fmt: skip
        metas = {} if json is None else {(key, key): json}
        batch = ChunkBatch(self._rows.chunks(rows, key), None, [ending], metas)

        def work(connection: Any, insert: Any) -> None:
            insert(batch)
            self.claims.place(connection, key, n, packed)

        try:
            self._store_within(batch, work)
        except SlotsFullError:
            raise self.full() from None

    def drop(self) -> None:
        """Drop the open episodes: their steps are deleted, and their slots are free."""
        if not self.open:
            return
        self._queue.flush()
        dropped, self.open = self.open, []
        for open_ in dropped:
            self._openings.pop(open_.key, None)
        self.claims.release([open_.turn for open_ in dropped])

    def flush(self) -> None:
        """Store all that waits."""
        if not self.is_own:
            return
        self._queue.flush()
        if dirty := [open_ for open_ in self.open if open_.is_dirty and open_.is_begun]:
            self._store_metas(dirty)

    def _store_metas(self, dirty: Sequence[OpenEpisode]) -> None:
        """Store the meta values of open episodes that changed since they began."""
        metas = {open_.slot: open_.meta.tobytes() for open_ in dirty}
        json = {open_.slot: self._metas.to_json(open_.meta) for open_ in dirty}
        slots = Slots(self._store)

        def work(connection: Any) -> None:
            slots.lock(connection)
            slots.set_metas(connection, metas, {s: t for s, t in json.items() if t})

        self._store.write(work)
        for open_ in dirty:
            open_.is_dirty = False

    def close(self) -> None:
        """End the open episodes that have steps, drop the others, and store what waits.

        A buffer that was dropped in the meantime has nothing to keep.
        """
        if self.is_own:
            self._is_closing = True
            with suppress(BufferNotFoundError):
                self.finish(self._lengths())
            self.claims.leave()
            holders.forget(self.holder)

    def end_at_exit(self) -> None:
        """End the open episodes that have steps; the queue stores this at the end of the process.

        The slots of the others are free as soon as this process is gone.
        """
        if self.is_own:
            self._is_closing = True
            self._end(self._lengths())
            self.open = []

    def _lengths(self) -> list[int]:
        """Return the lengths of the open episodes that have steps, which are the first ones."""
        return [open_.length for open_ in self.open if open_.length]

    def _packed(
        self,
        steps: Sequence[PackedStep],
        endings: Sequence[EpisodeEnd],
        metas: Mapping[EpisodeKey, str],
    ) -> SlotBatch:
        return slot_batch(self._store.layout, steps, endings, metas)

    def _store_within(self, batch: Any, work: Callable[[Any, Any], T]) -> T:
        return self._store.chunk_writer.store_within(batch.n_steps, batch.n_bytes, work)

    def _write(self, batch: SlotBatch) -> StoreResult:
        with self._mutex:
            keys = dict.fromkeys(batch.keys)
            begun = [self._openings[key] for key in keys if key in self._openings]
        ended = [ending for ending in batch.endings if isinstance(ending, SlotEnding)]

        def work(connection: Any, insert: Any) -> StoreResult:
            result = batch.insert(connection, self._store.info.id, insert)
            if begun or ended:
                self.claims.change(connection, begun, ended)
            return result

        try:
            written: StoreResult = self._store_within(batch, work)
        except BufferNotFoundError:
            if not self._is_closing:
                raise
            written = StoreResult(0, 0, 0)
        except SlotLostError:
            raise MemmapError(
                "an episode is lost: this process gave no sign of life for a long time, and "
                "another process took its slot"
            ) from None
        with self._mutex:
            for opening in begun:
                self._openings.pop(opening.key, None)
        return written


_writers: "WeakSet[EpisodeWriter]" = WeakSet()


def _end_all() -> None:
    for writer in list(_writers):
        writer.end_at_exit()
