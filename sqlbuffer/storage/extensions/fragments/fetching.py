"""Fetching chunks, and the list that a fetch prepares for all who ask."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orjson import dumps, loads
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    select,
    text,
    update,
)

from sqlbuffer.storage.buffers.row_lookup import has_key
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.extensions.fragments.leaving import (
    Chunk,
    at_places,
    evict,
    leave,
    leave_stale,
    named,
)
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool, Rules, read
from sqlbuffer.storage.extensions.fragments.tables import chunks, prepared_lists
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.store import BufferStore

# The worker, the number there, and the id of a fragment.
Prepared = tuple[str, int, str]
# Chooses k of n places.
Choose = Callable[[int, int], Sequence[int]]

_LISTS = prepared_lists.c
_LIST = select(_LISTS.token, cast(_LISTS.chunks, Text), cast(_LISTS.fragments, Text)).where(
    _LISTS.buffer_id == ID, _LISTS.consumer == bindparam("consumer", type_=Text())
)
_FORGET = delete(prepared_lists).where(
    _LISTS.buffer_id == ID, _LISTS.consumer == bindparam("consumer", type_=Text())
)
_FRAGMENTS = select(
    experiences.c.seq, experiences.c.task_id, experiences.c.step, experiences.c.id
).where(has_key(ID, bindparam("seqs", type_=SeqList())))
_PREPARE = text(
    "INSERT INTO prepared_lists (buffer_id, consumer, token, chunks, fragments) "
    "VALUES (:of, :consumer, :token, :chunks, :fragments) "
    "ON CONFLICT (buffer_id, consumer) DO UPDATE SET token = excluded.token, "
    "chunks = excluded.chunks, fragments = excluded.fragments, fetched_at = excluded.fetched_at"
)
_TABLE = chunks.c
_NAMED = (_TABLE.buffer_id == ID) & is_number_of(_TABLE.chunk, bindparam("named", type_=SeqList()))
_PIN = update(chunks).where(_NAMED).values(n_pins=_TABLE.n_pins + 1)
_USE = _PIN.values(use_count=_TABLE.use_count + 1)
_UNPIN = update(chunks).where(_NAMED).values(n_pins=_TABLE.n_pins - 1)
_UNUSE = update(chunks).where(_NAMED).values(use_count=_TABLE.use_count - 1)
_BACK = (
    update(chunks)
    .where(_TABLE.buffer_id == ID, _TABLE.chunk == bindparam("which", type_=BigInteger()))
    .values(place=bindparam("place_", type_=Integer()))
)


class RulesChangedError(Exception):
    """Another process has cleared the buffer and given it other rules, which this carries."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.rules = rules


@dataclass(frozen=True)
class List:
    """What was prepared for a consumer.

    Attributes:
        token: The call that fetched it.
        chunks: Its chunks, in order.
        fragments: Its fragments, in order.
    """

    token: str = ""
    chunks: list[int] = field(default_factory=list)
    fragments: list[Prepared] = field(default_factory=list)


@dataclass(frozen=True)
class Fetched:
    """What a try to fetch came to.

    Attributes:
        fragments: The list; None: there were too few chunks.
        pool: The state behind it.
    """

    fragments: list[Prepared] | None
    pool: Pool


def prepared(connection: Connection, buffer_id: int, consumer: str) -> List:
    """Return what was prepared for a consumer last."""
    found: Any = connection.execute(_LIST, {"of": buffer_id, "consumer": consumer}).one_or_none()
    if found is None:
        return List()
    token, numbers, fragments = found
    return List(
        token, loads(numbers), [(worker, fid, id_) for worker, fid, id_ in loads(fragments)]
    )


def fetch(
    connection: Connection,
    store: BufferStore,
    rules: Rules,
    k: int,
    choose: Choose,
    consumer: str,
    token: str,
) -> Fetched:
    """Hand out k chunks, if there are so many, and prepare them in place of what was prepared.

    Args:
        connection: The transaction.
        store: The buffer.
        rules: The rules that `k` was made by.
        k: How many.
        choose: Chooses them.
        consumer: Whose list.
        token: Names the call: done once more, after a lost connection, it returns what it fetched.

    Raises:
        RulesChangedError: The buffer goes by other rules by now.
    """
    pool = read(connection, store, locked=True)
    if pool.rules != rules:
        raise RulesChangedError(pool.rules)
    before = prepared(connection, store.info.id, consumer)
    if before.token == token:
        return Fetched(before.fragments, pool)
    leave_stale(connection, store, pool)
    chosen, fragments = _draw(connection, store, pool, k, choose)
    if chosen is not None:
        _hand_out(connection, store, pool, chosen)
        _replace(connection, store, before, consumer, token, chosen, fragments)
    pool.save(connection, store.info.id)
    return Fetched(None if chosen is None else fragments, pool)


