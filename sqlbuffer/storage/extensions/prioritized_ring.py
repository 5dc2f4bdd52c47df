"""A ring of items that are drawn by priority: what the advanced buffer of `compat.ding` keeps.

All that it does is done while it holds the row of `item_rings`: who pushes, draws or updates sees
what the one before has left, and every count is exact, with any number of processes.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    insert,
    select,
    update,
)

from sqlbuffer.encoding.records import Record
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.rate_limits import FlowCounts, RatioWindow
from sqlbuffer.storage.buffers.buffer_window import SampledWindow
from sqlbuffer.storage.buffers.live_count import BLOCK, LiveCount
from sqlbuffer.storage.buffers.row_lookup import has_key
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.eligibility.tables import uses
from sqlbuffer.storage.extensions.item_lookups import seqs_of_ids
from sqlbuffer.storage.extensions.ring_buffer import (
    COLUMNS,
    NONE_LEFT,
    Contents,
    ItemRing,
    Left,
    RingCounts,
)
from sqlbuffer.storage.extensions.tables import item_rings
from sqlbuffer.storage.priorities.tables import priority_blocks
from sqlbuffer.storage.priorities.updates import update_priorities
from sqlbuffer.storage.retention.stale_rows import StaleRows
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.removal import remove_counted
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.metadata import JSON
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.use_counts.uses import add_uses, uses_of
from sqlbuffer.weighted_sampling import race as race
from sqlbuffer.weighted_sampling.block_weights import importance_weights, weights_of
from sqlbuffer.weighted_sampling.random_streams import key_of
from sqlbuffer.weighted_sampling.stratified import draw_stratified, strata_of_all

# Added to the priorities that are set, so that none is 0.
EPS = 1e-5
# Counts of uses below the window are deleted when it has moved on by so many.
CLEANED_AT_ONCE = 8_192
ID, VERSION = (1 + Record._fields.index(name) for name in ("id", "model_version"))

_SET = (
    update(item_rings)
    .where(item_rings.c.buffer_id == bindparam("buffer"))
    .values(
        push_count=bindparam("n", type_=BigInteger()),
        tail=bindparam("place", type_=BigInteger()),
        state=cast(bindparam("kept", type_=Text()), JSON),
    )
)

_SUMS = select(priority_blocks).where(
    priority_blocks.c.buffer_id == bindparam("buffer", type_=Integer()),
    is_number_of(priority_blocks.c.block, bindparam("blocks", type_=SeqList())),
)
_THERE = select(experiences.c.seq).where(
    has_key(bindparam("buffer", type_=Integer()), bindparam("seqs", type_=SeqList()))
)

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class CreditLedger:
    """What a ring keeps beside its counters.

    Attributes:
        max_priority: The priority of items that are pushed without one: the largest that was set.
        beta: Exponent of the importance weights; None: it is as the opener's config says.
        pushed: Items pushed, decayed.
        sampled: Items sampled, decayed.
        decayed_at: Unix time up to which these two are decayed.
    """

    max_priority: float = 1.0
    beta: float | None = None
    pushed: float = 0.0
    sampled: float = 0.0
    decayed_at: float = 0.0

    @classmethod
    def of(cls, counts: RingCounts) -> "CreditLedger":
        """Return what the counters of a ring have along."""
        return cls() if counts.state is None else cls(**counts.state)

    def decayed(self, limit: RatioWindow, now: float) -> "CreditLedger":
        """Return it with what is left of its two counts at a moment."""
        left, at = limit.decayed_by_second(self.flow, self.decayed_at, now)
        return replace(self, pushed=left.inserted, sampled=left.sampled, decayed_at=at)

    @property
    def flow(self) -> FlowCounts:
        """What a limit goes by."""
        return FlowCounts(self.pushed, self.sampled)


@dataclass(frozen=True)
class Pushed:
    """What became of a push.

    Attributes:
        numbers: The number of each item that stays, counted over all pushes from 0 on.
        places: Their places in the ring.
        default: The priority of those that came without one.
        left: The items that left.
        refused: Why nothing was pushed; None: it was.
    """

    numbers: range = range(0)
    places: Sequence[int] = ()
    default: float = 1.0
    left: Left = NONE_LEFT
    refused: str | None = None


@dataclass(frozen=True)
class WantedItems:
    """What a draw asks for.

    Attributes:
        size: How many items.
        beta: Exponent of the importance weights where the ring keeps none.
        beta_step: What is added to it behind the draw.
        least_held: So many items there must be.
        which: Which of the items by age; None: all.
        max_use: Items used so often leave; None: none does.
        oldest_version: Items of an older version leave first; None: none does.
        keeps_used: Items that were used up stay, and are never drawn again.
        tracks: The rows of those that leave are wanted.
        seed: What decides the draw.
    """

    size: int
    beta: float
    beta_step: float = 0.0
    least_held: float = 0.0
    which: slice | None = None
    max_use: float | None = None
    oldest_version: int | None = None
    keeps_used: bool = False
    tracks: bool = False
    seed: int = 0


class NewPriority(NamedTuple):
    """What an update says of an item.

    Attributes:
        place: Its place in the ring.
        priority: Its new priority; the last one, where there are several.
        largest: The largest of them.
    """

    place: int | None
    priority: float
    largest: float


@dataclass(frozen=True)
class Sampled:
    """What a draw found.

    Attributes:
        rows: The rows, in the order of the draw.
        counts: The ring's counters.
        priorities: Of each row.
        weights: Their importance weights, as numpy's float64.
        uses: How often each was used, itself included.
        beta: The exponent behind the draw.
        n_removed: How many items left.
        left: Their rows, where they are tracked.
        refused: Why nothing was drawn; None: it was.
        is_empty_range: It was refused since the range that was asked for has no items.
    """

    rows: Sequence[Row] = ()
    counts: RingCounts = field(default_factory=RingCounts)
    priorities: Sequence[float] = ()
    weights: Sequence[Any] = ()
    uses: Sequence[int] = ()
    beta: float | None = None
    n_removed: int = 0
    left: Sequence[Row] = ()
    refused: str | None = None
    is_empty_range: bool = False


@dataclass(frozen=True)
class HeldItems:
    """All that a ring holds.

    Attributes:
        contents: Its rows and counters.
        priorities: Of each row.
        uses: How often each was used.
    """

    contents: Contents
    priorities: Sequence[float]
    uses: Sequence[int]


class PriorityRing(ItemRing):
    """The items of one buffer, with priorities and counts of uses.

    Args:
        store: The buffer.
        kind: What it is used as.
        size: How many items it holds.
        limit: What keeps pushes and draws in proportion; None: nothing.
    """

    def __init__(
        self, store: BufferStore, kind: str, size: int, limit: RatioWindow | None = None
    ) -> None:
        super().__init__(store, kind, size)
        self.payloads = store.payloads(only=COLUMNS | {"id", "model_version"})
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        """Know nothing of the rows any more; what was learnt in a transaction that was undone is
        not so.
        """
        self._stale = StaleRows()
        self._live = LiveCount()
        self._counted: tuple[Any, int] = (None, 0)  # the last window, and how many rows it held
        self._cleaned_to = 0
        self._surely: tuple[tuple[int, int], int, int] = ((-1, -1), 0, 0)

    def set_ledger(self, connection: Connection, counts: RingCounts, ledger: CreditLedger) -> None:
        """Set all that it counts and keeps."""
        kept = orjson.dumps(asdict(ledger)).decode()
        values = {**self._key, "n": counts.push_count, "place": counts.tail, "kept": kept}
        connection.execute(_SET, values)

    def place_of(self, number: int, counts: RingCounts) -> int:
        """Return the place in the ring of an item that is held, by its number."""
        return (number - counts.push_count + counts.tail) % self.size

    def push_items(
        self, records: Sequence[Record], n_pushed: int, name: str, *, track: bool = False
    ) -> Pushed:
        """Put items at the end, all or none; the oldest leave.

        Args:
            records: The items that are kept, no more than it holds; their ids are left to it.
            n_pushed: How many were pushed.
            name: What their ids begin with.
            track: Return the rows of the items that leave.
        """
        found = Pushed()

        def made(connection: Connection, prepared: Sequence[Record]) -> Sequence[Record]:
            nonlocal found
            now, refused = self._count_limited(connection, n_pushed)
            if refused is not None:
                found = Pushed(refused=refused)
                return []
            left = self._leaving(connection, len(records), track=track)
            numbers = range(now.push_count - len(records), now.push_count)
            places = [self.place_of(number, now) for number in numbers]
            default = CreditLedger.of(now).max_priority
            found = Pushed(numbers, places, default, left)
            return _numbered(prepared, numbers, name, default)

        self.store.insert_made(records, made)
        return found

    def _count_limited(self, connection: Connection, n: int) -> tuple[RingCounts, str | None]:
        """Count items that are pushed, unless the limit refuses them; return what is counted, and
        why they are refused.
        """
        if self._limit is None:
            return self.count_pushed(connection, n), None
        counts = self.counts_of(connection, locked=True)
        ledger = CreditLedger.of(counts).decayed(self._limit, time.time())
        refused = self._limit.refused_insert(ledger.flow, n)
        if refused is None:
            tail = (counts.tail + n) % self.size
            counts = replace(counts, push_count=counts.push_count + n, tail=tail)
            self.set_ledger(connection, counts, replace(ledger, pushed=ledger.pushed + n))
        return counts, refused

    def sample(self, wanted: WantedItems) -> Sampled:
        """Draw items by priority, one from each of equal parts of all weights. Count their uses,
        and remove those that are too old or used up.
        """
        self.store.seal_due()
        is_first = True

        def work(connection: Connection) -> Sampled:
            nonlocal is_first
            if not is_first:
                self._forget()  # the attempt before may have been undone
            is_first = False
            return self._sample(connection, wanted)

        try:
            return self.store.write(work, "relaxed")
        except BaseException:
            self._forget()
            raise

    def _sample(self, connection: Connection, wanted: WantedItems) -> Sampled:
        counts = self.counts_of(connection, locked=True)
        ledger = CreditLedger.of(counts)
        window = self.store.sampled_window(connection)
        stale, left = self._remove_stale(connection, window, wanted)
        if stale:
            window = self.store.sampled_window(connection)
        done = Sampled(counts=counts, n_removed=len(stale), left=left)
        n_held = self._held(connection, window, wanted)
        if n_held < wanted.least_held:
            return replace(done, refused=f"it holds {n_held} items of {wanted.least_held:g} needed")
        if self._limit is not None:
            ledger = ledger.decayed(self._limit, time.time())
            if (refused := self._limit.refused_sample(ledger.flow, wanted.size)) is not None:
                return replace(done, refused=refused)
        candidates = self.candidates(connection, window)
        seqs = self._chosen(connection, candidates, window, wanted)
        if seqs is None:
            reason = f"it has none of {self._count(connection, window)} items"
            return replace(done, refused=reason, is_empty_range=True)
        if len(seqs) < wanted.size:
            return replace(done, refused="no item can be drawn: all are used up")
        return self._drawn(connection, candidates, seqs, wanted, ledger, done)

    def _drawn(
        self,
        connection: Connection,
        candidates: Candidates,
        seqs: Sequence[int],
        wanted: WantedItems,
        ledger: CreditLedger,
        done: Sampled,
    ) -> Sampled:
        rows = candidates.rows(seqs)
        own, info = candidates.priorities.of(seqs), self.store.info
        beta = wanted.beta if ledger.beta is None else ledger.beta
        least = candidates.priorities.least()
        weights = importance_weights(own, info.alpha, beta, least)
        counted = Counter(seqs)
        total = add_uses(connection, info.id, counted)
        used_up = []
        if wanted.max_use is not None:
            used_up = sorted(seq for seq in counted if total[seq] >= wanted.max_use)
        left = self._use_up(connection, candidates, used_up, wanted)
        ledger = replace(ledger, beta=min(1.0, beta + wanted.beta_step))
        if self._limit is not None:
            ledger = replace(ledger, sampled=ledger.sampled + wanted.size)
        self.set_ledger(connection, done.counts, ledger)
        self._clean_uses(connection, candidates.window_low)
        return replace(
            done,
            rows=rows,
            priorities=own.tolist(),
            weights=list(weights),
            uses=_use_of_each(seqs, counted, total),
            beta=ledger.beta,
            n_removed=done.n_removed + (0 if wanted.keeps_used else len(used_up)),
            left=[*done.left, *left],
        )

    def _chosen(
        self,
        connection: Connection,
        candidates: Candidates,
        window: SampledWindow,
        wanted: WantedItems,
    ) -> list[int] | None:
        """Return the numbers that are drawn; None where the range has no items."""
        key = key_of(np.random.default_rng(wanted.seed))
        if wanted.which is None:
            return self._by_weight(key, candidates, wanted.size)
        n_held = self._count(connection, window)
        places = range(n_held)[wanted.which]
        if not places:
            return None
        if wanted.which.step in (None, 1):
            part = self.candidates(connection, window)
            part.low = self._of_age(connection, window, n_held, places[0]) - 1
            part.high = self._of_age(connection, window, n_held, places[-1])
            return self._by_weight(key, part, wanted.size)
        numbers = np.sort(candidates.keys()[wanted.which])
        return self._of_all(key, numbers, candidates.priorities.of(numbers), wanted.size)

    def _of_age(
        self, connection: Connection, window: SampledWindow, n_held: int, place: int
    ) -> int:
        """Return the number of the item at a place by age: counted by blocks where some are
        missing, and one of them is read.
        """
        if n_held == window.span:
            return window.low + 1 + place
        known = self._live.known()
        block = (window.low + 1) // BLOCK
        own = experiences.c
        while True:
            n = known.get(block, 0)
            if place < n:
                start = max(block * BLOCK, window.low + 1)
                where = (own.seq >= start) & (own.seq < (block + 1) * BLOCK)
                rows = statements.seqs((own.buffer_id == self.store.info.id) & where)
                found = rows.order_by(own.seq).offset(place).limit(1)
                return int(connection.execute(found).scalar_one())
            place -= n
            block += 1

    def _by_weight(self, key: int, candidates: Candidates, n: int) -> list[int]:
        found = draw_stratified(key, candidates.priorities.weights, n)
        if found.is_complete:
            return _listed(found.seqs)
        # Sums that are no sums: one has changed what another program keeps.
        numbers, priorities = candidates.priorities.all(candidates)
        is_part = numbers <= candidates.high
        return self._of_all(key, numbers[is_part], priorities[is_part], n)

    def _of_all(self, key: int, numbers: Integers, priorities: Reals, n: int) -> list[int]:
        weights = weights_of(priorities, self.store.info.alpha)
        return _listed(strata_of_all(key, numbers, weights, n))

    def _held(self, connection: Connection, window: SampledWindow, wanted: WantedItems) -> int:
        """Return how many items there are; or that there are enough, where nothing was deleted
        since they were counted: of each number that is given, one leaves at most.
        """
        state = (window.deletions, server_epoch(self.store.engine))
        known, n_held, high = self._surely
        if known == state and n_held - (window.high - high) >= wanted.least_held:
            return n_held - (window.high - high)
        n_held = self._count(connection, window)
        self._surely = (state, n_held, window.high)
        return n_held

    def _count(self, connection: Connection, window: SampledWindow) -> int:
        state = (window.deletions, server_epoch(self.store.engine))
        buffer_id = self.store.info.id
        # Whoever pushes holds the lock: no number up to the newest is still to come.
        span = (state, window.low, window.high)
        if self._counted[0] != span:
            n_rows = self._live.count(
                connection, buffer_id, window.low, window.high, window.high, state
            )
            self._counted = (span, n_rows)
        return self._counted[1]

    def _remove_stale(
        self, connection: Connection, window: SampledWindow, wanted: WantedItems
    ) -> tuple[list[int], list[Row]]:
        """Remove the items that are too old; return their numbers, and where they are tracked
        their rows.
        """
        if wanted.oldest_version is None:
            return [], []
        self._stale.follow(connection, self.store.info.id, window.low, window.high)
        stale = self._there(connection, self._stale.taken(wanted.oldest_version, window.low))
        return stale, self._remove(connection, stale, "n_expired", tracks=wanted.tracks)

    def _there(self, connection: Connection, seqs: list[int]) -> list[int]:
        """Return those that have not left otherwise."""
        if not seqs:
            return []
        parameters = {"buffer": self.store.info.id, "seqs": seqs}
        return sorted(connection.execute(_THERE, parameters).scalars())

    def _use_up(
        self, connection: Connection, candidates: Candidates, seqs: list[int], wanted: WantedItems
    ) -> list[Row]:
        if not seqs:
            return []
        if wanted.keeps_used:
            self._set_priorities(connection, seqs, [0.0] * len(seqs))
            return []
        return self._remove(connection, seqs, "n_used_up", tracks=wanted.tracks)

    def _remove(
        self, connection: Connection, seqs: list[int], cause: str, *, tracks: bool
    ) -> list[Row]:
        if not seqs:
            return []
        left = self.rows(self.candidates(connection), seqs) if tracks else []
        before = self._deletions(connection)
        # Without their weight their blocks' sums hold, and need not be added up anew: each sample
        # would read as many blocks again as items leave.
        self._set_priorities(connection, seqs, [0.0] * len(seqs))
        sums = self._sums(connection, seqs)
        remove_counted(connection, self.store, seqs, cause)
        if sums:
            connection.execute(insert(priority_blocks), sums)
        epoch = server_epoch(self.store.engine)
        self._live.removed((before, epoch), (self._deletions(connection), epoch), seqs)
        return left

    def _sums(self, connection: Connection, seqs: Sequence[int]) -> list[dict[str, Any]]:
        """Return what is kept of the blocks of items that are about to leave, without them."""
        size = self.store.info.block_size
        leaving = Counter(seq // size for seq in seqs)
        parameters = {"buffer": self.store.info.id, "blocks": sorted(leaving)}
        found = connection.execute(_SUMS, parameters).mappings()
        return [{**row, "n_rows": row["n_rows"] - leaving[row["block"]]} for row in found]

    def _deletions(self, connection: Connection) -> int:
        found = select(buffers.c.deletions).where(buffers.c.id == self.store.info.id)
        return int(connection.execute(found).scalar_one())

    def _set_priorities(
        self, connection: Connection, seqs: Sequence[int], priorities: Sequence[float]
    ) -> int:
        store = self.store
        return update_priorities(connection, store.blocks, seqs, priorities)

    def _clean_uses(self, connection: Connection, low: int) -> None:
        """Delete the counts of items that were pushed out, which eviction leaves behind."""
        if low < self._cleaned_to + CLEANED_AT_ONCE:
            return
        own = uses.c
        gone = (own.buffer_id == self.store.info.id) & (own.seq <= low)
        connection.execute(delete(uses).where(gone, own.seq > self._cleaned_to - CLEANED_AT_ONCE))
        self._cleaned_to = low

    def update(self, given: Mapping[str, "NewPriority"], max_use: float | None = None) -> int:
        """Set the priorities of items that are still where they were; return how many there were.

        Args:
            given: Their new priorities by their ids.
            max_use: Those that were used so often keep theirs; None: all may be set.
        """

        def work(connection: Connection) -> int:
            counts = self.counts_of(connection, locked=True)
            found = self._seqs_of(connection, counts, given)
            if max_use is not None:
                used = self._uses_of(connection, list(found))
                found = {seq: new for seq, new in found.items() if used.get(seq, 0) < max_use}
            if not found:
                return 0
            seqs = sorted(found)
            n_set = self._set_priorities(
                connection, seqs, [found[seq].priority + EPS for seq in seqs]
            )
            ledger = CreditLedger.of(counts)
            largest = max(new.largest for new in found.values())
            if largest > ledger.max_priority:
                self.set_ledger(connection, counts, replace(ledger, max_priority=largest))
            return n_set

        n_set = self.store.write(work, "relaxed")
        self.store.note_updates(n_set)
        return n_set

    def _seqs_of(
        self, connection: Connection, counts: RingCounts, given: Mapping[str, "NewPriority"]
    ) -> dict[int, "NewPriority"]:
        window = self.store.sampled_window(connection)
        found = seqs_of_ids(connection, self.store.info.id, list(given))
        return {
            seq: given[id_]
            for id_, seq in found.items()
            if seq > window.low and self.place_of(number_of(id_), counts) == given[id_].place
        }

    def _uses_of(self, connection: Connection, seqs: Sequence[int]) -> dict[int, int]:
        return uses_of(connection, self.store.info.id, seqs)

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights, for every process."""

        def work(connection: Connection) -> None:
            counts = self.counts_of(connection, locked=True)
            self.set_ledger(connection, counts, replace(CreditLedger.of(counts), beta=beta))

        self.store.write(work)

    def clear_items(self, *, track: bool = False) -> Left:
        """Remove all items, and return them. New items begin at the first place with the priority
        1; numbers go on.

        Args:
            track: Return their rows too.
        """

        def work(connection: Connection) -> Left:
            counts = self.counts_of(connection, locked=True)
            left = self._all(connection, track=track)
            self.remove(connection)
            ledger = replace(CreditLedger.of(counts), max_priority=1.0)
            self.set_ledger(connection, RingCounts(counts.push_count, 0), ledger)
            return left

        return self.store.write(work)

    def held(self) -> HeldItems:
        """Return all that it holds, of one moment."""

        def work() -> HeldItems:
            with self.store.candidates(EVERYTHING, self.payloads.reading) as candidates:
                numbers, priorities = candidates.priorities.all(candidates)
                rows = self.rows(candidates, numbers)
                counted = self._uses_of(candidates.connection, numbers.tolist())
                counts = self.counts_of(candidates.connection)
            n_uses = [counted.get(row[0], 0) for row in rows]
            return HeldItems(Contents(rows, counts), priorities.tolist(), n_uses)

        return self._surviving(work)

    def hold(
        self,
        records: Sequence[Record],
        n_uses: Sequence[int],
        counts: RingCounts,
        ledger: CreditLedger,
    ) -> None:
        """Hold these items instead of those that there are, in one transaction.

        Args:
            records: The items, with their ids and priorities, in the order of their numbers.
            n_uses: How often each was used.
            counts: The counters.
            ledger: What is kept beside them.
        """
        by_number = {number_of(record.id): i for i, record in enumerate(records)}
        # Where items are missing numbers are as well, or those that are there would stay too long.
        first = max(counts.push_count - self.size, 0)
        if records:
            first = max(first, min(by_number))
        numbers = range(first, counts.push_count) if records else range(0)
        laid = [
            records[by_number[n]] if n in by_number else records[0]._replace(id=f"-_{n}")
            for n in numbers
        ]

        def made(connection: Connection, prepared: Sequence[Record]) -> Sequence[Record]:
            self.lock(connection)
            self.remove(connection)
            self.set_ledger(connection, counts, ledger)
            return prepared

        def then(connection: Connection, seqs: Mapping[str, int]) -> None:
            gaps = sorted(seqs[f"-_{n}"] for n in numbers if n not in by_number)
            self._remove(connection, gaps, "n_expired", tracks=False)
            used = {seqs[r.id]: n for r, n in zip(records, n_uses, strict=True) if n}
            add_uses(connection, self.store.info.id, used)

        if records:
            self.store.insert_made(laid, made, then)
        else:
            self.store.write(lambda connection: made(connection, ()))

    def candidates(self, connection: Connection, window: SampledWindow | None = None) -> Candidates:
        """Return what there is to choose from in a transaction, with its priorities."""
        found = super().candidates(connection, window)
        found.priorities = self.store.priorities_of(found)
        return found


def _listed(seqs: Integers) -> list[int]:
    found: list[int] = seqs.tolist()
    return found


def number_of(id_: str) -> int:
    """Return the number in an id."""
    number = id_.rpartition("_")[2]
    return int(number) if number.isdecimal() and number.isascii() else -1


def _numbered(
    records: Sequence[Record], numbers: range, name: str, priority: float
) -> list[Record]:
    return [
        record._replace(
            id=f"{name}_{number}",
            initial_priority=priority
            if record.initial_priority is None
            else record.initial_priority,
        )
        for record, number in zip(records, numbers, strict=True)
    ]


def _use_of_each(
    seqs: Sequence[int], counted: Mapping[int, int], total: Mapping[int, int]
) -> list[int]:
    """Return how often each row of a batch had been used when it was drawn, itself included."""
    now = {seq: total[seq] - n for seq, n in counted.items()}
    found = []
    for seq in seqs:
        now[seq] += 1
        found.append(now[seq])
    return found
