"""Numbered places that each show one episode, used in turn: what `compat.memmap` keeps.

A slot is claimed by a writer, begun in the transaction that stores the first step of its episode,
and finished in the one that stores the last. What it showed before leaves when it is begun. Turns
are slots counted on through every lap, so that turn and number of slots give the slot.

Whoever changes anything here holds the row of `slot_rings`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, Text, bindparam, cast, delete, insert, select, text, update

from sqlbuffer.storage import functions as fn
from sqlbuffer.storage.catalog import json_literal
from sqlbuffer.storage.episodes import Ending
from sqlbuffer.storage.holders import is_alive
from sqlbuffer.storage.models import episodes, experiences, slot_rings, slot_writers, slots
from sqlbuffer.storage.removal import remove_where
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.types import SeqList

_SEE = text(
    "INSERT INTO slot_writers (buffer_id, holder) VALUES (:buffer_id, :holder) "
    "ON CONFLICT (buffer_id, holder) DO UPDATE SET seen_at = excluded.seen_at"
)
_CLAIM = text(
    "INSERT INTO slots (buffer_id, slot, turn, holder, length) "
    "VALUES (:buffer_id, :slot, :turn, :holder, 0) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET turn = excluded.turn, holder = excluded.holder"
)
_BEGIN = text(
    "UPDATE slots SET length = NULL, meta = :meta, tail = NULL, episode_id = (SELECT id "
    "FROM episodes WHERE buffer_id = :buffer_id AND key = :key AND task_id = :key) "
    "WHERE buffer_id = :buffer_id AND slot = :slot"
)
_FINISH = text(
    "UPDATE slots SET length = :length, meta = :meta, holder = NULL "
    "WHERE buffer_id = :buffer_id AND slot = :slot"
)
_SET_META = text(
    "INSERT INTO slots (buffer_id, slot, turn, length, meta) "
    "VALUES (:buffer_id, :slot, -1, 0, :value) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET meta = excluded.meta"
)
_SET_TAIL = text(
    "INSERT INTO slots (buffer_id, slot, turn, length, tail) "
    "VALUES (:buffer_id, :slot, -1, 0, :value) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET tail = excluded.tail"
)
_SET_LENGTH = text(
    "INSERT INTO slots (buffer_id, slot, turn, length) VALUES (:buffer_id, :slot, -1, :value) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET length = excluded.length"
)
_SAY = text(
    "UPDATE episodes SET meta = :meta WHERE buffer_id = :buffer_id AND id = "
    "(SELECT episode_id FROM slots WHERE buffer_id = :buffer_id AND slot = :slot)"
).bindparams(bindparam("meta", type_=episodes.c.meta.type))


class SlotsFullError(Exception):
    """No slot is left."""


class SlotLostError(Exception):
    """Another writer took a slot whose writer it held for dead."""


@dataclass(frozen=True)
class Ring:
    """The slots of a buffer.

    Attributes:
        config: What it was made with.
        next_turn: Turns up to here are finished.
        num_episodes: Episodes finished, at most one a slot.
    """

    config: Mapping[str, Any]
    next_turn: int
    num_episodes: int


@dataclass(frozen=True)
class Opening:
    """An episode that begins in a slot.

    Attributes:
        turn: The slot's turn.
        key: Id of the episode.
        meta: The slot's packed meta values.
    """

    turn: int
    key: str
    meta: bytes


@dataclass(frozen=True)
class SlotEnding(Ending):
    """How an episode in a slot ends.

    Attributes:
        turn: The slot's turn.
        meta: The slot's packed meta values.
        said: Their JSON, for the list of episodes.
        is_begun: It has steps.
    """

    turn: int = 0
    meta: bytes = b""
    said: str | None = None
    is_begun: bool = True


class Shown(NamedTuple):
    """What a slot shows; an episode that is being written has no length."""

    slot: int
    length: int | None
    meta: bytes | None


class Slots:
    """The slots of one buffer, for one writer.

    Args:
        store: The buffer.
        n_slots: How many slots.
        is_circular: They are used again.
        holder: The writer.
    """

    def __init__(self, store: BufferStore, n_slots: int, is_circular: bool, holder: str) -> None:
        self.store, self._n, self._is_circular = store, n_slots, is_circular
        self._id, self.holder = store.info.id, holder

    def ring(self) -> Ring:
        """Return how far they are used."""
        found = find_ring(self.store)
        if found is None:
            raise self.store._dropped()
        return found

    def set_ring(self, next_turn: int | None = None, num_episodes: int | None = None) -> None:
        """Move on by hand; slots from there on are free."""
        values = {"next_turn": next_turn, "num_episodes": num_episodes}
        given = {name: value for name, value in values.items() if value is not None}

        def work(connection: Connection) -> None:
            self._lock(connection)
            connection.execute(update(slot_rings).where(_of(slot_rings, self._id)).values(given))
            if next_turn is not None:
                ahead = _of(slots, self._id) & (slots.c.turn >= next_turn)
                free = update(slots).where(ahead, slots.c.holder.is_(None))
                connection.execute(free.values(turn=-1))

        self.store.write(work)

    def claim(self, n: int) -> list[int]:
        """Claim n slots for this writer, the next ones that nobody has; return their turns.

        Raises:
            SlotsFullError: Fewer are left.
        """
        return self.store.write(lambda connection: self._claim(connection, n))

    def n_left(self) -> int:
        """Return how many slots can be claimed."""
        ring = self.ring()
        with self.store.engine.connect() as connection:
            return self._last(ring) - ring.next_turn - len(self._taken(connection, ring))

    def _claim(self, connection: Connection, n: int) -> list[int]:
        ring = self._lock(connection)
        taken = self._taken(connection, ring)
        free = (turn for turn in range(ring.next_turn, self._last(ring)) if turn not in taken)
        turns = [turn for turn, _ in zip(free, range(n), strict=False)]
        if len(turns) < n:
            raise SlotsFullError
        connection.execute(_SEE, {"buffer_id": self._id, "holder": self.holder})
        connection.execute(
            _CLAIM, [{**self._key(turn), "turn": turn, "holder": self.holder} for turn in turns]
        )
        return turns

    def _last(self, ring: Ring) -> int:
        """Return the first turn that may not be claimed."""
        return ring.next_turn + self._n if self._is_circular else self._n

    def _taken(self, connection: Connection, ring: Ring) -> set[int]:
        """Return the turns ahead that are finished or have a writer that lives."""
        ahead = select(slots.c.turn, slots.c.holder).where(
            _of(slots, self._id), slots.c.turn >= ring.next_turn
        )
        found = connection.execute(ahead).all()
        holders = {holder for _, holder in found if holder is not None}
        alive = self._alive(connection, holders)
        return {turn for turn, holder in found if holder is None or holder in alive}

    def _alive(self, connection: Connection, holders: Iterable[str]) -> set[str]:
        if not holders:
            return set()
        return living(connection, self._id, self.store.info.open_timeout_s) & set(holders)

    def release(self, turns: Sequence[int]) -> None:
        """Give back slots whose episodes were not finished, and delete those as far as they are
        stored.
        """

        def work(connection: Connection) -> None:
            self._lock(connection)
            own = self._own(connection, turns)
            begun = [turn for turn, length in own.items() if length is None]
            self._remove_shown(connection, begun)
            keys = [self._key(turn) for turn in own]
            for turn, key in zip(own, keys, strict=True):
                where = _of(slots, self._id) & (slots.c.slot == key["slot"])
                if turn in begun:
                    connection.execute(delete(slots).where(where))
                else:
                    connection.execute(update(slots).where(where).values(turn=-1, holder=None))

        if turns:
            self.store.write(work)

    def change(
        self, connection: Connection, begun: Sequence[Opening], ended: Sequence[SlotEnding]
    ) -> None:
        """Show episodes that begin or end, in the transaction that stores their steps."""
        self._lock(connection)
        connection.execute(_SEE, {"buffer_id": self._id, "holder": self.holder})
        self._begin(connection, begun)
        unbegun = [Opening(ending.turn, "", ending.meta) for ending in ended if not ending.is_begun]
        self._begin(connection, unbegun)
        self._finish(connection, ended)

    def _begin(self, connection: Connection, begun: Sequence[Opening]) -> None:
        if not begun:
            return
        own = self._own(connection, [each.turn for each in begun])
        self._check_own(own, begun)
        self._remove_shown(connection, list(own), {each.key for each in begun})
        connection.execute(
            _BEGIN, [{**self._key(each.turn), "key": each.key, "meta": each.meta} for each in begun]
        )

    def _finish(self, connection: Connection, ended: Sequence[SlotEnding]) -> None:
        own = self._own(connection, [each.turn for each in ended])
        left = [each for each in ended if each.turn in own]
        if len(left) < len(ended):
            # Or this was committed, and is done once more after its connection was lost.
            self._check_own({**own, **self._finished(connection, ended)}, ended)
        if not left:
            return
        connection.execute(
            _FINISH,
            [{**self._key(each.turn), "length": each.length, "meta": each.meta} for each in left],
        )
        said = [{**self._key(each.turn), "meta": each.said} for each in left if each.is_begun]
        if said:
            connection.execute(_SAY, said)
        self._move_on(connection, len(left))

    def _finished(self, connection: Connection, ended: Sequence[SlotEnding]) -> dict[int, Any]:
        """Return those of the turns that are over."""
        wanted = bindparam(None, [each.turn % self._n for each in ended], SeqList(), unique=True)
        where = _of(slots, self._id) & _is_in(slots.c.slot, wanted) & slots.c.holder.is_(None)
        return dict(connection.execute(select(slots.c.turn, slots.c.length).where(where)).all())

    def _move_on(self, connection: Connection, n: int) -> None:
        ring = self._lock(connection)
        ahead = select(slots.c.turn).where(
            _of(slots, self._id), slots.c.turn >= ring.next_turn, slots.c.holder.is_(None)
        )
        done = set(connection.execute(ahead).scalars())
        next_turn = ring.next_turn
        while next_turn in done:
            next_turn += 1
        num = min(ring.num_episodes + n, self._n)
        moved = update(slot_rings).where(_of(slot_rings, self._id))
        connection.execute(moved.values(next_turn=next_turn, num_episodes=num))

    def _own(self, connection: Connection, turns: Sequence[int]) -> dict[int, int | None]:
        """Return the lengths of those turns that this writer holds."""
        wanted = bindparam(None, [turn % self._n for turn in turns], SeqList(), unique=True)
        where = _of(slots, self._id) & _is_in(slots.c.slot, wanted)
        where = where & (slots.c.holder == self.holder)
        found = connection.execute(select(slots.c.turn, slots.c.length).where(where))
        return {turn: length for turn, length in found if turn in set(turns)}

    @staticmethod
    def _check_own(own: Mapping[int, Any], wanted: Iterable[Opening | SlotEnding]) -> None:
        if any(each.turn not in own for each in wanted):
            raise SlotLostError

    def _remove_shown(
        self, connection: Connection, turns: Sequence[int], keep: Iterable[str] = ()
    ) -> None:
        """Delete the steps that slots show, and episodes of them that never ended."""
        wanted = bindparam(None, [turn % self._n for turn in turns], SeqList(), unique=True)
        shown = (
            select(episodes.c.id, episodes.c.status)
            .join(slots, slots.c.episode_id == episodes.c.id)
            .where(_of(slots, self._id), _is_in(slots.c.slot, wanted))
            .where(episodes.c.key.not_in(list(keep)))
        )
        found = connection.execute(shown).all()
        if not found:
            return
        self.store.note_deletion(connection)
        seq = fn.unindexed(experiences.c.seq)
        for number, status in found:
            its = experiences.c.episode_id == number
            remove_where(connection, self.store.dialect, self._id, its, seq=seq)
            if status == "open":
                connection.execute(delete(episodes).where(episodes.c.id == number))

    def shown(self, connection: Connection, wanted: Sequence[int] | None = None) -> list[Shown]:
        """Return what slots show; those that were never used are left out."""
        statement = select(slots.c.slot, slots.c.length, slots.c.meta).where(_of(slots, self._id))
        if wanted is not None:
            listed = bindparam(None, wanted, SeqList(), unique=True)
            statement = statement.where(_is_in(slots.c.slot, listed))
        return [Shown(*row) for row in connection.execute(statement)]

    def lengths(self, connection: Connection) -> list[tuple[int, int]]:
        """Return (slot, length) of those that show finished episodes with steps."""
        where = _of(slots, self._id) & (slots.c.length > 0)
        found = connection.execute(select(slots.c.slot, slots.c.length).where(where))
        return [(slot, length) for slot, length in found]

    def tails(self, connection: Connection, wanted: Sequence[int]) -> dict[int, bytes]:
        """Return the packed values of steps that have no row."""
        listed = bindparam(None, wanted, SeqList(), unique=True)
        where = _of(slots, self._id) & _is_in(slots.c.slot, listed) & slots.c.tail.is_not(None)
        return {
            slot: bytes(tail)
            for slot, tail in connection.execute(select(slots.c.slot, slots.c.tail).where(where))
        }

    def lock(self, connection: Connection) -> None:
        """Keep others from changing anything until the transaction ends."""
        self._lock(connection)

    def set_tails(self, connection: Connection, tails: Mapping[int, bytes]) -> None:
        """Set the packed values of steps that have no row."""
        self._set(connection, _SET_TAIL, tails)

    def set_lengths(self, connection: Connection, lengths: Mapping[int, int]) -> None:
        """Set the lengths of finished episodes."""
        self._set(connection, _SET_LENGTH, lengths)

    def set_metas(
        self, connection: Connection, metas: Mapping[int, bytes], said: Mapping[int, str]
    ) -> None:
        """Set packed meta values, and the JSON of those that show an episode."""
        self._set(connection, _SET_META, metas)
        told = [{"buffer_id": self._id, "slot": s, "meta": text_} for s, text_ in said.items()]
        if told:
            connection.execute(_SAY, told)

    def _set(self, connection: Connection, statement: Any, values: Mapping[int, Any]) -> None:
        rows = [{"buffer_id": self._id, "slot": s, "value": v} for s, v in values.items()]
        if rows:
            connection.execute(statement, rows)

    def clear(self) -> None:
        """Delete all episodes and forget the slots of every writer."""

        def work(connection: Connection) -> None:
            self._lock(connection)
            self.store.note_deletion(connection)
            remove_where(connection, self.store.dialect, self._id)
            connection.execute(delete(episodes).where(_of(episodes, self._id)))
            connection.execute(delete(slots).where(_of(slots, self._id)))
            zero = update(slot_rings).where(_of(slot_rings, self._id))
            connection.execute(zero.values(next_turn=0, num_episodes=0))

        self.store.write(work)

    def leave(self) -> None:
        """Be no writer any more."""

        def work(connection: Connection) -> None:
            own = _of(slot_writers, self._id) & (slot_writers.c.holder == self.holder)
            connection.execute(delete(slot_writers).where(own))

        self.store.write(work)

    def _lock(self, connection: Connection) -> Ring:
        found = _ring(connection, self._id, locked=True)
        if found is None:
            raise self.store._dropped()
        return found

    def _key(self, turn: int) -> dict[str, Any]:
        return {"buffer_id": self._id, "slot": turn % self._n}


def make_ring(store: BufferStore, config: Mapping[str, Any]) -> None:
    """Give a buffer slots, unless it has some."""

    def work(connection: Connection) -> None:
        store.lock(connection)
        if _ring(connection, store.info.id) is None:
            values = {"buffer_id": store.info.id, "config": json_literal(dict(config))}
            connection.execute(insert(slot_rings).values(values))

    store.write(work)


def find_ring(store: BufferStore) -> Ring | None:
    """Return the slots of a buffer, or None where it has none."""
    with store.engine.connect() as connection:
        return _ring(connection, store.info.id)


def other_writers(store: BufferStore, holder: str) -> list[str]:
    """Return those of other processes that write to a buffer's slots."""
    with store.engine.connect() as connection:
        found = living(connection, store.info.id, store.info.open_timeout_s)
    return sorted(each for each in found if each.split()[:2] != holder.split()[:2])


