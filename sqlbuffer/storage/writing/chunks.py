"""Store chunks: all of a batch or none, also over lost connections and races of writers."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, Text, bindparam, cast, or_, select, true

from sqlbuffer.codec.plain_values import INT64_MAX
from sqlbuffer.encoding.chunks import (
    ChunkColumns,
    PackedChunk,
    same_steps,
    select_steps,
    step_numbers,
)
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, PlacedEpisode
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS, Layout
from sqlbuffer.errors import FieldError, OutOfOrderError
from sqlbuffer.steps import StoreResult, is_uuid, uuid7
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import sessions
from sqlbuffer.storage.buffers.window import SELECT_WINDOW, clean_after_write, rows_of_steps
from sqlbuffer.storage.buffers.writes import WriteId, WriteOnce
from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.chunks.numbered_chunks import NumberedChunks, numbered_from, share_chunks
from sqlbuffer.storage.chunks.tables import chunk_data, chunks, deleted_steps, step_ids
from sqlbuffer.storage.database.errors import episode_ended
from sqlbuffer.storage.database.pipelines import Rows, Statement, run_statement
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import joined_connection
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.episodes import (
    Beginnings,
    EpisodeKey,
    advance,
    begin_whole,
    end,
    episode_ids,
    episodes,
    session_ids,
    sqlite_end_open,
    sqlite_put_episodes,
)
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.messages import whole_payloads
from sqlbuffer.storage.rollout_stats import totals_of_rewards
from sqlbuffer.storage.schema.number_keys import is_numbered
from sqlbuffer.storage.writing.inserts import after_chunks, reserve_steps


@dataclass(frozen=True)
class ChunkBatch:
    """A batch of chunks in the form in which it is stored.

    Attributes:
        chunks: The chunks, in the order in which they are numbered.
        order: For each step in that order its place in the user's order; None if they are the same.
        endings: Ends of episodes in the batch.
        beginnings: Of episodes that a writer owns, and that may begin with it.
        whole: Id of the user's for an episode that is stored whole or not at all.
        ignore: Keys of chunks that make no conflict if they differ from the stored ones.
    """

    chunks: ChunkColumns
    order: NDArray[np.int64] | None = None
    endings: Sequence[EpisodeEnd] = ()
    beginnings: Beginnings = field(default_factory=dict)
    whole: EpisodeKey | None = None
    ignore: frozenset[str] = frozenset()

    @cached_property
    def n_steps(self) -> int:
        """Number of their steps."""
        return sum(self.chunks.column("n_steps"))

    @cached_property
    def n_bytes(self) -> int:
        """Size of their fields and arrays in bytes."""
        n_bytes = sum(map(len, self.chunks.column("records")))
        if self.chunks.has("payload_arrays"):
            n_bytes += sum([len(raw or b"") for raw in self.chunks.column("payload_arrays")])
        return n_bytes


_PLAIN = (
    "id", "n_steps", "task_id", "task_name", "agent_id", "pre_agent", "model_version", "t", "step",
    "first_time", "last_time",
)  # fmt: skip
_FLAGS = ("terminated", "truncated")
_LISTS = ("steps", "times", "adv_t", "v_t", *_FLAGS, "offsets")
_JOINED = ("records", "block_steps", "layout", "payload_arrays", "episode_key", "session_key")
_CHUNKS = (
    select(
        chunks.c.first_seq,
        *(chunks.c[name] for name in (*_PLAIN, *_LISTS[:-1], "reward_t")),
        chunk_data.c.records,
        chunk_data.c.block_steps,
        chunk_data.c.layout,
        chunk_data.c.offsets,
        cast(chunk_data.c.payloads, Text()).label("payloads"),
        chunk_data.c.payload_arrays,
        episodes.c.key.label("episode_key"),
        sessions.c.key.label("session_key"),
    )
    .select_from(chunks)
    .join(chunk_data, is_numbered(chunk_data.c.first_seq, chunks.c.buffer_id, chunks.c.first_seq))
    .outerjoin(episodes, episodes.c.id == chunks.c.episode_id)
    .outerjoin(sessions, sessions.c.id == chunks.c.session_id)
    .order_by(chunks.c.first_seq)
)


class StoredChunk(NamedTuple):
    """A chunk that a buffer holds, with the values of its steps that are compared.

    It has no priorities, no values for conditions, and no ids.
    """

    first_seq: int
    chunk: PackedChunk


def stored_chunks(connection: Connection, buffer_id: int, *conditions: Any) -> list[StoredChunk]:
    """Return the chunks of a buffer that match."""
    statement = _CHUNKS.where(chunks.c.buffer_id == buffer_id, *conditions)
    rows = [dict(row) for row in connection.execute(statement).mappings()]
    whole = whole_payloads(connection, buffer_id, [row["payloads"] for row in rows])
    return [
        StoredChunk(row["first_seq"], chunk_of({**row, "payloads": payloads}))
        for row, payloads in zip(rows, whole, strict=True)
    ]


def chunk_of(row: Mapping[str, Any]) -> PackedChunk:
    """Return a chunk as it was before it was stored, by the columns of its tables.

    Lists are JSON on SQLite. Priorities and values for conditions may be left out.
    """
    values = {name: row[name] for name in (*_PLAIN, *_JOINED)}
    values |= {name: listed(row[name]) for name in _LISTS}
    for name in _FLAGS:
        if values[name] == []:  # all are False
            values[name] = [False] * row["n_steps"]
    payloads = listed(row["payloads"])
    if payloads is not None:
        payloads = [
            None if one is None else json.dumps(one, separators=(",", ":"), ensure_ascii=False)
            for one in payloads
        ]
    return PackedChunk(
        **values,
        reward=listed(row["reward_t"]),
        payloads=payloads,
        initial_priority=listed(row.get("initial_priority")),
        fields=listed(row.get("fields")),
        ids=None,
    )


def listed(values: Any) -> Any:
    """Return a list, which is JSON on SQLite."""
    return json.loads(values) if isinstance(values, str) else values


held_ids = by_database(sqlite=sqlite.held_ids, postgresql=postgresql.held_ids)

# The id of a step without a given one: that of its chunk, and its place there.
_MADE_ID = re.compile(r"(.{36})/(0|[1-9]\d{0,2})")
_MOST_RANGES, _MOST_IDS = 50, 1_000  # in one statement
_NEWEST = (
    select(chunks.c.first_seq, chunks.c.n_steps, chunks.c.step, chunks.c.steps)
    .where(
        chunks.c.buffer_id == bindparam("of_buffer"),
        chunks.c.episode_id == bindparam("of_episode"),
    )
    .order_by(chunks.c.t.desc())
    .limit(1)
)


def _step_at(chunk: Any, place: int) -> int:
    """Return the step number at a place in a chunk; -1 is the last one."""
    steps = listed(chunk.steps)
    return int(chunk.step + place % chunk.n_steps if steps is None else steps[place])


class HeldStep(NamedTuple):
    """A step that a buffer holds: its number, its chunk and its place there."""

    seq: int
    stored: StoredChunk
    place: int


class HeldSteps:
    """Finds steps that a buffer holds, in a transaction.

    Steps that have left the window or were deleted are not held.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
    """

    def __init__(self, connection: Connection, buffer_id: int) -> None:
        self._connection, self._buffer_id = connection, buffer_id

    def numbers_of(self, ids: Collection[str]) -> dict[str, int]:
        """Return the number of each id of a step, given by a user or made by the library."""
        if not ids:
            return {}
        seqs_by_id = dict(held_ids(self._connection, self._buffer_id, list(ids)))
        made = self._made_ids([id_ for id_ in ids if id_ not in seqs_by_id])
        held = self._held(made.values()) - self._with_given_id(made.values())
        return seqs_by_id | {id_: seq for id_, seq in made.items() if seq in held}

    def at(self, seqs: Iterable[int]) -> dict[int, HeldStep]:
        """Return the steps that have these numbers, by number."""
        numbers = sorted(set(seqs))
        # Consecutive numbers are in one range.
        runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        near = [[seq for _, seq in run] for _, run in runs]
        ranges = [
            chunks.c.first_seq.between(numbers_of_run[0] - MAX_CHUNK_STEPS + 1, numbers_of_run[-1])
            for numbers_of_run in near
        ]
        steps = {}
        for start in range(0, len(ranges), _MOST_RANGES):
            some = or_(*ranges[start : start + _MOST_RANGES])
            for stored in stored_chunks(self._connection, self._buffer_id, some):
                for place in range(stored.chunk.n_steps):
                    seq = stored.first_seq + place
                    steps[seq] = HeldStep(seq, stored, place)
        return {seq: steps[seq] for seq in numbers if seq in steps}

    def of_episode(self, episode_id: int, first_t: int, after_t: int) -> dict[int, HeldStep]:
        """Return the steps of an episode from one place up to another, by place."""
        where = (
            chunks.c.episode_id == episode_id,
            chunks.c.t > first_t - MAX_CHUNK_STEPS,
            chunks.c.t < after_t,
        )
        steps = {
            (stored.chunk.t or 0) + place: HeldStep(stored.first_seq + place, stored, place)
            for stored in stored_chunks(self._connection, self._buffer_id, *where)
            for place in range(stored.chunk.n_steps)
        }
        held = self._held(step.seq for step in steps.values())
        return {t: step for t, step in steps.items() if first_t <= t < after_t and step.seq in held}

    def newest_step(self, episode_id: int, *, is_held: bool = False) -> int | None:
        """Return the step number of the newest step of an episode; None if it has no step.

        Args:
            episode_id: The episode.
            is_held: The newest one that is inside the window, and was not deleted.
        """
        newest = self._connection.execute(
            _NEWEST, {"of_buffer": self._buffer_id, "of_episode": episode_id}
        ).one_or_none()
        if newest is None:
            return None
        last = newest.first_seq + newest.n_steps - 1
        if is_held:
            last = max(self._held(range(newest.first_seq, last + 1)), default=-1)
        place = last - newest.first_seq
        return None if place < 0 else _step_at(newest, place)

    def _held(self, seqs: Iterable[int]) -> set[int]:
        """Return the numbers that are inside the window, and were not deleted."""
        numbers = set(seqs)
        if not numbers:
            return numbers
        low = self._connection.execute(SELECT_WINDOW, {"of_buffer": self._buffer_id}).one().low_seq
        gone = deleted_steps.c
        deleted = select(gone.seq).where(
            gone.buffer_id == self._buffer_id, gone.seq.between(min(numbers), max(numbers))
        )
        numbers -= set(self._connection.execute(deleted).scalars())
        return {seq for seq in numbers if seq > low}

    def _with_given_id(self, seqs: Iterable[int]) -> set[int]:
        """Return the numbers of steps to which users gave an id."""
        numbers = set(seqs)
        if not numbers:
            return numbers
        statement = select(step_ids.c.seq).where(
            step_ids.c.buffer_id == self._buffer_id,
            step_ids.c.seq.between(min(numbers), max(numbers)),
        )
        return numbers.intersection(self._connection.execute(statement).scalars())

    def _made_ids(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each id that the library made from a chunk."""
        parts = {
            id_: match.groups()
            for id_ in ids
            if (match := _MADE_ID.fullmatch(id_)) and is_uuid(match[1])
        }
        if not parts:
            return {}
        statement = select(chunks.c.id, chunks.c.n_steps, chunks.c.first_seq).where(
            chunks.c.buffer_id == self._buffer_id,
            chunks.c.id.in_({chunk_id for chunk_id, _ in parts.values()}),
        )
        spans = {
            chunk_id: (n_steps, first_seq)
            for chunk_id, n_steps, first_seq in self._connection.execute(statement)
        }
        return {
            id_: spans[chunk_id][1] + int(place)
            for id_, (chunk_id, place) in parts.items()
            if chunk_id in spans and int(place) < spans[chunk_id][0]
        }


