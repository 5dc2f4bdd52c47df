"""Read and update the counters of a rate limiter."""

import math
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import (
    Connection,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    func,
    null,
    select,
    text,
    update,
)

from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.rate_limits import (
    NO_LIMIT,
    FlowCounts,
    FlowState,
    Policy,
    RatioWindow,
    Role,
    Waiting,
    rate_limiter_of,
)
from sqlbuffer.storage.buffers.stored_config import change_config, flow_column
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.errors import NO_BUFFER
from sqlbuffer.storage.flow.tables import flow, flow_history, flow_waits
from sqlbuffer.storage.schema.column_types import IntegerList
from sqlbuffer.storage.schema.list_parameters import is_one_of
from sqlbuffer.storage.schema.server_clock import age_s, unix_now, utc_now
from sqlbuffer.storage.watermarks.last_number import is_standby, last_number

# A process without a sign of life for this long counts as dead; v_flow and v_waiting use the same
# limit.
ALIVE_S = 5.0
BUCKET_S = 10
HISTORY_S = 3_600
# The rows of processes that did not count for this long are merged into one.
GONE_S = 3_600.0
# The holder of that row.
GONE = ""

# Both databases know these forms; `excluded` has the defaults, and so the time.
_ADD = text(
    "INSERT INTO flow (buffer_id, holder, n_sampled, n_batches, n_limited, pushed, sampled) "
    "VALUES (:buffer_id, :holder, :n_sampled, :n_batches, :n_limited, 0, 0) "
    "ON CONFLICT (buffer_id, holder) DO UPDATE SET "
    "n_sampled = flow.n_sampled + excluded.n_sampled, "
    "n_batches = flow.n_batches + excluded.n_batches, "
    "n_limited = flow.n_limited + excluded.n_limited, heartbeat_at = excluded.heartbeat_at"
)
_ADD_TO_HISTORY = text(
    "INSERT INTO flow_history (buffer_id, bucket, holder, n_sampled, n_batches) "
    "VALUES (:buffer_id, :bucket, :holder, :n_sampled, :n_batches) "
    "ON CONFLICT (buffer_id, bucket, holder) DO UPDATE SET "
    "n_sampled = flow_history.n_sampled + excluded.n_sampled, "
    "n_batches = flow_history.n_batches + excluded.n_batches"
)
_MARK = text(
    "INSERT INTO flow_waits (buffer_id, holder, host, pid, role, n_rows) "
    "VALUES (:buffer_id, :holder, :host, :pid, :role, :n_rows) "
    "ON CONFLICT (buffer_id, holder) DO UPDATE SET heartbeat_at = excluded.heartbeat_at"
)


def _sum_of(column: str) -> Select[int]:
    return select(func.coalesce(func.sum(flow.c[column]), 0)).where(
        flow.c.buffer_id == bindparam("id")
    )


_READ = select(
    cast(buffers.c.flow, Text),
    last_number(buffers.c.id),
    _sum_of("n_limited").scalar_subquery(),
    _sum_of("n_sampled").scalar_subquery(),
    is_standby(),
).where(buffers.c.id == bindparam("id"))
_DECAYED = select(flow.c.pushed, flow.c.sampled, age_s(flow.c.decayed_at)).where(
    flow.c.buffer_id == bindparam("id"), flow.c.decayed_at.is_not(None)
)


@dataclass(frozen=True)
class FlowReading:
    """The counts of a buffer at one moment.

    Attributes:
        policy: Its rate limiter.
        inserted: Rows inserted since the policy was set, or ever.
        sampled: Rows sampled since then.
        counts: Counts that the policy depends on.
        on_standby: The database is a standby, where nothing can be counted.
    """

    policy: Policy | None
    inserted: int
    sampled: int
    counts: FlowCounts
    on_standby: bool = False

    def allowed(self, role: Role, n: int, *, partly: bool = False) -> int:
        """Return how many of n rows may pass now: all or none, unless `partly` is set."""
        if self.policy is None:
            return n
        if role == "sample":
            return n if self.policy.may_sample(self.counts, n) else 0
        if self.policy.may_insert(self.counts, n):
            return n
        return min(n, self.policy.room(self.counts)) if partly else 0


