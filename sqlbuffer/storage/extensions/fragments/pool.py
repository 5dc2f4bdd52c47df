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
    """Rules of a buffer, set when it was made.

    Attributes:
        max_chunks: Maximum number of groups that may be fetched; the oldest leave first.
        max_staleness: Largest distance of a fragment's version behind the model's.
        max_reuse: Maximum number of fetches of a group.
        fragments_per_chunk: Number of consecutive fragments of one worker in a group.
        max_bytes: Maximum size of the payloads of the groups that may be fetched, in bytes; None
            for no limit.
        fragments_per_report: Number of fragments after which the state is reported; it has no other
            effect. None for no reports.
    """

    max_chunks: int
    max_staleness: int
    max_reuse: int
    fragments_per_chunk: int
    max_bytes: int | None = None
    fragments_per_report: int | None = None

    def differences(self, stored: "Rules") -> list[str]:
        """Return the rules about fragments that are stored differently, one line each."""
        return [
            f"{each.name}: stored {getattr(stored, each.name)} vs passed {getattr(self, each.name)}"
            for each in fields(self)
            if getattr(self, each.name) != getattr(stored, each.name)
            and each.name != "fragments_per_report"
        ]


@dataclass
class PoolCounts:
    """Counts of fragments and groups that were added or have left, since the buffer was made.

    Attributes:
        fragments: Fragments added.
        groups: Groups completed.
        fetches: Fetches that returned groups.
        fetched: Groups fetched.
        used_up: Groups that left because they reached `max_reuse`.
        evicted: Groups that left because there were too many.
        stale: Groups that left because a fragment was too old.
        other_session: Groups that left because another session began.
        broken: Groups that left because one of their fragments was deleted.
        dropped: Fragments that left before they were part of a group: too old, of another session,
            or before a gap.
        gaps: How often a worker left out numbers.
        missing: Total of the numbers left out.
        left_weight: Fragments that left since the last fetch.
        left_uses: Sum of the uses of each of them.
        reuse: Their mean at the last fetch; None if none had left.
        staleness: Mean staleness of the last fetched groups; None before the first fetch.
        reported: Fragments at the last report.
        reported_at: Unix time of the last report.
        per_second: Fragments per second between the last two reports; None before there are two.
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
        rules: Rules of the buffer.
        session: The current training session.
        version: The current model version.
        n_groups: Number of groups that may be fetched.
        n_bytes: Size of their payloads in bytes.
        next_group: Number of the next group.
        low_group: No group up to this one may be fetched.
        counts: Counts of added and left fragments and groups.
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
        """Return the state in its stored form, without the rules."""
        stored = {name: value for name, value in vars(self).items() if name != "rules"}
        return {**stored, "counts": vars(self.counts)}


def read(connection: Connection, store: BufferStore, *, locked: bool = False) -> Pool:
    """Return the state of a buffer's groups.

    Args:
        connection: The transaction.
        store: The buffer.
        locked: Keep other transactions from changing it until this one ends.

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
    """Return the rules of a buffer's groups; None if it has no groups."""
    config = stored_config(store, FRAGMENTS)
    return None if config is None else Rules(**config)


def make(store: BufferStore, rules: Rules) -> None:
    """Set up the groups of a buffer, unless it has some."""

    def work(connection: Connection) -> None:
        make_layout(connection, store, asdict(rules), Pool(rules).state())
        # Done now, so that no writer holds the row of the buffer while it waits for the row of the
        # groups.
        keep_parts(connection, store.info.id, [])

    store.write(work)


def change_rules(connection: Connection, store: BufferStore, rules: Rules) -> None:
    """Replace the rules."""
    value = dumps(asdict(rules)).decode()
    connection.execute(_CHANGE, {"of": store.info.id, "value": value})