Places = NDArray[np.int64]


class StepOutcomes:
    """The result of each step of a batch: stored, a duplicate, or a conflict.

    Steps are counted in the order in which they are numbered. At first all are new.

    Args:
        layout: The typed fields.
        packed_chunks: The chunks of the batch.
        ignore: Keys of chunks that make no conflict if they differ.

    Attributes:
        starts: The first step of each chunk, and the number of steps.
        are_new: True while all steps are to be stored, as most are.
        is_new: True for steps to be stored; bool of shape (n,).
        seqs: Their numbers, stored now or held before; -1 without one. int64 of shape (n,).
    """

    def __init__(
        self, layout: Layout, packed_chunks: ChunkColumns, ignore: Collection[str] = ()
    ) -> None:
        self._layout, self._chunks, self._ignore = layout, packed_chunks, ignore
        self.starts: list[int] = list(accumulate(packed_chunks.column("n_steps"), initial=0))
        n = self.starts[-1]
        self.are_new = True
        self.is_new = np.ones(n, bool)
        self.seqs = np.full(n, -1, np.int64)
        self._is_same = np.zeros(n, bool)
        self._twins: list[tuple[int, int]] = []

    def places(self, i: int) -> Places:
        """Return the places of the new steps of a chunk."""
        if self.are_new:
            return np.arange(self._chunks[i].n_steps)
        return np.flatnonzero(self.is_new[self.starts[i] : self.starts[i + 1]])

    def refuse(self, i: int, places: Sequence[int] | Places, *, same: bool = False) -> None:
        """Mark steps of a chunk as conflicts, or as duplicates."""
        indexes = self.starts[i] + np.asarray(places, np.int64)
        self.are_new, self.is_new[indexes], self._is_same[indexes] = False, False, same

    def find(self, i: int, first_seq: int) -> None:
        """Mark all steps of a chunk as duplicates: the chunk itself is stored, with this number."""
        start, end = self.starts[i : i + 2]
        self.refuse(i, range(end - start), same=True)
        self.seqs[start:end] = np.arange(first_seq, first_seq + end - start)

    def compare(self, i: int, held: Mapping[int, HeldStep]) -> None:
        """Compare steps of a chunk, by place, with the steps that the buffer holds there."""
        by_chunk: dict[int, list[int]] = {}
        for place, step in held.items():
            by_chunk.setdefault(step.stored.first_seq, []).append(place)
        for places in by_chunk.values():
            theirs = [held[place].place for place in places]
            stored = held[places[0]].stored.chunk
            same = same_steps(self._layout, self._chunks[i], places, stored, theirs, self._ignore)
            indexes = self.starts[i] + np.array(places, np.int64)
            self.are_new, self.is_new[indexes], self._is_same[indexes] = False, False, same
            self.seqs[indexes] = [held[place].seq for place in places]

    def repeat(self, first: tuple[int, int], again: tuple[int, int]) -> None:
        """Compare a step with an earlier one of the batch that has the same id.

        Both are given as (chunk, place).
        """
        (i, place), (j, other) = first, again
        earlier, later = self._chunks[i], self._chunks[j]
        (same,) = same_steps(self._layout, earlier, [place], later, [other])
        self.refuse(j, [other], same=bool(same))
        self._twins.append((self.starts[i] + place, self.starts[j] + other))

    def pieces(self) -> tuple[Sequence[int], ChunkColumns]:
        """Return the new steps as chunks in order, and of each the index of its original chunk."""
        if self.are_new:
            return range(len(self._chunks)), self._chunks
        indexes, pieces = list[int](), list[PackedChunk]()
        for i, chunk in enumerate(self._chunks):
            places, id_ = self.places(i), chunk.id
            if len(places) == chunk.n_steps:
                indexes.append(i)
                pieces.append(chunk)
                continue
            runs = [places]
            if chunk.t is not None:  # steps of an episode are consecutive in a chunk
                runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
            for run in runs:
                if len(run):
                    piece = select_steps(self._layout, chunk, run.tolist())
                    indexes.append(i)
                    pieces.append(replace(piece, id=id_))
                    id_ = uuid7()
        return indexes, ChunkColumns.of(pieces)

    def number(self, first_seq: int) -> None:
        """Set consecutive numbers for the new steps."""
        if self.are_new:
            self.seqs = np.arange(first_seq, first_seq + len(self.seqs))
        else:
            self.seqs[self.is_new] = first_seq + np.arange(self.is_new.sum())

    def result(self, order: Places | None) -> StoreResult:
        """Return the result of the write.

        Args:
            order: For each step its place in the user's order; None if they are the same.
        """
        n = len(self.is_new)
        for first, again in self._twins:
            self.seqs[again] = self.seqs[first]
        seqs = self.seqs if order is None else _in_order(self.seqs, order)
        n_new = n if self.are_new else int(self.is_new.sum())
        if n_new == n:
            return StoreResult(n, 0, 0, (), seqs)
        positions = np.arange(n) if order is None else order
        conflicts = np.flatnonzero(~self.is_new & ~self._is_same)
        conflicts = conflicts[np.argsort(positions[conflicts], kind="stable")]
        ids = tuple(map(self._name, conflicts.tolist()))
        return StoreResult(n_new, n - n_new - len(ids), len(ids), ids, seqs)

    def _name(self, index: int) -> str:
        """Return the id that the user gave to a step, or else its place in its episode."""
        i = int(np.searchsorted(self.starts, index, "right")) - 1
        chunk, place = self._chunks[i], index - self.starts[i]
        if chunk.ids is not None:
            return chunk.ids[place]
        return f"{chunk.episode_key}/{(chunk.t or 0) + place}"


