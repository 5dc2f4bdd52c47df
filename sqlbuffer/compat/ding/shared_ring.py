"""A ring of items in a database, which every process that opens it shares.

The items are the steps of an ordinary buffer, in the order in which they were pushed. The counters
are in one document of the buffer. Every change locks that document first, so that the counters and
the order of the steps agree.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from sqlbuffer.buffer import ReplayBuffer, Snapshot, Transaction
from sqlbuffer.codec.encoder import Encoded
from sqlbuffer.compat.ding.errors import ItemError, ReplayConfigError
from sqlbuffer.compat.ding.items import (
    EncodedItem,
    decoded_item,
    encoded_items,
    integer_column,
    real_column,
)
from sqlbuffer.compat.ding.prioritized_ring import (
    Drawn,
    HeldItems,
    NewItems,
    WantedItems,
    no_items_of,
    number_of,
)
from sqlbuffer.compat.ding.rings import Choice, Counters, Left, RingContents
from sqlbuffer.encoding.records import check_row_size, new
from sqlbuffer.errors import (
    BufferConfigError,
    BufferNotFoundError,
    DocumentChangedError,
    FieldError,
)
from sqlbuffer.samplers import RandomSampler, Sampler
from sqlbuffer.steps import DataRow, EncodedRow, Experience, ExpMeta, uuid7s
from sqlbuffer.weighted_sampling import draw_stratified, strata_of_all, weights_of

T = TypeVar("T")
Integers = NDArray[np.int64]
# The document of the counters.
KEY = "ring"
# Fields that are read of steps: the item, or the length of it.
ITEM, LENGTH = ["state"], ["extra"]
# Remembered versions are dropped when this many more are remembered than the ring has numbers.
SPARE = 1_024
# Attempts to draw from the moment to which the counters belong, before others are locked out.
ATTEMPTS = 5


def opened_buffer(url: str, name: str, kind: str, size: int, **settings: Any) -> ReplayBuffer:
    """Return the buffer at a URL that holds the items of a ring; a missing one is made.

    Args:
        url: URL of the database.
        name: Name of the buffer in the database.
        kind: Kind of buffer that uses it.
        size: Largest number of items.
        settings: Other settings of the buffer.

    Raises:
        ReplayConfigError: It was made with other settings, or is not the buffer of a ring.
    """
    try:
        buffer = ReplayBuffer(url, name, max_capacity=size, **settings)
    except BufferConfigError as error:
        said = str(error).replace("max_capacity=", "replay_buffer_size=")
        raise ReplayConfigError(
            f"{said.partition('; leave')[0]}; give the stored value, or another name: "
            f"{{'name': ...}}"
        ) from None
    made_as = _made_as(buffer, kind, size)
    if made_as is None:
        raise ReplayConfigError(
            f"buffer {name!r} at {buffer.url} was made by another part of this package; "
            f"give another name: {{'name': ...}}"
        )
    if made_as != kind:
        raise ReplayConfigError(
            f"buffer {name!r} at {buffer.url} was made as type {made_as!r}, not {kind!r}; "
            f"give that type, or another name: {{'name': ...}}"
        )
    return buffer


def _made_as(buffer: ReplayBuffer, kind: str, size: int) -> str | None:
    """Return the kind of ring that a buffer is; an empty one becomes a ring. None: it is none."""
    document = buffer.documents.get(KEY)
    if document is None:
        if buffer.fields or buffer.size() or buffer.documents.keys():
            return None
        try:
            buffer.documents.put(KEY, {"kind": kind, **State(size=size).as_json()}, version=0)
            return kind
        except DocumentChangedError:  # another process was faster
            document = buffer.documents.get(KEY)
    value = None if document is None else document.value
    return value.get("kind") if isinstance(value, dict) else None


@dataclass(frozen=True)
class Numbers:
    """Which steps of the buffer have which numbers over all pushes.

    Steps are numbered in the order of the pushes too, but some of their numbers are left out, such
    as those of a push that was undone.

    Attributes:
        runs: The first number over all pushes, the first number of a step, and the length of each
            run of both.
    """

    runs: tuple[tuple[int, int, int], ...] = ()

    @property
    def n(self) -> int:
        """How many steps there were; some may have been removed since."""
        return sum(n for _, _, n in self.runs)

    @property
    def newest(self) -> int:
        """The number of the newest step; 0 if there is none."""
        return self.runs[-1][1] + self.runs[-1][2] - 1 if self.runs else 0

    def after(self, number: int, seqs: Sequence[int], size: int) -> "Numbers":
        """Return the numbers after a push, of as many steps as the buffer keeps."""
        runs = list(self.runs)
        for seq in seqs:
            if runs and (number, seq) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
                runs[-1] = (*runs[-1][:2], runs[-1][2] + 1)
            else:
                runs.append((number, seq, 1))
            number += 1
        return Numbers(tuple(runs)).above(runs[-1][1] + runs[-1][2] - 1 - size if runs else 0)

    def above(self, low: int) -> "Numbers":
        """Return the numbers of the steps above a number."""
        kept = []
        for number, seq, n in self.runs:
            gone = min(max(low + 1 - seq, 0), n)
            if gone < n:
                kept.append((number + gone, seq + gone, n - gone))
        return Numbers(tuple(kept))

    def seqs_to(self, last: int) -> list[int]:
        """Return the numbers of the steps up to one of them."""
        return [seq for _, first, n in self.runs for seq in range(first, min(first + n, last + 1))]

    def seq_of(self, number: int) -> int | None:
        """Return the number of the step of a number over all pushes; None if it has left."""
        for first, seq, n in self.runs:
            if first <= number < first + n:
                return seq + number - first
        return None


@dataclass(frozen=True)
class State:
    """The document of a ring.

    Attributes:
        size: Largest number of items.
        counters: The counters.
        n: Number of items.
        numbers: The numbers of their steps.
        names: The beginnings of their ids, of an advanced buffer.
    """

    size: int
    counters: Counters = Counters()  # noqa: RUF009  it is frozen
    n: int = 0
    numbers: Numbers = Numbers()
    names: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the value of the document."""
        return {
            **self.counters._asdict(),
            "size": self.size,
            "n": self.n,
            "runs": [list(run) for run in self.numbers.runs],
            "names": list(self.names),
        }

    @classmethod
    def of(cls, value: Mapping[str, Any], size: int) -> "State":
        """Return the state that a document says, of a ring that has a size now."""
        counters = Counters.of(value)
        # Another process may have set another size since.
        counters = counters._replace(tail=counters.tail % size)
        numbers = Numbers(tuple((a, b, n) for a, b, n in value["runs"]))
        least = min(size, value["size"])
        if least < value["size"]:
            numbers = numbers.above(numbers.newest - least)
        return cls(value["size"], counters, value["n"], numbers, tuple(value["names"]))


