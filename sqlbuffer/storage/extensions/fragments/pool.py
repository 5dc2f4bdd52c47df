"""The state of a buffer's groups, in its row of `buffer_layouts`.

Every change of groups locks that row, so that its numbers are exact with any number of processes.
Payloads are written before the lock is taken, and wait for no other process.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from orjson import dumps, loads
from sqlalchemy import (
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    select,
    update,
)

from sqlbuffer.storage.extensions.layout_rows import make_layout, stored_config
from sqlbuffer.storage.extensions.tables import FRAGMENTS, buffer_layouts
from sqlbuffer.storage.rows.payload_parts import keep_parts
from sqlbuffer.storage.schema.metadata import json_parameter
from sqlbuffer.storage.store import BufferStore

ID = bindparam("of", type_=Integer())
_OWN = buffer_layouts.c.buffer_id == ID
_POOL = select(cast(buffer_layouts.c.config, Text), cast(buffer_layouts.c.state, Text)).where(_OWN)
_LOCKED = _POOL.with_for_update()
_SAVE = update(buffer_layouts).where(_OWN).values(state=json_parameter("value"))
_CHANGE = update(buffer_layouts).where(_OWN).values(config=json_parameter("value"))


@dataclass(frozen=True)
class Rules:
    """What a buffer was made with.

    Attributes:
        max_chunks: Groups that may be fetched at most; the oldest leave first.
        max_staleness: By how much a fragment may be behind the model's version.
        max_reuse: How often a group is fetched at most.
        fragments_per_chunk: Consecutive fragments of one worker that are a group.
        max_bytes: Bytes of payloads of the groups that may be fetched; None: any.
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
        groups: Groups that were made of them.
        fetches: Fetches that handed out groups.
        fetched: Groups handed out.
        used_up: Groups that left because they were fetched as often as they may be.
        evicted: Groups that left because there were too many.
        stale: Groups that left because a fragment was too old.
        other_session: Groups that left because another session began.
        broken: Groups that left because a fragment of theirs was deleted.
        dropped: Fragments that left before they were part of a group: too old, of another
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
    groups: int = 0
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
    """The state of the groups of a buffer.

    Attributes:
        rules: What the buffer was made with.
        session: The training session now.
        version: The model version now.
        n_groups: Groups that may be fetched.
        n_bytes: Bytes of their payloads.
        next_group: Number of the next group.
        low_group: No group up to this one may be fetched.
        counts: What was added and what left.
    """

    rules: Rules
    session: str = ""
    version: int = -1
    n_groups: int = 0
    n_bytes: int = 0
    next_group: int = 1
    low_group: int = 0
    counts: PoolCounts = field(default_factory=PoolCounts)

    def save(self, connection: Connection, buffer_id: int) -> None:
        """Write the state, without the rules."""
        connection.execute(_SAVE, {"of": buffer_id, "value": dumps(self.state()).decode()})

    def state(self) -> dict[str, Any]:
        """Return the state as it is stored, without the rules."""
        stored = {name: value for name, value in vars(self).items() if name != "rules"}
        return {**stored, "counts": vars(self.counts)}


def read(connection: Connection, store: BufferStore, *, locked: bool = False) -> Pool:
    """Return the state of a buffer's groups.

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
    config, state = (loads(text) for text in found)
    counts = PoolCounts(**state.pop("counts"))
    return Pool(Rules(**config), **state, counts=counts)


def find_rules(store: BufferStore) -> Rules | None:
    """Return what a buffer's groups were made with, or None where it has none."""
    config = stored_config(store, FRAGMENTS)
    return None if config is None else Rules(**config)


def make(store: BufferStore, rules: Rules) -> None:
    """Give a buffer groups, unless it has some."""

    def work(connection: Connection) -> None:
        make_layout(connection, store, asdict(rules), Pool(rules).state())
        # Now, so that no writer holds the row of the buffer while it waits for that of the groups.
        keep_parts(connection, store.info.id, [])

    store.write(work)


def change_rules(connection: Connection, store: BufferStore, rules: Rules) -> None:
    """Replace the rules."""
    value = dumps(asdict(rules)).decode()
    connection.execute(_CHANGE, {"of": store.info.id, "value": value})