def _in_order(seqs: Places, order: Places) -> Places:
    """Return the numbers of steps in the user's order; see `StepOutcomes.result`."""
    ordered = np.empty(len(seqs), np.int64)
    ordered[order] = seqs
    return ordered


insert_numbered = by_database(sqlite=sqlite.insert_chunks, postgresql=postgresql.insert_chunks)
insert_ids = by_database(sqlite=sqlite.insert_ids, postgresql=postgresql.insert_ids)

_EPISODE = select(episodes.c.next_t).where(episodes.c.id == bindparam("of_id"))
_NAMES = select(episodes.c.key, episodes.c.task_id, episodes.c.status).where(
    episodes.c.id == bindparam("of_id")
)
_NEWEST_CHUNK = _NEWEST.add_columns(chunks.c.t.label("first_t")).subquery()
_APPENDED_EPISODE = (
    select(episodes.c.next_t, episodes.c.status, episodes.c.is_implied, _NEWEST_CHUNK)
    .select_from(episodes.outerjoin(_NEWEST_CHUNK, true()))
    .where(episodes.c.id == bindparam("of_episode"))
    .with_for_update(key_share=True, of=episodes)
)


def insert_batch(
    connection: Connection,
    buffer: OpenBuffer,
    batch: ChunkBatch,
    once: WriteOnce[StoreResult] | None = None,
    *,
    episodes: Sequence[PlacedEpisode] | None = None,
) -> StoreResult:
    """Insert the steps that the buffer does not hold, all or none, in a transaction.

    Args:
        connection: The transaction.
        buffer: The buffer.
        batch: The batch.
        once: Makes the transaction take effect once, if the id of the write must be stored here.
        episodes: What `_placed_episodes` returned; None: look at each episode.

    Raises:
        EpisodeExistsError: `whole` is open, or was aborted.
        OutOfOrderError: A step comes after a later one of its episode.
    """
    if buffer.info.config.retention.evict_by == "episode":
        # Before rows of episodes, as in evictions and annotations.
        lock_as_writer(connection, buffer.info.id)
    if episodes is not None and (once is None or not once.must_look()):
        note = None if once is None else once.note
        first_seq = _store_placed(connection, buffer.info.id, batch, episodes, note)
        if first_seq is not None:
            return _all_new(first_seq, batch)
    return _Insertion(connection, buffer, batch).run(once)