def read(connection: Connection, buffer_id: int) -> FlowReading:
    """Return the policy of a buffer and the counts.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """
    row = _counted(connection, buffer_id)
    stored = None if row[0] is None else orjson.loads(row[0])
    policy = None if stored is None else rate_limiter_of(stored["limiter"])
    given, n_limited, n_sampled = map(int, row[1:4])
    if policy is None or stored is None:
        return FlowReading(None, given, n_sampled, FlowCounts(given, n_sampled))
    inserted = given - int(stored["inserted_before"])
    sampled = n_limited - int(stored["sampled_before"])
    counts = FlowCounts(inserted, sampled)
    if isinstance(policy, RatioWindow):
        counts = _decayed_counts(connection, buffer_id, policy)
    return FlowReading(policy, inserted, sampled, counts, bool(row[4]))


def _counted(connection: Connection, buffer_id: int) -> Any:
    row = connection.execute(_READ, {"id": buffer_id}).one_or_none()
    if row is None:
        raise BufferNotFoundError(
            f"{NO_BUFFER} with buffer_id {buffer_id}; it was dropped, open it again"
        )
    return row


def _decayed_counts(connection: Connection, buffer_id: int, policy: RatioWindow) -> FlowCounts:
    pushed = sampled = 0.0
    for its_pushed, its_sampled, age in connection.execute(_DECAYED, {"id": buffer_id}):
        pushed += policy.decayed(its_pushed, age)
        sampled += policy.decayed(its_sampled, age)
    return FlowCounts(pushed, sampled)


def state(connection: Connection, buffer_id: int) -> FlowState:
    """Return the state of a buffer's rate limiter."""
    found = read(connection, buffer_id)
    return FlowState(
        found.policy,
        found.inserted,
        found.sampled,
        bool(found.allowed("insert", 1)),
        bool(found.allowed("sample", 1)),
        found.counts,
        tuple(call for _, call in waiting(connection, [buffer_id])),
    )


def waiting(connection: Connection, buffer_ids: Sequence[int]) -> list[tuple[int, Waiting]]:
    """Return the calls that wait for buffers, each with its buffer, the longest waiting first."""
    table = flow_waits.c
    since, heard = age_s(table.waiting_since), age_s(table.heartbeat_at)
    named = bindparam(None, list(buffer_ids), IntegerList(), unique=True)
    found = connection.execute(
        select(table.buffer_id, table.role, table.n_rows, table.host, table.pid, since, heard)
        .where(is_one_of(table.buffer_id, named))
        .order_by(table.waiting_since, table.holder)
    )
    return [
        (number, Waiting(role, n_rows, host, pid, max(0.0, waited), silent < ALIVE_S))
        for number, role, n_rows, host, pid, waited, silent in found
    ]


def set_policy(connection: Connection, buffer_id: int, policy: Policy | None) -> None:
    """Store a policy, with the current counts as its start.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """
    counted = _counted(connection, buffer_id)
    begun = flow_column(policy, int(counted[1]), int(counted[2]))
    change_config(connection, buffer_id, {"rate_limiter": policy}, flow=begun)
    if isinstance(policy, RatioWindow):
        # Counts of another window do not belong to this one.
        nothing = {"pushed": 0.0, "sampled": 0.0, "decayed_at": null()}
        connection.execute(update(flow).where(flow.c.buffer_id == buffer_id).values(nothing))


def add_sampled(
    connection: Connection, buffer_id: int, holder: str, n_rows: int, n_batches: int
) -> None:
    """Count rows that a process has sampled, with the time."""
    now = connection.execute(select(unix_now())).scalar_one()
    counts = {"n_sampled": n_rows, "n_batches": n_batches}
    key = {"buffer_id": buffer_id, "holder": holder}
    connection.execute(_ADD, {**key, **counts, "n_limited": 0})
    bucket = math.floor(now / BUCKET_S)
    connection.execute(_ADD_TO_HISTORY, {**key, **counts, "bucket": bucket})


