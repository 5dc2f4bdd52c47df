"""Take groups out of those that may be fetched.

Their payloads are deleted when no prepared list holds them any more (see `deleting`).

Groups that may be fetched have the places 0 to n - 1, so that a draw of places is a draw of groups.
When some leave, the last ones take their places.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from orjson import loads
from sqlalchemy import BigInteger, Connection, Integer, bindparam, select, update

from sqlbuffer.codec.plain_values import INT64_MIN
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool
from sqlbuffer.storage.extensions.tables import item_groups
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.store import BufferStore

_TABLE = item_groups.c
OWN = _TABLE.buffer_id == ID
IS_NAMED = is_number_of(_TABLE.number, bindparam("named", type_=SeqList()))
_COLUMNS = (
    _TABLE.number, _TABLE.place, _TABLE.use_count, _TABLE.n_bytes, _TABLE.model_version,
    _TABLE.session, _TABLE.seqs,
)  # fmt: skip
_PLACED = _TABLE.place.is_not(None)
_OLDEST = (
    select(*_COLUMNS)
    .where(OWN, _TABLE.number > bindparam("low", type_=BigInteger()), _PLACED)
    .order_by(_TABLE.number)
    .limit(bindparam("count", type_=Integer()))
)
_STALE = (
    select(*_COLUMNS)
    .where(OWN, _TABLE.oldest_version < bindparam("oldest", type_=BigInteger()), _PLACED)
    .order_by(_TABLE.oldest_version, _TABLE.number)
)
_ALL = select(*_COLUMNS).where(OWN, _PLACED).order_by(_TABLE.number)
# Without the condition that the place is not null, which follows from this one: with it SQLite
# would read all groups that have a place.
_AT_PLACES = select(*_COLUMNS).where(
    OWN, is_number_of(_TABLE.place, bindparam("places", type_=SeqList()))
)
_NAMED = select(*_COLUMNS).where(OWN, IS_NAMED)
_LEAVE = update(item_groups).where(OWN, IS_NAMED).values(place=None)
_MOVE = (
    update(item_groups)
    .where(OWN, _PLACED, _TABLE.place == bindparam("old", type_=Integer()))
    .values(place=bindparam("new", type_=Integer()))
)


class ItemGroup(NamedTuple):
    """A row of `item_groups`."""

    number: int
    place: int | None
    use_count: int
    n_bytes: int
    model_version: int
    session: str
    seqs: list[int]


def oldest_allowed(pool: Pool) -> int:
    """Return the oldest version that is fresh."""
    return max(pool.version - pool.rules.max_staleness, INT64_MIN)


def oldest(connection: Connection, buffer_id: int, pool: Pool, n: int) -> list[ItemGroup]:
    """Return the n groups that were inserted first."""
    return _found(connection, _OLDEST, of=buffer_id, low=pool.low_group, count=n)


def stale(connection: Connection, buffer_id: int, allowed: int) -> list[ItemGroup]:
    """Return the groups with a fragment of an older version."""
    return _found(connection, _STALE, of=buffer_id, oldest=allowed)


def every(connection: Connection, buffer_id: int) -> list[ItemGroup]:
    """Return all groups that may be fetched."""
    return _found(connection, _ALL, of=buffer_id)


def at_places(connection: Connection, buffer_id: int, places: Sequence[int]) -> list[ItemGroup]:
    """Return the groups at some places, in the order of the places."""
    found = _found(connection, _AT_PLACES, of=buffer_id, places=places)
    by_place = {group.place: group for group in found}
    return [by_place[place] for place in places]


def named(connection: Connection, buffer_id: int, numbers: Sequence[int]) -> list[ItemGroup]:
    """Return groups by number, also those that have left."""
    return _found(connection, _NAMED, of=buffer_id, named=numbers)


def _found(connection: Connection, statement: Any, **given: Any) -> list[ItemGroup]:
    rows: Any = connection.execute(statement, given)
    return [ItemGroup(*row)._replace(seqs=numbers(row[-1])) for row in rows]


def numbers(stored: Any) -> list[int]:
    """Return a list of numbers, in whichever form the database stores it."""
    found: list[int] = loads(stored) if isinstance(stored, str) else stored
    return found


def leave(
    connection: Connection, buffer_id: int, pool: Pool, leaving: Sequence[ItemGroup], cause: str
) -> None:
    """Take groups out of those that may be fetched, and count them under their cause."""
    if not leaving:
        return
    connection.execute(_LEAVE, {"of": buffer_id, "named": [each.number for each in leaving]})
    free = {each.place for each in leaving}
    n = pool.n_groups - len(leaving)
    holes = sorted(place for place in free if place is not None and place < n)
    last = [place for place in range(n, pool.n_groups) if place not in free]
    if holes:
        moves = zip(last, holes, strict=True)
        connection.execute(_MOVE, [{"of": buffer_id, "old": o, "new": new} for o, new in moves])
    pool.n_groups = n
    pool.n_bytes -= sum(each.n_bytes for each in leaving)
    counts = pool.counts
    setattr(counts, cause, getattr(counts, cause) + len(leaving))
    counts.left_weight += sum(len(each.seqs) for each in leaving)
    counts.left_uses += sum(len(each.seqs) * each.use_count for each in leaving)


def leave_stale(connection: Connection, store: BufferStore, pool: Pool) -> None:
    """Take out all groups that are too old, at any place."""
    found = stale(connection, store.info.id, oldest_allowed(pool))
    leave(connection, store.info.id, pool, found, "stale")


def evict(connection: Connection, store: BufferStore, pool: Pool) -> None:
    """Take out the groups inserted first, until the limits of the buffer hold."""
    over = pool.n_groups - pool.rules.max_chunks
    most = pool.rules.max_bytes
    while over > 0 or (most is not None and pool.n_bytes > most and pool.n_groups > 1):
        found = oldest(connection, store.info.id, pool, max(over, 1))
        leave(connection, store.info.id, pool, found, "evicted")
        pool.low_group = found[-1].number
        over = pool.n_groups - pool.rules.max_chunks