class _Insertion:
    """One insertion of a batch in one transaction."""

    def __init__(self, connection: Connection, buffer: OpenBuffer, batch: ChunkBatch) -> None:
        self._connection, self._batch, self._buffer_id = connection, batch, buffer.info.id
        self._chunks, self._shares_messages = batch.chunks, buffer.shares_messages
        self._outcomes = StepOutcomes(buffer.layout, batch.chunks, batch.ignore)
        self._held = HeldSteps(connection, self._buffer_id)
        # Episodes that this transaction has made: no other one sees them.
        self._made: set[int] = set()

    def run(self, once: WriteOnce[StoreResult] | None) -> StoreResult:
        """Insert new steps; return the result of each step."""
        connection, batch, outcomes = self._connection, self._batch, self._outcomes
        if batch.whole is not None:
            held_length = begin_whole(
                connection, self._buffer_id, batch.whole, self._chunks[0], batch.beginnings
            )
            if held_length is not None:
                return self._compared_whole(held_length)
        if once is not None and once.must_look():
            self._settle_chunks()
        self._settle_ids()
        if batch.chunks and not outcomes.is_new.any():  # an episode of them would have no step
            return outcomes.result(batch.order)
        self._episode_ids = self._find_episodes(self._made)
        self._settle_episodes()
        self._next_ts = self._lock_appended()
        self._store(once)
        if batch.endings:
            end(connection, self._buffer_id, batch.endings, batch.beginnings)
        return outcomes.result(batch.order)

    def _find_episodes(self, made: set[int] | None = None) -> Sequence[int | None]:
        """Return the number of each chunk's episode; see `episode_ids`."""
        if not self._chunks.has("episode_key"):
            return [None] * len(self._chunks)
        return episode_ids(
            self._connection, self._buffer_id, self._chunks, self._batch.beginnings, made
        )

    def _store(self, once: WriteOnce[StoreResult] | None) -> None:
        """Store the steps that are new."""
        reserved = None
        while True:
            indexes, new_chunks = self._outcomes.pieces()
            if not new_chunks:
                return
            lengths = new_chunks.column("n_steps")
            if reserved is None:
                reserved = reserve_steps(
                    self._connection, self._buffer_id, sum(lengths), largest_priority(new_chunks),
                    None if once is None else once.note,
                )  # fmt: skip
            first_seq, priority = reserved
            numbered = NumberedChunks(
                new_chunks,
                list(accumulate(lengths[:-1], initial=first_seq)),
                [self._episode_ids[i] for i in indexes],
                session_ids(self._connection, self._buffer_id, new_chunks.column("session_key")),
                priority,
            )
            if self._insert_ids(numbered):
                numbered = self._appended(numbered)
                self._outcomes.number(first_seq)
                if self._shares_messages:
                    numbered = share_chunks(self._connection, self._buffer_id, numbered)
                insert_numbered(self._connection, self._buffer_id, numbered)
                after_chunks(self._connection, self._buffer_id, numbered)
                return
            # Another writer has committed some of the ids since. The numbers stay reserved for this
            # one.
            self._settle_ids()

    def _lock_appended(self) -> dict[int, int]:
        """Return the next place of each episode that new steps are appended to at its end."""
        next_ts: dict[int, int] = {}
        self._newest: dict[int, int | None] = {}
        appended = {
            episode_id
            for i, episode_id in enumerate(self._episode_ids)
            if episode_id is not None
            and self._chunks[i].t is None
            and len(self._outcomes.places(i))
        }
        for episode_id in sorted(appended):
            next_ts[episode_id], self._newest[episode_id] = 0, None
            if episode_id in self._made:
                continue
            row = self._connection.execute(
                _APPENDED_EPISODE, {"of_buffer": self._buffer_id, "of_episode": episode_id}
            ).one_or_none()
            if row is not None and row.status != "open" and not row.is_implied:
                names = self._connection.execute(_NAMES, {"of_id": episode_id}).one()
                raise episode_ended(*names)
            if row is not None and row.next_t:
                next_ts[episode_id] = row.next_t
                # The lock may have waited for another writer, whose chunk the query does not see.
                is_newest = row.first_t is not None and row.first_t + row.n_steps == row.next_t
                self._newest[episode_id] = (
                    _step_at(row, -1) if is_newest else self._held.newest_step(episode_id)
                )
        if self._late_step() is not None:
            # Another writer may have stored the same steps since their ids were compared, and the
            # newest step may have been deleted.
            self._settle_ids()
            self._newest = {
                episode_id: self._held.newest_step(episode_id, is_held=True)
                for episode_id in appended
            }
            late = self._late_step()
            if late is not None:
                raise late
        return next_ts

    def _late_step(self) -> OutOfOrderError | None:
        """Return the error for the first new step that comes after a later one of its episode."""
        last = {id_: (step, ", which is stored") for id_, step in self._newest.items()}
        for i, episode_id in enumerate(self._episode_ids):
            if episode_id is None or (chunk := self._chunks[i]).makes_steps:
                continue
            places: Sequence[int] | Places = (0, chunk.n_steps - 1)
            if chunk.steps is not None or not self._outcomes.are_new:
                places = self._outcomes.places(i)
            if not len(places):
                continue
            steps = step_numbers(chunk, np.asarray(places))
            before, where = last.get(episode_id, (None, ""))
            if before is not None and steps[0] < before:
                return _out_of_order(chunk, steps[0], f"{before}{where}")
            if chunk.steps is not None and (late := np.flatnonzero(np.diff(steps) < 0)).size:
                return _out_of_order(chunk, steps[late[0] + 1], f"{steps[late[0]]}")
            last[episode_id] = int(steps[-1]), ""
        return None

    def _appended(self, numbered: NumberedChunks) -> NumberedChunks:
        """Set the places of steps that are appended to episodes, and advance the episodes."""
        if not self._next_ts:
            return numbered
        next_ts, newest, placed = dict(self._next_ts), dict(self._newest), list[PackedChunk]()
        for chunk, episode_id in zip(numbered.chunks, numbered.episode_ids, strict=True):
            t = None if episode_id is None else next_ts.get(episode_id)
            if episode_id is not None and chunk.t is None and t is not None:
                next_ts[episode_id] = t + chunk.n_steps
                chunk = replace(chunk, t=t)
                if chunk.makes_steps:
                    chunk = _continued(chunk, newest[episode_id])
                newest[episode_id] = int(step_numbers(chunk, np.array([chunk.n_steps - 1]))[0])
            placed.append(chunk)
        spans = {id_: (self._next_ts[id_], t) for id_, t in next_ts.items()}
        advance(self._connection, spans)
        return numbered._replace(chunks=ChunkColumns.of(placed))

    def _insert_ids(self, numbered: NumberedChunks) -> bool:
        """Store the ids that users gave to steps; return False if another writer has stored one."""
        if not numbered.chunks.has("ids"):
            return True
        ids = {
            first_seq + place: id_
            for first_seq, given in zip(
                numbered.first_seqs, numbered.chunks.column("ids"), strict=True
            )
            for place, id_ in enumerate(given or ())
        }
        try:
            insert_ids(self._connection, self._buffer_id, ids)
        except psycopg.errors.UniqueViolation:
            return False
        return True

    def _settle_chunks(self) -> None:
        """Mark the steps of chunks that an earlier attempt has stored; see `WriteOnce.must_look`.

        Steps with places in an episode, or with ids of the user, are compared in any case.
        """
        of_ids = {
            chunk.id: i
            for i, chunk in enumerate(self._chunks)
            if chunk.t is None and chunk.ids is None
        }
        ids = list(of_ids)
        for start in range(0, len(ids), _MOST_IDS):
            statement = select(chunks.c.id, chunks.c.first_seq).where(
                chunks.c.buffer_id == self._buffer_id,
                chunks.c.id.in_(ids[start : start + _MOST_IDS]),
            )
            for id_, first_seq in self._connection.execute(statement):
                self._outcomes.find(of_ids[id_], first_seq)

    def _settle_ids(self) -> None:
        """Compare the new steps whose given ids are held, or occur earlier in the batch.

        The ids that the library makes are unique: they need no look.
        """
        ids_of_steps = [
            (ids[place], (i, place))
            for i, ids in enumerate(self._chunks.column("ids") if self._chunks.has("ids") else ())
            if ids is not None
            for place in self._outcomes.places(i).tolist()
        ]
        if not ids_of_steps:
            return
        first_of = dict(reversed(ids_of_steps))
        again = [(id_, step) for id_, step in ids_of_steps if first_of[id_] != step]
        numbers = self._held.numbers_of(first_of)
        held = self._held.at(numbers.values())
        by_chunk: dict[int, dict[int, Any]] = {}
        for id_, (i, place) in [*first_of.items(), *again]:
            if numbers.get(id_) in held:
                by_chunk.setdefault(i, {})[place] = held[numbers[id_]]
        for i, steps in by_chunk.items():
            self._outcomes.compare(i, steps)
        for id_, step in again:
            if numbers.get(id_) not in held:
                self._outcomes.repeat(first_of[id_], step)

    def _settle_episodes(self) -> None:
        """Advance the episodes of the chunks, and compare steps that they already have."""
        of_episodes: dict[int, list[int]] = {}
        for i, episode_id in enumerate(self._episode_ids):
            if episode_id is not None and self._chunks[i].t is not None:
                of_episodes.setdefault(episode_id, []).append(i)
        spans = {}
        for episode_id, indexes in of_episodes.items():
            firsts = [_first_t(self._chunks[i]) for i in indexes]
            ends = [t + self._chunks[i].n_steps for t, i in zip(firsts, indexes, strict=True)]
            if firsts[1:] == ends[:-1]:
                spans[episode_id] = firsts[0], ends[-1]
        advanced = advance(self._connection, spans) if spans else set()
        # In one order: two writers may write the same episodes.
        for episode_id, indexes in sorted(of_episodes.items()):
            if episode_id not in advanced:
                self._settle_episode(episode_id, indexes)

    def _settle_episode(self, episode_id: int, indexes: Sequence[int]) -> None:
        """Compare chunks with their episode, whose next step is not their first one.

        Earlier steps are duplicates or conflicts; those that have left were stored once, and are
        duplicates. Steps that follow steps which the buffer never had are conflicts: another writer
        has the same episode. But an episode without any step may have been deleted while it was
        open, and continues.
        """
        locked = _EPISODE.with_for_update(key_share=True)
        row = self._connection.execute(locked, {"of_id": episode_id}).one_or_none()
        if row is None:  # deleted since it was looked up
            self._episode_ids = again = self._find_episodes()
            self._settle_episode(again[indexes[0]] or 0, indexes)
            return
        next_t = before = row.next_t
        for i in indexes:
            chunk = self._chunks[i]
            t = _first_t(chunk)
            if t > next_t > 0:
                self._outcomes.refuse(i, self._outcomes.places(i))
                continue
            n_held = min(max(next_t - t, 0), chunk.n_steps) if next_t else 0
            if n_held:
                self._compare(i, episode_id, n_held, same=True)
            next_t = max(next_t, t + chunk.n_steps)
        if next_t > before:
            advance(self._connection, {episode_id: (before, next_t)})

    def _compare(self, i: int, episode_id: int, n: int, *, same: bool) -> None:
        """Compare the first n steps of a chunk with those held; others are duplicates if `same`."""
        chunk = self._chunks[i]
        t = _first_t(chunk)
        self._outcomes.refuse(i, range(n), same=same)
        held = self._held.of_episode(episode_id, t, t + n)
        self._outcomes.compare(i, {at - t: step for at, step in held.items()})

    def _compared_whole(self, held_length: int) -> StoreResult:
        """Return the result for a whole episode whose id the buffer holds."""
        (episode_id, *_) = self._find_episodes()
        assert episode_id is not None
        same = held_length == len(self._outcomes.is_new)
        for i, chunk in enumerate(self._chunks):
            self._compare(i, episode_id, chunk.n_steps, same=same)
        return self._outcomes.result(self._batch.order)


