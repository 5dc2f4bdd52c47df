"""The chunks of a buffer: which fragments they have, and when they are fetched and leave.

All of this is in documents of the buffer, which change in one transaction with its fragments:

- `minestudio/pool`: the rules, the session and version, counts, and which chunks may be fetched.
- `minestudio/chunk/<number>`: a chunk, until its fragments are deleted.
- `minestudio/block/<number>`: for 256 chunks with consecutive numbers, which may be fetched, how
  often each was fetched, and how many lists hold it. Each is a text with one decimal number of the
  same width for each chunk.
- `minestudio/worker/<uuid>`: the last fragment of a worker, and those that wait for others.
- `minestudio/consumer/<name>`: the list that was prepared for a consumer. Long lists have further
  pages, `minestudio/page/<n>/<name>`.

Each change locks the pool first, so that the rules hold with any number of processes. A fragment is
stored before: no process waits for its payload.
"""

import logging
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha1
from itertools import accumulate, islice
from typing import Any, NamedTuple

import numpy as np
import orjson

from sqlbuffer.buffer import ReplayBuffer, Transaction
from sqlbuffer.compat.minestudio.config import Rules
from sqlbuffer.errors import BufferNotFoundError, SQLBufferError, StorageBusyError

logger = logging.getLogger("sqlbuffer")

DOCUMENTS = "minestudio/"
POOL = f"{DOCUMENTS}pool"
WORKER, CONSUMER = f"{DOCUMENTS}worker/", f"{DOCUMENTS}consumer/"
# Chunks whose uses share a document: those of a fetch change with few documents.
BLOCK = 256
DOCUMENTS_AT_ONCE = 1_000
# A document has 1 MiB at most; a longer list has several.
PAGE_BYTES = 900_000
# Chunks that one transaction deletes: those of 8 MB take PostgreSQL 15 ms each.
AT_ONCE = 8
# Seconds to wait for other processes, which delete for this call too.
WAIT_S = 1.0
# When a session begins, workers without a fragment for this long are removed, and lists prepared
# longer ago: consumers that are gone would hold their chunks for ever.
FORGOTTEN_S = 30 * 86_400
INT64_MIN = -(2**63)

# Worker, its number at the worker, and id of a fragment.
Prepared = tuple[str, int, str]
# Chooses k of n places.
Choose = Callable[[int, int], Sequence[int]]


class NotInOrderError(Exception):
    """A worker numbered a fragment no higher than its last one, which this error carries."""

    def __init__(self, last: Any) -> None:
        super().__init__(last)
        self.last = last


class SentBeforeError(Exception):
    """A worker has sent its last fragment again, which was stored before and has left."""


