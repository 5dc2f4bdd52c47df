"""Numbered places that each show one episode, used in turn: what `compat.memmap` keeps.

A slot is claimed by a writer, begun in the transaction that stores the first step of its episode,
and finished in the one that stores the last. What it showed before leaves when it is begun. Turns
are slots counted on through every lap, so that turn and number of slots give the slot.

Whoever changes anything here holds the row of `slot_rings`.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    insert,
    select,
    text,
    union,
    update,
)
from sqlalchemy.dialects import postgresql

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.holders import is_alive, is_here
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.metadata import json_literal
from sqlbuffer.storage.schema.planner import unindexed
from sqlbuffer.storage.schema.server_clock import age_s
from sqlbuffer.storage.slot_places.emptied_slots import (
    clear_slots,
    empty_slots,
    lock_ring,
    note_change,
)
from sqlbuffer.storage.slot_places.tables import slot_rings, slot_writers, slots
from sqlbuffer.storage.store import BufferStore

# Made once: building them anew takes several times as long as running them.
_ID = bindparam("buffer_id", type_=Integer())
_NAMED = is_number_of(slots.c.slot, bindparam("slots", type_=SeqList()))
_RING = select(
    cast(slot_rings.c.config, Text), slot_rings.c.next_turn, slot_rings.c.num_episodes
).where(slot_rings.c.buffer_id == _ID)
_LOCKED_RING = _RING.with_for_update()
_OWN_TURN = select(slots.c.slot, slots.c.turn, slots.c.holder).where(slots.c.buffer_id == _ID)
_AHEAD = union(
    _OWN_TURN.where(slots.c.turn >= bindparam("next_turn", type_=BigInteger())),
    _OWN_TURN.where(slots.c.holder.is_not(None)),
)
_HELD = select(
    slots.c.slot, slots.c.turn, slots.c.holder, slots.c.length, slots.c.episode_id
).where(slots.c.buffer_id == _ID, _NAMED)
_SHOWN = select(slots.c.slot, slots.c.length, slots.c.meta).where(slots.c.buffer_id == _ID)
_NAMED_SHOWN = _SHOWN.where(_NAMED)
_CHANGES = select(slot_rings.c.changes).where(slot_rings.c.buffer_id == _ID).scalar_subquery()
_STATES = select(slots.c.slot, slots.c.length, slots.c.episode_id, _CHANGES).where(
    slots.c.buffer_id == _ID
)
_NAMED_STATES = _STATES.where(_NAMED)
# Of numbers alone.
_STATES_QUERY = (
    "SELECT slot, length, episode_id, "
    "(SELECT changes FROM slot_rings WHERE buffer_id = {buffer_id:d}) "
    "FROM slots WHERE buffer_id = {buffer_id:d} AND slot IN ({numbers})"
)
_LENGTHS = select(slots.c.slot, slots.c.length).where(slots.c.buffer_id == _ID, slots.c.length > 0)
_TAILS = select(slots.c.slot, slots.c.tail).where(
    slots.c.buffer_id == _ID, _NAMED, slots.c.tail.is_not(None)
)
_SEE = text(
    "INSERT INTO slot_writers (buffer_id, holder) VALUES (:buffer_id, :holder) "
    "ON CONFLICT (buffer_id, holder) DO UPDATE SET seen_at = excluded.seen_at"
)
_CLAIM = text(
    "INSERT INTO slots (buffer_id, slot, turn, holder, length) "
    "VALUES (:buffer_id, :slot, :turn, :holder, 0) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET turn = excluded.turn, holder = excluded.holder"
)
_EPISODE = (
    "(SELECT id FROM episodes WHERE buffer_id = :buffer_id AND key = :key AND task_id = :key)"
)
_BEGIN = text(
    f"UPDATE slots SET length = NULL, meta = :meta, tail = NULL, episode_id = {_EPISODE} "
    "WHERE buffer_id = :buffer_id AND slot = :slot"
)
_FINISH = text(
    "UPDATE slots SET length = :length, meta = :meta, holder = NULL "
    "WHERE buffer_id = :buffer_id AND slot = :slot"
)
_PLACE = text(
    "INSERT INTO slots (buffer_id, slot, turn, episode_id, length, meta) "
    f"VALUES (:buffer_id, :slot, :turn, {_EPISODE}, :length, :meta) "
    "ON CONFLICT (buffer_id, slot) DO UPDATE SET turn = excluded.turn, holder = NULL, "
    "episode_id = excluded.episode_id, length = excluded.length, meta = excluded.meta, tail = NULL"
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
_MOVE_ON = text(
    "UPDATE slot_rings SET next_turn = :next_turn, num_episodes = :num_episodes "
    "WHERE buffer_id = :buffer_id"
)
_SAY = text(
    "UPDATE episodes SET meta = :meta WHERE buffer_id = :buffer_id AND id = "
    "(SELECT episode_id FROM slots WHERE buffer_id = :buffer_id AND slot = :slot)"
).bindparams(bindparam("meta", type_=Text().with_variant(postgresql.JSONB(), "postgresql")))
# How often a writer says that it lives.
SEEN_S = 60.0


class SlotsFullError(Exception):
    """No slot is left."""


class SlotLostError(Exception):
    """Another writer took a slot whose writer it held for dead."""


@dataclass(frozen=True)
class Ring:
    """The slots of a buffer.

    Attributes:
        config: JSON of what it was made with.
        next_turn: Turns up to here are finished.
        num_episodes: Episodes finished, at most one a slot.
    """

    config: str
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
class SlotEnding(EpisodeEnd):
    """How an episode in a slot ends.

    Attributes:
        turn: The slot's turn.
        meta: The slot's packed meta values.
        said: Their JSON, for the list of episodes; None where that has it.
        is_begun: It has steps.
    """

    turn: int = 0
    meta: bytes = b""
    said: str | None = None
    is_begun: bool = True


class Ahead(NamedTuple):
    """Slots that are not simply next.

    Attributes:
        used: The last turn of those that were finished in turns not yet passed.
        held: Those that a writer has that lives.
        others: Those of them that are not this writer's.
    """

    used: dict[int, int]
    held: set[int]
    others: set[int]


class Shown(NamedTuple):
    """What a slot shows; an episode that is being written has no length."""

    slot: int
    length: int | None
    meta: bytes | None


class State(NamedTuple):
    """What a slot holds.

    Attributes:
        slot: The slot.
        length: Steps; None while they are being written.
        episode: Number of the episode that it shows.
        changes: How often stored steps of the buffer were changed in place.
    """

    slot: int
    length: int | None
    episode: int | None
    changes: int


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
        self._seen_at = float("-inf")

    def ring(self) -> Ring:
        """Return how far they are used."""
        with self.store.engine.connect() as connection:
            return self.ring_of(connection)

    def ring_of(self, connection: Connection, *, locked: bool = False) -> Ring:
        """Return how far they are used.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        found = _ring(connection, self._id, locked=locked)
        if found is None:
            raise self.store.dropped()
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

        def work(connection: Connection) -> list[int]:
            turns = self._free(connection, self._lock(connection), n)
            self._see(connection)
            connection.execute(
                _CLAIM,
                [{**self._key(turn), "turn": turn, "holder": self.holder} for turn in turns],
            )
            return turns

        return self.store.write(work)

    def n_left(self) -> int:
        """Return how many slots can be claimed."""
        with self.store.engine.connect() as connection:
            ring = self.ring_of(connection)
            return sum(1 for _ in self._claimable(ring, self._ahead(connection, ring)))

    def place(self, connection: Connection, key: str, length: int, meta: bytes) -> None:
        """Show a whole episode in the next slot that nobody has, in the transaction that stores its
        steps.

        Raises:
            SlotsFullError: None is left.
        """
        ring = self._lock(connection)
        (turn,) = self._free(connection, ring, 1)
        self._remove(connection, [row.episode_id for row in self._held(connection, [turn])])
        values = {"turn": turn, "key": key, "length": length, "meta": meta}
        connection.execute(_PLACE, {**self._key(turn), **values})
        self._see(connection)
        self._move_on(connection, ring, 1)

    def _free(self, connection: Connection, ring: Ring, n: int) -> list[int]:
        turns = list(islice(self._claimable(ring, self._ahead(connection, ring)), n))
        if len(turns) < n:
            raise SlotsFullError
        return turns

    def _claimable(self, ring: Ring, ahead: "Ahead") -> Iterator[int]:
        """Yield the turns that can be claimed, one of each slot at most."""
        seen: set[int] = set()
        # Past what is furthest ahead each slot has had its chance.
        furthest = max([ring.next_turn, *ahead.used.values()]) + self._n + 1
        for turn in range(ring.next_turn, furthest if self._is_circular else self._n):
            slot = turn % self._n
            if slot not in ahead.held and slot not in seen and turn > ahead.used.get(slot, -1):
                seen.add(slot)
                yield turn

    def _ahead(self, connection: Connection, ring: Ring) -> "Ahead":
        """Return what became of the turns from the next one on, and which slots are held."""
        given = {"buffer_id": self._id, "next_turn": ring.next_turn}
        found = connection.execute(_AHEAD, given).all()
        holders = {holder for _, _, holder in found} - {None, self.holder}
        alive = {self.holder}
        if holders:
            alive |= living(connection, self._id, self.store.info.open_timeout_s)
        return Ahead(
            {slot: turn for slot, turn, holder in found if holder is None},
            {slot for slot, _, holder in found if holder in alive},
            {slot for slot, _, holder in found if holder in alive and holder != self.holder},
        )

    def _see(self, connection: Connection) -> None:
        """Say now and then that this writer lives."""
        if time.monotonic() - self._seen_at >= SEEN_S:
            connection.execute(_SEE, {"buffer_id": self._id, "holder": self.holder})
            self._seen_at = time.monotonic()

    def release(self, turns: Sequence[int]) -> None:
        """Give back slots whose episodes were not finished, and delete those as far as they are
        stored.
        """

        def work(connection: Connection) -> None:
            self._lock(connection)
            own = [row for row in self._held(connection, turns) if self._is_own(row, turns)]
            begun = [row for row in own if row.length is None]
            self._remove(connection, [row.episode_id for row in begun])
            for row in own:
                where = _of(slots, self._id) & (slots.c.slot == row.slot)
                if row in begun:
                    connection.execute(delete(slots).where(where))
                else:
                    connection.execute(update(slots).where(where).values(turn=-1, holder=None))

        if turns:
            self.store.write(work)

    def change(
        self, connection: Connection, begun: Sequence[Opening], ended: Sequence[SlotEnding]
    ) -> None:
        """Show episodes that begin or end, in the transaction that stores their steps.

        Raises:
            SlotLostError: Another writer has one of the slots.
        """
        ring = self._lock(connection)
        self._see(connection)
        empty = [Opening(each.turn, "", each.meta) for each in ended if not each.is_begun]
        self._begin(connection, [*begun, *empty])
        if ended:
            self._finish(connection, ring, ended)

    def _begin(self, connection: Connection, begun: Sequence[Opening]) -> None:
        if not begun:
            return
        turns = [each.turn for each in begun]
        held = self._held(connection, turns)
        if {row.turn for row in held if self._is_own(row, turns)} != set(turns):
            raise SlotLostError
        # Where this is done once more, after a lost connection, it is the episode itself.
        self._remove(connection, [row.episode_id for row in held], {each.key for each in begun})
        connection.execute(
            _BEGIN, [{**self._key(each.turn), "key": each.key, "meta": each.meta} for each in begun]
        )

    def _finish(self, connection: Connection, ring: Ring, ended: Sequence[SlotEnding]) -> None:
        turns = [each.turn for each in ended]
        held = {row.turn: row for row in self._held(connection, turns)}
        if any(turn not in held or held[turn].holder not in (None, self.holder) for turn in turns):
            raise SlotLostError
        # Those that nobody holds have ended: this was committed when its connection was lost.
        left = [each for each in ended if held[each.turn].holder is not None]
        if not left:
            return
        connection.execute(
            _FINISH,
            [{**self._key(each.turn), "length": each.length, "meta": each.meta} for each in left],
        )
        said = [{**self._key(each.turn), "meta": each.said} for each in left if each.said]
        if said:
            connection.execute(_SAY, said)
        self._move_on(connection, ring, len(left))

    def _move_on(self, connection: Connection, ring: Ring, n: int) -> None:
        """Count n more episodes, and go on to the next slot."""
        ahead = self._ahead(connection, ring)
        turn = ring.next_turn
        # A ring goes on past slots that others hold; else they are waited for, and taken should
        # their writer die.
        while turn <= ahead.used.get(turn % self._n, -1) or (
            self._is_circular and len(ahead.others) < self._n and turn % self._n in ahead.others
        ):
            turn += 1
        num = min(ring.num_episodes + n, self._n)
        connection.execute(
            _MOVE_ON, {"buffer_id": self._id, "next_turn": turn, "num_episodes": num}
        )

    def _held(self, connection: Connection, turns: Sequence[int]) -> Sequence[Any]:
        """Return the rows of the slots of turns."""
        given = {"buffer_id": self._id, "slots": [turn % self._n for turn in turns]}
        return connection.execute(_HELD, given).all()

    def _is_own(self, row: Any, turns: Sequence[int]) -> bool:
        return row.holder == self.holder and row.turn in turns

    def _remove(
        self, connection: Connection, numbers: Iterable[int | None], keep: Iterable[str] = ()
    ) -> None:
        """Delete the steps of episodes, and those of the episodes that never ended."""
        left = [number for number in numbers if number is not None]
        if left and keep:
            kept = select(episodes.c.id).where(
                _of(episodes, self._id), episodes.c.id.in_(left), episodes.c.key.in_(list(keep))
            )
            left = sorted(set(left) - set(connection.execute(kept).scalars()))
        if not left:
            return
        self.store.note_deletion(connection)
        seq = unindexed(experiences.c.seq)
        for number in left:
            its = experiences.c.episode_id == number
            remove_where(connection, self._id, its, seq=seq)
        never = _of(episodes, self._id) & (episodes.c.status == "open") & episodes.c.id.in_(left)
        connection.execute(delete(episodes).where(never))

    def shown(self, connection: Connection, wanted: Sequence[int] | None = None) -> list[Shown]:
        """Return what slots show; those that were never used are left out."""
        if wanted is None:
            found = connection.execute(_SHOWN, {"buffer_id": self._id})
        else:
            found = connection.execute(_NAMED_SHOWN, {"buffer_id": self._id, "slots": wanted})
        return [Shown(*row) for row in found]

    def states(self, connection: Connection, wanted: Sequence[int] | None = None) -> list[State]:
        """Return the states of slots; see `shown`."""
        if wanted is None:
            found = connection.execute(_STATES, {"buffer_id": self._id})
        else:
            found = connection.execute(_NAMED_STATES, {"buffer_id": self._id, "slots": wanted})
        return [State(*row) for row in found]

    def states_query(self, wanted: Sequence[int]) -> str:
        """Return the select of the states of slots, one at least, to go along with the beginning of
        a transaction.
        """
        numbers = ", ".join(f"{slot:d}" for slot in wanted)
        return _STATES_QUERY.format(buffer_id=self._id, numbers=numbers)

    def lengths(self, connection: Connection) -> list[tuple[int, int]]:
        """Return (slot, length) of those that show finished episodes with steps."""
        found = connection.execute(_LENGTHS, {"buffer_id": self._id})
        return [(slot, length) for slot, length in found]

    def tails(self, connection: Connection, wanted: Sequence[int]) -> dict[int, bytes]:
        """Return the packed values of steps that have no row."""
        found = connection.execute(_TAILS, {"buffer_id": self._id, "slots": wanted})
        return {slot: bytes(tail) for slot, tail in found}

    def lock(self, connection: Connection) -> None:
        """Keep others from changing anything until the transaction ends."""
        self._lock(connection)

    def note_change(self, connection: Connection) -> None:
        """Have readers not go by what they read before; the caller holds the lock."""
        note_change(connection, self._id)

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
            remove_where(connection, self._id)
            connection.execute(delete(episodes).where(_of(episodes, self._id)))
            clear_slots(connection, self._id)

        self.store.write(work)

    def leave(self) -> None:
        """Be no writer any more."""

        def work(connection: Connection) -> None:
            own = _of(slot_writers, self._id) & (slot_writers.c.holder == self.holder)
            connection.execute(delete(slot_writers).where(own))

        self.store.write(work)

    def _lock(self, connection: Connection) -> Ring:
        return self.ring_of(connection, locked=True)

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