def _continued(chunk: PackedChunk, newest: int | None) -> PackedChunk:
    """Return a chunk whose step numbers follow the newest one of its episode."""
    step = chunk.t if newest is None else newest + 1
    if step is None or step + chunk.n_steps - 1 > INT64_MAX:
        raise FieldError(
            f"episode {chunk.episode_key!r} of task {chunk.task_id!r}: no number of 64 bits "
            f"follows its last step; give step=..."
        )
    return replace(chunk, step=step, steps=None)


def _out_of_order(chunk: PackedChunk, step: int, later: str) -> OutOfOrderError:
    return OutOfOrderError(
        f"episode {chunk.episode_key!r} of task {chunk.task_id!r}: step {step} comes after step "
        f"{later}; send the steps of an episode in the order of their step numbers, or use a "
        f"buffer without typed fields, which takes any order"
    )


def _first_t(chunk: PackedChunk) -> int:
    return chunk.t or 0


def largest_priority(packed_chunks: ChunkColumns) -> float | None:
    """Return the largest given priority of the steps."""
    if not packed_chunks.has("initial_priority"):
        return None
    given = [values for values in packed_chunks.column("initial_priority") if values is not None]
    return max(
        (float(value) for values in given for value in values if value is not None), default=None
    )


# With more chunks of episodes, a look at each takes longer than statements over all of them.
_MOST_PLACED = 256


