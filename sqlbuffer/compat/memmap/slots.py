"""The slots of a buffer: which episode each of them shows, and the values in it.

A buffer of slots is an ordinary buffer with typed fields. Its slots are documents of it:

- `config`: the configuration, and the beginning of the ids of all episodes.
- `ring`: the progress of the writers, the slots that they hold, and the number of changes.
- `slots/<i>`: packed records of `PAGE` slots: length, number of the episode, parts of the tail,
  and meta values.
- `meta/<slot>`: the packed meta values of a slot, where they are large.
- `tail/<slot>/<i>`: a part of the packed values of steps that are not stored as steps.
- `writer/<name>`: when a writer was last alive, in seconds since 1970.

A turn counts the slots through every lap: turn modulo number of slots is the slot. Whoever changes
slots has locked the document `ring`.
"""

import base64
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import ReplayBuffer as CoreBuffer
from sqlbuffer.buffer import Snapshot, Transaction
from sqlbuffer.compat.memmap.rows import MetaCoder, RowCoder
from sqlbuffer.errors import FieldError
from sqlbuffer.processes import ForkLock, is_alive
from sqlbuffer.storage.replacing import ReplaceableSteps, StoredSpan

Ints = NDArray[np.int64]
Columns = Mapping[str, NDArray[Any]]
# Default size of the cache.
MAX_BYTES = 2**27
# Steps of a run, on average, from which on it may be a whole episode.
LONG_RUN = 8
CONFIG, RING, PAGES, METAS, TAILS, WRITERS = "config", "ring", "slots/", "meta/", "tail/", "writer/"
# Slots of a document. More of them would make each change of one larger.
PAGE = 128
# Pages that are read in one message with the lock of the ring: which slot is next is in the ring.
MOST_LOCKED = 2
# Pages that exist from the beginning.
MOST_MADE = 64
# Documents that are read with the begin of a transaction.
MOST_AHEAD = 1_000
# Meta values of more bytes have a document for each slot.
MOST_META_BYTES = 64
# Bytes of a part of a tail: base64 makes four of three, and a document has up to 1 MiB.
PART_BYTES = 3 * 2**17
# Interval in seconds at which a writer reports that it is alive.
SEEN_S = 60.0
# The length of an episode that is being written.
OPEN = -1


T = TypeVar("T")
Run = tuple[int, int, int]  # slot, first and last step


class SlotsFullError(Exception):
    """No slot is left."""


class SlotLostError(Exception):
    """Another writer took a slot because it considered the owner dead."""


class Claim(NamedTuple):
    """A slot that a writer holds.

    Attributes:
        turn: The turn of the slot.
        holder: The writer.
        number: Random number of the episode that it writes there.
    """

    turn: int
    holder: str
    number: int


@dataclass
class Ring:
    """The progress of the writers of a buffer.

    Attributes:
        next_turn: Turns below this one are finished.
        num_episodes: Episodes finished, at most one a slot.
        changes: How often stored steps were changed in place.
        deletions: How often steps were deleted, when a writer last looked.
        used: Turns of slots that were finished in a turn not yet passed, by slot.
        held: The slots that writers hold.
    """

    next_turn: int = 0
    num_episodes: int = 0
    changes: int = 0
    deletions: int = 0
    used: dict[int, int] = field(default_factory=dict)
    held: dict[int, Claim] = field(default_factory=dict)

    def to_json(self) -> list[Any]:
        """Return it as JSON."""
        numbers = [self.next_turn, self.num_episodes, self.changes, self.deletions]
        used = [[slot, turn] for slot, turn in self.used.items()]
        return [*numbers, used, [[slot, *claim] for slot, claim in self.held.items()]]

    @classmethod
    def from_json(cls, stored: Any) -> "Ring":
        """Return what `to_json` wrote."""
        next_turn, n, changes, deletions, used, held = stored
        return cls(
            next_turn,
            n,
            changes,
            deletions,
            dict(used),
            {slot: Claim(*claim) for slot, *claim in held},
        )


