"""A ring of items in a database, which every process that opens it shares."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from orjson import loads

from sqlbuffer.compat.ding.contents.item_codec import encoded_of, item_of, records_of
from sqlbuffer.compat.ding.errors import ItemError
from sqlbuffer.compat.ding.rings.ring import Choice, RingContents
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import FieldError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.samplers import RandomSampler
from sqlbuffer.storage.extensions.ring_buffer import ItemRing, Left, RingCounts
from sqlbuffer.storage.rows.payload_parts import check_row_sizes, row_limit
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates


class SharedRing:
    """The items of one buffer, as rows; see `Ring`.

    Args:
        ring: The rows.
        source: The names of the buffer and of the experiment that push items.
        keeps_lengths: Store the length of each item next to it, so that lengths are read without
            the items.
    """

    def __init__(
        self, ring: ItemRing, source: tuple[str, str], *, keeps_lengths: bool = False
    ) -> None:
        self._ring, self._source, self._keeps_lengths = ring, source, keeps_lengths

    @property
    def shown_url(self) -> str:
        """The URL of its database, without a password."""
        return self._ring.store.shown_url

    def counts(self) -> RingCounts:
        """Return its counters."""
        return self._ring.counts()

    def count(self) -> int:
        """Return the number of items."""
        return self._ring.store.rows.count(EVERYTHING)

    def push(
        self, items: Sequence[Any], n_pushed: int, envstep: Any, *, track: bool = False
    ) -> Left:
        """Put items at the end; see `Ring.push`."""
        records = self._records(items, envstep)
        return decoded_left(self._ring.push(records, n_pushed, track=track))

    def _records(self, items: Sequence[Any], envstep: Any) -> list[Record]:
        records = records_of(items, self._source, envstep)
        if self._keeps_lengths:
            records = [
                record._replace(extra=f'{{"length":{len(item)}}}')
                if hasattr(item, "__len__")
                else record
                for record, item in zip(records, items, strict=True)
            ]
        try:
            check_row_sizes(records, row_limit(self._ring.store.info.config), "item {}: ")
        except FieldError as error:
            raise ItemError(str(error)) from None
        return records

    def uniform(self, size: int, *, replace: bool, seed: int) -> list[Any]:
        """Return items drawn uniformly; see `Ring.uniform`."""
        sampler = RandomSampler(replace=replace, seed=seed)
        return items_of(self._ring.draw(lambda candidates: sampler.choose(candidates, size)))

    def draw(self, choose: Choice) -> list[Any]:
        """Return the items that are chosen, in that order."""
        n_before = self.count()

        def chosen(candidates: Candidates) -> list[int]:
            keys = keys_by_age(candidates, n_before)
            counts = self._ring.counts_of(candidates.connection)
            return [int(keys[age]) for age in choose(len(keys), counts.push_count)]

        return items_of(self._ring.draw(chosen))

    def contents(self, *, encoded: bool = False) -> RingContents:
        """Return all items and the counters; see `Ring.contents`."""
        found = self._ring.contents()
        return RingContents(items_of(found.rows, encoded=encoded), found.counts)

    def lengths(self) -> list[int | None]:
        """Return the length of each item; None for an item without a length."""
        return [None if text is None else loads(text)["length"] for text in self._ring.notes()]

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and count from 0 again."""
        return decoded_left(self._ring.clear(track=track))

    def replace(self, items: Sequence[Any], counts: RingCounts) -> None:
        """Hold these items instead of those that there are, in one transaction."""
        self._ring.replace(self._records(items, 0), counts)

    def close(self) -> None:
        """End the use of the database by this object; the items stay."""
        self._ring.store.close()


def keys_by_age(candidates: Candidates, n: int) -> "range | NDArray[np.int64]":
    """Return the numbers of all rows, the oldest first.

    Args:
        candidates: The rows.
        n: How many there were a moment ago: if that is the number of numbers, none is missing, and
            none are read.
    """
    if candidates.span == n:
        return range(candidates.low + 1, candidates.high + 1)
    return candidates.keys()


def items_of(rows: Sequence[Row], *, encoded: bool = False) -> list[Any]:
    """Return the items of rows, or the items encoded."""
    return [encoded_of(row) if encoded else item_of(row) for row in rows]


def decoded_left(left: Left) -> Left:
    """Return the items of rows that left."""
    return Left(left.n, items_of(left.items))
