"""Annotate the rows of a buffer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    Connection,
    Select,
    Text,
    bindparam,
    case,
    cast,
    func,
    literal,
    select,
    update,
)

from sqlbuffer.codec.plain_json import INT64_MAX
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.buffers.buffer_window import BufferWindow
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.changes.change_log import log_change
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.labels import postgresql, sqlite
from sqlbuffer.storage.labels.label import Label, Labelled, in_force, joined, labelled_extra
from sqlbuffer.storage.labels.tables import label_history
from sqlbuffer.storage.rollout_stats.late_changes import Rollout, change_returns
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.json_values import json_kind
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.number_keys import has_number
from sqlbuffer.storage.schema.planner import unindexed

ROWS_AT_ONCE = 5_000

# Selects the numbers of rows of a window, in ascending order.
SelectSeqs = Callable[[BufferWindow], Select[Any]]

locked_labels = by_database(sqlite=sqlite.locked_labels, postgresql=postgresql.locked_labels)
write_labels = by_database(sqlite=sqlite.write_labels, postgresql=postgresql.write_labels)

_SEQS = bindparam("seqs", type_=SeqList())
_OF = bindparam("of_buffer", type_=label_history.c.buffer_id.type)
_its_own, _given = experiences.c, label_history.c
# The payload is only read if needed: rows with tags are rare.
_is_tagged = json_kind(_its_own.extra, stored_path=("$reals",)).is_not(None)
_HELD = select(
    _its_own.seq,
    _its_own.task_id,
    _its_own.episode_id,
    _its_own.reward_t,
    case(
        (_is_tagged | bindparam("with_extra", type_=buffers.c.has_labels.type), _its_own.extra)
    ).cast(Text),
).where(
    has_number(_its_own.seq, _OF, _SEQS),
    unindexed(_its_own.seq) > bindparam("low", type_=_its_own.seq.type),
)
_HISTORY = select(
    _given.seq,
    _given.version,
    _given.reward_t,
    _given.adv_t,
    _given.v_t,
    cast(_given.extra, Text),
).where(_given.buffer_id == _OF, is_number_of(_given.seq, _SEQS))
_HIGHEST = select(func.max(_given.version)).where(
    _given.buffer_id == _OF, is_number_of(_given.seq, _SEQS)
)
# While an episode is open, this is the change of its return by annotations; its end adds the rest.
_RETURN = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_episode"))
    .values({"return": func.coalesce(episodes.c["return"], 0.0) + bindparam("change")})
)


@dataclass(frozen=True)
class Annotation:
    """An annotation to write.

    Attributes:
        target: The rows: a function that selects their numbers in a window, or the numbers,
            distinct and in ascending order.
        labels: One label for all rows, or one for each number.
        version: The version; None for one more than the highest version of the rows.
    """

    target: SelectSeqs | Sequence[int]
    labels: Label | Sequence[Label]
    version: int | None

    @property
    def numbers(self) -> Sequence[int]:
        """Numbers of the rows; none, if a function selects them."""
        return self.target if isinstance(self.target, Sequence) else ()

    def label_of(self) -> Mapping[int, Label] | None:
        """Return the label of each number; None if all rows get the same."""
        if isinstance(self.labels, Label) or not isinstance(self.target, Sequence):
            return None
        return dict(zip(self.target, self.labels, strict=True))


@dataclass(frozen=True)
class Annotated:
    """What became of an annotation.

    Attributes:
        n_rows: Number of annotated rows.
        missing: Numbers that were given, and that the buffer does not hold.
        low: Rows up to this number are evicted.
        high: The newest row.
    """

    n_rows: int
    missing: Sequence[int]
    low: int
    high: int


class Labelling:
    """Annotates the rows of a buffer.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer

    def annotate(self, annotation: Annotation) -> Annotated:
        """Write an annotation in one transaction."""
        written = self.buffer.write(lambda connection: self._write_labels(connection, annotation))
        clean_after_write(self.buffer.engine, written.n_rows)
        return written

    def _write_labels(self, connection: Connection, annotation: Annotation) -> Annotated:
        window = self.buffer.window_in(connection)
        seqs = self._held(connection, annotation.target, window)
        missing = sorted(set(annotation.numbers).difference(seqs))
        if not seqs:
            return Annotated(0, missing, window.low, window.high)
        self._begin_labels(connection, window)
        # All rows, in ascending order, before reading values that other transactions may change.
        before: dict[int, float | None] = {}
        for chunk in _chunks(seqs):
            before |= locked_labels(connection, self.buffer.info.id, chunk)
        version = annotation.version
        if version is None:
            version = self._next_version(connection, seqs)
        changes: dict[Rollout, list[float]] = {}
        n_written = 0
        own_labels, of_all = annotation.label_of(), annotation.labels
        for chunk in _chunks(seqs):
            said = {seq: own_labels[seq] if own_labels else of_all for seq in chunk}
            n_written += self._write_chunk(connection, window.low, version, said, before, changes)
        self._change_returns(connection, changes)
        return Annotated(n_written, missing, window.low, window.high)

    def _held(
        self, connection: Connection, target: SelectSeqs | Sequence[int], window: BufferWindow
    ) -> list[int]:
        """Return the numbers of the rows that exist, in ascending order."""
        if not isinstance(target, Sequence):
            return list(connection.execute(target(window)).scalars())
        held: list[int] = []
        for chunk in _chunks(target):
            wanted = bindparam(None, chunk, SeqList())
            is_one = has_number(_its_own.seq, literal(self.buffer.info.id), wanted)
            above = unindexed(experiences.c.seq) > window.low
            own = select(experiences.c.seq).where(is_one & above)
            held += connection.execute(own).scalars()
        return sorted(held)

    def _begin_labels(self, connection: Connection, window: BufferWindow) -> None:
        own = buffers.c.id == self.buffer.info.id
        if not window.has_labels:
            connection.execute(update(buffers).where(own).values(has_labels=True))
        elif window.evict_by != "row":
            # A process that evicts there holds this lock as well, and then episodes and labels.
            connection.execute(select(buffers.c.id).where(own).with_for_update(key_share=True))

    def _next_version(self, connection: Connection, seqs: Sequence[int]) -> int:
        found = [
            connection.execute(_HIGHEST, {"of_buffer": self.buffer.info.id, "seqs": chunk}).scalar()
            for chunk in _chunks(seqs)
        ]
        highest = max((version for version in found if version is not None), default=0)
        if highest == INT64_MAX:
            raise FieldError(
                f"a row already has the highest version, {INT64_MAX}; pass that version "
                f"to add values to it"
            )
        return highest + 1

    def _write_chunk(
        self,
        connection: Connection,
        low: int,
        version: int,
        said: Mapping[int, Any],
        before: Mapping[int, float | None],
        changes: dict[Rollout, list[float]],
    ) -> int:
        """Write the labels of some rows, and add up the changes of rollouts' returns.

        Return how many of the rows still exist.
        """
        parameters = {"of_buffer": self.buffer.info.id, "seqs": list(said)}
        histories: dict[int, dict[int, Label]] = {seq: {} for seq in said}
        for seq, its_version, *reals, extra in fetch(connection, _HISTORY, parameters):
            tree = None if extra is None else orjson.loads(extra)
            histories[seq][its_version] = Label._make((*reals, tree))
        for seq, label in said.items():
            earlier = histories[seq].get(version)
            histories[seq][version] = label if earlier is None else joined(earlier, label)
        now = {seq: in_force(history) for seq, history in histories.items()}
        with_extra = any(label.extra is not None for label in now.values())
        parameters |= {"low": low, "with_extra": with_extra}
        rows = []
        for seq, task, episode, reward, extra in fetch(connection, _HELD, parameters):
            holds = now[seq]
            made = labelled_extra(extra, holds)
            rows.append(Labelled(seq, histories[seq][version], holds, made))
            change = _change(reward, before.get(seq), holds.reward_t)
            if change is not None:
                changes.setdefault((task, episode or 0), []).append(change)
        write_labels(connection, self.buffer.info.id, version, rows)
        written = [row.seq for row in rows]
        log_change(connection, self.buffer.info.id, "labelled", written, self.buffer.origin)
        return len(rows)

    def _change_returns(
        self, connection: Connection, changes: Mapping[Rollout, Sequence[float]]
    ) -> None:
        of_episodes = {episode: own for (_, episode), own in changes.items() if episode}
        # In the order in which writers end several episodes.
        ordered = select(episodes.c.id).order_by(episodes.c.key, episodes.c.task_id)
        rows = []
        for chunk in _chunks(sorted(of_episodes)):
            numbers = bindparam(None, chunk, SeqList())
            found = ordered.where(is_number_of(episodes.c.id, numbers))
            ids = connection.execute(found.with_for_update(key_share=True)).scalars()
            rows += [{"of_episode": id_, "change": math.fsum(of_episodes[id_])} for id_ in ids]
        if rows:
            connection.execute(_RETURN, rows)
        change_returns(connection, self.buffer.info.id, changes)


def _chunks(seqs: Sequence[int]) -> Iterator[Sequence[int]]:
    return (seqs[start : start + ROWS_AT_ONCE] for start in range(0, len(seqs), ROWS_AT_ONCE))


def _change(own: float | None, before: float | None, now: float | None) -> float | None:
    """Return the change of a row's reward; None if it does not change, or if the row has none.

    Args:
        own: The row's own reward.
        before: The late reward before.
        now: The late reward now.
    """
    held = own if before is None else before
    if now is None or now == held:
        return None
    if held is None:
        return now
    # A return that an infinite reward made infinite stays infinite.
    return now - held if math.isfinite(held) else None
