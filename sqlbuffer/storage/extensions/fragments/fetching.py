"""Fetch groups, and prepare their fragments as a list that every process can read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    bindparam,
    select,
    update,
)

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.extensions.fragments.leaving import (
    IS_NAMED,
    OWN,
    ItemGroup,
    at_places,
    evict,
    leave,
    leave_stale,
    named,
)
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool, Rules, read
from sqlbuffer.storage.extensions.participants import forget, note_seen, state_of
from sqlbuffer.storage.extensions.tables import CONSUMER, item_groups
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.number_keys import has_number
from sqlbuffer.storage.store import BufferStore

# Worker, its number at the worker, and id of a fragment.
Prepared = tuple[str, int, str]
# Chooses k of n places.
Choose = Callable[[int, int], Sequence[int]]

_FRAGMENTS = select(
    experiences.c.seq, experiences.c.task_id, experiences.c.step, experiences.c.id
).where(has_number(experiences.c.seq, ID, bindparam("seqs", type_=SeqList())))
_TABLE = item_groups.c
_PIN = update(item_groups).where(OWN, IS_NAMED).values(n_pins=_TABLE.n_pins + 1)
_USE = _PIN.values(use_count=_TABLE.use_count + 1)
_UNPIN = update(item_groups).where(OWN, IS_NAMED).values(n_pins=_TABLE.n_pins - 1)
_UNUSE = update(item_groups).where(OWN, IS_NAMED).values(use_count=_TABLE.use_count - 1)
_BACK = (
    update(item_groups)
    .where(OWN, _TABLE.number == bindparam("which", type_=BigInteger()))
    .values(place=bindparam("place_", type_=Integer()))
)


class RulesChangedError(Exception):
    """Another process has cleared the buffer and set the rules that this error carries."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules)
        self.rules = rules


@dataclass(frozen=True)
class List:
    """The list that was prepared for a consumer.

    Attributes:
        token: Call that fetched it.
        groups: Its groups, in order.
        fragments: Its fragments, in order.
    """

    token: str = ""
    groups: list[int] = field(default_factory=list)
    fragments: list[Prepared] = field(default_factory=list)


@dataclass(frozen=True)
class Fetched:
    """The result of an attempt to fetch.

    Attributes:
        fragments: The list; None if there were too few groups.
        pool: State after the attempt.
    """

    fragments: list[Prepared] | None
    pool: Pool


def prepared(connection: Connection, buffer_id: int, consumer: str) -> List:
    """Return the list that was prepared last for a consumer."""
    state = state_of(connection, buffer_id, CONSUMER, consumer)
    if state is None:
        return List()
    fragments = [(worker, fid, id_) for worker, fid, id_ in state["fragments"]]
    return List(state["token"], state["groups"], fragments)


def fetch(
    connection: Connection,
    store: BufferStore,
    rules: Rules,
    k: int,
    choose: Choose,
    consumer: str,
    token: str,
) -> Fetched:
    """Fetch k groups, if there are enough, and prepare them in place of the previous list.

    Args:
        connection: The transaction.
        store: The buffer.
        rules: The rules for which `k` was computed.
        k: Number of groups.
        choose: Function that chooses them.
        consumer: Consumer of the list.
        token: Name of the call. If it is repeated after a lost connection, it returns the groups
            that it fetched.

    Raises:
        RulesChangedError: The buffer has other rules now.
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
) -> tuple[list[ItemGroup] | None, list[Prepared]]:
    """Return k groups and their fragments; None if there are fewer."""
    while pool.n_groups >= k:
        chosen = at_places(connection, store.info.id, choose(pool.n_groups, k)) if k else []
        by_seq = _fragments(connection, store.info.id, chosen)
        broken = [each for each in chosen if any(seq not in by_seq for seq in each.seqs)]
        if not broken:
            return chosen, [by_seq[seq] for each in chosen for seq in each.seqs]
        # Rows were deleted by plain SQL.
        leave(connection, store.info.id, pool, broken, "broken")
    return None, []


def _fragments(
    connection: Connection, buffer_id: int, chosen: Sequence[ItemGroup]
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
    chosen: Sequence[ItemGroup],
) -> None:
    """Count a use of each group; groups that reach `max_reuse` leave."""
    counts = pool.counts
    if chosen:
        given = {"of": store.info.id, "named": [each.number for each in chosen]}
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
    chosen: Sequence[ItemGroup],
    fragments: list[Prepared],
) -> None:
    """Prepare a list in place of another one, and release the groups of that one.

    An empty list counts as no list.
    """
    if not chosen:
        hold_no_more(connection, store.info.id, consumer, before.groups)
        return
    _unpin(connection, store.info.id, before.groups)
    new = List(token, [each.number for each in chosen], fragments)
    note_seen(connection, store.info.id, CONSUMER, consumer, vars(new))


def _unpin(connection: Connection, buffer_id: int, held: Sequence[int]) -> None:
    if held:
        connection.execute(_UNPIN, {"of": buffer_id, "named": held})


def hold_no_more(
    connection: Connection, buffer_id: int, consumer: str, held: Sequence[int]
) -> None:
    """Delete the list of a consumer, and release its groups."""
    _unpin(connection, buffer_id, held)
    forget(connection, buffer_id, CONSUMER, consumer)


def release(connection: Connection, store: BufferStore, consumer: str) -> int:
    """Give back the list of a consumer, as if it had not been fetched.

    Returns:
        Number of its groups that may be fetched.
    """
    pool = read(connection, store, locked=True)
    before = prepared(connection, store.info.id, consumer)
    if not before.groups:
        return 0
    given = {"of": store.info.id, "named": before.groups}
    connection.execute(_UNUSE, given)
    held = named(connection, store.info.id, before.groups)
    # A group that left only because it was used up may be fetched again.
    back = [
        each
        for each in held
        if each.place is None
        and each.use_count == pool.rules.max_reuse - 1
        and each.session == pool.session
    ]
    for each in sorted(back):
        place = {"of": store.info.id, "which": each.number, "place_": pool.n_groups}
        connection.execute(_BACK, place)
        pool.n_groups += 1
        pool.n_bytes += each.n_bytes
        pool.counts.used_up -= 1
        pool.low_group = min(pool.low_group, each.number - 1)
    pool.counts.fetched -= len(before.groups)
    _replace(connection, store, before, consumer, "", [], [])
    leave_stale(connection, store, pool)
    evict(connection, store, pool)
    pool.save(connection, store.info.id)
    found = named(connection, store.info.id, before.groups)
    return sum(each.place is not None for each in found)
