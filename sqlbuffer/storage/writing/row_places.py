"""Give rows their places in episodes: by step, or by arrival where a row gave no step.

A late row takes the place of the first one with a greater step, and those behind it move on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Integer, bindparam, func, select, update

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.episodes import EpisodeKey, episodes, of_rollout
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of

_ROW = experiences.c
_OF_EPISODE = (_ROW.buffer_id == episodes.c.buffer_id) & (_ROW.episode_id == episodes.c.id)
_NEWEST = select(_ROW.t).where(_OF_EPISODE, _ROW.t.is_not(None)).order_by(_ROW.t.desc()).limit(1)
_ENDS = select(
    episodes.c.id,
    episodes.c.by_arrival,
    func.coalesce(_NEWEST.scalar_subquery() + 1, of_rollout("length"), 0).label("next_t"),
    _NEWEST.with_only_columns(_ROW.step).scalar_subquery().label("newest_step"),
).where(is_number_of(episodes.c.id, bindparam("ids", type_=SeqList())))
# A row of SQLAlchemy has an attribute `t` of its own.
_HELD = select(_ROW.seq, _ROW.step, _ROW.t.label("place")).where(
    _ROW.buffer_id == bindparam("buffer_id", type_=Integer()),
    _ROW.episode_id == bindparam("episode_id", type_=BigInteger()),
    _ROW.t.is_not(None),
)
_MOVE = (
    update(experiences)
    .where(_ROW.buffer_id == bindparam("of_buffer"), _ROW.seq == bindparam("of_seq"))
    .values(t=bindparam("new_t"))
)
_SET_BY_ARRIVAL = (
    update(episodes).where(episodes.c.id == bindparam("of_id")).values(by_arrival=True)
)


@dataclass(frozen=True)
class RowPlaces:
    """Places of new rows, and what has to change for them.

    Attributes:
        records: The new rows, each with its place.
        moved: New places of rows that the buffer holds, by their seq.
        by_arrival: Episodes whose rows are in the order of their arrival from now on.
    """

    records: Sequence[Record]
    moved: Mapping[int, int] = field(default_factory=dict)
    by_arrival: Sequence[int] = ()

    def make_room(self, connection: Connection, buffer_id: int) -> None:
        """Move the held rows; in the transaction that inserts the new ones."""
        if self.by_arrival:
            connection.execute(_SET_BY_ARRIVAL, [{"of_id": id_} for id_ in self.by_arrival])
        if self.moved:
            rows = [
                {"of_buffer": buffer_id, "of_seq": seq, "new_t": t} for seq, t in self.moved.items()
            ]
            connection.execute(_MOVE, rows)


class _End(NamedTuple):
    """Where an episode ends: the next place, and the step of its last row."""

    by_arrival: bool = False
    next_t: int = 0
    newest_step: int | None = None


def place_rows(
    connection: Connection,
    buffer_id: int,
    records: Sequence[Record],
    episode_ids: Sequence[int | None],
    made: Collection[int],
    unnumbered: Collection[EpisodeKey],
) -> RowPlaces:
    """Return the places of new rows in their episodes, which the transaction has locked.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        records: The rows, in the order of their numbers.
        episode_ids: The key of the episode of each; None without one.
        made: Keys of episodes that this transaction has made.
        unnumbered: Episodes with a row among them that gave no step.
    """
    rows_of: dict[int, list[int]] = {}
    for i, episode_id in enumerate(episode_ids):
        if episode_id is not None:
            rows_of.setdefault(episode_id, []).append(i)
    if not rows_of:
        return RowPlaces(records)
    known = sorted(rows_of.keys() - set(made))
    ends: dict[int, _End] = {}
    if known:
        found = fetch(connection, _ENDS, {"ids": known})
        ends = {id_: _End(*values) for id_, *values in found}
    placed, moved, by_arrival = list(records), dict[int, int](), list[int]()
    for episode_id, indexes in rows_of.items():
        end = ends.get(episode_id, _End())
        first = records[indexes[0]]
        in_order = end.by_arrival
        if not in_order and (first.episode_key, first.task_id) in unnumbered:
            in_order = True
            by_arrival.append(episode_id)
            if end.newest_step is not None:
                moved |= _in_arrival_order(_held(connection, buffer_id, episode_id))
        if not in_order:
            indexes = sorted(indexes, key=lambda i: records[i].step)
        least = records[indexes[0]].step
        is_late = not in_order and end.newest_step is not None and least < end.newest_step
        held = _held(connection, buffer_id, episode_id, above=least) if is_late else []
        ts = _places([records[i] for i in indexes], held, end.next_t, moved)
        for i, t in zip(indexes, ts, strict=True):
            placed[i] = records[i]._replace(t=t)
    return RowPlaces(placed, moved, by_arrival)


def _held(
    connection: Connection, buffer_id: int, episode_id: int, above: int | None = None
) -> list[Any]:
    """Return (seq, step, place) of the rows of an episode with greater steps, by their places."""
    statement = _HELD if above is None else _HELD.where(_ROW.step > bindparam("above"))
    names = {"buffer_id": buffer_id, "episode_id": episode_id}
    if above is not None:
        names["above"] = above
    return sorted(connection.execute(statement, names).all(), key=lambda row: row.place)


def _in_arrival_order(held: Sequence[Any]) -> dict[int, int]:
    """Return the new places of rows, by seq, that puts them in the order of their arrival."""
    arrived = sorted(held)
    pairs = zip(arrived, held, strict=True)
    return {row.seq: other.place for row, other in pairs if row.place != other.place}


def _places(
    records: Sequence[Record], held: Sequence[Any], next_t: int, moved: dict[int, int]
) -> list[int]:
    """Return the places of new rows of an episode, and note which held rows move.

    Args:
        records: The new rows, in their order.
        held: Rows (seq, step, place) behind the first of them, by their places.
        next_t: The place behind all rows of the episode.
        moved: Gets the new places of held rows.
    """
    ts: list[int] = []
    for seq, step, t in held:
        while len(ts) < len(records) and records[len(ts)].step < step:
            ts.append(t + len(ts))
        moved[seq] = t + len(ts)
    next_t += len(ts)
    for record in records[len(ts) :]:
        # A writer counts steps that were deleted too.
        t = next_t if record.t is None else max(next_t, record.t)
        ts.append(t)
        next_t = t + 1
    return ts
