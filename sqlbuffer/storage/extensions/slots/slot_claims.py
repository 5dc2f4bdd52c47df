"""The slots that one writer claims and fills.

A writer claims a slot. It begins the slot in the transaction that stores the first step of its
episode, and finishes it in the one that stores the last. Its previous episode leaves when it is
begun.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    bindparam,
    delete,
    select,
    text,
    union,
    update,
)

from sqlbuffer.encoding.episode_records import EpisodeEnd
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.extensions import participants
from sqlbuffer.storage.extensions.slots.episode_slots import (
    Ring,
    of_buffer,
    ring_of,
    set_episode_metas,
)
from sqlbuffer.storage.extensions.slots.slot_lookups import remove_episode
from sqlbuffer.storage.extensions.slots.slot_writers import living
from sqlbuffer.storage.extensions.tables import WRITER, slots
from sqlbuffer.storage.schema.parameters import SeqList, is_number_of
from sqlbuffer.storage.store import BufferStore

# Made once: building them again takes several times as long as running them.
_ID = bindparam("buffer_id", type_=Integer())
_NAMED = is_number_of(slots.c.slot, bindparam("slots", type_=SeqList()))
_OWN_TURN = select(slots.c.slot, slots.c.turn, slots.c.holder).where(slots.c.buffer_id == _ID)
_AHEAD = union(
    _OWN_TURN.where(slots.c.turn >= bindparam("next_turn", type_=BigInteger())),
    _OWN_TURN.where(slots.c.holder.is_not(None)),
)
_HELD = select(
    slots.c.slot, slots.c.turn, slots.c.holder, slots.c.length, slots.c.episode_id
).where(slots.c.buffer_id == _ID, _NAMED)
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
_MOVE_ON = text(
    "UPDATE buffer_layouts SET next_number = :next_turn, n_held = :num_episodes "
    "WHERE buffer_id = :buffer_id"
)
# Only episodes that never ended.
_FORGET = text("DELETE FROM episodes WHERE buffer_id = :buffer_id AND id = :id AND status = 'open'")
# Interval in seconds at which a writer reports that it is alive.
SEEN_S = 60.0


class SlotsFullError(Exception):
    """No slot is left."""


class SlotLostError(Exception):
    """Another writer took a slot because it considered the owner dead."""


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
    """The end of an episode in a slot.

    Attributes:
        turn: The slot's turn.
        meta: The slot's packed meta values.
        said: Their JSON, for the list of episodes; None if that has it.
        is_begun: It has steps.
    """

    turn: int = 0
    meta: bytes = b""
    said: str | None = None
    is_begun: bool = True


class Ahead(NamedTuple):
    """Slots that are not simply the next ones.

    Attributes:
        used: Last turn of each slot that was finished in a turn not yet passed.
        held: Slots that a live writer has claimed.
        others: Held slots of other writers.
    """

    used: dict[int, int]
    held: set[int]
    others: set[int]


class SlotClaims:
    """The slots of one buffer, for one writer.

    Args:
        store: The buffer.
        n_slots: Number of slots.
        is_circular: Slots are used again.
        holder: The writer.
    """

    def __init__(self, store: BufferStore, n_slots: int, is_circular: bool, holder: str) -> None:
        self.store, self._n, self._is_circular = store, n_slots, is_circular
        self._id, self.holder = store.info.id, holder
        self._seen_at = float("-inf")

    def claim(self, n: int) -> list[int]:
        """Claim the next n free slots for this writer; return their turns.

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

        def work(connection: Connection) -> int:
            ring = ring_of(connection, self.store)
            return sum(1 for _ in self._claimable(ring, self._ahead(connection, ring)))

        return self.store.read(work)

    def place(self, connection: Connection, key: str, length: int, meta: bytes) -> None:
        """Put a whole episode into the next free slot, in the transaction that stores its steps.

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

    def _claimable(self, ring: Ring, ahead: Ahead) -> Iterator[int]:
        """Yield the turns that can be claimed, at most one of each slot."""
        seen: set[int] = set()
        # Past the furthest used turn, each slot has been checked once.
        furthest = max([ring.next_turn, *ahead.used.values()]) + self._n + 1
        for turn in range(ring.next_turn, furthest if self._is_circular else self._n):
            slot = turn % self._n
            if slot not in ahead.held and slot not in seen and turn > ahead.used.get(slot, -1):
                seen.add(slot)
                yield turn

    def _ahead(self, connection: Connection, ring: Ring) -> Ahead:
        """Return the used turns from the next one on, and the held slots."""
        given = {"buffer_id": self._id, "next_turn": ring.next_turn}
        found = connection.execute(_AHEAD, given).all()
        holders = {holder for _, _, holder in found} - {None, self.holder}
        alive = {self.holder}
        if holders:
            alive |= living(connection, self._id, self.store.info.config.episodes.open_timeout_s)
        return Ahead(
            {slot: turn for slot, turn, holder in found if holder is None},
            {slot for slot, _, holder in found if holder in alive},
            {slot for slot, _, holder in found if holder in alive and holder != self.holder},
        )

    def _see(self, connection: Connection) -> None:
        """Report from time to time that this writer is alive."""
        if time.monotonic() - self._seen_at >= SEEN_S:
            participants.note_seen(connection, self._id, WRITER, self.holder)
            self._seen_at = time.monotonic()

    def release(self, turns: Sequence[int]) -> None:
        """Give back slots with unfinished episodes, and delete the stored steps of these."""

        def work(connection: Connection) -> None:
            self._lock(connection)
            own = [row for row in self._held(connection, turns) if self._is_own(row, turns)]
            begun = [row for row in own if row.length is None]
            self._remove(connection, [row.episode_id for row in begun])
            for row in own:
                where = of_buffer(slots, self._id) & (slots.c.slot == row.slot)
                if row in begun:
                    connection.execute(delete(slots).where(where))
                else:
                    connection.execute(update(slots).where(where).values(turn=-1, holder=None))

        if turns:
            self.store.write(work)

    def change(
        self, connection: Connection, begun: Sequence[Opening], ended: Sequence[SlotEnding]
    ) -> None:
        """Update slots of episodes that begin or end, in the transaction that stores the steps.

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
        # If this is repeated after a lost connection, the slot already has this episode.
        self._remove(connection, [row.episode_id for row in held], {each.key for each in begun})
        connection.execute(
            _BEGIN, [{**self._key(each.turn), "key": each.key, "meta": each.meta} for each in begun]
        )

    def _finish(self, connection: Connection, ring: Ring, ended: Sequence[SlotEnding]) -> None:
        turns = [each.turn for each in ended]
        held = {row.turn: row for row in self._held(connection, turns)}
        if any(turn not in held or held[turn].holder not in (None, self.holder) for turn in turns):
            raise SlotLostError
        # Slots without a holder have ended: this was committed when its connection was lost.
        left = [each for each in ended if held[each.turn].holder is not None]
        if not left:
            return
        connection.execute(
            _FINISH,
            [{**self._key(each.turn), "length": each.length, "meta": each.meta} for each in left],
        )
        said = [{**self._key(each.turn), "meta": each.said} for each in left if each.said]
        set_episode_metas(connection, said)
        self._move_on(connection, ring, len(left))

    def _move_on(self, connection: Connection, ring: Ring, n: int) -> None:
        """Count n more episodes, and move on to the next slot."""
        ahead = self._ahead(connection, ring)
        turn = ring.next_turn
        # A ring skips slots that others hold. Otherwise it waits for them, and takes them if their
        # writer dies.
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
        """Delete the steps of episodes, and the rows of episodes that never ended."""
        left = [number for number in numbers if number is not None]
        if left and keep:
            kept = select(episodes.c.id).where(
                of_buffer(episodes, self._id),
                episodes.c.id.in_(left),
                episodes.c.key.in_(list(keep)),
            )
            left = sorted(set(left) - set(connection.execute(kept).scalars()))
        if not left:
            return
        for number in left:
            remove_episode(connection, self._id, number)
        connection.execute(_FORGET, [{"buffer_id": self._id, "id": number} for number in left])

    def leave(self) -> None:
        """Remove this writer."""
        self.store.write(
            lambda connection: participants.forget(connection, self._id, WRITER, self.holder)
        )

    def _lock(self, connection: Connection) -> Ring:
        return ring_of(connection, self.store, locked=True)

    def _key(self, turn: int) -> dict[str, Any]:
        return {"buffer_id": self._id, "slot": turn % self._n}
