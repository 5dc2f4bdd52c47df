"""Merge steps into a buffer that is in use: with new numbers, next to its other writers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    Connection,
    bindparam,
    insert,
    select,
    update,
)

from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.errors import CopyError, StorageBusyError
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import buffers, experiences, sessions
from sqlbuffer.storage.buffers.window import SELECT_WINDOW
from sqlbuffer.storage.changes import Kind, log_change
from sqlbuffer.storage.chunks.numbered_chunks import NumberedChunks, share_chunks
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies import postgresql, sqlite
from sqlbuffer.storage.copies.parts import (
    SourceIdentity,
    TableRows,
    converted,
    episode_table,
    overlay_tables,
)
from sqlbuffer.storage.copies.target import CopyProgress
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.documents import add_documents
from sqlbuffer.storage.episodes import (
    EpisodeKey,
    episode_ids,
    episodes,
    of_rollout,
    session_ids,
)
from sqlbuffer.storage.labels.writing import Labelling, change_of_reward
from sqlbuffer.storage.merging.batches import (
    MergeBatch,
    MergeOptions,
    MergeRun,
    Piece,
    Row,
    pieces_of,
    rows_of,
)
from sqlbuffer.storage.merging.tables import merges
from sqlbuffer.storage.rollout_stats import Rollout
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.schema.expressions import KeyList, is_one_of, one_of_keys, unindexed, utc_now
from sqlbuffer.storage.schema.metadata import (
    KEY,
    TIME,
    UUID,
    json_literal,
    json_parameter,
)
from sqlbuffer.storage.writing.chunks import (
    HeldSteps,
    held_ids,
    insert_ids,
    insert_numbered,
    largest_priority,
)
from sqlbuffer.storage.writing.inserts import (
    after_chunks,
    insert_records,
    reserve_seqs,
    reserve_steps,
)
from sqlbuffer.storage.writing.row_places import place_rows

write_rows = by_database(sqlite=sqlite.write_rows, postgresql=postgresql.write_rows)

_IS_MERGE = (
    (merges.c.buffer_id == bindparam("of_buffer"))
    & (merges.c.source == bindparam("of_source", type_=UUID))
    & (merges.c.prefix == bindparam("of_prefix", type_=KEY))
)
_NAMED = select(
    episodes.c.id, episodes.c.key, episodes.c.task_id, episodes.c.started_at, episodes.c.status,
    episodes.c.is_implied,
).where(
    episodes.c.buffer_id == bindparam("of_buffer"),
    is_one_of(episodes.c.key, bindparam("keys", type_=KeyList())),
    is_one_of(episodes.c.task_id, bindparam("tasks", type_=KeyList())),
)  # fmt: skip
_BEGIN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        started_at=bindparam("of_start", type_=TIME), by_arrival=bindparam("of_arrival"),
    )
)  # fmt: skip
_OPEN_AGAIN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        {
            "status": "open",
            "is_implied": False,
            **dict.fromkeys(("length", "return", "first_seq", "last_seq", "ended_at"), None),
        }
    )
)
_APPEND = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"), episodes.c.next_t < bindparam("end_t"))
    .values(next_t=bindparam("end_t"))
)
# Taken from the source as they are.
_FACTS = (
    "status", "is_implied", "length", "return", "reward", "meta", "final_arrays", "ended_at",
    "attempt", "writers", "verdicts",
)  # fmt: skip
_FORMS = dict(zip(episode_table().columns, episode_table().forms, strict=True))


_END = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        {
            **{
                name: json_parameter(f"new_{name}")
                if _FORMS[name] == "json"
                else bindparam(f"new_{name}", type_=episodes.c[name].type)
                for name in _FACTS
            },
            **{name: of_rollout(name) for name in ("first_seq", "last_seq")},
        }
    )
)
# What is merged of the rows that belong to steps. Priorities become initial ones.
_OVERLAYS = ("payload_parts", "label_history", "labels", "quarantine")
_LOGGED: dict[str, Kind] = {"labels": "labelled", "quarantine": "quarantined"}


class _TargetEpisode(NamedTuple):
    """An episode of the target.

    Attributes:
        id: Its key.
        is_merged: It came from the source, and is not another one with the same id.
        is_ended: It takes no more steps.
    """

    id: int
    is_merged: bool
    is_ended: bool


class _Stored:
    """Where steps of the source are in the target.

    Attributes:
        seqs: Their numbers in the target, by those in the source.
    """

    def __init__(self) -> None:
        self.seqs: dict[int, int] = {}
        self._rewards: dict[int, tuple[Rollout, Any, int]] = {}

    def add(
        self, source_seqs: Sequence[int], first_seq: int, rollout: Rollout, rewards: Any
    ) -> None:
        """Note steps with consecutive numbers in the target.

        Args:
            source_seqs: Their numbers in the source.
            first_seq: The first one in the target.
            rollout: Their rollout in the target.
            rewards: The reward that each was stored with.
        """
        for place, seq in enumerate(source_seqs):
            self.seqs[seq] = first_seq + place
            self._rewards[seq] = rollout, rewards, place

    def changes(
        self, source_seqs: Sequence[int], rewards: Sequence[float | None]
    ) -> dict[Rollout, list[float]]:
        """Return how late rewards change the returns of rollouts.

        Args:
            source_seqs: The numbers of steps in the source.
            rewards: Their late rewards; None: it stays.
        """
        changes: dict[Rollout, list[float]] = {}
        for seq, reward in zip(source_seqs, rewards, strict=True):
            rollout, of_chunk, place = self._rewards[seq]
            before = of_chunk[place]
            before = None if before is None or before != before else float(before)
            change = change_of_reward(before, None, reward)
            if change is not None:
                changes.setdefault(rollout, []).append(change)
        return changes


class MergeTarget:
    """Writes to the buffer that steps are merged into.

    Args:
        buffer: The buffer.
        identity: Identity of the source.
        options: How steps are merged.
    """

    def __init__(self, buffer: OpenBuffer, identity: SourceIdentity, options: MergeOptions) -> None:
        self.buffer, self.identity, self.options = buffer, identity, options
        self._id = buffer.info.id
        self._is_merge = {
            "of_buffer": self._id, "of_source": identity.uuid, "of_prefix": options.prefix,
        }  # fmt: skip

    def run(self) -> MergeRun | None:
        """Return the last merge of this source; None if there was none.

        Raises:
            CopyError: It had another condition.
        """
        row = self.buffer.read(
            lambda c: c.execute(select(merges).where(_IS_MERGE), self._is_merge).one_or_none()
        )
        if row is None:
            return None
        if row.condition != self.identity.condition:
            raise CopyError(
                f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} holds steps of "
                f"{self.identity.name!r} in {self.identity.database}, merged with another "
                f"condition; merge with that condition, or with prefix=..."
            )
        return MergeRun.of(row)

    def after_copy(self, copied: CopyProgress) -> MergeRun:
        """Return the run that a finished copy of the whole source would have been.

        Its open episodes were copied too: they go on.
        """
        high = copied.range.high
        is_open = (episodes.c.buffer_id == self._id) & (episodes.c.status == "open")
        names = select(episodes.c.key, episodes.c.task_id).where(is_open)
        rows = self.buffer.read(lambda connection: connection.execute(names).all())
        return MergeRun(
            high, high, pending={(row.key, row.task_id): high for row in rows},
            n_steps=copied.n_steps,
        )  # fmt: skip

    def begin(
        self, connection: Connection, run: MergeRun, versions: Mapping[str, int | None]
    ) -> None:
        """Note what a merge is going to take, and make the sessions of the source."""
        values = self._noted(run) | {
            "condition": self.identity.condition,
            "source_database": self.identity.database,
            "source_buffer": self.identity.name,
        }
        changed = connection.execute(update(merges).where(_IS_MERGE).values(values), self._is_merge)
        if not changed.rowcount:
            key = {"buffer_id": self._id, "source": self.identity.uuid}
            connection.execute(
                insert(merges).values({**key, "prefix": self.options.prefix, **values})
            )
        for key_, version in versions.items():
            made = connection.execute(INSERT_SESSION, {"buffer_id": self._id, "key": key_})
            if made.rowcount and version is not None:
                is_session = (sessions.c.buffer_id == self._id) & (sessions.c.key == key_)
                connection.execute(
                    update(sessions).where(is_session).values(current_version=version)
                )

    def _noted(self, run: MergeRun) -> dict[str, Any]:
        newest = None if run.newest is None else list(run.newest)
        return {
            "merged_seq": run.cursor,
            "high_seq": run.high,
            "newest": json_literal(newest),
            "n_steps": run.n_steps,
            "n_skipped": run.n_skipped,
            "episodes": json_literal(orjson.loads(run.episodes_json())),
            "merged_at": utc_now(),
        }

    def write(self, run: MergeRun, batch: MergeBatch) -> MergeRun:
        """Write the wanted steps of a batch, in one transaction with the progress of the merge.

        Raises:
            CopyError: The target has some of their ids, and they are not to be skipped.
            StorageBusyError: Another process merges the same source.
        """
        return self.buffer.write(lambda connection: self._write(connection, run, batch))

    def _write(self, connection: Connection, run: MergeRun, batch: MergeBatch) -> MergeRun:
        if self.buffer.info.config.retention.evict_by == "episode":
            lock_as_writer(connection, self._id)
        include_open = self.options.include_open
        wanted = batch.wanted(partial(run.wants, include_open=include_open))
        advanced = connection.execute(
            update(merges)
            .where(_IS_MERGE, merges.c.merged_seq == batch.begin, merges.c.high_seq == run.high)
            .values(merged_seq=batch.end),
            self._is_merge,
        )
        if advanced.rowcount != 1:
            raise StorageBusyError(
                f"another process merges {self.identity.name!r} into buffer "
                f"{self.buffer.info.name!r} of {self.buffer.shown_url} as well; wait until it has "
                f"ended, and merge again"
            )
        targets, skipped = self._episodes_in(connection, batch), set(run.skipped)
        pieces, rows = self._new_steps(connection, wanted, targets, skipped)
        stored = _Stored()
        if pieces:
            stored = self._insert_chunks(connection, batch, pieces, targets)
        elif rows:
            stored = self._insert_rows(connection, batch, rows, targets)
        self._write_overlays(connection, batch, stored)
        run = replace(
            run,
            cursor=batch.end,
            skipped=skipped,
            n_steps=run.n_steps + len(stored.seqs),
            n_skipped=run.n_skipped + wanted.n_steps - len(stored.seqs),
        )
        ended = {
            name: facts
            for name, facts in batch.episodes.items()
            if facts["status"] != "open" and (run.is_done or (facts["last_seq"] or 0) <= batch.end)
        }
        self._end(connection, ended, batch)
        connection.execute(update(merges).where(_IS_MERGE).values(self._noted(run)), self._is_merge)
        return run

    def _episodes_in(
        self, connection: Connection, batch: MergeBatch
    ) -> dict[EpisodeKey, _TargetEpisode]:
        """Return the episodes of the target that have the ids of those of a batch, by the names
        that these have in the source.
        """
        names = {self._named(name): name for name in batch.episodes}
        if not names:
            return {}
        keys = {"keys": [*{key for key, _ in names}], "tasks": [*{task for _, task in names}]}
        found: dict[EpisodeKey, _TargetEpisode] = {}
        for row in connection.execute(_NAMED, {"of_buffer": self._id, **keys}):
            name = names.get((row.key, row.task_id))
            if name is not None:
                facts = batch.episodes[name]
                began = self._fact("started_at", facts, batch.dialect)
                is_same = row.started_at == began
                is_ended = row.status != "open" and not row.is_implied
                found[name] = _TargetEpisode(row.id, is_same, is_ended)
        return found

    def _named(self, name: EpisodeKey) -> EpisodeKey:
        return f"{self.options.prefix}{name[0]}", name[1]

    def _fact(self, name: str, facts: Mapping[str, Any], dialect: str) -> Any:
        target = self.buffer.engine.dialect.name
        return converted([facts.get(name)], _FORMS[name], dialect, target)[0]

    def _new_steps(
        self,
        connection: Connection,
        batch: MergeBatch,
        targets: Mapping[EpisodeKey, _TargetEpisode],
        skipped: set[EpisodeKey],
    ) -> tuple[list[Piece], list[Row]]:
        """Return the steps whose ids are new, under the names that they get in the target.

        Args:
            connection: The transaction.
            batch: The steps that are wanted.
            targets: Episodes of the target with the ids of those of the batch.
            skipped: Gets episodes of which no step is merged.

        Raises:
            CopyError: The target has some of the ids, and they are not to be skipped.
        """
        pieces = list(pieces_of(self.buffer.layout, batch, self.options.prefix))
        rows = list(rows_of(batch, self.options.prefix))
        taken = self._taken_ids(connection, pieces) | self._taken_row_ids(connection, rows)
        names = {piece.name for piece in pieces} | {row.name for row in rows}
        of_others = {
            name
            for name in names
            if name is not None
            and name in targets
            # If the first step comes only now, the target has another episode of this name.
            and (
                not targets[name].is_merged
                or (batch.episodes[name].get("first_seq") or 0) > batch.begin
            )
        }
        if self.options.on_conflict == "error" and (taken or of_others):
            raise self._conflict(taken, of_others)
        with_taken = {piece.name for piece in pieces if not taken.isdisjoint(piece.ids)}
        with_taken |= {row.name for row in rows if row.record.id in taken}
        # Whole episodes, but for one that is merged in part already.
        skipped |= of_others
        skipped |= {name for name in with_taken if name is not None and name not in targets}
        new_pieces = [
            part
            for piece in pieces
            if piece.name not in skipped
            for part in piece.without(self.buffer.layout, taken)
        ]
        new_rows = [row for row in rows if row.name not in skipped and row.record.id not in taken]
        return new_pieces, new_rows

    def _conflict(self, ids: Collection[str], names: Collection[EpisodeKey]) -> CopyError:
        what = (
            f"episode {self._named(min(names))[0]!r} of task {min(names)[1]!r}"
            if names
            else f"step {min(ids)!r}"
        )
        n_more = len(ids) + len(names) - 1
        more = f" and {n_more:,} more ids" if n_more else ""
        return CopyError(
            f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} has {what}{more} "
            f"already, which {self.identity.name!r} in {self.identity.database} has as well; "
            f"give prefix='run1/' to put a text before the ids, or on_conflict='skip' to leave "
            f"such steps out; what was merged before stays"
        )

    def _taken_ids(self, connection: Connection, pieces: Sequence[Piece]) -> set[str]:
        """Return the ids of steps of chunks that the target has."""
        chunk_ids = {piece.chunk.id for piece in pieces}
        known_chunks = set()
        if chunk_ids:
            statement = select(chunks.c.id).where(
                chunks.c.buffer_id == self._id, chunks.c.id.in_(chunk_ids)
            )
            known_chunks = set(connection.execute(statement).scalars())
        looked_up = [
            id_
            for piece in pieces
            for id_ in (piece.ids if piece.chunk.id in known_chunks else piece.given_ids.values())
        ]
        return set(HeldSteps(connection, self._id).numbers_of(looked_up)) if looked_up else set()

    def _taken_row_ids(self, connection: Connection, rows: Sequence[Row]) -> set[str]:
        """Return the ids of rows that the target has."""
        if not rows:
            return set()
        low = connection.execute(SELECT_WINDOW, {"of_buffer": self._id}).one().low_seq
        row = experiences.c
        held = select(row.id).where(
            row.buffer_id == self._id,
            one_of_keys(row.id, {one.record.id for one in rows}),
            unindexed(row.seq) > low,
        )
        return set(connection.execute(held).scalars())

    def _begin_episodes(
        self,
        connection: Connection,
        batch: MergeBatch,
        steps: Sequence[Any],
        numbers: Sequence[int | None],
        made: Collection[int],
        targets: Mapping[EpisodeKey, _TargetEpisode],
    ) -> None:
        """Give new episodes their beginnings, and open those that go on."""
        names = {
            number: step.name
            for step, number in zip(steps, numbers, strict=True)
            if number is not None
        }
        begun = [
            {
                "of_id": number,
                "of_start": self._fact("started_at", batch.episodes[name], batch.dialect),
                "of_arrival": bool(batch.episodes[name].get("by_arrival")),
            }
            for number, name in names.items()
            if number in made
        ]
        if begun:
            connection.execute(_BEGIN, begun)
        again = [
            {"of_id": number}
            for number, name in names.items()
            if name in targets and targets[name].is_ended
        ]
        if again:
            connection.execute(_OPEN_AGAIN, again)

    def _insert_chunks(
        self,
        connection: Connection,
        batch: MergeBatch,
        pieces: Sequence[Piece],
        targets: Mapping[EpisodeKey, _TargetEpisode],
    ) -> _Stored:
        """Insert steps of chunks."""
        packed = ChunkColumns.of([piece.chunk for piece in pieces])
        made: set[int] = set()
        numbers = episode_ids(connection, self._id, packed, None, made)
        self._begin_episodes(connection, batch, pieces, numbers, made, targets)
        sessions_ = session_ids(connection, self._id, packed.column("session_key"))
        n_steps = sum(packed.column("n_steps"))
        seq, priority = reserve_steps(connection, self._id, n_steps, largest_priority(packed))
        firsts, ids, stored = list[int](), dict[int, str](), _Stored()
        ends: dict[int, int] = {}
        for piece, episode in zip(pieces, numbers, strict=True):
            chunk = piece.chunk
            firsts.append(seq)
            ids |= {seq + place: id_ for place, id_ in piece.given_ids.items()}
            rewards = [None] * chunk.n_steps if chunk.reward is None else chunk.reward
            stored.add(piece.seqs, seq, (chunk.task_id, episode or 0), rewards)
            if episode is not None and chunk.t is not None:
                ends[episode] = max(ends.get(episode, 0), chunk.t + chunk.n_steps)
            seq += chunk.n_steps
        if ends:
            rows = [{"of_id": id_, "end_t": end} for id_, end in sorted(ends.items())]
            connection.execute(_APPEND, rows)
        if ids:
            held_ids(connection, self._id, list(ids.values()))  # frees those of gone steps
            insert_ids(connection, self._id, ids)
        numbered = NumberedChunks(packed, firsts, numbers, sessions_, priority)
        insert_numbered(connection, self._id, self._shared(connection, numbered))
        after_chunks(connection, self._id, numbered)
        return stored

    def _shared(self, connection: Connection, numbered: NumberedChunks) -> NumberedChunks:
        """Return chunks with the ids of shared messages, if the buffer shares them."""
        if not self.buffer.shares_messages:
            return numbered
        return share_chunks(connection, self._id, numbered)

    def _insert_rows(
        self,
        connection: Connection,
        batch: MergeBatch,
        rows: Sequence[Row],
        targets: Mapping[EpisodeKey, _TargetEpisode],
    ) -> _Stored:
        """Insert rows."""
        records = [row.record for row in rows]
        priorities = [record.initial_priority for record in records]
        given = priorities if priorities.count(None) < len(priorities) else None
        reserved = reserve_seqs(connection, self._id, [r.id for r in records], given)
        made: set[int] = set()
        numbers = episode_ids(connection, self._id, records, None, made)
        self._begin_episodes(connection, batch, rows, numbers, made, targets)
        places = place_rows(connection, self._id, records, numbers, (), ())
        insert_records(
            connection,
            self._id,
            reserved.seqs,
            places,
            numbers,
            session_ids(connection, self._id, [record.session_key for record in records]),
            reserved.priority,
            guarded=False,
            shares_messages=self.buffer.shares_messages,
        )
        stored = _Stored()
        for row, number, seq in zip(rows, numbers, reserved.seqs, strict=True):
            rollout = row.record.task_id, number or 0
            stored.add([row.seq], seq, rollout, [row.record.reward_t])
        return stored

    def _write_overlays(self, connection: Connection, batch: MergeBatch, stored: _Stored) -> None:
        """Write what became of the steps since they were stored."""
        target, tables = self.buffer.engine.dialect.name, {t.name: t for t in overlay_tables()}
        flags: set[str] = set()
        for name in _OVERLAYS:
            columns = batch.overlays.get(name)
            if columns is None:
                continue
            is_kept = [seq in stored.seqs for seq in columns["seq"]]
            rows = TableRows(tables[name], columns).where(is_kept)
            if not len(rows):
                continue
            forms = dict(zip(tables[name].columns, tables[name].forms, strict=True))
            values = {
                column: converted(column_values, forms[column], batch.dialect, target)
                for column, column_values in rows.values.items()
            }
            source_seqs = values["seq"]
            values["seq"] = [stored.seqs[seq] for seq in source_seqs]
            write_rows(connection, self._id, TableRows(tables[name], values))
            flags.add(tables[name].flag or "")
            if name in _LOGGED:
                log_change(connection, self._id, _LOGGED[name], sorted(values["seq"]))
            if name == "labels":
                changes = stored.changes(source_seqs, values["reward_t"])
                layout = layout_of(self.buffer.info)
                Labelling(self.buffer, layout.at).change_returns(connection, changes)
        for flag in sorted(flags):
            is_off = (buffers.c.id == self._id) & ~buffers.c[flag]
            connection.execute(update(buffers).where(is_off).values({flag: True}))

    def _end(
        self,
        connection: Connection,
        ended: Mapping[EpisodeKey, Mapping[str, Any]],
        batch: MergeBatch,
    ) -> None:
        """Give merged episodes their ends and values."""
        targets = self._episodes_in(connection, replace(batch, episodes=dict(ended)))
        rows = []
        for name, episode in targets.items():
            if episode.is_merged:
                facts = {
                    f"new_{fact}": self._fact(fact, ended[name], batch.dialect) for fact in _FACTS
                }
                rows.append({"of_id": episode.id, **facts})
        if rows:
            rows.sort(key=lambda row: row["of_id"])
            connection.execute(_END, rows)
            log_change(connection, self._id, "episodes", [row["of_id"] for row in rows])

    def finish(
        self, connection: Connection, run: MergeRun, documents: Sequence[tuple[str, int, str]]
    ) -> None:
        """Store the documents of the source that the target does not have."""
        add_documents(connection, self._id, documents)
        connection.execute(update(merges).where(_IS_MERGE).values(self._noted(run)), self._is_merge)