class _NumbersBurntError(Exception):
    """Numbers of a push that was undone made more items leave than were read before.

    Attributes:
        first: The number that the next step gets.
    """

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first


class _Reading(Sampler):
    """Reads the steps that a function chooses, as they are stored: rows of them would take a third
    of the time of a draw.

    Args:
        choose: Returns their numbers.

    Attributes:
        found: The steps, in the chosen order.
    """

    reads_encoded = True

    def __init__(self, choose: Callable[[Any], Sequence[int]]) -> None:
        self._chosen = choose
        self.found: list[EncodedRow] = []

    def read(self, of: Any, fields: list[str]) -> list[EncodedRow]:
        """Return the chosen steps of a buffer, or in a transaction.

        Args:
            of: The buffer, or the transaction.
            fields: What is read of the steps.
        """
        of.sample(1, sampler=self, fields=fields)
        return self.found

    def choose(self, candidates: Any, batch_size: int) -> Sequence[int]:
        """Read the chosen steps; return no number, since they are read."""
        self.found = candidates.encoded(self._chosen(candidates))
        return ()


class _ByAge(_Reading):
    """Reads the steps of ages that a function chooses, 0 the oldest.

    Args:
        choose: See `Choice`.
    """

    def __init__(self, choose: Choice) -> None:
        super().__init__(self._numbers)
        self._of_ages, self._reads_keys = choose, False
        self._state, self._is_same, self._n = State(0), False, 0

    def steps(self, of: Any, state: State) -> list[EncodedRow] | None:
        """Return the chosen steps of a buffer, or in a transaction; None: they are to be read
        again, because the state is of another moment, or because some were deleted.
        """
        self._state, self._n = state, 0
        if not state.n:
            self._of_ages(0, state.counters.push_count)
            return []
        rows = self.read(of, ITEM)
        if self._is_same and len(rows) < self._n:
            self._reads_keys = True
            return None
        return rows if self._is_same else None

    def _numbers(self, candidates: Any) -> Sequence[int]:
        state, keys = self._state, None
        self._is_same = candidates.high == state.numbers.newest or self._reads_keys
        if not self._is_same:
            return ()
        if self._reads_keys or candidates.span != state.n:
            keys = candidates.keys()
        n, first = state.n if keys is None else len(keys), candidates.low + 1
        ages = self._of_ages(n, state.counters.push_count)
        self._n = len(ages)
        return [first + age if keys is None else int(keys[age]) for age in ages]