def _draw(
    connection: Connection, store: BufferStore, pool: Pool, k: int, choose: Choose
) -> tuple[list[Chunk] | None, list[Prepared]]:
    """Return k chunks and their fragments; None: there are fewer."""
    while pool.n_chunks >= k:
        chosen = at_places(connection, store.info.id, choose(pool.n_chunks, k)) if k else []
        by_seq = _fragments(connection, store.info.id, chosen)
        broken = [each for each in chosen if any(seq not in by_seq for seq in each.seqs)]
        if not broken:
            return chosen, [by_seq[seq] for each in chosen for seq in each.seqs]
        # Somebody deleted rows by hand.
        leave(connection, store.info.id, pool, broken, "broken")
    return None, []


def _fragments(
    connection: Connection, buffer_id: int, chosen: Sequence[Chunk]
) -> dict[int, Prepared]:
    seqs = [seq for each in chosen for seq in each.seqs]
    if not seqs:
        return {}
    rows = connection.execute(_FRAGMENTS, {"of": buffer_id, "seqs": seqs})
    return {seq: (worker, fid, id_) for seq, worker, fid, id_ in rows}


def _hand_out(
    connection: Connection,
    store: BufferStore,
    pool: Pool,
    chosen: Sequence[Chunk],
) -> None:
    """Count a use of each chunk; those used as often as they may be leave."""
    counts = pool.counts
    if chosen:
        given = {"of": store.info.id, "named": [each.chunk for each in chosen]}
        connection.execute(_USE, given)
        used = [each._replace(use_count=each.use_count + 1) for each in chosen]
        done = [each for each in used if each.use_count >= pool.rules.max_reuse]
        leave(connection, store.info.id, pool, done, "used_up")
        counts.fetches += 1
        counts.fetched += len(chosen)
        ages = [pool.version - each.model_version for each in chosen]
        counts.staleness = sum(ages) / len(ages)
        counts.reuse = counts.left_uses / counts.left_weight if counts.left_weight else None
        counts.left_uses = counts.left_weight = 0


def _replace(
    connection: Connection,
    store: BufferStore,
    before: List,
    consumer: str,
    token: str,
    chosen: Sequence[Chunk],
    fragments: list[Prepared],
) -> None:
    """Prepare a list in place of another, whose chunks are held no more; an empty one is none."""
    if not chosen:
        hold_no_more(connection, store.info.id, consumer, before.chunks)
        return
    _unpin(connection, store.info.id, before.chunks)
    given: dict[str, Any] = {
        "of": store.info.id,
        "consumer": consumer,
        "token": token,
        "chunks": dumps([each.chunk for each in chosen]).decode(),
        "fragments": dumps(fragments).decode(),
    }
    connection.execute(_PREPARE, given)


def _unpin(connection: Connection, buffer_id: int, held: Sequence[int]) -> None:
    if held:
        connection.execute(_UNPIN, {"of": buffer_id, "named": held})


def hold_no_more(
    connection: Connection, buffer_id: int, consumer: str, held: Sequence[int]
) -> None:
    """Forget the list of a consumer, which holds those chunks."""
    _unpin(connection, buffer_id, held)
    connection.execute(_FORGET, {"of": buffer_id, "consumer": consumer})


def release(connection: Connection, store: BufferStore, consumer: str) -> int:
    """Give back what was prepared for a consumer, as if it had not been fetched.

    Returns:
        How many of its chunks may be fetched.
    """
    pool = read(connection, store, locked=True)
    before = prepared(connection, store.info.id, consumer)
    if not before.chunks:
        return 0
    given = {"of": store.info.id, "named": before.chunks}
    connection.execute(_UNUSE, given)
    held = named(connection, store.info.id, before.chunks)
    # What has left only because it was used up may be fetched again.
    back = [
        each
        for each in held
        if each.place is None
        and each.use_count == pool.rules.max_reuse - 1
        and each.session == pool.session
    ]
    for each in sorted(back):
        place = {"of": store.info.id, "which": each.chunk, "place_": pool.n_chunks}
        connection.execute(_BACK, place)
        pool.n_chunks += 1
        pool.n_bytes += each.n_bytes
        pool.counts.used_up -= 1
        pool.low_chunk = min(pool.low_chunk, each.chunk - 1)
    pool.counts.fetched -= len(before.chunks)
    _replace(connection, store, before, consumer, "", [], [])
    leave_stale(connection, store, pool)
    evict(connection, store, pool)
    pool.save(connection, store.info.id)
    found = named(connection, store.info.id, before.chunks)
    return sum(each.place is not None for each in found)