class RulesChangedError(Exception):
    """Another process has cleared the buffer and set the rules that this error carries."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.rules = rules


@dataclass
class Counts:
    """Counts of fragments and chunks that were added or have left, since the buffer was made.

    Attributes:
        fragments: Fragments added.
        chunks: Chunks completed.
        fetches: Fetches that returned chunks.
        fetched: Chunks fetched.
        used_up: Chunks that left because they reached `max_reuse`.
        evicted: Chunks that left because there were too many.
        stale: Chunks that left because a fragment was too old.
        other_session: Chunks that left because another session began.
        broken: Chunks that left because one of their fragments was deleted.
        dropped: Fragments that left before they were part of a chunk: too old, of another session,
            or before a gap.
        gaps: How often a worker left out numbers.
        missing: Total of the numbers left out.
        left_weight: Fragments that left since the last fetch.
        left_uses: Sum of the uses of each of them.
        reuse: Their mean at the last fetch; None if none had left.
        staleness: Mean staleness of the last fetched chunks; None before the first fetch.
        reported: Fragments at the last report.
        reported_at: Unix time of the last report.
        per_second: Fragments per second between the last two reports; None before there are two.
    """

    fragments: int = 0
    chunks: int = 0
    fetches: int = 0
    fetched: int = 0
    used_up: int = 0
    evicted: int = 0
    stale: int = 0
    other_session: int = 0
    broken: int = 0
    dropped: int = 0
    gaps: int = 0
    missing: int = 0
    left_weight: int = 0
    left_uses: int = 0
    reuse: float | None = None
    staleness: float | None = None
    reported: int = 0
    reported_at: float | None = None
    per_second: float | None = None

    def is_reported(self, every: int | None) -> bool:
        """Measure the rate at every so many fragments; return True if it was measured."""
        if every is None or self.fragments % every:
            return False
        now = time.time()
        if self.reported_at is not None and now > self.reported_at:
            self.per_second = (self.fragments - self.reported) / (now - self.reported_at)
        self.reported, self.reported_at = self.fragments, now
        return True


@dataclass
class Chunk:
    """Consecutive fragments of one worker, which are fetched and leave together.

    Attributes:
        worker: The worker.
        first_fid: Number of the first fragment at the worker.
        session: Training session of the fragments.
        model_version: Version of the model that made the first one.
        oldest_version: No fragment is of an older version.
        n_bytes: Size of the payloads in bytes.
        seqs: The rows of the fragments, in order.
        left: Why it can no longer be fetched, such as `evicted`; None: it may be fetched.
    """

    worker: str
    first_fid: int
    session: str
    model_version: int
    oldest_version: int
    n_bytes: int
    seqs: list[int]
    left: str | None = None

    def prepared(self) -> list[Prepared]:
        """Return its fragments."""
        fids = range(self.first_fid, self.first_fid + len(self.seqs))
        return [(self.worker, fid, fragment_id(self.session, fid, self.worker)) for fid in fids]


@dataclass
class Pool:
    """The state of a buffer's chunks.

    Attributes:
        rules: Rules of the buffer.
        session: The current training session.
        version: The current model version.
        n_chunks: Number of chunks that may be fetched.
        n_bytes: Size of their payloads in bytes.
        n_uses: How often they were fetched, in total.
        next_chunk: Number of the next chunk.
        oldest: Number of the first chunk that may be fetched; None: not known.
        live: For each block with chunks that may be fetched, in order: the block, how many it has,
            and a version that none of them is older than.
        left: Numbers of chunks that have left and that no list holds, as ranges. Such a chunk is
            never fetched again, and its fragments are deleted.
        n_waiting: Fragments that wait for their neighbours.
        oldest_waiting: A version that none of them is older than.
        counts: Counts of fragments and chunks that were added or have left.
    """

    rules: Rules
    session: str = ""
    version: int = -1
    n_chunks: int = 0
    n_bytes: int = 0
    n_uses: int = 0
    next_chunk: int = 1
    oldest: int | None = None
    live: list[list[int]] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)
    n_waiting: int = 0
    oldest_waiting: int | None = None
    counts: Counts = field(default_factory=Counts)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Pool":
        """Return the pool of a document."""
        rules, counts = Rules(**stored.pop("rules")), Counts(**stored.pop("counts"))
        return cls(rules, **stored, counts=counts)

    def value(self) -> dict[str, Any]:
        """Return the document."""
        return {**vars(self), "rules": vars(self.rules), "counts": vars(self.counts)}

    @property
    def oldest_allowed(self) -> int:
        """The oldest version that is fresh."""
        return max(self.version - self.rules.max_staleness, INT64_MIN)

    def add_left(self, numbers: Iterable[int]) -> None:
        """Note chunks that have left and that no list holds."""
        self.left = _ranges([*self.left, *([number, number] for number in numbers)])

    def remove_left(self, gone: Sequence[int]) -> None:
        """Forget chunks that were deleted."""
        first, last = min(gone, default=0), max(gone, default=0)
        self.left = [
            kept
            for low, high in self.left
            for kept in (
                [[low, high]] if high < first or low > last else _without(low, high + 1, gone)
            )
        ]

    def first_left(self, n: int) -> list[int]:
        """Return the first n numbers of chunks to delete."""
        numbers = (number for low, high in self.left for number in range(low, high + 1))
        return list(islice(numbers, n))


class Fragment(NamedTuple):
    """A fragment that is added.

    Attributes:
        worker: Worker that made it.
        fid: Its number at the worker.
        session: Training session in which it was made.
        version: Version of the model that made it.
        n_bytes: Size of its payload in bytes.
        seq: Its row.
    """

    worker: str
    fid: int
    session: str
    version: int
    n_bytes: int
    seq: int = 0


@dataclass(frozen=True)
class Added:
    """The result of adding a fragment.

    Attributes:
        n_missing: Numbers that the worker left out before it.
        is_reported: It is the last of `fragments_per_report`.
        pool: State after it; None if it was stored before.
    """

    n_missing: int = 0
    is_reported: bool = False
    pool: Pool | None = None


@dataclass(frozen=True)
class Fetched:
    """The result of an attempt to fetch.

    Attributes:
        fragments: The list; None if there were too few chunks.
        pool: State after the attempt.
    """

    fragments: list[Prepared] | None
    pool: Pool


class _Waiting(NamedTuple):
    """A fragment that waits for its neighbours."""

    seq: int
    version: int
    n_bytes: int


def fragment_id(session: str, fid: int, worker: str) -> str:
    """Return the id of a fragment: the same each time that it is sent."""
    # uuid.uuid5(uuid.NAMESPACE_OID, ...), which takes three times as long.
    name = f"{len(session)} {session} {fid} {worker}".encode()
    digest = bytearray(sha1(uuid.NAMESPACE_OID.bytes + name, usedforsecurity=False).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    digits = digest.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def find_pool(buffer: ReplayBuffer) -> Pool | None:
    """Return the state of the chunks of a buffer; None if it has fragments only."""
    document = buffer.documents.get(POOL)
    return None if document is None else Pool.of(document.value)


def read_pool(buffer: ReplayBuffer) -> Pool:
    """Return the state of the chunks of a buffer.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """
    pool = find_pool(buffer)
    if pool is None:
        raise _dropped(buffer)
    return pool


def make(buffer: ReplayBuffer, rules: Rules) -> Rules:
    """Store the rules of a buffer that has none, and return those it has."""

    def work(tx: Transaction) -> Rules:
        document = tx.documents.get(POOL, lock=True)
        if document is not None:
            return Pool.of(document.value).rules
        tx.documents.put(POOL, Pool(rules).value())
        return rules

    return buffer.transaction(work)


def change_rules(buffer: ReplayBuffer, rules: Rules) -> None:
    """Replace the rules."""

    def work(tx: Transaction) -> None:
        change = _Change(tx)
        change.pool.rules = rules
        change.save()

    buffer.transaction(work)


def clear(buffer: ReplayBuffer, rules: Rules | None = None) -> None:
    """Delete all fragments, chunks, workers and lists; replace the rules if new ones are given."""

    def work(tx: Transaction) -> None:
        tx.clear()
        document = tx.documents.get(POOL, lock=True)
        if document is None:
            return
        before = Pool.of(document.value)
        tx.documents.delete_many(tx.documents.keys(DOCUMENTS))
        # A process that is about to delete chunks finds none of a later one by its number.
        pool = Pool(before.rules if rules is None else rules, next_chunk=before.next_chunk)
        tx.documents.put(POOL, pool.value())

    buffer.transaction(work)


class _Block:
    """The uses of chunks with consecutive numbers, and of how many lists each is a part.

    Args:
        stored: The document; None: there is none yet.
    """

    def __init__(self, stored: dict[str, str] | None) -> None:
        stored = stored or {}
        self.live, self.uses, self.held = (
            _numbers(stored.get(name)) for name in ("live", "uses", "held")
        )

    def value(self) -> dict[str, str]:
        """Return the document; numbers that are all 0 are left out."""
        numbers = {"live": self.live, "uses": self.uses, "held": self.held}
        return {name: _digits(values) for name, values in numbers.items() if values.any()}


def _numbers(digits: str | None) -> Any:
    """Return the numbers of a text that has the same number of digits for each."""
    if digits is None:
        return np.zeros(BLOCK, np.int64)
    table = np.frombuffer(digits.encode(), np.uint8).reshape(BLOCK, -1) - ord("0")
    return table[:, 0].astype(np.int64) if table.shape[1] == 1 else table @ _powers(table.shape[1])


@lru_cache
def _powers(width: int) -> Any:
    """Return the values of decimal places."""
    return 10 ** np.arange(width - 1, -1, -1)


def _digits(numbers: Any) -> str:
    """Return numbers as a text that has the same number of digits for each."""
    width = len(str(numbers.max()))
    table = numbers if width == 1 else numbers[:, None] // _powers(width) % 10
    digits: bytes = (table + ord("0")).astype(np.uint8).tobytes()
    return digits.decode()


class _Change:
    """A change of chunks in a transaction: it reads each document once, and writes all together.

    Args:
        tx: The transaction.
    """

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        # Locked, and read before all others: nobody else changes those until the end.
        document = tx.documents.get(POOL, lock=True)
        if document is None:
            raise _dropped(tx.buffer)
        self.pool = Pool.of(document.value)
        self._values: dict[str, Any] = {}
        self._chunks: dict[int, Chunk] = {}
        self._blocks: dict[int, _Block] = {}
        self._changed: set[str] = set()
        self._gone: set[str] = set()

    def read(self, keys: Iterable[str]) -> None:
        """Read documents that were not read yet."""
        missing = [key for key in keys if key not in self._values]
        for start in range(0, len(missing), DOCUMENTS_AT_ONCE):
            batch = missing[start : start + DOCUMENTS_AT_ONCE]
            documents = self.tx.documents.get_many(batch)
            self._values |= {
                key: documents[key].value if key in documents else None for key in batch
            }

    def get(self, key: str) -> Any:
        """Return the value of a document; None if there is none."""
        self.read([key])
        return self._values[key]

    def put(self, key: str, value: Any) -> None:
        """Write a document at the end."""
        self._values[key] = value
        self._changed.add(key)
        self._gone.discard(key)

    def forget(self, key: str) -> None:
        """Delete a document at the end."""
        self._values[key] = None
        self._changed.discard(key)
        self._gone.add(key)

    def save(self) -> None:
        """Write what has changed."""
        for number, chunk in self._chunks.items():
            if (key := _chunk_key(number)) in self._changed:
                self._values[key] = vars(chunk)
        for number, block in self._blocks.items():
            if (key := _block_key(number)) in self._changed:
                value = self._values[key] = block.value()
                if not value:
                    self.forget(key)
        self.tx.documents.put_many(
            {POOL: self.pool.value(), **{key: self._values[key] for key in self._changed}}
        )
        if self._gone:
            self.tx.documents.delete_many(self._gone)

    def chunks(self, numbers: Sequence[int]) -> dict[int, Chunk]:
        """Return chunks by number, in the order of the numbers, without those that are gone."""
        self.read([_chunk_key(number) for number in numbers])
        for number in numbers:
            value = self._values[_chunk_key(number)]
            if value is not None and number not in self._chunks:
                self._chunks[number] = Chunk(**value)
        return {number: self._chunks[number] for number in numbers if number in self._chunks}

    def changed(self, numbers: Iterable[int]) -> None:
        """Write chunks at the end."""
        self._changed.update(map(_chunk_key, numbers))

    def block(self, number: int) -> _Block:
        """Return the block of that number."""
        if number not in self._blocks:
            self._blocks[number] = _Block(self.get(_block_key(number)))
        return self._blocks[number]

    def read_blocks(self, blocks: Iterable[int], *more: str) -> None:
        """Read blocks, and other documents in the same statement."""
        self.read([*map(_block_key, blocks), *more])

    def live_in(self, block: int) -> Any:
        """Return the numbers of a block that may be fetched, in order."""
        return np.flatnonzero(self.block(block).live) + block * BLOCK

    def is_live(self, number: int) -> bool:
        """Return True if a chunk may be fetched."""
        return bool(self.block(number // BLOCK).live[number % BLOCK])

    def uses(self, number: int) -> int:
        """Return how often a chunk was fetched."""
        return int(self.block(number // BLOCK).uses[number % BLOCK])

    def is_held(self, number: int) -> bool:
        """Return True if a list holds a chunk."""
        return bool(self.block(number // BLOCK).held[number % BLOCK])

    def count(self, numbers: Iterable[int], *, uses: int = 0, lists: int = 0) -> None:
        """Add to the uses of chunks, and to the lists that hold them."""
        for number in numbers:
            block, place = self.block(number // BLOCK), number % BLOCK
            block.uses[place] += uses
            block.held[place] += lists
            self._changed.add(_block_key(number // BLOCK))

    def clear_block(self, number: int) -> None:
        """Let no chunk of a block be fetched; those that lists hold keep their uses."""
        block = self.block(number)
        block.live[:] = 0
        block.uses[block.held == 0] = 0
        self._changed.add(_block_key(number))

    def _set_live(self, number: int, is_live: bool, chunk: Chunk) -> None:
        pool, sign = self.pool, 1 if is_live else -1
        pool.n_chunks += sign
        pool.n_bytes += sign * chunk.n_bytes
        pool.n_uses += sign * self.uses(number)
        block = number // BLOCK
        self.block(block).live[number % BLOCK] = is_live
        self._changed.add(_block_key(block))
        self._count_live(block, sign, chunk.oldest_version)
        if not is_live:
            pool.oldest = None if pool.oldest == number else pool.oldest
        elif pool.n_chunks == 1:
            pool.oldest = number
        elif pool.oldest is not None:
            pool.oldest = min(number, pool.oldest)

    def _count_live(self, block: int, sign: int, oldest_version: int) -> None:
        live = self.pool.live
        at = bisect_right(live, block, key=lambda entry: entry[0]) - 1
        if at < 0 or live[at][0] != block:
            at += 1
            live.insert(at, [block, 0, oldest_version])
        entry = live[at]
        entry[1] += sign
        if sign > 0:
            entry[2] = min(entry[2], oldest_version)
        if not entry[1]:
            del live[at]

    def add_chunk(self, chunk: Chunk) -> None:
        """Add a chunk under the next number; it may be fetched if it has not left."""
        number = self.pool.next_chunk
        self.pool.next_chunk += 1
        self._chunks[number], self._values[_chunk_key(number)] = chunk, None
        self.changed([number])
        if chunk.left is None:
            self._set_live(number, True, chunk)
        else:
            self.pool.add_left([number])

    def bring_back(self, number: int) -> None:
        """Let a chunk be fetched again that has left and that a list holds."""
        chunk = self._chunks[number]
        chunk.left = None
        self.changed([number])
        self._set_live(number, True, chunk)

    def leave(self, leaving: dict[int, Chunk], cause: str) -> None:
        """Take chunks out of those that may be fetched, and count them under their cause."""
        counts = self.pool.counts
        for number, chunk in leaving.items():
            self._set_live(number, False, chunk)
            chunk.left = cause
            counts.left_weight += len(chunk.seqs)
            counts.left_uses += len(chunk.seqs) * self.uses(number)
        self.changed(leaving)
        setattr(counts, cause, getattr(counts, cause) + len(leaving))
        self._now_free(leaving)

    def _now_free(self, numbers: Iterable[int]) -> None:
        """Note chunks that have left and that no list holds."""
        free = [n for n in numbers if not self.is_live(n) and not self.is_held(n)]
        for number in free:
            self.block(number // BLOCK).uses[number % BLOCK] = 0
            self._changed.add(_block_key(number // BLOCK))
        self.pool.add_left(free)

    def leave_stale(self) -> None:
        """Take out all chunks with a fragment that is too old."""
        allowed = self.pool.oldest_allowed
        blocks = [entry[0] for entry in self.pool.live if entry[2] < allowed]
        self.read_blocks(blocks)
        for block in blocks:
            chunks = self.chunks(self.live_in(block).tolist())
            old = {n: chunk for n, chunk in chunks.items() if chunk.oldest_version < allowed}
            self.leave(old, "stale")
            for entry in self.pool.live:
                if entry[0] == block:
                    kept = (chunk for number, chunk in chunks.items() if number not in old)
                    entry[2] = min((chunk.oldest_version for chunk in kept), default=allowed)

    def evict(self) -> None:
        """Take out the chunks that were inserted first, until the limits of the buffer hold."""
        pool, most = self.pool, self.pool.rules.max_bytes
        while (over := pool.n_chunks - pool.rules.max_chunks) > 0 or (
            most is not None and pool.n_bytes > most and pool.n_chunks > 1
        ):
            block = pool.live[0][0]
            numbers = self.live_in(block).tolist()
            n = min(max(over, 1), len(numbers))
            self.leave(self.chunks(numbers[:n]), "evicted")
            pool.oldest = numbers[n] if n < len(numbers) else None

    def read_for_add(self, worker: str) -> None:
        """Read all that adding a fragment usually needs, in one statement."""
        pool = self.pool
        keys = [WORKER + worker, _block_key(pool.next_chunk // BLOCK)]
        is_full = pool.n_chunks >= pool.rules.max_chunks or pool.rules.max_bytes is not None
        if is_full and pool.live:
            keys.append(_block_key(pool.live[0][0]))
            if pool.oldest is not None:
                keys.append(_chunk_key(pool.oldest))
        self.read(dict.fromkeys(keys))

    def draw(self, places: Sequence[int], *more: str) -> list[int]:
        """Return the numbers of the chunks at some places among those that may be fetched."""
        ends = list(accumulate(entry[1] for entry in self.pool.live))
        indices = [bisect_right(ends, place) for place in places]
        self.read_blocks((self.pool.live[i][0] for i in dict.fromkeys(indices)), *more)
        live = {i: self.live_in(self.pool.live[i][0]).tolist() for i in dict.fromkeys(indices)}
        return [live[i][place - ends[i]] for place, i in zip(places, indices, strict=True)]

    def hold_no_more(self, held: Sequence[int]) -> None:
        """Release the chunks of a list."""
        self.read_blocks(dict.fromkeys(number // BLOCK for number in held))
        self.count(held, lists=-1)
        self._now_free(held)


@dataclass(frozen=True)
class _Worker:
    """The last fragment of a worker, and its fragments that wait, all of one session."""

    last_fid: int
    last_seq: int
    session: str
    waiting: list[_Waiting]
    seen: float

    @classmethod
    def of(cls, value: dict[str, Any]) -> "_Worker":
        """Return the worker of a document."""
        return cls(**{**value, "waiting": [_Waiting(*entry) for entry in value["waiting"]]})

    def value(self) -> dict[str, Any]:
        """Return the document."""
        return {**vars(self), "waiting": [list(entry) for entry in self.waiting]}


def _ranges(ranges: Iterable[list[int]]) -> list[list[int]]:
    """Return ranges of numbers in order, those that touch as one."""
    joined: list[list[int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return joined


def _chunk_key(number: int) -> str:
    return f"{DOCUMENTS}chunk/{number:012d}"


def _block_key(block: int) -> str:
    return f"{DOCUMENTS}block/{block}"


def _dropped(buffer: ReplayBuffer) -> BufferNotFoundError:
    return BufferNotFoundError(f"buffer {buffer.name!r} was dropped from {buffer.url}")


def add(tx: Transaction, new: Fragment) -> Added:
    """Add a fragment, in the transaction that has stored it.

    Raises:
        NotInOrderError: The worker has sent a later one.
        SentBeforeError: The worker has sent this one before, and it has left.
    """
    change = _Change(tx)
    change.read_for_add(new.worker)
    pool, value = change.pool, change.get(WORKER + new.worker)
    worker = None if value is None else _Worker.of(value)
    if worker is not None and new.fid <= worker.last_fid:
        if new.seq <= worker.last_seq:
            # Another process has sent a later one as this worker since this one was stored.
            raise NotInOrderError("a later one")
        if (new.fid, new.session) == (worker.last_fid, worker.session):
            raise SentBeforeError
        raise NotInOrderError(worker.last_fid)
    n_missing = 0 if worker is None else new.fid - worker.last_fid - 1
    before = [] if worker is None else worker.waiting
    newest = _Waiting(new.seq, new.version, new.n_bytes)
    kept = _kept([] if n_missing else before, newest, new.session, pool)
    dropped = [entry for entry in (*before, newest) if entry not in kept]
    pool.counts.fragments += 1
    pool.counts.gaps += n_missing > 0
    pool.counts.missing += n_missing
    is_reported = pool.counts.is_reported(pool.rules.fragments_per_report)
    first_fid = new.fid if worker is None else worker.last_fid - len(before) + 1
    session = worker.session if worker is not None and before else new.session
    _drop(change, new.worker, session, first_fid if before else new.fid, dropped)
    pool.n_waiting -= len(before)
    if len(kept) >= pool.rules.fragments_per_chunk:
        first = new.fid - len(kept) + 1
        change.add_chunk(_chunk(new.worker, new.session, first, kept))
        pool.counts.chunks += 1
        kept = []
        change.evict()
    _note_waiting(pool, kept)
    # If two processes send as one worker, a row may have a lower number than the one before.
    last_seq = new.seq if worker is None else max(new.seq, worker.last_seq)
    now = _Worker(new.fid, last_seq, new.session, kept, time.time())
    change.put(WORKER + new.worker, now.value())
    change.save()
    return Added(n_missing, is_reported, pool)


def _kept(before: list[_Waiting], newest: _Waiting, session: str, pool: Pool) -> list[_Waiting]:
    """Return the fragments that may still join a chunk: those after the last unfit one."""
    if session != pool.session:
        return []
    kept = [*before, newest]
    for i in reversed(range(len(kept))):
        if kept[i].version < pool.oldest_allowed:
            return kept[i + 1 :]
    return kept


def _chunk(
    worker: str, session: str, first_fid: int, fragments: list[_Waiting], left: str | None = None
) -> Chunk:
    versions = [fragment.version for fragment in fragments]
    n_bytes = sum(fragment.n_bytes for fragment in fragments)
    seqs = [fragment.seq for fragment in fragments]
    return Chunk(worker, first_fid, session, versions[0], min(versions), n_bytes, seqs, left=left)


def _drop(
    change: _Change, worker: str, session: str, first_fid: int, dropped: list[_Waiting]
) -> None:
    """Drop fragments that belong to no chunk, by making them a chunk that has left."""
    if dropped:
        change.pool.counts.dropped += len(dropped)
        change.pool.counts.left_weight += len(dropped)
        change.add_chunk(_chunk(worker, session, first_fid, dropped, "dropped"))


def _note_waiting(pool: Pool, waiting: list[_Waiting]) -> None:
    pool.n_waiting += len(waiting)
    versions = [entry.version for entry in waiting]
    if pool.oldest_waiting is not None:
        versions.append(pool.oldest_waiting)
    pool.oldest_waiting = min(versions, default=None) if pool.n_waiting else None


def fetch(tx: Transaction, rules: Rules, k: int, choose: Choose, consumer: str) -> Fetched:
    """Fetch k chunks, if there are enough, and prepare them in place of the previous list.

    Args:
        tx: The transaction.
        rules: The rules for which `k` was computed.
        k: Number of chunks.
        choose: Function that chooses them.
        consumer: Consumer of the list.

    Raises:
        RulesChangedError: The buffer has other rules now.
    """
    change = _Change(tx)
    pool = change.pool
    if pool.rules != rules:
        raise RulesChangedError(pool.rules)
    change.leave_stale()
    while pool.n_chunks >= k:
        numbers = change.draw(choose(pool.n_chunks, k) if k else [], CONSUMER + consumer)
        before = _held(change, consumer)
        blocks = dict.fromkeys(number // BLOCK for number in before)
        change.read([*map(_block_key, blocks), *map(_chunk_key, numbers)])
        chosen = change.chunks(numbers)
        broken = _broken(tx, chosen)
        if not broken:
            break
        change.leave(broken, "broken")  # by calls of the buffer, or plain SQL
    else:
        change.save()
        return Fetched(None, pool)
    _count_use(change, chosen)
    fragments = _replace(change, consumer, before, chosen)
    change.save()
    return Fetched(fragments, pool)


def _broken(tx: Transaction, chunks: dict[int, Chunk]) -> dict[int, Chunk]:
    """Return the chunks of which fragments were deleted."""
    seqs = [seq for chunk in chunks.values() for seq in chunk.seqs]
    n_there = sum(
        tx.size({"field": "seq", "op": "in", "value": seqs[start : start + DOCUMENTS_AT_ONCE]})
        for start in range(0, len(seqs), DOCUMENTS_AT_ONCE)
    )
    if n_there == len(seqs):
        return {}
    ids = [id_ for chunk in chunks.values() for _, _, id_ in chunk.prepared()]
    there = tx.get_by_ids(ids, fields=[])
    return {
        number: chunk
        for number, chunk in chunks.items()
        if any(id_ not in there for _, _, id_ in chunk.prepared())
    }


def _count_use(change: _Change, chosen: dict[int, Chunk]) -> None:
    """Count a use of each chunk, which the new list holds; those that reach `max_reuse` leave."""
    pool, counts = change.pool, change.pool.counts
    if not chosen:
        return
    change.count(chosen, uses=1, lists=1)
    pool.n_uses += len(chosen)
    done = {n: chunk for n, chunk in chosen.items() if change.uses(n) >= pool.rules.max_reuse}
    change.leave(done, "used_up")
    counts.fetches += 1
    counts.fetched += len(chosen)
    counts.staleness = sum(pool.version - c.model_version for c in chosen.values()) / len(chosen)
    counts.reuse = counts.left_uses / counts.left_weight if counts.left_weight else None
    counts.left_uses = counts.left_weight = 0


def _page_key(consumer: str, page: int) -> str:
    return f"{DOCUMENTS}page/{page}/{consumer}" if page else CONSUMER + consumer


def _pages(numbers: Sequence[int], chosen: dict[int, Chunk]) -> list[dict[str, Any]]:
    """Return a list in parts that are documents."""
    fragments = [fragment for number in numbers for fragment in chosen[number].prepared()]
    workers, fids, ids = (list(column) for column in zip(*fragments, strict=True))
    page = {"chunks": list(numbers), "workers": workers, "fids": fids, "ids": ids}
    if len(numbers) > 1 and len(orjson.dumps(page)) > PAGE_BYTES:
        half = len(numbers) // 2
        return [*_pages(numbers[:half], chosen), *_pages(numbers[half:], chosen)]
    return [page]


def _held(change: _Change, consumer: str) -> list[int]:
    """Return the chunks of a consumer's list."""
    first = change.get(CONSUMER + consumer)
    if first is None:
        return []
    pages = [_page_key(consumer, page) for page in range(first["n_pages"])]
    change.read(pages)
    return [number for key in pages for number in change.get(key)["chunks"]]


