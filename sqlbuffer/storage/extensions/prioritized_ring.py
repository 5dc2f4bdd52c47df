"""A ring of items that are drawn by priority, for the advanced buffer of `compat.ding`.

Every call locks the row of `buffer_layouts`: it sees the result of the call before, and every count
is exact, with any number of processes.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    bindparam,
    update,
)

from sqlbuffer.encoding.records import Record
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.rate_limits import RatioWindow
from sqlbuffer.storage.buffers.window import SampledWindow
from sqlbuffer.storage.extensions.credit_ledger import CreditLedger
from sqlbuffer.storage.extensions.item_choice import draw_by_weight, draw_of_all
from sqlbuffer.storage.extensions.item_count import ItemCount
from sqlbuffer.storage.extensions.item_draws import (
    ALL_USED_UP,
    HeldItems,
    NewPriority,
    Pushed,
    Sampled,
    WantedItems,
    no_items_of,
    use_of_each,
)
from sqlbuffer.storage.extensions.item_ids import number_of, numbered
from sqlbuffer.storage.extensions.item_lookups import seqs_of_ids
from sqlbuffer.storage.extensions.item_removal import items_there, remove_items
from sqlbuffer.storage.extensions.ring_buffer import (
    COLUMNS,
    Contents,
    ItemRing,
    Left,
    RingCounts,
)
from sqlbuffer.storage.extensions.tables import buffer_layouts
from sqlbuffer.storage.priorities.updates import update_priorities
from sqlbuffer.storage.retention.expiry import StaleRows
from sqlbuffer.storage.rows.payload_parts import prepared
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.schema.metadata import json_parameter
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.use_counts import add_uses, clean_uses, is_cleaning_due, uses_of
from sqlbuffer.storage.writing.row_writer import Insert
from sqlbuffer.storage.writing.write_batch import WriteBatch
from sqlbuffer.weighted_sampling import importance_weights, key_of

# Added to the priorities that are set, so that none is 0.
EPS = 1e-5
ID, VERSION = (1 + Record._fields.index(name) for name in ("id", "model_version"))

_SET = (
    update(buffer_layouts)
    .where(buffer_layouts.c.buffer_id == bindparam("buffer"))
    .values(
        next_number=bindparam("n", type_=BigInteger()),
        next_place=bindparam("place", type_=BigInteger()),
        state=json_parameter("kept"),
    )
)


class PriorityRing(ItemRing):
    """The items of one buffer, with priorities and counts of uses.

    Args:
        store: The buffer.
        kind: Use of the ring.
        size: Maximum number of items.
        limit: Limit on the ratio of pushes and draws; None for no limit.
    """

    def __init__(
        self, store: BufferStore, kind: str, size: int, limit: RatioWindow | None = None
    ) -> None:
        super().__init__(store, kind, size)
        self.payloads = store.source.payloads(only=COLUMNS | {"id", "model_version"})
        self._limit = limit
        self._forget()

    def _forget(self) -> None:
        """Forget all known rows, because a transaction that read or changed them was undone."""
        self._stale = StaleRows()
        self.item_count = ItemCount(self.store)
        self._cleaned_to = 0

    def set_ledger(self, connection: Connection, counts: RingCounts, ledger: CreditLedger) -> None:
        """Set all its counters and its ledger."""
        kept = orjson.dumps(asdict(ledger)).decode()
        values = {**self._key, "n": counts.push_count, "place": counts.tail, "kept": kept}
        connection.execute(_SET, values)

    def place_of(self, number: int, counts: RingCounts) -> int:
        """Return the place in the ring of a held item, by its number."""
        return (number - counts.push_count + counts.tail) % self.size

    def push_items(
        self, records: Sequence[Record], n_pushed: int, name: str, *, track: bool = False
    ) -> Pushed:
        """Append items, all or none; the oldest leave.

        Args:
            records: The items that are kept, at most the ring's size; the ring sets their ids.
            n_pushed: Number of items pushed.
            name: Prefix of their ids.
            track: Return the rows of the items that leave.
        """
        batch = WriteBatch(prepared(records, self.store.layout))

        def work(connection: Connection, insert: Insert) -> Pushed:
            now, refused = self._count_limited(connection, n_pushed)
            if refused is not None:
                return Pushed(refused=refused)
            left = self._leaving(connection, len(records), track=track)
            numbers = range(now.push_count - len(records), now.push_count)
            places = [self.place_of(number, now) for number in numbers]
            default = CreditLedger.of(now).max_priority
            # No other process gives these ids.
            made = numbered(batch.records, numbers, name, default)
            insert(replace(batch, records=made), guarded=False)
            return Pushed(numbers, places, default, left)

        return self.store.writer.store_within(batch, work)

    def _count_limited(self, connection: Connection, n: int) -> tuple[RingCounts, str | None]:
        """Count pushed items, unless the limit refuses them.

        Return the counters, and the reason why they are refused.
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
        """Draw items by priority, one from each of equal parts of all weights.

        Count their uses, and remove items that are too old or used up.
        """
        self.store.priorities.summarize_due(self.store.source)
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
        window = self.store.source.sampled_window(connection)
        stale, left = self._remove_stale(connection, window, wanted)
        if stale:
            window = self.store.source.sampled_window(connection)
        done = Sampled(counts=counts, n_removed=len(stale), left=left)
        n_held = self.item_count.at_least(connection, window, wanted.least_held)
        if (refused := wanted.refused_at(n_held)) is not None:
            return replace(done, refused=refused)
        if self._limit is not None:
            ledger = ledger.decayed(self._limit, time.time())
            if (refused := self._limit.refused_sample(ledger.flow, wanted.size)) is not None:
                return replace(done, refused=refused)
        candidates = self.candidates(connection, window)
        seqs = self._chosen(connection, candidates, window, wanted)
        if seqs is None:
            reason = no_items_of(self.item_count.of(connection, window))
            return replace(done, refused=reason, is_empty_range=True)
        if len(seqs) < wanted.size:
            return replace(done, refused=ALL_USED_UP)
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
        weights = importance_weights(own, info.config.priorities.alpha, beta, least)
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
        low = candidates.window_low
        if is_cleaning_due(self._cleaned_to, low):
            self._cleaned_to = clean_uses(connection, info.id, self._cleaned_to, low)
        return replace(
            done,
            rows=rows,
            priorities=own.tolist(),
            weights=list(weights),
            uses=use_of_each(seqs, counted, total),
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
        """Return the numbers that are drawn; None if the range has no items."""
        key, alpha = (
            key_of(np.random.default_rng(wanted.seed)),
            self.store.info.config.priorities.alpha,
        )
        if wanted.which is None:
            return draw_by_weight(key, candidates, wanted.size, alpha)
        n_held = self.item_count.of(connection, window)
        places = range(n_held)[wanted.which]
        if not places:
            return None
        if wanted.which.step in (None, 1):
            part = self.candidates(connection, window)
            part.low = self.item_count.seq_at(connection, window, n_held, places[0]) - 1
            part.high = self.item_count.seq_at(connection, window, n_held, places[-1])
            return draw_by_weight(key, part, wanted.size, alpha)
        numbers = np.sort(candidates.keys()[wanted.which])
        return draw_of_all(key, numbers, candidates.priorities.of(numbers), wanted.size, alpha)

    def _remove_stale(
        self, connection: Connection, window: SampledWindow, wanted: WantedItems
    ) -> tuple[list[int], list[Row]]:
        """Remove the items that are too old.

        Return their numbers, and their rows if they are tracked.
        """
        if wanted.oldest_version is None:
            return [], []
        self._stale.follow(connection, self.store.info.id, window.low, window.high)
        stale = items_there(
            connection, self.store, self._stale.taken(wanted.oldest_version, window.low)
        )
        return stale, self._remove(connection, stale, "n_expired", tracks=wanted.tracks)

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
        remove_items(connection, self.store, self.item_count, seqs, cause)
        return left

    def _set_priorities(
        self, connection: Connection, seqs: Sequence[int], priorities: Sequence[float]
    ) -> int:
        store = self.store
        return update_priorities(
            connection, store.priorities.blocks, seqs, priorities, store.origin
        )

    def update(self, given: Mapping[str, NewPriority], max_use: float | None = None) -> int:
        """Set the priorities of items that are still at their places; return how many were set.

        Args:
            given: Their new priorities by their ids.
            max_use: Items with that many uses keep their priority; None for no limit.
        """

        def work(connection: Connection) -> int:
            counts = self.counts_of(connection, locked=True)
            found = self._seqs_of(connection, counts, given)
            if max_use is not None:
                used = uses_of(connection, self.store.info.id, list(found))
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
        self.store.priorities.note_updates(n_set)
        return n_set

    def _seqs_of(
        self, connection: Connection, counts: RingCounts, given: Mapping[str, NewPriority]
    ) -> dict[int, NewPriority]:
        window = self.store.source.sampled_window(connection)
        found = seqs_of_ids(connection, self.store.info.id, list(given))
        return {
            seq: given[id_]
            for id_, seq in found.items()
            if seq > window.low and self.place_of(number_of(id_), counts) == given[id_].place
        }

    def set_beta(self, beta: float) -> None:
        """Set the exponent of the importance weights, for every process."""

        def work(connection: Connection) -> None:
            counts = self.counts_of(connection, locked=True)
            self.set_ledger(connection, counts, replace(CreditLedger.of(counts), beta=beta))

        self.store.write(work)

    def clear_items(self, *, track: bool = False) -> Left:
        """Remove all items, and return them.

        New items begin at the first place with priority 1; their numbers continue.

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
        """Return all items and counters of the ring, at one moment."""

        def work() -> HeldItems:
            with self.store.source.candidates(EVERYTHING, self.payloads.reading) as candidates:
                numbers, priorities = candidates.priorities.all(candidates)
                rows = self.rows(candidates, numbers)
                counted = uses_of(candidates.connection, self.store.info.id, numbers.tolist())
                counts = self.counts_of(candidates.connection)
            n_uses = [counted.get(row[0], 0) for row in rows]
            return HeldItems(Contents(rows, counts), priorities.tolist(), n_uses)

        return self._surviving(work)

    def candidates(self, connection: Connection, window: SampledWindow | None = None) -> Candidates:
        """Return the candidates of a transaction, with their priorities."""
        found = super().candidates(connection, window)
        found.priorities = self.store.priorities.of(found)
        return found