class SharedRing:
    """The items of one buffer, in a database; see `Ring`.

    Args:
        buffer: The buffer that holds them.
        size: Largest number of items.
        source: The names of the buffer and of the experiment that push items.
        keeps_lengths: Store the length of each item next to it, so that lengths are read without
            the items.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        size: int,
        source: tuple[str, str],
        *,
        keeps_lengths: bool = False,
    ) -> None:
        self.buffer, self.size, self._source = buffer, size, source
        self._keeps_lengths = keeps_lengths
        self._most_bytes = buffer.config.payloads.max_row_bytes

    @property
    def shown_url(self) -> str:
        """The URL of its database, without a password."""
        return self.buffer.url

    def counters(self) -> Counters:
        """Return its counters."""
        value = self._document(self.buffer).value
        return Counters.of(value)

    def count(self) -> int:
        """Return the number of items."""
        return self.buffer.size()

    def _state(self, of: Any, *, lock: bool = False) -> State:
        return State.of(self._document(of, lock=lock).value, self.size)

    def _document(self, of: Any, *, lock: bool = False) -> Any:
        """Return the document of the counters, from a buffer or a transaction.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        return self._checked(of.documents.get(KEY, lock=lock))

    def _checked(self, document: Any) -> Any:
        if document is None:
            buffer = self.buffer
            raise BufferNotFoundError(f"buffer {buffer.name!r} was dropped from {buffer.url}")
        return document

    def change(self, work: Callable[[Any], T], *, is_relaxed: bool = False) -> T:
        """Return the result of `work`, which gets a `SharedCells`, in one transaction.

        It is called again if the transaction was not committed.
        """
        first: int | None = None

        def run(tx: Transaction) -> T:
            cells = self._cells(tx, first)
            result = work(cells)
            cells.finish()
            return result

        while True:
            try:
                return self.buffer.transaction(run, durability="relaxed" if is_relaxed else None)
            except _NumbersBurntError as error:
                first = error.first

    def _cells(self, tx: Transaction, first: int | None) -> "SharedCells":
        return SharedCells(self, tx, first)

    def rows_of(
        self,
        items: Sequence[EncodedItem],
        originals: Sequence[Any],
        envstep: Any,
        versions: Sequence[int | None] | None = None,
    ) -> list[DataRow]:
        """Return the steps of encoded items."""
        column = integer_column(envstep)
        step = 0 if column is None else column
        rows, ids = [], uuid7s(len(items))
        for i, (item, (text, blob)) in enumerate(zip(originals, items, strict=True)):
            if 4 * len(text or "") + len(blob or b"") > self._most_bytes:
                self._check_size(i, text, blob)
            reward = extra = None
            version = None if versions is None else versions[i]
            if type(item) is dict:
                reward = real_column(item.get("reward"))
                if versions is None:
                    version = integer_column(item.get("collect_iter"))
            if self._keeps_lengths and hasattr(item, "__len__"):
                extra = {"length": len(item)}
            state = Encoded(text, blob or b"")
            rows.append(_row(ids[i], self._source, step, state, reward, version, extra))
        return rows

    def _check_size(self, i: int, text: str | None, blob: Any) -> None:
        try:
            check_row_size({"state": text}, len(blob or b""), self._most_bytes, f"item {i}: ")
        except FieldError as error:
            raise ItemError(str(error)) from None

    def prepared(self, new_items: NewItems, envstep: Any) -> list[DataRow]:
        """Return the steps of items; see `CellsPlace.prepared`."""
        items = new_items.items
        return self.rows_of(encoded_items(items), items, envstep, new_items.versions)

    def push(
        self, items: Sequence[Any], n_pushed: int, envstep: Any, *, track: bool = False
    ) -> Left:
        """Put items at the end; see `Ring.push`."""
        rows = self.rows_of(encoded_items(items), items, envstep)

        def work(cells: "SharedCells") -> Left:
            cells.state = cells.state.after_push(n_pushed, self.size)
            return cells.add_rows(rows, None, track=track)

        return self.change(work)

    def uniform(self, size: int, *, replace: bool, seed: int) -> list[Any]:
        """Return items drawn uniformly; see `Ring.uniform`."""
        sampler = RandomSampler(replace=replace, seed=seed)
        reading = _Reading(lambda candidates: sampler.choose(candidates, size) if size else ())
        return items_of(reading.read(self.buffer, ITEM))

    def draw(self, choose: Choice) -> list[Any]:
        """Return the items that are chosen, in that order."""
        return items_of(self._chosen(choose)[0])

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters; see `Ring.contents`."""
        rows, counters = self._chosen(lambda n, _: range(n))
        return RingContents(items_of(rows, encoded=encoded), counters)

    def _chosen(self, choose: Choice) -> tuple[list[EncodedRow], Counters]:
        """Return the chosen steps, in that order, and the counters at that moment.

        No other process waits, unless others push again and again between the two reads.
        """
        sampler = _ByAge(choose)
        for _ in range(ATTEMPTS):
            state = self._state(self.buffer)
            rows = sampler.steps(self.buffer, state)
            if rows is not None:
                return rows, state.counters
        return self.change(lambda cells: (cells.chosen(sampler), cells.state), is_relaxed=True)

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""
        # Numbers without a step are left out; to read the numbers before takes as long again.
        rows = _Reading(_window).read(self.buffer, LENGTH)
        return [None if row.extra is None else loads(row.extra)["length"] for row in rows]

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and count from 0 again."""

        def work(cells: "SharedCells") -> Left:
            cells.state = Counters()
            return cells.take_all(track=track)

        return self.change(work)

    def replace(self, items: Sequence[Any], counters: Counters) -> None:
        """Hold these items instead of those that there are, in one transaction."""
        rows = self.rows_of(encoded_items(items), items, 0)

        def work(cells: "SharedCells") -> None:
            cells.take_all(track=False)
            cells.state = counters
            cells.add_rows(rows, None, track=False)

        self.change(work)

    def close(self) -> None:
        """End the use of the database by this object; the items stay."""
        self.buffer.close()