def _replace(
    change: _Change, consumer: str, before: list[int], chosen: dict[int, Chunk]
) -> list[Prepared]:
    """Prepare a list in place of another one, and release the chunks of that one.

    An empty list counts as no list.
    """
    change.hold_no_more(before)
    first = change.get(CONSUMER + consumer)
    pages = _pages(list(chosen), chosen) if chosen else []
    for page in range(len(pages), 0 if first is None else first["n_pages"]):
        change.forget(_page_key(consumer, page))
    list_id = str(uuid.uuid4())
    for page, value in enumerate(pages):
        more = {"list": list_id, "n_pages": len(pages), "seen": time.time()}
        change.put(_page_key(consumer, page), {**value, **more})
    return [fragment for page in pages for fragment in _fragments(page)]


def _fragments(page: dict[str, Any]) -> Iterable[Prepared]:
    return zip(page["workers"], page["fids"], page["ids"], strict=True)


def prepared(buffer: ReplayBuffer, consumer: str) -> list[Prepared]:
    """Return the list that was prepared last for a consumer."""
    while True:
        # Without a list, a buffer that was dropped shows by its pool.
        here = buffer.documents.get_many([CONSUMER + consumer, POOL])
        first = here.get(CONSUMER + consumer)
        if first is None:
            if POOL not in here:
                raise _dropped(buffer)
            return []
        pages = [first.value]
        if first.value["n_pages"] > 1:
            keys = [_page_key(consumer, page) for page in range(1, first.value["n_pages"])]
            documents = buffer.documents.get_many(keys)
            pages += [documents[key].value for key in keys if key in documents]
        # Another fetch may have replaced it in between.
        if [page["list"] for page in pages] == [first.value["list"]] * first.value["n_pages"]:
            return [fragment for page in pages for fragment in _fragments(page)]