def _placed_episodes(buffer: OpenBuffer, batch: ChunkBatch) -> list[PlacedEpisode] | None:
    """Return the episodes of steps that depend on nothing else in the buffer; None if they do.

    These episodes are new, or end at the place of the first step. The steps have no sessions,
    shared messages and ids of the user.
    """
    packed_chunks = batch.chunks
    is_plain = (
        bool(packed_chunks)
        and buffer.info.config.retention.evict_by != "episode"
        and not any(map(packed_chunks.has, ("session_key", "ids")))
        and packed_chunks.has("episode_key") <= packed_chunks.has("t")
        and not (buffer.shares_messages and packed_chunks.has("payloads"))
        and sum(postgresql.sizes_of(packed_chunks)) <= postgresql.MOST_BYTES
    )
    if not is_plain:
        return None
    if packed_chunks.has("episode_key"):
        return _places_in_episodes(batch) if len(packed_chunks) <= _MOST_PLACED else None
    return None if batch.endings else []


def _places_in_episodes(batch: ChunkBatch) -> list[PlacedEpisode] | None:
    """Return the episodes of a batch in the order of their keys.

    None: the batch alone does not say which places of them the steps have.
    """
    packed_chunks = [chunk for chunk in batch.chunks if chunk.episode_key is not None]
    if {chunk.t is None or chunk.steps is not None for chunk in packed_chunks} != {False}:
        return None
    endings = {(ending.key, ending.task_id): ending for ending in batch.endings}
    placed: dict[EpisodeKey, PlacedEpisode] = {}
    last: dict[EpisodeKey, PackedChunk] = {}
    for chunk in packed_chunks:
        key = chunk.episode_key or "", chunk.task_id
        before = last.get(key)
        if before is None:
            beginning, ending = batch.beginnings.get(key), endings.pop(key, None)
            placed[key] = _placed_episode(chunk, beginning, ending)
        elif _follows(chunk, before):
            placed[key] = placed[key]._replace(end_t=_first_t(chunk) + chunk.n_steps)
        else:
            return None
        last[key] = chunk
    is_ended = all(one.status is None or one.attempt for one in placed.values())
    return [placed[key] for key in sorted(placed)] if is_ended and not endings else None