class SharedCells:
    """The items of a ring in a transaction, which holds the lock of its counters.

    The key of an item is the number of its step.

    Args:
        ring: The ring.
        tx: The transaction.
        first: The number that the next step gets; None: the one behind the newest.
    """

    def __init__(self, ring: SharedRing, tx: Transaction, first: int | None = None) -> None:
        self._ring, self._tx, self._first, self._size = ring, tx, first, ring.size
        self._document = ring._document(tx, lock=True)
        self._before = state = State.of(self._document.value, ring.size)
        self.state = state.counters
        self._names, self._numbers, self.n = state.names, state.numbers, state.n
        if state.size != ring.size:
            self.n = tx.size()

    @property
    def _has_holes(self) -> bool:
        """Whether items were removed that are not the oldest."""
        return self.n < self._numbers.n

    def finish(self) -> None:
        """Store the counters."""
        after = State(self._size, self.state, self.n, self._numbers, self._names)
        if after != self._before:
            value = {"kind": self._document.value["kind"], **after.as_json()}
            self._tx.documents.put(KEY, value, version=self._document.version)

    def rows(self, seqs: Sequence[int] | None, fields: list[str]) -> list[EncodedRow]:
        """Return the steps of some numbers that there are, or all steps, in order."""
        if seqs is not None and not len(seqs):
            return []
        reading = _Reading(lambda candidates: self._all(candidates) if seqs is None else seqs)
        return reading.read(self._tx, fields)

    def _all(self, candidates: Any) -> Sequence[int]:
        return _window(candidates) if candidates.span == self.n else _all_keys(candidates)

    def chosen(self, sampler: _ByAge) -> list[EncodedRow]:
        """Return the chosen steps, in that order."""
        state = State(self._size, self.state, self.n, self._numbers)
        while (rows := sampler.steps(self._tx, state)) is None:
            pass  # a step was deleted that is no item any more
        return rows

    def add(
        self,
        prepared: list[DataRow],
        numbers: range,
        name: str,
        priorities: Sequence[float],
        *,
        track: bool,
    ) -> Left:
        """Put steps at the end; see `Cells.add`."""
        for row, number in zip(prepared, numbers, strict=True):
            row.id = f"{name}_{number}"
        if name not in self._names:
            self._names = (*self._names, name)
        return self.add_rows(prepared, priorities, track=track)

    def add_rows(
        self, rows: list[DataRow], priorities: Sequence[float] | None, *, track: bool
    ) -> Left:
        """Put steps at the end; return the items that leave."""
        if not rows:
            return Left()
        before, n_before, n = self._numbers, self.n, len(rows)
        first = before.newest + 1 if self._first is None else self._first
        read_to = first + n - 1 - self._size
        # What leaves is read before, where it does not follow from the numbers.
        reads = track or self._has_holes
        leaving = self.rows(before.seqs_to(read_to), ITEM if track else []) if reads else []
        seqs = self._tx.store_batch(rows, priority=priorities).seqs.tolist()
        low = seqs[-1] - self._size
        if reads and len(before.seqs_to(low)) > len(before.seqs_to(read_to)):
            raise _NumbersBurntError(seqs[-1] + 1)
        self._numbers = before.after(self.state.push_count - n, seqs, self._size)
        left = [row for row in leaving if row.seq <= low]
        self.n = n_before + n - len(left) if reads else self._numbers.n
        return Left(n_before + n - self.n, items_of(left) if track else ())

    def take_all(self, *, track: bool) -> Left:
        """Remove all items."""
        items = items_of(self.rows(None, ITEM)) if track and self.n else ()
        left = Left(self._tx.clear(), items)
        self._numbers, self.n = Numbers(), 0
        return left