def release(tx: Transaction, consumer: str) -> tuple[int, Pool]:
    """Give back the list of a consumer, as if it had not been fetched.

    Returns:
        Number of its chunks that may be fetched, and the state after it.
    """
    change = _Change(tx)
    pool = change.pool
    before = _held(change, consumer)
    if not before:
        return 0, pool
    change.read_blocks(dict.fromkeys(number // BLOCK for number in before))
    change.count(before, uses=-1)
    held = change.chunks(before)
    for number, chunk in sorted(held.items()):
        if change.is_live(number):
            pool.n_uses -= 1
        elif chunk.left == "used_up" and chunk.session == pool.session:
            # A chunk that left only because it was used up may be fetched again.
            change.bring_back(number)
            pool.counts.used_up -= 1
    pool.counts.fetched -= len(before)
    _replace(change, consumer, before, {})
    change.leave_stale()
    change.evict()
    change.save()
    return sum(change.is_live(number) for number in held), pool


def set_version(tx: Transaction, session: str, version: int) -> Pool:
    """Set the session and its model version; return the state of the chunks after it."""
    # First, as in every call that locks the row of the buffer and the pool.
    if session:
        tx.start_session(session)
        tx.set_model_version(version, session)
    else:
        tx.set_clock(version)
    change = _Change(tx)
    pool = change.pool
    is_other, pool.session, pool.version = session != pool.session, session, version
    if is_other:
        _leave_all(change)
    else:
        if pool.oldest_waiting is not None and pool.oldest_waiting < pool.oldest_allowed:
            workers = change.tx.documents.keys(WORKER)
            change.read(workers)
            _drop_waiting(change, workers)
        change.leave_stale()
    change.save()
    return pool


def _leave_all(change: _Change) -> None:
    """Take out all chunks and waiting fragments, which are of another session; forget workers and
    consumers that are long gone.
    """
    pool, counts = change.pool, change.pool.counts
    names = change.tx.documents.keys(CONSUMER)
    workers = change.tx.documents.keys(WORKER)
    change.read([*names, *workers])
    lists = {name: _held(change, name.removeprefix(CONSUMER)) for name in names}
    held = {number for numbers in lists.values() for number in numbers}
    change.read_blocks(dict.fromkeys([*(n // BLOCK for n in held), *(e[0] for e in pool.live)]))
    per_chunk = pool.rules.fragments_per_chunk
    counts.other_session += pool.n_chunks
    counts.left_weight += per_chunk * pool.n_chunks
    counts.left_uses += per_chunk * pool.n_uses
    live = {n: chunk for n, chunk in change.chunks(sorted(held)).items() if change.is_live(n)}
    for chunk in live.values():
        chunk.left = "other_session"
    change.changed(live)
    # The others are not read: their numbers are enough.
    for block, _, _ in pool.live:
        pool.left += _without(block * BLOCK, min(block * BLOCK + BLOCK, pool.next_chunk), held)
        change.clear_block(block)
    pool.left = _ranges(pool.left)
    pool.live, pool.oldest = [], None
    pool.n_chunks = pool.n_bytes = pool.n_uses = 0
    _drop_waiting(change, workers)
    now = time.time()
    for name in workers:
        if now - change.get(name)["seen"] > FORGOTTEN_S:
            change.forget(name)
    for name, numbers in lists.items():
        if now - change.get(name)["seen"] > FORGOTTEN_S:
            _replace(change, name.removeprefix(CONSUMER), numbers, {})


def _without(first: int, end: int, held: Iterable[int]) -> list[list[int]]:
    """Return the numbers from `first` to `end` - 1 without `held`, as ranges [low, high]."""
    ranges, low = [], first
    for number in sorted(number for number in held if first <= number < end):
        if low < number:
            ranges.append([low, number - 1])
        low = number + 1
    return [*ranges, [low, end - 1]] if low < end else ranges


def _drop_waiting(change: _Change, workers: Sequence[str]) -> None:
    """Drop the waiting fragments up to the last one that is too old, or of another session."""
    pool = change.pool
    kept: list[_Waiting] = []
    for name in workers:
        worker = _Worker.of(change.get(name))
        old = [
            i + 1
            for i, entry in enumerate(worker.waiting)
            if entry.version < pool.oldest_allowed or worker.session != pool.session
        ]
        n = max(old, default=0)
        if n:
            first_fid = worker.last_fid - len(worker.waiting) + 1
            uuid_ = name.removeprefix(WORKER)
            _drop(change, uuid_, worker.session, first_fid, worker.waiting[:n])
            left = {**vars(worker), "waiting": worker.waiting[n:]}
            change.put(name, _Worker(**left).value())
        kept += worker.waiting[n:]
    pool.n_waiting, pool.oldest_waiting = 0, None
    _note_waiting(pool, kept)


def delete_left(buffer: ReplayBuffer, pool: Pool, most: int | None = None) -> None:
    """Delete chunks that have left and that no list holds, with their fragments.

    Each deletion is a transaction of its own, so that no call that adds or fetches waits for it: it
    locks the pool only at its end. If a call is killed or meets other writers, a later call deletes
    the remaining chunks. Errors are ignored: the call that started this is done.

    Args:
        buffer: The buffer.
        pool: The state of its chunks.
        most: Maximum number of chunks; None for all.
    """
    try:
        while pool.left and (most is None or most > 0):
            n = AT_ONCE if most is None else min(AT_ONCE, most)
            now, n_deleted = delete_some(buffer, pool, n)
            if now is None:
                return
            pool = now
            most = None if most is None else most - max(n_deleted, 1)
    except StorageBusyError:
        pass
    except SQLBufferError as error:
        logger.warning("fragments that have left are not deleted yet: %s", error)


def delete_some(buffer: ReplayBuffer, pool: Pool, n: int) -> tuple[Pool | None, int]:
    """Delete n chunks at most, in a transaction; return the state after it, and how many."""
    return buffer.transaction(
        lambda tx: _delete_first(tx, pool, n), wait_s=WAIT_S, durability="relaxed"
    )


def _delete_first(tx: Transaction, pool: Pool, n: int) -> tuple[Pool | None, int]:
    # Of the numbers of another session, many may have been deleted before.
    for n_looked_at in (8 * AT_ONCE, DOCUMENTS_AT_ONCE):
        numbers = pool.first_left(n_looked_at)
        documents = tx.documents.get_many(map(_chunk_key, numbers))
        gone = [number for number in numbers if _chunk_key(number) in documents][:n]
        if len(gone) == n or len(numbers) < n_looked_at:
            break
    if len(gone) == n:
        numbers = numbers[: numbers.index(gone[-1]) + 1]
    delete_fragments(tx, [s for g in gone for s in documents[_chunk_key(g)].value["seqs"]])
    locked = tx.documents.get(POOL, lock=True)
    if locked is None:
        return None, 0
    now = Pool.of(locked.value)
    now.remove_left(numbers)
    tx.documents.put(POOL, now.value())
    if gone:
        tx.documents.delete_many(map(_chunk_key, gone))
    return now, len(gone)


def delete_fragments(tx: Transaction, seqs: Sequence[int]) -> None:
    """Delete the rows of fragments."""
    for start in range(0, len(seqs), DOCUMENTS_AT_ONCE):
        some = list(seqs[start : start + DOCUMENTS_AT_ONCE])
        tx.delete({"field": "seq", "op": "in", "value": some})