def add_limited(connection: Connection, buffer_id: int, holder: str, n_rows: int) -> None:
    """Count rows that a process samples under a limiter."""
    values = {"buffer_id": buffer_id, "holder": holder, "n_sampled": 0, "n_batches": 0}
    connection.execute(_ADD, {**values, "n_limited": n_rows})


def add_decayed(
    connection: Connection,
    buffer_id: int,
    holder: str,
    policy: RatioWindow,
    n_pushed: int,
    n_sampled: int,
) -> None:
    """Count rows in a process's own decaying counts.

    The caller has written the row before, in the same transaction, so no other thread counts in
    between.
    """
    own = (flow.c.buffer_id == buffer_id) & (flow.c.holder == holder)
    query = select(flow.c.pushed, flow.c.sampled, age_s(flow.c.decayed_at)).where(own)
    *counts, age = connection.execute(query).one()
    pushed, sampled = (policy.decayed(count, age or 0.0) for count in counts)
    values = {"pushed": pushed + n_pushed, "sampled": max(0.0, sampled + n_sampled)}
    connection.execute(update(flow).where(own).values(**values, decayed_at=utc_now()))


def mark_waiting(
    connection: Connection, buffer_id: int, holder: str, pid: int, role: Role, n_rows: int
) -> None:
    """Store that a call waits, or that it still does."""
    values = {"buffer_id": buffer_id, "holder": holder, "pid": pid, "role": role}
    host = socket.gethostname()
    connection.execute(_MARK, {**values, "n_rows": min(n_rows, NO_LIMIT), "host": host})


def clear_waiting(connection: Connection, buffer_id: int, holder: str) -> None:
    """Delete the mark of a waiting call."""
    table = flow_waits.c
    connection.execute(
        delete(flow_waits).where(table.buffer_id == buffer_id, table.holder == holder)
    )


def tidy(connection: Connection, buffer_id: int) -> None:
    """Merge the rows of processes long gone, and delete old history.

    No count is lost: the rows are locked, and a process that comes back begins a new one.
    """
    policy = read(connection, buffer_id).policy
    # By then the counts of a window have decayed to almost 0.
    gone_s = GONE_S + (5 * policy.window_s if isinstance(policy, RatioWindow) else 0.0)
    table = flow.c
    found = connection.execute(
        delete(flow)
        .where(
            table.buffer_id == buffer_id,
            table.holder != GONE,
            age_s(table.heartbeat_at) > gone_s,
        )
        .returning(table.n_sampled, table.n_batches, table.n_limited)
    ).all()
    if found:
        n_sampled, n_batches, n_limited = map(sum, zip(*found, strict=True))
        counts = {"n_sampled": n_sampled, "n_batches": n_batches, "n_limited": n_limited}
        connection.execute(_ADD, {"buffer_id": buffer_id, "holder": GONE, **counts})
    first = func.floor(unix_now() / BUCKET_S) - HISTORY_S // BUCKET_S
    old = flow_history.c.bucket < cast(first, flow_history.c.bucket.type)
    connection.execute(delete(flow_history).where(flow_history.c.buffer_id == buffer_id, old))
    dead = age_s(flow_waits.c.heartbeat_at) > GONE_S
    connection.execute(delete(flow_waits).where(flow_waits.c.buffer_id == buffer_id, dead))


def share_since(start: float, bucket: int, now: float) -> float:
    """Return the share of a bucket's current count that belongs to the time since `start`.

    Args:
        start: Unix time in seconds.
        bucket: Unix time of its beginning / BUCKET_S.
        now: Unix time in seconds; the newest bucket is filled up to then.
    """
    begin = bucket * BUCKET_S
    end = min(begin + BUCKET_S, now)
    if start <= begin:
        return 1.0
    return max(0.0, end - start) / (end - begin)