def other_writers(store: BufferStore) -> list[str]:
    """Return those of other processes that write to a buffer's slots."""
    with store.engine.connect() as connection:
        found = living(connection, store.info.id, store.info.open_timeout_s)
    return sorted(each for each in found if not is_here(each))


def living(connection: Connection, buffer_id: int, timeout_s: float) -> set[str]:
    """Return the writers of a buffer that live, as far as that is known."""
    age = age_s(slot_writers.c.seen_at)
    found = connection.execute(
        select(slot_writers.c.holder, age).where(_of(slot_writers, buffer_id))
    )
    return {holder for holder, age_s in found if is_alive(holder, age_s, timeout_s)}


def register(store: BufferStore, holder: str) -> None:
    """Note that a process writes to a buffer's slots; forget those that died, and episodes whose
    steps were deleted by plain SQL.
    """

    def work(connection: Connection) -> None:
        lock_ring(connection, store.info.id)
        empty_slots(connection, store.info.id)
        alive = living(connection, store.info.id, store.info.open_timeout_s)
        of = _of(slot_writers, store.info.id)
        for gone in set(connection.execute(select(slot_writers.c.holder).where(of)).scalars()):
            if gone not in alive:
                connection.execute(delete(slot_writers).where(of, slot_writers.c.holder == gone))
        connection.execute(_SEE, {"buffer_id": store.info.id, "holder": holder})

    store.write(work)


def _ring(connection: Connection, buffer_id: int, *, locked: bool = False) -> Ring | None:
    statement = _LOCKED_RING if locked else _RING
    row = connection.execute(statement, {"buffer_id": buffer_id}).one_or_none()
    return None if row is None else Ring(row[0], row[1], row[2])


def _of(table: Any, buffer_id: int) -> Any:
    return table.c.buffer_id == buffer_id
