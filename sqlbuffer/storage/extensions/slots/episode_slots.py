"""Numbered places that each show one episode, used in turn, for `compat.memmap`.

A turn counts the slots through every lap: turn modulo number of slots is the slot. Every change
locks the row of `buffer_layouts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    Text,
    bindparam,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from sqlbuffer.storage.extensions.slots.slot_layout import (
    note_change,
)
from sqlbuffer.storage.extensions.tables import buffer_layouts, slots
from sqlbuffer.storage.schema.parameters import SeqList, is_number_of
from sqlbuffer.storage.store import BufferStore

# Made once: building them again takes several times as long as running them.
_ID = bindparam("buffer_id", type_=Integer())
_NAMED = is_number_of(slots.c.slot, bindparam("slots", type_=SeqList()))
_RING = select(buffer_layouts.c.next_number, buffer_layouts.c.n_held).where(
    buffer_layouts.c.buffer_id == _ID
)
_LOCKED_RING = _RING.with_for_update()
_SHOWN = select(slots.c.slot, slots.c.length, slots.c.meta).where(slots.c.buffer_id == _ID)
_NAMED_SHOWN = _SHOWN.where(_NAMED)
_CHANGES = (
    select(buffer_layouts.c.changes).where(buffer_layouts.c.buffer_id == _ID).scalar_subquery()
)
_STATES = select(slots.c.slot, slots.c.length, slots.c.episode_id, _CHANGES).where(
    slots.c.buffer_id == _ID
)
_NAMED_STATES = _STATES.where(_NAMED)
# Its parameters are numbers only.
_STATES_QUERY = (
    "SELECT slot, length, episode_id, "
    "(SELECT changes FROM buffer_layouts WHERE buffer_id = {buffer_id:d}) "
    "FROM slots WHERE buffer_id = {buffer_id:d} AND slot IN ({numbers})"
)
_LENGTHS = select(slots.c.slot, slots.c.length).where(slots.c.buffer_id == _ID, slots.c.length > 0)
_TAILS = select(slots.c.slot, slots.c.tail).where(
    slots.c.buffer_id == _ID, _NAMED, slots.c.tail.is_not(None)
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
).bindparams(bindparam("meta", type_=Text().with_variant(postgresql.JSONB(), "postgresql")))


@dataclass(frozen=True)
class Ring:
    """The slots of a buffer.

    Attributes:
        next_turn: Turns below this one are finished.
        num_episodes: Episodes finished, at most one a slot.
    """

    next_turn: int
    num_episodes: int


class Shown(NamedTuple):
    """The episode in a slot; an episode that is being written has no length."""

    slot: int
    length: int | None
    meta: bytes | None


class State(NamedTuple):
    """The state of a slot.

    Attributes:
        slot: The slot.
        length: Steps; None while they are being written.
        episode: Number of the episode in it.
        changes: How often stored steps of the buffer were changed in place.
    """

    slot: int
    length: int | None
    episode: int | None
    changes: int


class Slots:
    """The episodes in the slots of one buffer.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self.store, self._id = store, store.info.id

    def ring(self) -> Ring:
        """Return the progress of the slots."""
        return self.store.read(lambda connection: ring_of(connection, self.store))

    def set_ring(self, next_turn: int | None = None, num_episodes: int | None = None) -> None:
        """Set the progress by hand; slots from there on are free."""
        values = {"next_number": next_turn, "n_held": num_episodes}
        given = {name: value for name, value in values.items() if value is not None}

        def work(connection: Connection) -> None:
            self.lock(connection)
            connection.execute(
                update(buffer_layouts).where(of_buffer(buffer_layouts, self._id)).values(given)
            )
            if next_turn is not None:
                ahead = of_buffer(slots, self._id) & (slots.c.turn >= next_turn)
                free = update(slots).where(ahead, slots.c.holder.is_(None))
                connection.execute(free.values(turn=-1))

        self.store.write(work)

    def shown(self, connection: Connection, wanted: Sequence[int] | None = None) -> list[Shown]:
        """Return the episodes in slots, without slots that were never used."""
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
        """Return the select of the states of at least one slot.

        It can be sent with the begin of a transaction.
        """
        numbers = ", ".join(f"{slot:d}" for slot in wanted)
        return _STATES_QUERY.format(buffer_id=self._id, numbers=numbers)

    def lengths(self, connection: Connection) -> list[tuple[int, int]]:
        """Return (slot, length) of finished episodes with steps."""
        found = connection.execute(_LENGTHS, {"buffer_id": self._id})
        return [(slot, length) for slot, length in found]

    def tails(self, connection: Connection, wanted: Sequence[int]) -> dict[int, bytes]:
        """Return the packed values of steps that have no row."""
        found = connection.execute(_TAILS, {"buffer_id": self._id, "slots": wanted})
        return {slot: bytes(tail) for slot, tail in found}

    def lock(self, connection: Connection) -> None:
        """Keep other transactions from changing the slots until this one ends."""
        ring_of(connection, self.store, locked=True)

    def note_change(self, connection: Connection) -> None:
        """Tell readers that rows have changed since they read them; the caller holds the lock."""
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
        """Set packed meta values, and the JSON of slots with an episode."""
        self._set(connection, _SET_META, metas)
        told = [{"buffer_id": self._id, "slot": s, "meta": text_} for s, text_ in said.items()]
        set_episode_metas(connection, told)

    def _set(self, connection: Connection, statement: Any, values: Mapping[int, Any]) -> None:
        rows = [{"buffer_id": self._id, "slot": s, "value": v} for s, v in values.items()]
        if rows:
            connection.execute(statement, rows)


def ring_of(connection: Connection, store: BufferStore, *, locked: bool = False) -> Ring:
    """Return the progress of the slots of a buffer.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """
    statement = _LOCKED_RING if locked else _RING
    found = connection.execute(statement, {"buffer_id": store.info.id}).one_or_none()
    if found is None:
        raise store.dropped()
    return Ring(*found)


def set_episode_metas(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Set the JSON of the episodes in slots: `buffer_id`, `slot` and `meta` of each."""
    if rows:
        connection.execute(_SAY, rows)


def of_buffer(table: Any, buffer_id: int) -> Any:
    """Return the condition for the rows of a buffer."""
    return table.c.buffer_id == buffer_id