def living(connection: Connection, buffer_id: int, timeout_s: float) -> set[str]:
    """Return the writers of a buffer that live, as far as that is known."""
    age = fn.age_s(slot_writers.c.seen_at)
    found = connection.execute(
        select(slot_writers.c.holder, age).where(_of(slot_writers, buffer_id))
    )
    return {holder for holder, age_s in found if is_alive(holder, age_s, timeout_s)}


def register(store: BufferStore, holder: str) -> None:
    """Note that a process writes to a buffer's slots, and forget those that died."""

    def work(connection: Connection) -> None:
        alive = living(connection, store.info.id, store.info.open_timeout_s)
        of = _of(slot_writers, store.info.id)
        for gone in set(connection.execute(select(slot_writers.c.holder).where(of)).scalars()):
            if gone not in alive:
                connection.execute(delete(slot_writers).where(of, slot_writers.c.holder == gone))
        connection.execute(_SEE, {"buffer_id": store.info.id, "holder": holder})

    store.write(work)


def _ring(connection: Connection, buffer_id: int, *, locked: bool = False) -> Ring | None:
    ring = slot_rings.c
    statement = select(cast(ring.config, Text), ring.next_turn, ring.num_episodes).where(
        _of(slot_rings, buffer_id)
    )
    row = connection.execute(statement.with_for_update() if locked else statement).one_or_none()
    return None if row is None else Ring(orjson.loads(row[0]), row[1], row[2])


def _of(table: Any, buffer_id: int) -> Any:
    return table.c.buffer_id == buffer_id


def _is_in(column: Any, listed: Any) -> Any:
    return fn.is_number_of(column, listed)