class SharedPrioritizedCells(SharedCells):
    """The items of a ring with their priorities and uses, in a transaction; see `Cells`."""

    _ring: "SharedPrioritizedPlace"

    def draw_by_weight(self, wanted: WantedItems, refused: Callable[[int], str | None]) -> Drawn:
        """Remove the items that are too old, and draw others; see `Cells.draw_by_weight`."""
        gone = Drawn()
        while True:
            sampler = _ByWeight(self, wanted, self._ring, refused)
            rows = sampler.read(self._tx, ITEM)
            if not sampler.stale:
                break
            left = self.remove(sampler.stale, track=wanted.tracks)
            gone = gone._replace(n_stale=gone.n_stale + len(sampler.stale), left=left)
        if sampler.refused is not None:
            is_empty = sampler.is_empty_range
            return gone._replace(refused=sampler.refused, is_empty_range=is_empty)
        return gone._replace(
            keys=[row.seq for row in rows],
            items=items_of(rows),
            ids=[row.id for row in rows],
            versions=[row.model_version for row in rows],
            priorities=sampler.priorities,
            least=sampler.least,
        )

    def remove(self, keys: Sequence[int], *, track: bool) -> list[Any]:
        """Remove items; return them where they are tracked."""
        left = items_of(self.rows(keys, ITEM)) if track else []
        self.n -= self._tx.delete(keys)
        return left

    def add_uses(self, keys: Sequence[int]) -> list[int]:
        """Count a use of each item; return how often each was used, with this use."""
        uses: list[int] = self._tx.count_uses(keys).tolist()
        return uses

    def uses_of(self, keys: Sequence[int]) -> list[int]:
        """Return how often items were used."""
        uses: list[int] = self._tx.use_counts(keys).tolist()
        return uses

    def set_priorities(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        """Set the priorities of items."""
        self._tx.update_priorities(keys, priorities, 0.0)

    def find(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of the steps of the items that are held, by id."""
        seqs = {}
        for id_, number in numbers.items():
            seq = self._numbers.seq_of(number)
            if seq is not None and id_.rpartition("_")[0] in self._names:
                seqs[id_] = seq
        if self._has_holes and seqs:
            rows = self.rows(sorted(seqs.values()), [])
            there = {row.seq for row in rows}
            seqs = {id_: seq for id_, seq in seqs.items() if seq in there}
        return seqs

    def hold(self, prepared: list[DataRow], held: HeldItems) -> None:
        """Put steps into the empty ring; see `Cells.hold`."""
        if not prepared:
            return
        by_number = {number_of(id_): i for i, id_ in enumerate(held.ids)}
        # If items are missing, their numbers stay unused, or the existing items would stay too
        # long.
        first = max(self.state.push_count - self._size, 0, min(by_number))
        numbers = range(first, self.state.push_count)
        rows = []
        for number in numbers:
            i = by_number.get(number)
            row = _copy(prepared[0]) if i is None else prepared[i]
            row.id = f"-_{number}" if i is None else held.ids[i]
            rows.append(row)
        priorities = [held.priorities[by_number[n]] if n in by_number else 0.0 for n in numbers]
        names = dict.fromkeys(id_.rpartition("_")[0] for id_ in held.ids)
        self._names = tuple(dict.fromkeys([*self._names, *names]))
        seqs = self._tx.store_batch(rows, priority=priorities).seqs.tolist()
        self._numbers, self.n = Numbers().after(first, seqs, self._size), len(rows)
        gaps = [seq for number, seq in zip(numbers, seqs, strict=True) if number not in by_number]
        if gaps:
            self.remove(gaps, track=False)
        of = dict(zip(numbers, seqs, strict=True))
        used = [of[number] for number, i in by_number.items() for _ in range(held.uses[i])]
        if used:
            self._tx.count_uses(used)


class SharedPrioritizedPlace(SharedRing):
    """Where the items of a prioritized ring in a database are; see `CellsPlace`.

    Args:
        buffer: The buffer that holds them.
        size: Largest number of items.
        source: The names of the buffer and of the experiment that push items.
    """

    def __init__(self, buffer: ReplayBuffer, size: int, source: tuple[str, str]) -> None:
        super().__init__(buffer, size, source)
        self.versions = KnownVersions()

    def change(self, work: Callable[[Any], T], *, is_relaxed: bool = False) -> T:
        """Return the result of `work` in one transaction; see `SharedRing.change`."""
        n_calls = 0

        def once(cells: Any) -> T:
            nonlocal n_calls
            n_calls += 1
            if n_calls > 1:
                self.versions = KnownVersions()  # the attempt before may have been undone
            return work(cells)

        try:
            return super().change(once, is_relaxed=is_relaxed)
        except BaseException:
            self.versions = KnownVersions()
            raise

    def held(self, *, encoded: bool) -> HeldItems:
        """Return all items, of one moment."""

        def look(view: Snapshot) -> HeldItems:
            sampler = _AllOfThem()
            rows = sampler.read(view, ITEM)
            return HeldItems(
                items_of(rows, encoded=encoded),
                [row.id for row in rows],
                sampler.priorities.tolist(),
                view.use_counts(sampler.numbers).tolist(),
                State.of(self._checked(view.prefetched.get(KEY)).value, self.size).counters,
            )

        return self.buffer.snapshot(look, documents=[KEY])

    def _cells(self, tx: Transaction, first: int | None) -> SharedPrioritizedCells:
        return SharedPrioritizedCells(self, tx, first)


class KnownVersions:
    """The versions of the steps that this process knows: each is read once, when it is new."""

    def __init__(self) -> None:
        self._read_to = 0
        self._oldest_first: list[tuple[int, int]] = []

    def stale(self, candidates: Any, oldest: int) -> list[int]:
        """Return the numbers of the steps that are older than a version, in order.

        They are no longer remembered, nor are steps that have left.
        """
        known, low = self._oldest_first, candidates.low
        if self._read_to < candidates.high:
            seqs, versions = candidates.model_versions(self._read_to)
            if len(known) + len(seqs) > 2 * candidates.span + SPARE:
                known = self._oldest_first = [one for one in known if one[1] > low]
                heapq.heapify(known)
            for one in zip(versions.tolist(), seqs.tolist(), strict=True):
                heapq.heappush(known, one)
            self._read_to = candidates.high
        taken = []
        while known and known[0][0] < oldest:
            _, seq = heapq.heappop(known)
            if seq > low:
                taken.append(seq)
        there = candidates.probe(taken) if taken else ()
        return sorted(seq for seq in taken if seq in there)


class _ByWeight(_Reading):
    """Draws one item from each of equal parts of the sum of all weights.

    Args:
        cells: The ring.
        wanted: What to draw.
        place: What this process knows of the ring.
        refused: Returns why nothing may be drawn from a ring of n items, or None.
    """

    def __init__(
        self,
        cells: SharedPrioritizedCells,
        wanted: WantedItems,
        place: SharedPrioritizedPlace,
        refused: Callable[[int], str | None],
    ) -> None:
        super().__init__(self._numbers)
        self._cells, self._wanted, self._place = cells, wanted, place
        self._is_refused = refused
        self.stale: list[int] = []
        self.refused: str | None = None
        self.is_empty_range = False
        self.priorities: NDArray[np.float64] = np.empty(0)
        self.least = np.inf

    def choose(self, candidates: Any, batch_size: int) -> Sequence[int]:
        """Read the drawn steps and their priorities."""
        super().choose(candidates, batch_size)
        if len(self.found) == self._wanted.size:
            seqs = [row.seq for row in self.found]
            self.priorities = candidates.priorities.of(seqs)
            self.least = candidates.priorities.least()
        return ()

    def _numbers(self, candidates: Any) -> Sequence[int]:
        """Return the numbers of the drawn steps; none if some are too old, or it is refused."""
        oldest, n = self._wanted.oldest_version, self._cells.n
        if oldest is not None:
            self.stale = self._place.versions.stale(candidates, oldest)
        if self.stale:
            return ()
        self.refused = self._is_refused(n)
        if self.refused is not None:
            return ()
        drawn = self._drawn(candidates, n)
        if drawn is None:
            self.refused, self.is_empty_range = no_items_of(n), True
            return ()
        seqs: list[int] = drawn.tolist()
        return seqs

    def _drawn(self, candidates: Any, n: int) -> Integers | None:
        """Return the drawn numbers; None if the range has no items."""
        key, size, which = self._wanted.key, self._wanted.size, self._wanted.which
        if which is None:
            return _by_weight(key, candidates, size)
        places = range(n)[which]
        if not places:
            return None
        if which.step in (None, 1):
            low, high = self._seqs_at(candidates, places)
            return _by_weight(key, candidates.between(low - 1, high), size)
        numbers = np.sort(candidates.keys()[which])
        weights = weights_of(candidates.priorities.of(numbers), candidates.priorities.alpha)
        return strata_of_all(key, numbers, weights, size)

    def _seqs_at(self, candidates: Any, places: range) -> tuple[int, int]:
        """Return the numbers of the first and the last step of a range by age."""
        ends = (places[0], places[-1])
        if candidates.span == self._cells.n:
            return candidates.low + 1 + ends[0], candidates.low + 1 + ends[1]
        # From the nearer end: as many keys are read as there are items before it.
        behind = self._cells.n - 1 - ends[0]
        is_new = behind < ends[0]
        first = candidates.page(behind if is_new else ends[0], 1, newest=is_new)[0]
        rest = candidates.between(first - 1, candidates.high)
        return first, rest.page(len(places) - 1, 1)[0]


class _AllOfThem(_Reading):
    """Reads all steps, and notes their numbers and priorities."""

    def __init__(self) -> None:
        super().__init__(self._all)
        self.numbers: Integers = np.empty(0, np.int64)
        self.priorities: NDArray[np.float64] = np.empty(0)

    def _all(self, candidates: Any) -> Sequence[int]:
        self.numbers, self.priorities = candidates.priorities.all(candidates)
        return cast("Sequence[int]", self.numbers.tolist())


def _by_weight(key: int, candidates: Any, n: int) -> Integers:
    """Return the numbers of n steps, one from each of equal parts of all weights."""
    priorities = candidates.priorities
    drawn = draw_stratified(key, priorities.weights, n)
    if drawn.is_complete:
        return drawn.seqs
    # The stored sums do not fit: another program has changed them.
    numbers, values = priorities.all(candidates)
    is_part = numbers <= candidates.high
    weights = weights_of(values[is_part], priorities.alpha)
    return strata_of_all(key, numbers[is_part], weights, n)


def _window(candidates: Any) -> range:
    return range(candidates.low + 1, candidates.high + 1)


def _all_keys(candidates: Any) -> Sequence[int]:
    return cast("Sequence[int]", candidates.keys().tolist())


def _row(
    id_: str,
    source: tuple[str, str],
    step: int,
    state: Encoded,
    reward: float | None,
    version: int | None,
    extra: dict[str, Any] | None,
) -> DataRow:
    """Return the step of an item. Its parts are known to be right, so nothing is checked again:
    that would take longer than all the rest.
    """
    data, meta = new(Experience), new(ExpMeta)
    row: DataRow = new(DataRow)
    data.__dict__ = {
        "state": state, "actions": None, "reward_t": reward, "adv_t": None, "v_t": None,
        "messages": None, "terminated": None, "truncated": None, "extra": extra,
    }  # fmt: skip
    meta.__dict__ = {
        "task_id": source[0], "task_name": None, "agent_id": source[1], "step": step,
        "execute_time": None, "pre_agent": None, "episode_id": None, "model_version": version,
        "session_id": None,
    }  # fmt: skip
    row.__dict__ = {"exp_meta": meta, "exp_data": data, "fields": {}, "id": id_, "seq": None}
    return row


def _copy(row: DataRow) -> DataRow:
    copied: DataRow = new(DataRow)
    copied.__dict__ = {**row.__dict__}
    return copied


def items_of(rows: Sequence[EncodedRow], *, encoded: bool = False) -> list[Any]:
    """Return the items of steps, or the items encoded."""
    if encoded:
        return [(row.state, row.arrays) for row in rows]
    return [decoded_item(state, arrays) for _, _, _, state, _, arrays in rows]
