"""The result of each step of a batch of chunks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.chunks import PackedChunk, same_steps, select_steps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import StoreResult, uuid7
from sqlbuffer.storage.writing.held_steps import HeldStep

Places = NDArray[np.int64]


class StepOutcomes:
    """The result of each step of a batch: stored, a duplicate, or a conflict.

    Steps are counted in the order in which they are numbered. At first all are new.

    Args:
        layout: The typed fields.
        chunks: The chunks of the batch.
        ignore: Keys of chunks that make no conflict if they differ.

    Attributes:
        starts: The first step of each chunk, and the number of steps.
        is_new: True for steps to be stored; bool of shape (n,).
        seqs: Their numbers, stored now or held before; -1 without one. int64 of shape (n,).
    """

    def __init__(
        self, layout: Layout, chunks: Sequence[PackedChunk], ignore: Collection[str] = ()
    ) -> None:
        self._layout, self._chunks, self._ignore = layout, chunks, ignore
        self.starts = list(accumulate((chunk.n_steps for chunk in chunks), initial=0))
        n = self.starts[-1]
        self.is_new = np.ones(n, bool)
        self.seqs = np.full(n, -1, np.int64)
        self._is_same = np.zeros(n, bool)
        self._twins: list[tuple[int, int]] = []

    def places(self, i: int) -> Places:
        """Return the places of the new steps of a chunk."""
        return np.flatnonzero(self.is_new[self.starts[i] : self.starts[i + 1]])

    def refuse(self, i: int, places: Sequence[int] | Places, *, same: bool = False) -> None:
        """Mark steps of a chunk as conflicts, or as duplicates."""
        at = self.starts[i] + np.asarray(places, np.int64)
        self.is_new[at], self._is_same[at] = False, same

    def compare(self, i: int, held: Mapping[int, HeldStep]) -> None:
        """Compare steps of a chunk, by place, with the steps that the buffer holds there."""
        by_chunk: dict[int, list[int]] = {}
        for place, step in held.items():
            by_chunk.setdefault(step.stored.first_seq, []).append(place)
        for places in by_chunk.values():
            theirs = [held[place].place for place in places]
            stored = held[places[0]].stored.chunk
            same = same_steps(self._layout, self._chunks[i], places, stored, theirs, self._ignore)
            at = self.starts[i] + np.array(places, np.int64)
            self.is_new[at], self._is_same[at] = False, same
            self.seqs[at] = [held[place].seq for place in places]

    def repeat(self, first: tuple[int, int], again: tuple[int, int]) -> None:
        """Compare a step with an earlier one of the batch that has the same id.

        Both are given as (chunk, place).
        """
        (i, place), (j, other) = first, again
        chunks = self._chunks
        (same,) = same_steps(self._layout, chunks[i], [place], chunks[j], [other])
        self.refuse(j, [other], same=bool(same))
        self._twins.append((self.starts[i] + place, self.starts[j] + other))

    def pieces(self) -> list[tuple[int, PackedChunk]]:
        """Return the new steps as chunks in order, each with the index of its original chunk."""
        if self.is_new.all():
            return list(enumerate(self._chunks))
        found = []
        for i, chunk in enumerate(self._chunks):
            places, id_ = self.places(i), chunk.id
            if len(places) == chunk.n_steps:
                found.append((i, chunk))
                continue
            runs = [places]
            if chunk.t is not None:  # steps of an episode are consecutive in a chunk
                runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
            for run in runs:
                if len(run):
                    piece = select_steps(self._layout, chunk, run.tolist())
                    found.append((i, replace(piece, id=id_)))
                    id_ = uuid7()
        return found

    def number(self, first_seq: int) -> None:
        """Set consecutive numbers for the new steps."""
        self.seqs[self.is_new] = first_seq + np.arange(self.is_new.sum())

    def result(self, order: Places | None) -> StoreResult:
        """Return the result of the write.

        Args:
            order: For each step its place in the user's order; None if they are the same.
        """
        n = len(self.is_new)
        for first, again in self._twins:
            self.seqs[again] = self.seqs[first]
        seqs = self.seqs
        if order is not None:
            seqs = np.empty(n, np.int64)
            seqs[order] = self.seqs
        n_new = int(self.is_new.sum())
        if n_new == n:
            return StoreResult(n, 0, 0, (), seqs)
        given = np.arange(n) if order is None else order
        conflicts = np.flatnonzero(~self.is_new & ~self._is_same)
        conflicts = conflicts[np.argsort(given[conflicts], kind="stable")]
        ids = tuple(map(self._name, conflicts.tolist()))
        return StoreResult(n_new, n - n_new - len(ids), len(ids), ids, seqs)

    def _name(self, at: int) -> str:
        """Return the id that the user gave to a step, or else its place in its episode."""
        i = int(np.searchsorted(self.starts, at, "right")) - 1
        chunk, place = self._chunks[i], at - self.starts[i]
        if chunk.ids is not None:
            return chunk.ids[place]
        return f"{chunk.episode_key}/{(chunk.t or 0) + place}"