def _follows(chunk: PackedChunk, before: PackedChunk) -> bool:
    """Return True for a chunk of consecutive steps that follows another one in its episode."""
    names = chunk.group_key, chunk.parent_key
    return (
        chunk.t == (before.t or 0) + before.n_steps
        and (chunk.makes_steps or chunk.step >= before.step + before.n_steps - 1)
        and names == (before.group_key, before.parent_key)
    )


def _placed_episode(
    chunk: PackedChunk, beginning: EpisodeStart | None, ending: EpisodeEnd | None
) -> PlacedEpisode:
    """Return the episode of a chunk with its first new steps."""
    group, parent, t = chunk.group_key, chunk.parent_key, _first_t(chunk)
    meta, attempt, writer, is_of_item = None, 0, None, False
    if beginning is not None:
        meta, attempt, writer = beginning.meta, beginning.attempt, beginning.writer
        is_of_item = beginning.item_id is not None
        group, parent = beginning.group_id or group, beginning.parent_id or parent
    status, reward, final = (None, None, None)
    if ending is not None:
        status, reward, final = ending.status, ending.reward, ending.final_arrays
    return PlacedEpisode(
        chunk.episode_key or "", chunk.task_id, chunk.agent_id, group, parent, chunk.model_version,
        meta, attempt, writer, t == 0 and not is_of_item, t, t + chunk.n_steps, status, reward,
        final,
    )  # fmt: skip


def _sqlite_store_placed(
    connection: Connection,
    buffer_id: int,
    batch: ChunkBatch,
    episodes: Sequence[PlacedEpisode],
    note: WriteId | None,
) -> int | None:
    """Store a batch whose episodes are as their writers expect; return the first number.

    None: an episode is not, and nothing is stored.
    """
    ids = sqlite_put_episodes(connection, buffer_id, episodes)
    if ids is None:
        return None
    largest = largest_priority(batch.chunks)
    first_seq, priority = reserve_steps(connection, buffer_id, batch.n_steps, largest, note)
    numbered = numbered_from(batch.chunks, first_seq, priority, episodes, ids)
    insert_numbered(connection, buffer_id, numbered)
    after_chunks(connection, buffer_id, numbered)
    if batch.endings:
        sqlite_end_open(connection, buffer_id, batch.endings)
    return first_seq


def _postgresql_store_placed(
    connection: Connection,
    buffer_id: int,
    batch: ChunkBatch,
    episodes: Sequence[PlacedEpisode],
    note: WriteId | None,
) -> int | None:
    largest = largest_priority(batch.chunks)
    statement = postgresql.store_chunks(
        connection, buffer_id, batch.chunks, episodes, largest, note
    )
    return _first_seq(run_statement(connection, statement))


