"""The row that says what state a buffer's chunks are in.

Whoever changes anything about chunks holds it, so that its numbers are exact with any number of
processes. Payloads are written before it is taken, and wait for nobody.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from orjson import dumps, loads
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    insert,
    select,
    update,
)

from sqlbuffer.storage.extensions.fragments.tables import fragment_pools
from sqlbuffer.storage.extensions.tables import FRAGMENTS
from sqlbuffer.storage.rows.payload_parts import keep_parts
from sqlbuffer.storage.schema.metadata import JSON, json_literal
from sqlbuffer.storage.store import BufferStore

ID = bindparam("of", type_=Integer())
_TABLE = fragment_pools.c
_POOL = select(
    cast(_TABLE.config, Text),
    _TABLE.session,
    _TABLE.version,
    _TABLE.n_chunks,
    _TABLE.n_bytes,
    _TABLE.next_chunk,
    _TABLE.low_chunk,
    cast(_TABLE.counts, Text),
).where(_TABLE.buffer_id == ID)
_LOCKED = _POOL.with_for_update()
_CONFIG = select(cast(_TABLE.config, Text)).where(_TABLE.buffer_id == ID)


def as_json(name: str) -> Any:
    """Return the parameter for a JSON column that is given as text."""
    return cast(bindparam(name, type_=Text()), JSON)


_SAVE = (
    update(fragment_pools)
    .where(_TABLE.buffer_id == ID)
    .values(
        {
            _TABLE.session: bindparam("session", type_=Text()),
            **{
                _TABLE[name]: bindparam(name, type_=BigInteger())
                for name in ("version", "n_chunks", "n_bytes", "next_chunk", "low_chunk")
            },
            _TABLE.counts: as_json("counts"),
        }
    )
)


@dataclass(frozen=True)
class Rules:
    """What a buffer was made with.

    Attributes:
        max_chunks: Chunks that may be fetched at most; the oldest leave first.
        max_staleness: By how much a fragment may be behind the model's version.
        max_reuse: How often a chunk is fetched at most.
        fragments_per_chunk: Consecutive fragments of one worker that are a chunk.
        max_bytes: Bytes of payloads of the chunks that may be fetched; None: any.
        fragments_per_report: Every so many fragments the state is reported; nothing else depends
            on it. None: never.
    """

    max_chunks: int
    max_staleness: int
    max_reuse: int
    fragments_per_chunk: int
    max_bytes: int | None = None
    fragments_per_report: int | None = None

    def differences(self, stored: "Rules") -> list[str]:
        """Return what is stored otherwise, a line each, of what decides about fragments."""
        return [
            f"{each.name}: stored {getattr(stored, each.name)} vs passed {getattr(self, each.name)}"
            for each in fields(self)
            if getattr(self, each.name) != getattr(stored, each.name)
            and each.name != "fragments_per_report"
        ]


@dataclass
class PoolCounts:
    """What was added to a buffer and what left it, since it was made.

    Attributes:
        fragments: Fragments added.
        chunks: Chunks that were made of them.
        fetches: Fetches that handed out chunks.
        fetched: Chunks handed out.
        used_up: Chunks that left because they were fetched as often as they may be.
        evicted: Chunks that left because there were too many.
        stale: Chunks that left because a fragment was too old.
        other_session: Chunks that left because another session began.
        broken: Chunks that left because a fragment of theirs was deleted.
        dropped: Fragments that left before they were part of a chunk: too old, of another
            session, or before a gap.
        gaps: How often a worker left out numbers.
        missing: How many numbers.
        left_weight: Fragments that left since the last fetch.
        left_uses: The uses of each of them, added up.
        reuse: Their mean when the last fetch was; None: nothing had left.
        staleness: The mean staleness of what the last fetch handed out; None: none was.
        reported: Fragments when it was reported last.
        reported_at: When that was, in Unix time.
        per_second: Fragments a second between the last two reports; None: there were none.
    """

    fragments: int = 0
    chunks: int = 0
    fetches: int = 0
    fetched: int = 0
    used_up: int = 0
    evicted: int = 0
    stale: int = 0
    other_session: int = 0
    broken: int = 0
    dropped: int = 0
    gaps: int = 0
    missing: int = 0
    left_weight: int = 0
    left_uses: int = 0
    reuse: float | None = None
    staleness: float | None = None
    reported: int = 0
    reported_at: float | None = None
    per_second: float | None = None


@dataclass
class Pool:
    """What state the chunks of a buffer are in.

    Attributes:
        rules: What they go by.
        session: The training session now.
        version: The model version now.
        n_chunks: Chunks that may be fetched.
        n_bytes: Bytes of their payloads.
        next_chunk: Number of the next chunk.
        low_chunk: No chunk up to this one may be fetched.
        counts: What was added and what left.
    """

    rules: Rules
    session: str = ""
    version: int = -1
    n_chunks: int = 0
    n_bytes: int = 0
    next_chunk: int = 1
    low_chunk: int = 0
    counts: PoolCounts = field(default_factory=PoolCounts)

    def save(self, connection: Connection, buffer_id: int) -> None:
        """Write it, but for the rules."""
        values = {n: value for n, value in vars(self).items() if n not in ("rules", "counts")}
        counts = dumps(asdict(self.counts)).decode()
        connection.execute(_SAVE, {**values, "counts": counts, "of": buffer_id})


def read(connection: Connection, store: BufferStore, *, locked: bool = False) -> Pool:
    """Return the state of a buffer's chunks.

    Args:
        connection: The transaction.
        store: The buffer.
        locked: Keep others from changing anything until the transaction ends.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """
    statement = _LOCKED if locked else _POOL
    found: Any = connection.execute(statement, {"of": store.info.id}).one_or_none()
    if found is None:
        raise store.dropped()
    pool = Pool(*found)
    pool.rules, pool.counts = Rules(**loads(found[0])), PoolCounts(**loads(found[-1]))
    return pool


def find_rules(store: BufferStore) -> Rules | None:
    """Return what a buffer's chunks were made with, or None where it has none."""
    if store.info.layout != FRAGMENTS:
        return None
    with store.engine.connect() as connection:
        return _rules(connection, store)


def make(store: BufferStore, rules: Rules) -> None:
    """Give a buffer chunks, unless it has some."""

    def work(connection: Connection) -> None:
        store.lock(connection)
        # Now, so that no writer holds the row of the buffer while it waits for that of the chunks.
        keep_parts(connection, store.info.id, [])
        if _rules(connection, store) is None:
            values = {
                "buffer_id": store.info.id,
                "config": json_literal(asdict(rules)),
                "session": "",
                "counts": json_literal(asdict(PoolCounts())),
            }
            connection.execute(insert(fragment_pools).values(values))

    store.write(work)


def change_rules(connection: Connection, store: BufferStore, rules: Rules) -> None:
    """Go by other rules from now on."""
    changed = update(fragment_pools).where(_TABLE.buffer_id == store.info.id)
    connection.execute(changed.values(config=json_literal(asdict(rules))))


def _rules(connection: Connection, store: BufferStore) -> Rules | None:
    text = connection.execute(_CONFIG, {"of": store.info.id}).scalar_one_or_none()
    if text is None:
        return None
    stored: Mapping[str, Any] = loads(text)
    return Rules(**stored)