def pages_of(slots: Iterable[int]) -> list[int]:
    """Return the pages of slots, each once."""
    return sorted({slot // PAGE for slot in slots})


class SlotBook:
    """Which episode each slot shows, in documents of the buffer.

    Args:
        core: The buffer.
        n_slots: Number of slots.
        is_circular: Slots are used again.
        prefix: Beginning of the ids of episodes.
        metas: Encodes the meta values.
    """

    def __init__(
        self, core: CoreBuffer, n_slots: int, is_circular: bool, prefix: str, metas: MetaCoder
    ) -> None:
        self.core, self.n_slots, self.is_circular = core, n_slots, is_circular
        self.steps = ReplaceableSteps(core._store)
        self._prefix, self.timeout_s = prefix, core._store.info.config.episodes.open_timeout_s
        self.metas, size = metas, metas.dtype.itemsize
        # Larger ones are in a document for each slot: a page is written with each episode.
        self.has_metas_apart = size > MOST_META_BYTES
        self.has_metas_inside = 0 < size <= MOST_META_BYTES
        meta_fields = [("meta", metas.dtype)] if self.has_metas_inside else []
        self.record = np.dtype(
            [("length", "<i4"), ("tail", "<i4"), ("number", "<i8"), ("has_meta", "?"), *meta_fields]
        )
        self.blank = np.zeros(min(PAGE, n_slots), self.record)
        self.blank["number"] = -1
        if meta_fields:
            self.blank["meta"] = metas.blank
        self.blank.flags.writeable = False
        # The decoded pages with their texts: decoding one takes longer than reading it.
        self._decoded: dict[str, tuple[str, NDArray[Any]]] = {}
        # At a number of deletions: episodes without steps, those that were looked at, and whether
        # the list of episodes was cleared.
        self._gone: tuple[int, set[int], set[int], bool] = (-1, set(), set(), False)

    def page(self, document: Any) -> NDArray[Any]:
        """Return the slots of a document, which are not changed, of the shape of `blank`."""
        if document is None or not document.value:
            return self.blank
        text, page = self._decoded.get(document.key, ("", self.blank))
        if text != document.value:
            page = np.frombuffer(base64.b64decode(document.value), self.record)
            self._keep(document.key, document.value, page)
        return page

    def text_of(self, key: str, page: NDArray[Any]) -> str:
        """Return the value of a document of slots, which are not changed any more."""
        text = base64.b64encode(page.tobytes()).decode()
        page.flags.writeable = False
        self._keep(key, text, page)
        return text

    def _keep(self, key: str, text: str, page: NDArray[Any]) -> None:
        if len(self._decoded) >= MOST_AHEAD:
            self._decoded.clear()
        self._decoded[key] = (text, page)

    def key(self, number: int) -> str:
        """Return the id of an episode."""
        return f"{self._prefix}-{number:x}"

    @property
    def n_pages(self) -> int:
        """Number of documents of slots."""
        return -(-self.n_slots // PAGE)

    def documents_of(self, slots: Ints | None, *, metas: bool = False) -> list[str]:
        """Return the documents that are read with the begin of a transaction that reads slots.

        Args:
            slots: The slots, of any shape, with repetitions; all of them by default.
            metas: Their meta values are read as well; each slot is given once.
        """
        pages: Iterable[int] = range(self.n_pages)
        if slots is not None and (self.n_pages > 1 or not slots.size):
            pages = np.bincount(slots.ravel() // PAGE).nonzero()[0].tolist()
        keys = [RING, *(f"{PAGES}{page}" for page in islice(pages, MOST_AHEAD))]
        if metas and self.has_metas_apart and slots is not None:
            meta_keys = [f"{METAS}{slot}" for slot in slots.tolist()]
            keys += meta_keys if len(keys) + len(meta_keys) <= MOST_AHEAD else ()
        return keys

    def blank_pages(self) -> dict[str, Any]:
        """Return the documents of slots that were never used, which are read with the ring."""
        n = self.n_pages if self.n_pages <= MOST_MADE else 0
        return {f"{PAGES}{page}": "" for page in range(n)}

    def gone(self, deletions: int, numbers: Iterable[int]) -> tuple[set[int], bool]:
        """Return those of finished episodes that have no steps any more, in a transaction.

        Also returns True if the list of episodes was cleared.
        """
        seen_at, gone, seen, is_cleared = self._gone
        if seen_at != deletions:
            gone, seen, is_cleared = set(), set(), False
        wanted = {number for number in numbers if number >= 0}
        if left := sorted(wanted - seen):
            keys = {self.key(number): number for number in left}
            listed = self.steps.held_episodes(list(keys))
            gone = gone | {number for key, number in keys.items() if not listed.get(key)}
            seen, is_cleared = seen | set(left), is_cleared or len(listed) < len(keys)
        self._gone = (deletions, gone, seen, is_cleared)
        return gone & wanted, is_cleared


class BookChange:
    """The slots of a buffer in a transaction that changes them.

    Args:
        book: The slots.
        tx: The transaction.
        slots: Slots that are certainly changed.
    """

    def __init__(self, book: SlotBook, tx: Transaction, slots: Iterable[int] = ()) -> None:
        self.book, self.tx = book, tx
        self._pages: dict[int, NDArray[Any]] = {}
        self._changed_pages: set[int] = set()
        self.changed: dict[str, Any] = {}
        self._dropped: list[str] = []
        # Only pages that exist are locked: one that another process makes just now is not seen.
        pages: Iterable[int] = pages_of(slots) if book.n_pages <= MOST_MADE else ()
        if book.n_pages <= MOST_LOCKED:
            pages = range(book.n_pages)
        documents, deletions = tx.locked([RING, *(f"{PAGES}{page}" for page in pages)])
        self._stored_ring = documents[RING].value if RING in documents else None
        self.ring = Ring() if self._stored_ring is None else Ring.from_json(self._stored_ring)
        for page in pages:
            self._pages[page] = book.page(documents.get(f"{PAGES}{page}"))
        self.load(slots)
        if deletions != self.ring.deletions:
            self.empty_gone(deletions)

    def page(self, slot: int) -> tuple[NDArray[Any], int]:
        """Return the page of a slot, and its place there."""
        number, place = divmod(slot, PAGE)
        if number not in self._pages:
            self.load([slot])
        return self._pages[number], place

    def load(self, slots: Iterable[int]) -> None:
        """Read the pages of slots, in one statement."""
        if left := [page for page in pages_of(slots) if page not in self._pages]:
            documents = self.tx.documents.get_many([f"{PAGES}{page}" for page in left])
            self._pages |= {page: self.book.page(documents.get(f"{PAGES}{page}")) for page in left}

    def changing(self, slot: int) -> tuple[NDArray[Any], int]:
        """Return the page of a slot, which can be changed and is written at the end, and its place
        there.
        """
        page, place = self.page(slot)
        number = slot // PAGE
        if number not in self._changed_pages:
            self._changed_pages.add(number)
            page = self._pages[number] = page.copy()
        return page, place

    def show(self, slot: int, length: int, number: int | None = None) -> None:
        """Set the length of a slot, and the episode in it."""
        page, place = self.changing(slot)
        page["length"][place] = length
        if number is not None:
            page["number"][place] = number

    def empty(self, slot: int) -> None:
        """Let a slot show nothing."""
        self.drop_tail(slot)
        page, place = self.changing(slot)
        page[place] = self.book.blank[place]
        if self.book.has_metas_apart:
            self._dropped.append(f"{METAS}{slot}")
            self.changed.pop(f"{METAS}{slot}", None)

    def set_meta(self, slot: int, raw: bytes) -> None:
        """Set the packed meta values of a slot."""
        page, place = self.changing(slot)
        page["has_meta"][place] = True
        if self.book.has_metas_apart:
            self.changed[f"{METAS}{slot}"] = base64.b64encode(raw).decode()
        elif raw:
            page["meta"][place] = np.frombuffer(raw, self.book.metas.dtype)[0]

    def drop_tail(self, slot: int) -> None:
        """Delete the tail of a slot."""
        page, place = self.page(slot)
        if n := int(page["tail"][place]):
            self._dropped += [f"{TAILS}{slot}/{i}" for i in range(n)]
            self.changing(slot)[0]["tail"][place] = 0

    def set_tail(self, slot: int, raw: bytes) -> None:
        """Set the packed values of steps of a slot that are not stored as steps."""
        self.drop_tail(slot)
        page, place = self.changing(slot)
        starts = range(0, len(raw), PART_BYTES)
        for i, start in enumerate(starts):
            part = base64.b64encode(raw[start : start + PART_BYTES]).decode()
            self.changed[f"{TAILS}{slot}/{i}"] = part
        page["tail"][place] = len(starts)

    def remove(self, numbers: Iterable[int]) -> None:
        """Delete episodes with their steps."""
        keys = [self.book.key(number) for number in numbers if number >= 0]
        if keys:
            self.tx.delete_episodes(keys, task_ids=keys)
            self.ring.deletions = self.tx.locked([])[1]

    def empty_gone(self, deletions: int) -> None:
        """Empty the slots whose steps others have deleted."""
        self.load(range(self.book.n_slots))
        finished = {
            int(records["number"][place]): page * PAGE + place
            for page, records in self._pages.items()
            for place in np.flatnonzero((records["length"] > 0) & (records["number"] >= 0)).tolist()
        }
        gone, is_cleared = self.joined(lambda: self.book.gone(deletions, finished))
        if is_cleared:
            self._reset(deletions)
            return
        for number in gone:
            self.empty(finished[number])
        self.ring.deletions = deletions
        self.ring.changes += 1

    def numbers(self, slots: Sequence[int]) -> dict[int, int]:
        """Return the number of the episode in each slot, -1 for none."""
        self.load(slots)
        places = ((slot, *self.page(slot)) for slot in slots)
        return {slot: int(page["number"][place]) for slot, page, place in places}

    def metas(self, slots: Sequence[int]) -> dict[int, NDArray[Any]]:
        """Return the meta values of slots, structured, of shape () each, which can be changed."""
        self.load(slots)
        if self.book.has_metas_apart:
            documents = self.tx.documents.get_many([f"{METAS}{slot}" for slot in slots])
            apart = metas_apart(documents, slots)
            return {slot: self.book.metas.unpack(apart.get(slot)) for slot in slots}
        if not self.book.has_metas_inside:
            return {slot: self.book.metas.blank.copy() for slot in slots}
        places = ((slot, *self.page(slot)) for slot in slots)
        return {slot: page["meta"][place : place + 1].reshape(()).copy()
                for slot, page, place in places}  # fmt: skip

    def tails(self, slots: Sequence[int]) -> dict[int, bytes]:
        """Return the packed values of steps that are not stored as steps."""
        self.load(slots)
        places = ((slot, *self.page(slot)) for slot in slots)
        parts = ((slot, int(page["tail"][place])) for slot, page, place in places)
        n_parts = {slot: n for slot, n in parts if n}
        keys = [f"{TAILS}{slot}/{i}" for slot, n in n_parts.items() for i in range(n)]
        documents = self.tx.documents.get_many(keys) if keys else {}
        return {slot: tail_of(documents, slot, n) for slot, n in n_parts.items()}

    def joined(self, call: Callable[[], T]) -> T:
        """Return the result of a call that takes part in the transaction."""
        return self.tx.joined(call)

    def store(self) -> None:
        """Write what has changed."""
        dropped = [key for key in self._dropped if key not in self.changed]
        if dropped:
            self.tx.documents.delete_many(dropped)
        keys = {f"{PAGES}{page}": self._pages[page] for page in self._changed_pages}
        changed = {**self.changed, **{k: self.book.text_of(k, page) for k, page in keys.items()}}
        if (ring := self.ring.to_json()) != self._stored_ring:
            changed[RING] = ring
        if changed:
            self.tx.documents.put_many(changed)

    def living(self) -> set[str]:
        """Return the writers that are alive, as far as that is known."""
        writers = writers_in(self.tx.documents, self.book.timeout_s)
        return {name for name, is_living in writers.items() if is_living}

    def claimable(self, holder: str) -> Iterator[int]:
        """Yield the turns that a writer can claim, at most one of each slot."""
        ring, n = self.ring, self.book.n_slots
        others = {claim.holder for claim in ring.held.values()} - {holder}
        alive = {holder} | (self.living() if others else set())
        held = {slot for slot, claim in ring.held.items() if claim.holder in alive}
        seen: set[int] = set()
        # Past the furthest used turn, each slot has been checked once.
        furthest = max([ring.next_turn, *ring.used.values()]) + n + 1
        for turn in range(ring.next_turn, furthest if self.book.is_circular else n):
            slot = turn % n
            if slot not in held and slot not in seen and turn > ring.used.get(slot, -1):
                seen.add(slot)
                yield turn

    def claim(self, n: int, holder: str, numbers: Iterator[int]) -> list[Claim]:
        """Claim the next n free slots; those of dead writers lose their unfinished episodes.

        Raises:
            SlotsFullError: Fewer are left.
        """
        turns = list(islice(self.claimable(holder), n))
        if len(turns) < n:
            raise SlotsFullError
        claims = []
        for turn in turns:
            slot = turn % self.book.n_slots
            dead = self.ring.held.get(slot)
            if dead is not None:
                self._drop_unfinished(slot, dead.number)
            claims.append(Claim(turn, holder, next(numbers)))
            self.ring.held[slot] = claims[-1]
        return claims

    def check_own(self, claims: Sequence[Claim]) -> None:
        """Raise if another writer has taken one of the slots.

        Raises:
            SlotLostError: It has.
        """
        for claim in claims:
            if self.ring.held.get(claim.turn % self.book.n_slots) != claim:
                raise SlotLostError

    def begin(self, claims: Sequence[Claim]) -> None:
        """Let slots show episodes that are being written; the ones in them are deleted."""
        slots = [claim.turn % self.book.n_slots for claim in claims]
        self.load(slots)
        shown = [(int(page["number"][place]), claim.number) for claim, (page, place) in
                 zip(claims, map(self.page, slots), strict=True)]  # fmt: skip
        self.remove([before for before, number in shown if before != number])
        for claim, slot in zip(claims, slots, strict=True):
            self.drop_tail(slot)
            self.show(slot, OPEN, claim.number)

    def finish(self, ended: Sequence[tuple[Claim, int, bool]]) -> None:
        """Let slots show finished episodes, and move on to the next slot.

        Args:
            ended: For each its slot, its length, and whether it has steps.
        """
        ring, n = self.ring, self.book.n_slots
        for claim, length, has_steps in ended:
            slot = claim.turn % n
            self.show(slot, length, claim.number if has_steps else -1)
            ring.held.pop(slot, None)
            ring.used[slot] = claim.turn
        others = {slot: claim for slot, claim in ring.held.items()
                  if claim.holder != ended[0][0].holder}  # fmt: skip
        if others:
            alive = self.living()
            others = {slot: claim for slot, claim in others.items() if claim.holder in alive}
        turn = ring.next_turn
        # A ring skips slots that others hold. Otherwise it waits for them, and takes them if their
        # writer dies.
        while turn <= ring.used.get(turn % n, -1) or (
            self.book.is_circular and len(others) < n and turn % n in others
        ):
            turn += 1
        ring.next_turn = turn
        ring.used = {slot: used for slot, used in ring.used.items() if used >= turn}
        ring.num_episodes = min(ring.num_episodes + len(ended), n)

    def release(self, claims: Sequence[Claim]) -> None:
        """Give slots back, and delete what is stored of their unfinished episodes."""
        mine = [c for c in claims if self.ring.held.get(c.turn % self.book.n_slots) == c]
        for claim in mine:
            slot = claim.turn % self.book.n_slots
            del self.ring.held[slot]
            self._drop_unfinished(slot, claim.number)

    def _drop_unfinished(self, slot: int, number: int) -> None:
        """Delete what is stored of an episode that will not be finished."""
        page, place = self.page(slot)
        if page["number"][place] == number:
            self.remove([number])
            self.empty(slot)

    def clear(self) -> None:
        """Delete all episodes, and begin with the first slot."""
        self.tx.clear()
        self._reset(self.tx.locked([])[1])

    def _reset(self, deletions: int) -> None:
        """Let all slots show nothing, and begin with the first one."""
        known = [*self.tx.documents.keys(PAGES), *self.tx.documents.keys(METAS)]
        self.tx.documents.delete_many([*known, *self.tx.documents.keys(TAILS)])
        self.ring = Ring(changes=self.ring.changes + 1, deletions=deletions)
        self._pages, self._dropped, self.changed = {}, [], dict(self.book.blank_pages())
        self._changed_pages = set()


def metas_apart(documents: Mapping[str, Any], slots: Sequence[int]) -> dict[int, bytes]:
    """Return the packed meta values of slots that have some."""
    keys = {f"{METAS}{slot}": slot for slot in slots}
    return {
        slot: base64.b64decode(documents[key].value)
        for key, slot in keys.items()
        if key in documents
    }


def writers_in(documents: Any, timeout_s: float) -> dict[str, bool]:
    """Return the writers of a buffer, each with True if it is alive, as far as that is known."""
    now, by_key = time.time(), documents.get_many(prefix=WRITERS)
    names = {key.removeprefix(WRITERS): document.value for key, document in by_key.items()}
    return {name: is_alive(name, now - seen, timeout_s) for name, seen in names.items()}


def tail_of(documents: Mapping[str, Any], slot: int, n_parts: int) -> bytes:
    """Return the packed values of steps of a slot that are not stored as steps."""
    keys = (f"{TAILS}{slot}/{i}" for i in range(n_parts))
    parts = (documents[key].value for key in keys if key in documents)
    return b"".join(map(base64.b64decode, parts))


class CacheKey(NamedTuple):
    """The version of an episode's rows: a change of rows always changes `changes`.

    Attributes:
        episode: The number of the episode; numbers are never reused.
        last: Its last step that was read, from the first one on.
        changes: The version of the stored steps; see `Moment`.
    """

    episode: int
    last: int
    changes: tuple[int, int]


class EpisodeCache:
    """The fields of episodes, up to a number of bytes.

    Attributes:
        max_bytes: Number of bytes to keep; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._n_bytes = max_bytes, 0
        self._runs: OrderedDict[tuple[int, int], tuple[tuple[int, int], Columns]] = OrderedDict()
        self._mutex = ForkLock()

    def get(self, key: CacheKey) -> Columns | None:
        """Return the fields of an episode if they are cached. The caller must not write to them."""
        with self._mutex:
            kept = self._runs.get((key.episode, key.last))
            if kept is None or kept[0] != key.changes:
                return None
            self._runs.move_to_end((key.episode, key.last))
            return kept[1]

    def put(self, key: CacheKey, columns: Columns) -> None:
        """Keep the fields of an episode."""
        if _size(columns) > self.max_bytes:
            return
        with self._mutex:
            before = self._runs.pop((key.episode, key.last), None)
            if before is not None:
                self._n_bytes -= _size(before[1])
            self._runs[key.episode, key.last] = (key.changes, columns)
            self._n_bytes += _size(columns)
            while self._n_bytes > self.max_bytes:
                _, (_, forgotten) = self._runs.popitem(last=False)
                self._n_bytes -= _size(forgotten)


def _size(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())


class Moment:
    """The slots in one state of the database, which a thread reads.

    Args:
        book: The slots.
        view: The state.
        open_lengths: The lengths of the episodes that this process has open, all steps of which are
            stored.
        looked: The documents that were read with the begin of the transaction.
    """

    def __init__(
        self,
        book: SlotBook,
        view: Snapshot,
        open_lengths: Mapping[int, int],
        looked: Iterable[str],
    ) -> None:
        self.book, self.view, self.open_lengths = book, view, open_lengths
        self._documents, self._looked = dict(view.prefetched), set(looked)
        stored = self._documents.get(RING)
        self.ring = Ring() if stored is None else Ring.from_json(stored.value)
        is_known = self.ring.deletions == view.deletions
        # The version of the stored steps: it differs after each change of any of them.
        self.changes = (self.ring.changes, -1 if is_known else view.deletions)
        self._are_gone = not is_known
        self._pages: dict[int, NDArray[Any]] = {}
        if self._are_gone:
            self._load(range(book.n_pages))

    def documents(self, keys: Sequence[str]) -> Mapping[str, Any]:
        """Return documents of the slots, those that exist."""
        if left := [key for key in keys if key not in self._looked]:
            self._documents |= self.view.documents.get_many(left)
            self._looked.update(left)
        return self._documents

    def of(self, slots: Ints | None) -> NDArray[Any]:
        """Return the records of slots, of shape (n,), which are not changed; None: of all."""
        if slots is None:
            return self._joined(range(self.book.n_pages))[: self.book.n_slots]
        if self.book.n_pages == 1:
            return self._joined([0])[slots]
        pages, places = np.divmod(slots, PAGE)
        wanted, which = np.unique(pages, return_inverse=True)
        return self._joined(wanted.tolist())[which * PAGE + places]

    def _joined(self, pages: Sequence[int]) -> NDArray[Any]:
        """Return the records of pages, one after the other."""
        self._load(pages)
        if len(pages) == 1:
            return self._pages[pages[0]]
        # numpy would join records field by field.
        return np.frombuffer(b"".join(self._pages[page].data for page in pages), self.book.record)

    def _load(self, pages: Sequence[int]) -> None:
        left = [page for page in pages if page not in self._pages]
        if not left:
            return
        documents = self.documents([f"{PAGES}{page}" for page in left])
        self._pages |= {page: self.book.page(documents.get(f"{PAGES}{page}")) for page in left}
        if self._are_gone:
            self._leave_out_gone()

    def _leave_out_gone(self) -> None:
        """Show nothing in the slots whose steps others have deleted since a writer last looked."""
        finished = [
            n for records in self._pages.values() for n in records["number"][records["length"] > 0]
        ]
        gone, is_cleared = self.joined(partial(self.book.gone, self.view.deletions, finished))
        if is_cleared:
            self.ring = Ring()
        for number, page in self._pages.items():
            is_gone = np.isin(page["number"], list(gone)) | is_cleared
            self._pages[number] = np.where(is_gone, self.book.blank, page)

    def numbers(self, slots: Sequence[int]) -> dict[int, int]:
        """Return the number of the episode in each slot, -1 for none."""
        records = self.of(np.array(slots, np.int64))
        return dict(zip(slots, records["number"].tolist(), strict=True))

    def metas(self, slots: Ints) -> NDArray[Any]:
        """Return the meta values of slots, structured, of shape (n,)."""
        records = self.of(slots)
        if self.book.has_metas_inside:
            metas: NDArray[Any] = records["meta"]
            return metas
        rows = np.full(len(slots), self.book.metas.blank)
        if self.book.has_metas_apart:
            wanted = slots[records["has_meta"]].tolist()
            apart = metas_apart(self.documents([f"{METAS}{slot}" for slot in wanted]), wanted)
            places = np.searchsorted(slots, list(apart))
            if len(places):
                rows[places] = np.frombuffer(b"".join(apart.values()), self.book.metas.dtype)
        return rows

    def tails(self, slots: Sequence[int]) -> dict[int, bytes]:
        """Return the packed values of steps that are not stored as steps."""
        parts = self.of(np.array(slots, np.int64))["tail"].tolist()
        n_parts = {slot: n for slot, n in zip(slots, parts, strict=True) if n}
        keys = [f"{TAILS}{slot}/{i}" for slot, n in n_parts.items() for i in range(n)]
        documents = self.documents(keys) if keys else {}
        return {slot: tail_of(documents, slot, n) for slot, n in n_parts.items()}

    def joined(self, call: Callable[[], T]) -> T:
        """Return the result of a call that reads this state."""
        return self.view.joined(call)


class StoredCells(NamedTuple):
    """Cells that have a step.

    Attributes:
        keys: slot * max_timesteps + step of each, of shape (n,).
        rows: Their values, structured, of shape (n,); can be written to.
        seqs: The numbers of their steps, of shape (n,).
    """

    keys: Ints
    rows: NDArray[Any]
    seqs: Ints


class Cells:
    """The cells of a buffer. A cell that was never written has the default of its field.

    Attributes:
        kept: The cache of whole episodes.

    Args:
        book: The slots.
        rows: How a row is laid out.
        max_timesteps: Steps of a slot.
        kept: The cache of whole episodes.
    """

    def __init__(
        self,
        book: SlotBook,
        rows: RowCoder,
        max_timesteps: int,
        kept: EpisodeCache,
    ) -> None:
        self._book, self._rows = book, rows
        self._t, self.kept = max_timesteps, kept
        self._tail = np.dtype([("t", "<i4"), ("row", rows.layout.record)])

    def read(
        self,
        names: Iterable[str],
        slots: Ints,
        ts: Ints,
        at_one_moment: Callable[[Callable[[Moment], Columns]], Columns],
    ) -> dict[str, NDArray[Any]]:
        """Return the values of fields in cells.

        Args:
            names: The fields.
            slots: The slot of each cell, of any shape S.
            ts: Step of each, in the same form.
            at_one_moment: Calls a function with what to read in.

        Returns:
            `{name: array of shape (*S, *shape)}`.
        """
        names, keys = list(names), (slots * self._t + ts).ravel()
        if not names:
            return {}

        def values_in(moment: Moment) -> Columns:
            values = None
            # Most cells are in no long runs: to find that out takes less than to find the runs.
            if len(keys) >= LONG_RUN * (np.count_nonzero(keys[1:] - keys[:-1] != 1) + 1):
                values = self._whole(moment, names, _runs(keys, self._t))
            return self._single(moment, names, keys) if values is None else values

        columns = at_one_moment(values_in)
        return {
            name: values.reshape((*slots.shape, *values.shape[1:]))
            for name, values in columns.items()
        }

    def _single(self, moment: Moment, names: list[str], keys: Ints) -> dict[str, NDArray[Any]]:
        """Return the values in single cells, in any order and with repetitions."""
        distinct, back = _distinct(keys)
        tracks = self._rows.tracks
        columns = {
            name: np.full((len(distinct), *tracks[name].shape), tracks[name].fill) for name in names
        }
        if len(distinct):
            self._fill(moment, distinct, columns)
        return columns if back is None else {name: column[back] for name, column in columns.items()}

    def _fill(self, moment: Moment, keys: Ints, columns: Mapping[str, NDArray[Any]]) -> None:
        names = self._rows.names
        stored = self._stored(moment, _runs(keys, self._t))
        places = np.searchsorted(keys, stored.keys)
        for name, values in columns.items():
            values[places] = stored.rows[names[name]]
        if len(places) < len(keys):
            left = np.ones(len(keys), bool)
            left[places] = False
            missing = np.flatnonzero(left)
            at, rows = self._in_tails(moment, keys[missing])
            for name, values in columns.items():
                values[missing[at]] = rows[names[name]]

    def read_starts(
        self,
        names: Iterable[str],
        slots: Ints,
        counts: Ints,
        at_one_moment: Callable[[Callable[[Moment], Columns]], Columns],
    ) -> Columns:
        """Return the values of fields in the first steps of slots, of one slot after the other.

        Args:
            names: The fields.
            slots: The slots, of shape (n,).
            counts: How many steps of each, at least one.
            at_one_moment: Calls a function with what to read in.

        Returns:
            `{name: array of shape (sum of counts, *shape)}`.
        """
        names = list(names)
        lasts = (counts - 1).tolist()
        runs = [(slot, 0, last) for slot, last in zip(slots.tolist(), lasts, strict=True)]

        def values_in(moment: Moment) -> Columns:
            values = self._whole(moment, names, runs)
            if values is not None:
                return values
            keys = _rising((slots * self._t).tolist(), counts.tolist())
            return self._single(moment, names, keys)

        return at_one_moment(values_in) if names else {}

    def _whole(
        self, moment: Moment, names: list[str], runs: list[Run]
    ) -> dict[str, NDArray[Any]] | None:
        """Return the values in cells that are few long runs, or None where they are not, or where a
        step has no row.
        """
        if sum([last - first + 1 for _, first, last in runs]) < LONG_RUN * len(runs):
            return None
        shown = moment.of(np.array([slot for slot, _, _ in runs]))
        if any(
            0 <= n <= last for n, (_, _, last) in zip(shown["length"].tolist(), runs, strict=True)
        ):
            return None
        cache_keys = [
            None if first or number < 0 else CacheKey(number, last, moment.changes)
            for number, (_, first, last) in zip(shown["number"].tolist(), runs, strict=True)
        ]
        columns = [None if key is None else self.kept.get(key) for key in cache_keys]
        left = [i for i, kept in enumerate(columns) if kept is None]
        if left:
            rows = self._rows_of(moment, [runs[i] for i in left])
            sizes = [last - first + 1 for _, first, last in (runs[i] for i in left)]
            if len(rows) != sum(sizes):
                return None
            is_kept = self.kept.max_bytes > 0 and any(cache_keys[i] for i in left)
            fields = self._rows.copied(rows, self._rows.names if is_kept else names)
            if not is_kept and len(left) == len(runs):
                return fields
            ends = np.cumsum(sizes).tolist()
            for i, end, size in zip(left, ends, sizes, strict=True):
                columns[i] = part = {name: of[end - size : end] for name, of in fields.items()}
                if is_kept and (key := cache_keys[i]) is not None:
                    self.kept.put(key, {name: array.copy() for name, array in part.items()})
            if len(left) == len(runs):
                return {name: fields[name] for name in names}
        return {name: np.concatenate([part[name] for part in columns if part]) for name in names}

    def _stored(self, moment: Moment | BookChange, runs: list[Run]) -> StoredCells:
        """Return the cells of runs that have a step, in their order."""
        runs, spans = self._spans(moment, runs)
        if not spans:
            return StoredCells(np.empty(0, np.int64), self._rows.blanks(0), np.empty(0, np.int64))
        of_run, ts, first_seqs, counts, records, may_have_changed = zip(*spans, strict=True)
        rows = np.frombuffer(bytearray(b"").join(records), self._rows.layout.record)
        firsts = [runs[run][0] * self._t + t for run, t in zip(of_run, ts, strict=True)]
        stored = StoredCells(_rising(firsts, counts), rows, _rising(first_seqs, counts))
        if any(may_have_changed):
            changed_spans = [(seq, seq + n) for seq, n in zip(first_seqs, counts, strict=True)]
            return self._changed(moment, changed_spans, stored)
        return stored

    def _rows_of(self, moment: Moment, runs: list[Run]) -> NDArray[Any]:
        """Return the rows of those cells of runs that have a step."""
        _, spans = self._spans(moment, runs)
        if any(may_have_changed for *_, may_have_changed in spans):
            return self._stored(moment, runs).rows
        return np.frombuffer(b"".join([span[-2] for span in spans]), self._rows.layout.record)

    def _spans(
        self, moment: Moment | BookChange, runs: list[Run]
    ) -> tuple[list[Run], Sequence[StoredSpan]]:
        """Return those of runs whose slots show an episode, and what is stored of them."""
        size, numbers = self._rows.size, moment.numbers(list(dict.fromkeys(run[0] for run in runs)))
        keys = {slot: self._book.key(number) for slot, number in numbers.items() if number >= 0}
        runs = [run for run in runs if run[0] in keys]
        of_episodes = [(keys[slot], t, last) for slot, t, last in runs]
        steps = self._book.steps
        spans = moment.joined(lambda: steps.spans(of_episodes)) if runs else ()
        for _, _, seq, n, raw, _ in spans:
            if raw is None or len(raw) != n * size:
                raise _damaged(seq)
        return runs, spans

    def _changed(
        self, moment: Moment | BookChange, spans: list[tuple[int, int]], stored: StoredCells
    ) -> StoredCells:
        """Return cells with the new values of replaced steps, and without deleted steps."""
        changed = moment.joined(lambda: self._book.steps.changed(spans))
        if not changed:
            return stored
        order = np.argsort(stored.seqs)
        numbers = np.array([seq for seq, _ in changed], np.int64)
        at = order[np.searchsorted(stored.seqs, numbers, sorter=order)]
        is_kept = np.ones(len(stored.keys), bool)
        for place, (seq, record) in zip(at.tolist(), changed, strict=True):
            if record is None:
                is_kept[place] = False
            else:
                if len(record) != self._rows.size:
                    raise _damaged(seq)
                stored.rows[place] = np.frombuffer(record, self._rows.layout.record)[0]
        return StoredCells(*(values[is_kept] for values in stored))

    def _in_tails(self, moment: Moment, keys: Ints) -> tuple[Ints, NDArray[Any]]:
        """Return the places of those of sorted keys that are in tails, and their rows."""
        tails = moment.tails(np.unique(keys // self._t).tolist())
        at: list[Ints] = [np.empty(0, np.int64)]
        rows = [self._rows.blanks(0)]
        for slot, raw in tails.items():
            tail = np.frombuffer(raw, self._tail)
            theirs = slot * self._t + tail["t"].astype(np.int64)
            places = np.searchsorted(keys, theirs)
            is_wanted = (places < len(keys)) & (keys[np.minimum(places, len(keys) - 1)] == theirs)
            at.append(places[is_wanted])
            rows.append(tail["row"][is_wanted])
        return np.concatenate(at), np.concatenate(rows)

    def write(self, slots: Ints, ts: Ints, values: Mapping[str, NDArray[Any]]) -> None:
        """Change cells, those that have a row and others, in one transaction.

        Args:
            slots: The slot of each cell, of shape (n,); of cells named twice the last one counts.
            ts: Step of each, in the same form.
            values: For each field that is written an array of shape (n, *shape) of its dtype.
        """
        if not len(slots):
            return
        self._book.core.transaction(lambda tx: self._change(tx, slots, ts, values))

    def _change(self, tx: Transaction, slots: Ints, ts: Ints, values: Columns) -> None:
        keys, back = _distinct(slots * self._t + ts)
        last = np.arange(len(keys)) if back is None else _last_of(back, len(keys))
        values = {name: array[last] for name, array in values.items()}
        change = BookChange(self._book, tx, np.unique(slots).tolist())
        change.ring.changes += 1
        stored = self._stored(change, _runs(keys, self._t))
        places, rows = np.searchsorted(keys, stored.keys), stored.rows
        if len(places):
            for name, array in values.items():
                rows[self._rows.names[name]] = array[places]
            outcomes = self._rows.own_columns(rows)
            names = [self._rows.names[name] for name in values]
            seqs = stored.seqs.tolist()
            tx.joined(lambda: self._book.steps.replace(seqs, rows, outcomes, names))
        left = np.ones(len(keys), bool)
        left[places] = False
        if left.any():
            rest = {name: array[left] for name, array in values.items()}
            self._change_tails(change, keys[left], rest)
        change.store()

    def _change_tails(self, change: BookChange, keys: Ints, values: Columns) -> None:
        of = keys // self._t
        wanted = np.unique(of).tolist()
        held = change.tails(wanted)
        for slot in wanted:
            places = np.flatnonzero(of == slot)
            new = {name: array[places] for name, array in values.items()}
            change.set_tail(slot, self._tail_with(held.get(slot, b""), keys[places] % self._t, new))

    def _tail_with(self, raw: bytes, ts: Ints, values: Mapping[str, NDArray[Any]]) -> bytes:
        """Return a slot's tail with cells of it changed."""
        held = np.frombuffer(raw, self._tail)
        all_ts = np.union1d(held["t"], ts)
        tail = np.zeros(len(all_ts), self._tail)
        tail["t"], tail["row"] = all_ts, self._rows.blank
        tail[np.searchsorted(all_ts, held["t"])] = held
        at = np.searchsorted(all_ts, ts)
        rows = tail["row"][at]
        for name, array in values.items():
            rows[self._rows.names[name]] = array
        tail["row"][at] = rows
        return tail.tobytes()


def _distinct(keys: Ints) -> tuple[Ints, Ints | None]:
    """Return the distinct keys in order, and for each key its place among them; None: no change."""
    if len(keys) < 2 or (keys[1:] > keys[:-1]).all():
        return keys, None
    distinct, back = np.unique(keys, return_inverse=True)
    return distinct, back.reshape(-1)


def _last_of(back: Ints, n: int) -> Ints:
    """Return where each of n distinct keys was given last."""
    last = np.zeros(n, np.int64)
    np.maximum.at(last, back, np.arange(len(back)))
    return last


def _rising(firsts: Sequence[int], counts: Sequence[int]) -> Ints:
    """Return ranges of numbers in one array, given the first number and the length of each."""
    if len(firsts) == 1:
        return np.arange(firsts[0], firsts[0] + counts[0])
    ends = np.cumsum(counts)
    begins = np.array(firsts, np.int64) - ends + counts
    return np.repeat(begins, counts) + np.arange(ends[-1])


def _runs(keys: Ints, max_timesteps: int) -> list[Run]:
    """Return keys as runs of (slot, first step, last step), in their order."""
    if len(keys) == 1:
        slot, t = divmod(int(keys[0]), max_timesteps)
        return [(slot, t, t)]
    slots, ts = np.divmod(keys, max_timesteps)
    breaks = np.flatnonzero((keys[1:] - keys[:-1] != 1) | (ts[1:] == 0)) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(keys)]]) - 1
    return list(zip(slots[first].tolist(), ts[first].tolist(), ts[last].tolist(), strict=True))


def _damaged(seq: int) -> FieldError:
    """Return the error for steps from a number on that have another size than their fields."""
    return FieldError(
        f"the row with seq {seq} has damaged arrays (they have another size than its fields); "
        f"delete it, or restore it from a backup"
    )