_store_placed = by_database(sqlite=_sqlite_store_placed, postgresql=_postgresql_store_placed)


def _first_seq(rows: Rows) -> int | None:
    ((first_seq,),) = rows
    return None if first_seq is None else int(first_seq)


def _all_new(first_seq: int, batch: ChunkBatch) -> StoreResult:
    """Return the result of a batch of steps that were all new."""
    seqs, order = np.arange(first_seq, first_seq + batch.n_steps), batch.order
    return StoreResult(batch.n_steps, 0, 0, (), seqs if order is None else _in_order(seqs, order))


def _sqlite_is_alone(engine: Engine) -> bool:
    """Return False: a file takes no round trips."""
    return False


def _postgresql_is_alone(engine: Engine) -> bool:
    """Return True for a write that is not part of another transaction."""
    return joined_connection(engine) is None


_is_alone = by_database(sqlite=_sqlite_is_alone, postgresql=_postgresql_is_alone)


def _sqlite_prepare(engine: Engine, buffer: OpenBuffer, packed_chunks: ChunkColumns) -> None:
    """Encode chunks before a transaction makes other writers wait, unless it changes them."""
    is_appended = packed_chunks.has("episode_key") and not packed_chunks.has("t")
    if not is_appended and not (buffer.shares_messages and packed_chunks.has("payloads")):
        packed_chunks.once(sqlite.table_columns)
        packed_chunks.once(totals_of_rewards)


def _postgresql_prepare(engine: Engine, buffer: OpenBuffer, packed_chunks: ChunkColumns) -> None:
    """Do nothing: writers wait for each other only while numbers are reserved."""


_prepare = by_database(sqlite=_sqlite_prepare, postgresql=_postgresql_prepare)


def _store_alone(
    buffer: OpenBuffer,
    batch: ChunkBatch,
    episodes: Sequence[PlacedEpisode],
    once: WriteOnce[StoreResult],
) -> StoreResult | None:
    """Store a batch as `_store_placed` does, in one round trip; see `WriteOnce.run_alone`."""

    largest = largest_priority(batch.chunks)

    def make(connection: Connection, note: WriteId | None) -> Statement:
        return postgresql.store_chunks(
            connection, buffer.info.id, batch.chunks, episodes, largest, note
        )

    first_seq = _first_seq(once.run_alone(buffer.engine, buffer.options.durability, make))
    return None if first_seq is None else _all_new(first_seq, batch)


T = TypeVar("T")
# Inserts a batch in the transaction of a caller.
InsertChunks = Callable[[ChunkBatch], StoreResult]


class ChunkWriter:
    """Stores the chunks of a buffer.

    Args:
        buffer: The buffer.
        pacer: The buffer's rate limiter.
        wrote: Called after each write.
    """

    def __init__(self, buffer: OpenBuffer, pacer: Pacer, wrote: Callable[[], None]) -> None:
        self.buffer, self._pacer, self._wrote = buffer, pacer, wrote

    def store(
        self,
        batch: ChunkBatch,
        once: WriteOnce[StoreResult] | None = None,
        *,
        admitted: bool = False,
    ) -> StoreResult:
        """Store the chunks that the buffer does not hold, all or none.

        Args:
            batch: The chunks; may be empty.
            once: Of earlier calls with this batch, which may have stored it.
            admitted: The rate limiter has already allowed them.

        Raises:
            EpisodeExistsError: The batch is an episode that is open, or was aborted.
            FlowControlError: The rate limiter did not allow the steps in time.
        """
        buffer = self.buffer
        if not admitted:
            self._pacer.before_insert(batch.n_steps)
        once, durability = once or buffer.once(), buffer.options.durability
        episodes, is_alone = _placed_episodes(buffer, batch), _is_alone(buffer.engine)
        _prepare(buffer.engine, buffer, batch.chunks)

        def attempt() -> StoreResult:
            nonlocal episodes
            if episodes is not None and is_alone and once.may_run_alone():
                result = _store_alone(buffer, batch, episodes, once)
                if result is not None:
                    return result
                episodes = None
            insert = partial(insert_batch, buffer=buffer, batch=batch, once=once, episodes=episodes)
            return once.run(buffer.engine, durability, insert, notes=bool(batch.chunks))

        result = buffer.with_retries(attempt)
        n_rows = rows_of_steps(result.inserted)
        clean_after_write(buffer.engine, n_rows, batch.n_bytes, buffer.watermark)
        self._wrote()
        return result

    def store_within(
        self, n_steps: int, n_bytes: int, work: Callable[[Connection, InsertChunks], T]
    ) -> T:
        """Return the result of `work`, which inserts chunks in one transaction with other changes.

        Args:
            n_steps: Number of steps in the chunks.
            n_bytes: Size of the chunks in bytes.
            work: Function called with the transaction and a function that inserts a batch there. It
                is called again if the transaction was not committed.

        Raises:
            FlowControlError: The rate limiter did not allow the steps in time.
        """
        buffer = self.buffer
        self._pacer.before_insert(n_steps)

        def inserting(connection: Connection) -> T:
            def insert(batch: ChunkBatch) -> StoreResult:
                episodes = _placed_episodes(buffer, batch)
                return insert_batch(connection, buffer, batch, episodes=episodes)

            return work(connection, insert)

        result = buffer.write(inserting)
        n_rows = rows_of_steps(n_steps)
        clean_after_write(buffer.engine, n_rows, n_bytes, buffer.watermark)
        self._wrote()
        return result
