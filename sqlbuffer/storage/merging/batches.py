"""Read the steps that a merge takes, and give them the names that they get in the target."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from sqlalchemy import Connection, Text, bindparam, cast, func, select

from sqlbuffer.encoding.chunks import PackedChunk, repacked, select_steps
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import Record
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.copies.parts import CopiedRange, StepBatch, episode_table
from sqlbuffer.storage.copies.source import CopySource
from sqlbuffer.storage.episodes import EpisodeKey, episodes
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.rows.layouts import CHUNKS, layout_of
from sqlbuffer.storage.rows.statements import in_window
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of
from sqlbuffer.storage.writing.chunks import chunk_of

# What happens to steps whose ids, or whose episodes, the target has already.
ON_CONFLICT = ("error", "skip")


@dataclass(frozen=True)
class MergeOptions:
    """How steps are merged.

    Attributes:
        prefix: Text before the ids of steps and episodes.
        on_conflict: `error` or `skip`, for ids that exist.
        include_open: Episodes that have not ended are merged as well.
    """

    prefix: str = ""
    on_conflict: str = "error"
    include_open: bool = False


@dataclass
class MergeRun:
    """What one merge takes from its source; a merge that was killed goes on with it.

    Attributes:
        cursor: Steps up to this number are done.
        high: The last number.
        mark: Steps up to this number were done by earlier merges, but for those of `late`.
        late: Episodes that were open at earlier merges and are not any more: their steps above a
            number are merged now.
        pending: Episodes that are open now, likewise, for a later merge.
        skipped: Episodes that are left out, because the target has others with their ids.
        newest: Number and mark of the newest step of the source.
        n_steps: Number of merged steps, also by earlier merges.
        n_skipped: Number of steps that were left out because their ids exist.
    """

    cursor: int
    high: int
    mark: int = 0
    late: dict[EpisodeKey, int] = field(default_factory=dict)
    pending: dict[EpisodeKey, int] = field(default_factory=dict)
    skipped: set[EpisodeKey] = field(default_factory=set)
    newest: tuple[int, str] | None = None
    n_steps: int = 0
    n_skipped: int = 0

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.cursor >= self.high

    def wants(self, name: EpisodeKey | None, seq: int, *, include_open: bool) -> bool:
        """Return whether a step is merged.

        Args:
            name: Its episode; None without one.
            seq: Its number in the source.
            include_open: See `MergeOptions`.
        """
        if name is None:
            return seq > self.mark
        if name in self.skipped:
            return False
        if name in self.late:
            return seq > self.late[name]
        return seq > self.mark and (include_open or name not in self.pending)

    @classmethod
    def after(
        cls,
        last: "MergeRun | None",
        high: int,
        cursor: int,
        are_open: Collection[EpisodeKey],
        options: MergeOptions,
    ) -> "MergeRun":
        """Return what the next merge takes.

        Args:
            last: The last one; None if this is the first.
            high: The newest step of the source.
            cursor: Number below its oldest one.
            are_open: Its episodes that have not ended.
            options: How steps are merged.
        """
        last = cls(0, 0) if last is None else last
        mark, high = last.high, max(high, last.high)
        pending = {name: last.pending.get(name, mark) for name in are_open}
        late = {
            name: since
            for name, since in last.pending.items()
            if name not in pending or options.include_open
        }
        start = min([mark, *late.values()])
        if late:  # to look at their ends
            start = min(start, high - 1)
        start = min(max(start, cursor), high)
        return replace(last, cursor=start, high=high, mark=mark, late=late, pending=pending)

    def ended(self, options: MergeOptions) -> "MergeRun":
        """Return it as the next merge needs it."""
        pending = dict(self.pending)
        if options.include_open:  # what they had is merged
            pending = dict.fromkeys(pending, self.high)
        return replace(self, mark=self.high, late={}, pending=pending)

    def episodes_json(self) -> str:
        """Return its episodes as JSON."""
        lists = {
            "late": [[*name, seq] for name, seq in self.late.items()],
            "pending": [[*name, seq] for name, seq in self.pending.items()],
            "skipped": sorted(map(list, self.skipped)),
            "mark": self.mark,
        }
        return orjson.dumps(lists).decode()

    @classmethod
    def of(cls, row: Any) -> "MergeRun":
        """Return the run that a row of `merges` describes."""
        lists = _tree(row.episodes)
        newest = _tree(row.newest)
        return cls(
            row.merged_seq,
            row.high_seq,
            lists["mark"],
            {(key, task): seq for key, task, seq in lists["late"]},
            {(key, task): seq for key, task, seq in lists["pending"]},
            {(key, task) for key, task in lists["skipped"]},
            None if newest is None else (newest[0], newest[1]),
            row.n_steps,
            row.n_skipped,
        )


def _tree(value: Any) -> Any:
    return orjson.loads(value) if isinstance(value, str) else value


class MergedChunk(NamedTuple):
    """A chunk of the source: the number of its first step, and the places of its wanted steps."""

    first_seq: int
    chunk: PackedChunk
    places: Sequence[int]


class MergedRow(NamedTuple):
    """A row of the source, and its number there."""

    seq: int
    record: Record


@dataclass
class MergeBatch:
    """Some steps of a source.

    Attributes:
        begin: Number below these steps.
        end: Number of the last of these steps.
        chunks: Their chunks.
        rows: Their rows instead.
        overlays: Their rows in other tables, with the numbers of the source.
        episodes: The columns of episodes that have steps here, or whose last step is here.
        dialect: Database whose forms the values of `overlays` and `episodes` have.
    """

    begin: int
    end: int
    chunks: Sequence[MergedChunk] = ()
    rows: Sequence[MergedRow] = ()
    overlays: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    episodes: dict[EpisodeKey, Mapping[str, Any]] = field(default_factory=dict)
    dialect: str = "sqlite"

    def wanted(self, wants: Callable[[EpisodeKey | None, int], bool]) -> "MergeBatch":
        """Return the batch with the steps that are wanted."""
        kept = []
        for first_seq, chunk, places in self.chunks:
            name = name_of(chunk)
            kept_places = [place for place in places if wants(name, first_seq + place)]
            if kept_places:
                kept.append(MergedChunk(first_seq, chunk, kept_places))
        rows = [row for row in self.rows if wants(name_of(row.record), row.seq)]
        return replace(self, chunks=kept, rows=rows)

    def repacked(self, source: Layout, target: Layout) -> "MergeBatch":
        """Return the batch with chunks as a target packs them; see `chunks.repacked`."""
        chunks = [one._replace(chunk=repacked(one.chunk, source, target)) for one in self.chunks]
        return replace(self, chunks=chunks)

    @property
    def n_steps(self) -> int:
        """Number of its steps."""
        return len(self.rows) + sum(len(places) for _, _, places in self.chunks)


def name_of(keyed: Any) -> EpisodeKey | None:
    """Return the id and the task of the episode of a row or a chunk; None without one."""
    return None if keyed.episode_key is None else (keyed.episode_key, keyed.task_id)


class Piece(NamedTuple):
    """Steps of one chunk, under the names that they get in the target.

    Attributes:
        name: The episode, by its name in the source; None without one.
        seqs: Their numbers in the source.
        chunk: The steps as a chunk.
        ids: Their ids.
    """

    name: EpisodeKey | None
    seqs: Sequence[int]
    chunk: PackedChunk
    ids: Sequence[str]

    def without(self, layout: Layout, ids: Collection[str]) -> Iterator["Piece"]:
        """Yield the steps that have none of some ids, as chunks without a gap in an episode."""
        places = [place for place, id_ in enumerate(self.ids) if id_ not in ids]
        if len(places) == len(self.ids):
            yield self
            return
        for run in _runs(self.chunk, places):
            yield Piece(
                self.name,
                [self.seqs[place] for place in run],
                replace(select_steps(layout, self.chunk, run), id=uuid7()),
                [self.ids[place] for place in run],
            )

    @property
    def given_ids(self) -> dict[int, str]:
        """The ids that do not follow from the id of the chunk, by place."""
        return {
            place: id_ for place, id_ in enumerate(self.ids) if id_ != f"{self.chunk.id}/{place}"
        }


class Row(NamedTuple):
    """A row, under the names that it gets in the target.

    Attributes:
        name: The episode, by its name in the source; None without one.
        seq: Its number in the source.
        record: The row.
    """

    name: EpisodeKey | None
    seq: int
    record: Record


def _runs(chunk: PackedChunk, places: Sequence[int]) -> list[list[int]]:
    """Return places of a chunk as those of new chunks: steps of an episode stay consecutive."""
    if not places:
        return []
    if chunk.t is None:
        return [list(places)]
    breaks = np.flatnonzero(np.diff(places) > 1) + 1
    return [run.tolist() for run in np.split(np.asarray(places), breaks)]


def pieces_of(layout: Layout, batch: MergeBatch, prefix: str) -> Iterator[Piece]:
    """Yield the steps of chunks that are wanted."""
    step_ids = batch.overlays.get("step_ids", {"seq": [], "id": []})
    given = dict(zip(step_ids["seq"], step_ids["id"], strict=True))
    priorities = _priorities(batch)
    for first_seq, chunk, places in batch.chunks:
        for run in _runs(chunk, places):
            seqs = [first_seq + place for place in run]
            ids = [given.get(first_seq + place, f"{chunk.id}/{place}") for place in run]
            is_whole = len(run) == chunk.n_steps
            piece = chunk if is_whole else select_steps(layout, chunk, run)
            initial = _current(piece.initial_priority, [priorities.get(seq) for seq in seqs])
            keeps_id = not prefix and run[0] == 0 and run[-1] == len(run) - 1
            piece = replace(
                piece,
                id=chunk.id if keeps_id else uuid7(),
                episode_key=_prefixed(chunk.episode_key, prefix),
                group_key=_fact_of(batch, chunk, "group_id"),
                parent_key=_prefixed(_fact_of(batch, chunk, "parent_id"), prefix),
                initial_priority=initial,
            )
            yield Piece(name_of(chunk), seqs, piece, [f"{prefix}{id_}" for id_ in ids])


def rows_of(batch: MergeBatch, prefix: str) -> Iterator[Row]:
    """Yield the rows that are wanted."""
    priorities = _priorities(batch)
    for seq, record in batch.rows:
        priority = priorities.get(seq, record.initial_priority)
        # A row of plain SQL may have no id.
        id_ = f"{prefix}{record.id or uuid7()}"
        named = record._replace(
            id=id_,
            episode_key=_prefixed(record.episode_key, prefix),
            group_key=_fact_of(batch, record, "group_id"),
            parent_key=_prefixed(_fact_of(batch, record, "parent_id"), prefix),
            initial_priority=priority,
        )
        yield Row(name_of(record), seq, named)


def _prefixed(key: str | None, prefix: str) -> str | None:
    return None if key is None else f"{prefix}{key}"


def _fact_of(batch: MergeBatch, keyed: Any, fact: str) -> str | None:
    name = name_of(keyed)
    value: str | None = None if name is None else batch.episodes[name].get(fact)
    return value


def _priorities(batch: MergeBatch) -> dict[int, float]:
    """Return the priorities that were set later, by the numbers of the steps."""
    columns = batch.overlays.get("priorities", {"seq": [], "priority": []})
    return dict(zip(columns["seq"], columns["priority"], strict=True))


def _current(initial: Any, later: list[float | None]) -> Any:
    """Return the priorities of steps: those that were set later count."""
    if not any(priority is not None for priority in later):
        return initial
    firsts = [None] * len(later) if initial is None else list(initial)
    return [
        first if priority is None else priority
        for first, priority in zip(firsts, later, strict=True)
    ]


_FACTS = [
    (cast(episodes.c[name], Text()) if form == "json" else episodes.c[name]).label(name)
    for name, form in zip(episode_table().columns, episode_table().forms, strict=True)
]
_KEYS_AT_ONCE = 1_000


class MergeReader:
    """Reads the steps of a buffer for a merge.

    Args:
        source: The buffer, and the hold on its steps.
    """

    def __init__(self, source: CopySource) -> None:
        self.source = source
        self._id, self._steps = source.buffer.info.id, layout_of(source.buffer.info)

    def _open_episodes(self, connection: Connection) -> set[EpisodeKey]:
        """Return the episodes that have not ended."""
        is_open = (episodes.c.buffer_id == self._id) & (episodes.c.status == "open")
        rows = connection.execute(select(episodes.c.key, episodes.c.task_id).where(is_open))
        return {(row.key, row.task_id) for row in rows}

    def next_run(
        self,
        connection: Connection,
        last: MergeRun | None,
        settled: int | None,
        options: MergeOptions,
    ) -> tuple[MergeRun, dict[str, int | None]]:
        """Return what the next merge takes, and the model versions of the sessions.

        Args:
            connection: A snapshot that was opened after `settled` was found.
            last: The last merge; None for the first one.
            settled: See `CopySource.settled`.
            options: How steps are merged.
        """
        state = self.source.state(connection, settled)
        run = MergeRun.after(
            last, state.range.high, state.range.cursor, self._open_episodes(connection), options
        )
        newest = self.source.newest(connection, run.high)
        return replace(run, newest=newest), state.sessions

    def counts(
        self, connection: Connection, run: MergeRun, options: MergeOptions
    ) -> tuple[int, int]:
        """Return the number of steps that a merge takes, and of their episodes."""
        window = self.source.buffer.window_in(connection)
        node = resolve_labels(self.source.node, window.has_labels)
        step = self._steps.of(self._id).c
        where = in_window(self._id, window.low, node, self._steps.of(self._id))
        of_buffer = episodes.c.buffer_id == self._id
        are_open = select(episodes.c.id).where(of_buffer, episodes.c.status == "open")
        late = [key for key, _ in run.late]
        are_late = select(episodes.c.id).where(
            of_buffer, is_one_of(episodes.c.key, bindparam(None, late, KeyList()))
        )
        is_new = step.seq > run.mark
        if not options.include_open:
            is_new &= step.episode_id.is_(None) | step.episode_id.not_in(are_open)
        is_late = step.episode_id.in_(are_late) & (step.seq > min(run.late.values(), default=0))
        is_wanted = (is_new | is_late) & (step.seq <= run.high)
        counted = select(func.count(), func.count(step.episode_id.distinct()))
        n_steps, n_episodes = connection.execute(counted.where(where, is_wanted)).one()
        return n_steps, n_episodes

    def batch(self, copied: CopiedRange, late: Collection[EpisodeKey]) -> MergeBatch:
        """Return the next steps behind the cursor.

        Args:
            copied: The range of the merge.
            late: Episodes whose ends are read with the last steps.

        Raises:
            CopyError: Some of the steps have left.
        """
        return self.source.read(lambda connection: self._batch(connection, copied, late))

    def _batch(
        self, connection: Connection, copied: CopiedRange, late: Collection[EpisodeKey]
    ) -> MergeBatch:
        stored = self.source.batch_in(connection, copied)
        tables = {rows.table.name: rows.values for rows in stored.tables}
        main = tables[self._steps.table.name]
        ids: set[int] = {id_ for id_ in main["episode_id"] if id_ is not None}
        facts = self._facts(connection, ids, stored)
        if stored.end == copied.high:
            facts |= self._late_facts(connection, late)
        sessions, numbers = self.source.session_keys_in(connection), main["episode_id"]
        columns = {
            **main,
            "episode_key": [facts[id_]["key"] if id_ in facts else None for id_ in numbers],
            "session_key": list(map(sessions.get, main["session_id"])),
        }
        low = max(copied.cursor, copied.low)
        batch = MergeBatch(
            stored.begin,
            stored.end,
            overlays=tables,
            episodes={(one["key"], one["task_id"]): one for one in facts.values()},
            dialect=self.source.dialect,
        )
        if self._steps is not CHUNKS:
            return replace(batch, rows=list(merged_rows(columns)))
        deleted = set(tables.get("deleted_steps", {}).get("seq", ()))
        data = tables["chunk_data"]
        columns |= {name: data[name] for name in data.keys() - columns.keys()}
        return replace(batch, chunks=list(_merged_chunks(columns, deleted, low)))

    def _facts(
        self, connection: Connection, ids: Collection[int], stored: StepBatch
    ) -> dict[int, Mapping[str, Any]]:
        """Return the episodes with some keys, and those whose last step is in a batch."""
        is_last_here = (
            (episodes.c.buffer_id == self._id)
            & (episodes.c.last_seq > stored.begin)
            & (episodes.c.last_seq <= stored.end)
        )
        conditions: list[Any] = [is_last_here]
        listed = sorted(ids)
        for i in range(0, len(listed), _KEYS_AT_ONCE):
            conditions.append(episodes.c.id.in_(listed[i : i + _KEYS_AT_ONCE]))
        facts: dict[int, Mapping[str, Any]] = {}
        for condition in conditions:
            for row in connection.execute(select(*_FACTS).where(condition)).mappings():
                facts[row["id"]] = dict(row)
        return facts

    def _late_facts(
        self, connection: Connection, names: Collection[EpisodeKey]
    ) -> dict[int, Mapping[str, Any]]:
        facts: dict[int, Mapping[str, Any]] = {}
        listed = sorted(names)
        for i in range(0, len(listed), _KEYS_AT_ONCE):
            some = listed[i : i + _KEYS_AT_ONCE]
            is_named = episodes.c.key.in_([key for key, _ in some])
            where = (episodes.c.buffer_id == self._id) & is_named
            for row in connection.execute(select(*_FACTS).where(where)).mappings():
                if (row["key"], row["task_id"]) in names:
                    facts[row["id"]] = dict(row)
        return facts


def _merged_chunks(
    columns: Mapping[str, list[Any]], deleted: Collection[int], low: int
) -> Iterator[MergedChunk]:
    """Yield the chunks of a batch.

    Args:
        columns: Their columns.
        deleted: Steps that are not merged.
        low: Steps up to this number have left.
    """
    names = list(columns)
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(names, values, strict=True))
        first = row["first_seq"]
        places = [
            place
            for place in range(row["n_steps"])
            if first + place > low and first + place not in deleted
        ]
        if places:
            yield MergedChunk(first, chunk_of(row), places)


def merged_rows(columns: Mapping[str, list[Any]]) -> Iterator[MergedRow]:
    """Yield the rows of a batch, by their columns."""
    names = [name for name in Record._fields if name not in ("group_key", "parent_key")]
    none = [None] * len(columns["seq"])
    listed = [columns.get(name, none) for name in names]
    flags = [names.index(name) for name in ("terminated", "truncated")]
    for seq, *values in zip(columns["seq"], *listed, strict=True):
        for place in flags:
            values[place] = None if values[place] is None else bool(values[place])
        yield MergedRow(seq, Record(**dict(zip(names, values, strict=True))))
