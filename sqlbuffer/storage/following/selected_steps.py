"""The steps that a follower with a condition keeps.

Whole episodes are kept: a matching step is drawn with its neighbours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sqlalchemy import Connection, Integer, bindparam, literal, select

from sqlbuffer.query.tree import Node
from sqlbuffer.storage.following.buffer_state import BufferState, ChunkSpan
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.schema.column_types import SeqList

# Maximum number of steps that one statement looks up.
_AT_ONCE = 10_000
# If the range of the steps has at most this many times their number, the whole range is read.
MOST_BESIDE = 8


class KeptSteps(Protocol):
    """Steps that a follower has."""

    def has_episode(self, id_: int) -> bool:
        """Return True if it has steps of an episode, by its key."""

    def has_step(self, seq: int) -> bool:
        """Return True if it has a step."""


@dataclass(frozen=True)
class Selection:
    """Steps that a follower takes in one look.

    Attributes:
        firsts: First steps of the chunks to read, in order.
        n_steps: Number of steps in these chunks.
        matching: Steps that match.
        new: All new chunks, also those that are not read.
        unmatched: Steps that were changed and do not match.
        older: Steps of older chunks to read, whose later changes must be read too.
    """

    firsts: Sequence[int]
    n_steps: int
    matching: Sequence[int]
    new: Sequence[ChunkSpan]
    unmatched: Sequence[int] = ()
    older: Sequence[int] = ()


class SelectedSteps:
    """Finds the steps that meet a condition, and the chunks to read for them.

    Args:
        buffer_id: The buffer.
        node: The condition.
        steps: How its steps are stored.
        database: Module of the database in this folder.
    """

    def __init__(self, buffer_id: int, node: Node, steps: StepLayout, database: Any) -> None:
        self._buffer_id, self._node, self._database = buffer_id, node, database
        self._steps, self._table = steps, steps.of(buffer_id)

    def at_start(self, connection: Connection, now: BufferState) -> Selection:
        """Return the steps to take of a whole buffer."""
        node = resolve_labels(self._node, bool(now.has_labels))
        where = statements.in_window(self._buffer_id, now.low, node, self._table)
        found = connection.execute(select(self._table.c.seq).where(where)).scalars().all()
        matching = np.sort(np.array(found, np.int64))
        new = _left(self._database.all_spans(connection, self._buffer_id, now.low), now)
        hits = _with_any(new, matching)
        episodes = _episodes(hits)
        kept = {span.first_seq for span in hits}
        spans = [s for s in new if s.first_seq in kept or s.episode_id in episodes]
        return Selection([s.first_seq for s in spans], _n_steps(spans), matching.tolist(), new)

    def at_look(
        self,
        connection: Connection,
        before: BufferState,
        now: BufferState,
        changed: Sequence[int],
        held: KeptSteps,
    ) -> Selection:
        """Return the steps to take of the changes.

        Args:
            connection: Connection to read from.
            before: The state that was read last.
            now: The state to read.
            changed: Steps that were changed since.
            held: Steps that the follower has.
        """
        database, buffer_id = self._database, self._buffer_id
        new = _left(database.new_spans(connection, buffer_id, before, now), now)
        firsts = {span.first_seq for span in new}
        # Apart, because changed steps may be far from new ones.
        matching = self._matching(connection, now, _seqs(new))
        matching |= self._matching(connection, now, changed)
        missed = [seq for seq in changed if seq in matching and not held.has_step(seq)]
        other = database.step_spans(connection, buffer_id, missed) if missed else []
        hits = _with_any([*new, *other], np.sort(np.array(list(matching), np.int64)))
        episodes = _episodes(hits)
        unknown = [id_ for id_ in sorted(episodes) if not held.has_episode(id_)]
        if unknown:
            other = [*other, *database.episode_spans(connection, buffer_id, unknown)]
        older = {
            span.first_seq: span
            for span in _left(other, now)
            if span.first_seq not in firsts and not held.has_step(span.first_seq)
        }
        older_seqs = _seqs(older.values())
        matching |= self._matching(connection, now, older_seqs)
        hit = {span.first_seq for span in hits}
        kept = [
            span
            for span in new
            if span.first_seq in hit
            or span.episode_id in episodes
            or (span.episode_id is not None and held.has_episode(span.episode_id))
        ]
        spans = sorted([*kept, *older.values()])
        return Selection(
            [span.first_seq for span in spans],
            _n_steps(spans),
            sorted(matching),
            new,
            sorted(set(changed).difference(matching)),
            older_seqs,
        )

    def _matching(self, connection: Connection, now: BufferState, seqs: Iterable[int]) -> set[int]:
        """Return the given steps that match and are in the window."""
        node, listed = resolve_labels(self._node, bool(now.has_labels)), sorted(seqs)
        found = set[int]()
        if listed and now.high - listed[0] < MOST_BESIDE * len(listed) + 256:
            # A lookup of each step would read the values of its whole chunk again.
            first = max(listed[0], now.low + 1)
            seq = self._table.c.seq
            where = statements.matching(self._buffer_id, node, self._table) & (seq >= first)
            found.update(connection.execute(select(seq).where(where)).scalars())
            return found.intersection(listed)
        for i in range(0, len(listed), _AT_ONCE):
            wanted = bindparam(None, listed[i : i + _AT_ONCE], SeqList(), unique=True)
            table, is_one = self._steps.at(literal(self._buffer_id, Integer()), wanted)
            where = statements.matching(self._buffer_id, node, table) & is_one
            found.update(connection.execute(select(table.c.seq).where(where)).scalars())
        return {seq for seq in found if seq > now.low}


def _left(spans: Iterable[ChunkSpan], now: BufferState) -> list[ChunkSpan]:
    """Return the chunks with a step in the window."""
    return [span for span in spans if span.first_seq + span.n_steps - 1 > now.low]


def _with_any(spans: Sequence[ChunkSpan], seqs: Any) -> list[ChunkSpan]:
    """Return the chunks that have one of the steps, which are sorted."""
    firsts = np.array([span.first_seq for span in spans], np.int64)
    ends = firsts + np.array([span.n_steps for span in spans], np.int64)
    has_any = np.searchsorted(seqs, firsts) < np.searchsorted(seqs, ends)
    return [span for span, has in zip(spans, has_any.tolist(), strict=True) if has]


def _episodes(spans: Iterable[ChunkSpan]) -> set[int]:
    return {span.episode_id for span in spans if span.episode_id is not None}


def _seqs(spans: Iterable[ChunkSpan]) -> list[int]:
    return [span.first_seq + i for span in spans for i in range(span.n_steps)]


def _n_steps(spans: Iterable[ChunkSpan]) -> int:
    return sum(span.n_steps for span in spans)
