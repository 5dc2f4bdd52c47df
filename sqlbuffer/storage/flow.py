"""Limits on how fast rows are inserted and sampled.

No counter is written by all processes. The inserted rows are the numbers that the buffer has given.
The sampled rows are the sum over one row for each process. Processes that read at the same time see
the same counts, so each may pass a limit by the batch that it has in flight.
"""

import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import orjson
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    Select,
    Table,
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

from sqlbuffer.errors import (
    BufferNotFoundError,
    FlowControlError,
    SQLBufferError,
    StorageReadOnlyError,
)
from sqlbuffer.processes import ForkLock, new_name
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
from sqlbuffer.storage.buffers.catalog import change_config, flow_column
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.writes import WriteOnce
from sqlbuffer.storage.database.errors import NO_BUFFER, retried, translated
from sqlbuffer.storage.database.transactions import is_joined, reading
from sqlbuffer.storage.dialects import hurried, writing
from sqlbuffer.storage.schema.expressions import IntegerList, age_s, is_one_of, unix_now, utc_now
from sqlbuffer.storage.schema.metadata import KEY, TIME, buffer_key, metadata
from sqlbuffer.storage.watermarks import is_standby, last_number
from sqlbuffer.waits import pause

# Rows sampled by each process, in a separate row, so that no process waits for it. Rows of
# processes long gone are added up under the empty holder.
flow = Table(
    "flow",
    metadata,
    buffer_key(),
    Column("holder", KEY, primary_key=True, comment="the process: host, pid and a random part"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
    Column("n_limited", BigInteger, nullable=False, comment="rows sampled under a limiter"),
    Column("pushed", Double, nullable=False, comment="rows inserted, decayed (RatioWindow)"),
    Column("sampled", Double, nullable=False, comment="rows sampled, decayed (RatioWindow)"),
    Column("decayed_at", TIME, comment="Unix time up to which these two are decayed"),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of its last count",
    ),
)

# Calls that wait for the other side.
flow_waits = Table(
    "flow_waits",
    metadata,
    buffer_key(),
    Column("holder", KEY, primary_key=True, comment="the call: its process and a random part"),
    Column("host", Text, nullable=False, comment="machine"),
    Column("pid", Integer, nullable=False, comment="process id"),
    Column("role", Text, nullable=False, comment="operation it waits for: insert or sample"),
    Column("n_rows", BigInteger, nullable=False, comment="number of rows"),
    Column(
        "waiting_since",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="start of the wait",
    ),
    Column(
        "heartbeat_at",
        TIME,
        nullable=False,
        server_default=utc_now(),
        comment="time of its last sign of life",
    ),
)

# Rows sampled in ten seconds, for rates; kept for an hour.
flow_history = Table(
    "flow_history",
    metadata,
    buffer_key(),
    Column(
        "bucket",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="Unix time in seconds / 10",
    ),
    Column("holder", KEY, primary_key=True, comment="the process"),
    Column("n_sampled", BigInteger, nullable=False, comment="rows sampled"),
    Column("n_batches", BigInteger, nullable=False, comment="batches sampled"),
)


HEARTBEAT_S = 1.0


class WaitingMark:
    """Marks a call as waiting.

    Args:
        process: The name of this process's rows.
        write: Function that writes or renews the row of a name.
        remove: Function that removes it.
    """

    def __init__(
        self, process: str, write: Callable[[str], None], remove: Callable[[str], None]
    ) -> None:
        self._process, self._write, self._remove = process, write, remove
        self._name = ""
        self._beaten_at = 0.0

    @property
    def is_set(self) -> bool:
        """True if the call has waited."""
        return bool(self._name)

    def beat(self) -> None:
        """Write the mark, and renew it about every second."""
        now = time.monotonic()
        if self._name and now - self._beaten_at < HEARTBEAT_S:
            return
        self._beaten_at = now
        self._name = self._name or f"{self._process} {uuid.uuid4().hex[:12]}"
        self._write(self._name)

    def clear(self) -> None:
        """Remove the mark."""
        if self._name:
            self._remove(self._name)


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


class FlowReading(NamedTuple):
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
    inserted_in_all, n_limited, n_sampled = map(int, row[1:4])
    if policy is None or stored is None:
        return FlowReading(None, inserted_in_all, n_sampled, FlowCounts(inserted_in_all, n_sampled))
    inserted = inserted_in_all - int(stored["inserted_before"])
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
    counted = read(connection, buffer_id)
    return FlowState(
        counted.policy,
        counted.inserted,
        counted.sampled,
        bool(counted.allowed("insert", 1)),
        bool(counted.allowed("sample", 1)),
        counted.counts,
        tuple(call for _, call in waiting(connection, [buffer_id])),
    )


def waiting(connection: Connection, buffer_ids: Sequence[int]) -> list[tuple[int, Waiting]]:
    """Return the calls that wait for buffers, each with its buffer, the longest waiting first."""
    table = flow_waits.c
    since, heard = age_s(table.waiting_since), age_s(table.heartbeat_at)
    ids = bindparam(None, list(buffer_ids), IntegerList(), unique=True)
    rows = connection.execute(
        select(table.buffer_id, table.role, table.n_rows, table.host, table.pid, since, heard)
        .where(is_one_of(table.buffer_id, ids))
        .order_by(table.waiting_since, table.holder)
    )
    return [
        (number, Waiting(role, n_rows, host, pid, max(0.0, waited), silent < ALIVE_S))
        for number, role, n_rows, host, pid, waited, silent in rows
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
    of_holder = (flow.c.buffer_id == buffer_id) & (flow.c.holder == holder)
    query = select(flow.c.pushed, flow.c.sampled, age_s(flow.c.decayed_at)).where(of_holder)
    *counts, age = connection.execute(query).one()
    pushed, sampled = (policy.decayed(count, age or 0.0) for count in counts)
    values = {"pushed": pushed + n_pushed, "sampled": max(0.0, sampled + n_sampled)}
    connection.execute(update(flow).where(of_holder).values(**values, decayed_at=utc_now()))


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
    rows = connection.execute(
        delete(flow)
        .where(
            table.buffer_id == buffer_id,
            table.holder != GONE,
            age_s(table.heartbeat_at) > gone_s,
        )
        .returning(table.n_sampled, table.n_batches, table.n_limited)
    ).all()
    if rows:
        n_sampled, n_batches, n_limited = map(sum, zip(*rows, strict=True))
        counts = {"n_sampled": n_sampled, "n_batches": n_batches, "n_limited": n_limited}
        connection.execute(_ADD, {"buffer_id": buffer_id, "holder": GONE, **counts})
    first = func.floor(unix_now() / BUCKET_S) - HISTORY_S // BUCKET_S
    is_old = flow_history.c.bucket < cast(first, flow_history.c.bucket.type)
    connection.execute(delete(flow_history).where(flow_history.c.buffer_id == buffer_id, is_old))
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


T = TypeVar("T")


# Interval at which a waiting call reads the counts, first and at the end.
FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH = 0.05, 0.25, 1.05
# Interval at which a process without a limiter publishes its sampled rows, and checks for a
# limiter.
PUBLISH_S = 5.0
# Seconds to wait for other writers if a caller waits for the result.
ASKED_S = 1.0
TIDY_S = 600.0

_process_ends = threading.Event()


def let_in_at_end() -> None:
    """Make waiting writers of this process store without a wait, because the process ends."""
    _process_ends.set()


class Pacer:
    """Counts and waits for one opened buffer.

    Args:
        store: The buffer.
    """

    def __init__(self, store: OpenBuffer) -> None:
        self._store = store
        self._mutex = ForkLock()
        self._policy: Policy | None = store.info.config.flow.rate_limiter
        self._begin()

    def _begin(self) -> None:
        """Start with no counts, in a new process or a forked child."""
        self._pid = os.getpid()
        self._holder = new_name()
        self._rows = self._batches = self._correction = 0
        self._may_publish = True
        now = time.monotonic()
        self._published_at, self._tidied_at = now, now - TIDY_S

    @contextmanager
    def sampling(self, n: int, wait_s: float | None = None) -> Iterator[Callable[[int], None]]:
        """Wait until n rows may be sampled, and count them before they are returned.

        Args:
            n: Number of rows.
            wait_s: Maximum wait in seconds; None for the opener's.

        Yields:
            A function that takes the number of rows drawn; without a call the number is 0.

        Raises:
            FlowControlError: The rows may not be sampled in time.
        """
        limited = n > 0 and self.reserve(n, wait_s)
        drawn = 0

        def note(n_rows: int) -> None:
            nonlocal drawn
            drawn = n_rows

        try:
            yield note
        finally:
            if limited and drawn != n:
                self.correct(drawn - n)
            if drawn:
                self.note(drawn, 1)
                if time.monotonic() - self._published_at >= PUBLISH_S:
                    self.publish_counts()

    @property
    def is_limited(self) -> bool:
        """True if rows wait for a limiter, as far as this process knows."""
        return self._policy is not None

    def reserve(self, n: int, wait_s: float | None = None) -> bool:
        """Wait until n rows may be sampled, and count them; see `sampling`.

        Returns:
            True if they are counted; False if the buffer has no limit.
        """
        self._see_fork()
        return self._wait("sample", n, wait_s) is not None

    def give_back(self, n: int) -> None:
        """Undo the count of a batch of n rows that was not returned."""
        if self._policy is not None:
            self.correct(-n)
        self.note(-n, -1)

    def before_insert(self, n: int) -> None:
        """Wait until n rows may be inserted.

        Raises:
            FlowControlError: The rows may not be inserted in time.
        """
        self._see_fork()
        if n:
            self._look_sometimes()
            self._wait("insert", n)

    def admit(self, n: int, wait_s: float | None = None) -> int:
        """Wait until some of n rows may be inserted, and return how many.

        It is for callers that can store the others later. It waits for `wait_s` at most; None for
        the opener's wait.

        Raises:
            FlowControlError: No row may be inserted in time.
        """
        self._see_fork()
        self._look_sometimes()
        allowed = self._wait("insert", n, wait_s, partly=True)
        return n if allowed is None else allowed

    def state(self) -> FlowState:
        """Return the current state of the rate limiter."""
        self.publish_now()
        return self._retried(self._state)

    def publish_now(self) -> None:
        """Publish the sampled rows, for a caller that reads the counts next."""
        self._see_fork()
        self.publish_counts(ASKED_S)

    def publish_rest(self) -> None:
        """Publish the sampled rows that are not published yet, before the buffer is closed."""
        self._see_fork()
        self._published_at = time.monotonic()
        self._write_counts(ASKED_S)

    def _state(self) -> FlowState:
        store = self._store
        with translated(store.url), reading(store.engine) as connection:
            return state(connection, store.info.id)

    def set_policy(self, policy: Policy | None) -> None:
        """Set another policy, or none, for all processes of the buffer."""

        def change() -> None:
            store = self._store
            with (
                translated(store.url),
                writing(store.engine, store.options.durability) as connection,
            ):
                set_policy(connection, store.info.id, policy)

        self._retried(change)
        self._policy = policy

    def publish_counts(self, wait_s: float = 0.0) -> None:
        """Publish the rows sampled since the last time, unless that takes a longer wait."""
        self._published_at = time.monotonic()
        with suppress(SQLBufferError):
            self._policy = self._read().policy
        self._write_counts(wait_s)

    def _write_counts(self, wait_s: float) -> None:
        if not ((self._batches or self._rows) and self._may_publish):
            return
        with self._mutex:
            rows, batches, self._rows, self._batches = self._rows, self._batches, 0, 0
        try:
            self._write_sampled(rows, batches, wait_s)
        except BaseException as error:
            self.note(rows, batches)
            if not isinstance(error, SQLBufferError):
                raise
            # Busy or unreachable: try the next time.
            self._may_publish = not isinstance(error, StorageReadOnlyError)

    def note(self, rows: int, batches: int) -> None:
        """Count sampled rows and batches, for readers of the counts."""
        with self._mutex:
            self._rows, self._batches = self._rows + rows, self._batches + batches

    def _write_sampled(self, rows: int, batches: int, wait_s: float) -> None:
        store = self._store
        with (
            translated(store.url),
            hurried(store.engine, wait_s) as connection,
        ):
            add_sampled(connection, store.info.id, self._holder, rows, batches)
            if self._published_at - self._tidied_at >= TIDY_S:
                tidy(connection, store.info.id)
                self._tidied_at = self._published_at

    def _look_sometimes(self) -> None:
        """Check from time to time for a limiter that was set after the opening."""
        if self._policy is None and time.monotonic() - self._published_at >= PUBLISH_S:
            self.publish_counts()

    def _see_fork(self) -> None:
        if self._pid != os.getpid():
            self._begin()

    def _wait(
        self, role: Role, n: int, wait_s: float | None = None, *, partly: bool = False
    ) -> int | None:
        """Return how many rows may pass, after a wait if needed; None if there is no limit."""
        if self._policy is None:
            return None
        wait_s = self._store.options.wait_s if wait_s is None else wait_s
        wait_s = 0.0 if is_joined() else wait_s  # others may wait for the transaction
        deadline = time.monotonic() + wait_s
        mark = WaitingMark(self._holder, partial(self.write_mark, role, n), self.clear_mark)
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                allowed, reading = self._try(role, n, partly, is_first=not mark.is_set)
                self._policy = reading.policy
                if reading.policy is None:
                    return None
                if allowed or (partly and _process_ends.is_set()):
                    return allowed or n
                self._check_possible(reading, role, 1 if partly else n)
                now = time.monotonic()
                if now >= deadline:
                    raise FlowControlError(self._complaint(reading, role, n, wait_s))
                mark.beat()
                pause(min(pause_s, deadline - now))
                pause_s = min(pause_s * PAUSE_GROWTH, LONGEST_PAUSE_S)
        finally:
            mark.clear()

    def _try(self, role: Role, n: int, partly: bool, *, is_first: bool) -> tuple[int, FlowReading]:
        """Return how many of n rows may pass, counted if needed; and the counts."""
        counted = role == "sample" or isinstance(self._policy, RatioWindow)
        if not (counted and is_first):  # the usual case: a read without a lock
            allowed, reading = self._retried(lambda: self._look(role, n, partly))
            if not (counted and allowed):
                return allowed, reading
        once: WriteOnce[tuple[int, FlowReading]] = self._store.once()
        with self._owing() as owed:
            return self._retried(lambda: self._take(once, role, n, partly, owed))

    def _look(self, role: Role, n: int, partly: bool) -> tuple[int, FlowReading]:
        reading = self._read()
        self._check_countable(reading)
        return reading.allowed(role, n, partly=partly), reading

    def _read(self) -> FlowReading:
        store = self._store
        with translated(store.url), reading(store.engine) as connection:
            return read(connection, store.info.id)

    def _take(
        self,
        once: WriteOnce[tuple[int, FlowReading]],
        role: Role,
        n: int,
        partly: bool,
        owed: int,
    ) -> tuple[int, FlowReading]:
        store = self._store

        def work(connection: Connection) -> tuple[int, FlowReading]:
            reading = read(connection, store.info.id)
            allowed = reading.allowed(role, n, partly=partly)
            if reading.policy is not None:
                self._count(connection, reading.policy, role, allowed, owed)
            return allowed, reading

        try:
            return once.run(store.engine, "relaxed", work)
        except StorageReadOnlyError:
            self._check_countable(self._read())
            raise

    def _count(self, connection: Connection, policy: Policy, role: Role, n: int, owed: int) -> None:
        """Count n rows, and the samples that are not published yet."""
        buffer_id = self._store.info.id
        sampled = owed + (n if role == "sample" else 0)
        if not (sampled or n):
            return
        add_limited(connection, buffer_id, self._holder, sampled)
        if isinstance(policy, RatioWindow):
            pushed = n if role == "insert" else 0
            add_decayed(connection, buffer_id, self._holder, policy, pushed, sampled)

    @contextmanager
    def _owing(self) -> Iterator[int]:
        """Take the samples that are not published yet; they are kept if the block fails."""
        with self._mutex:
            owed, self._correction = self._correction, 0
        try:
            yield owed
        except BaseException:
            with self._mutex:
                self._correction += owed
            raise

    def correct(self, n: int) -> None:
        """Count n more rows than were allowed, or fewer if n is negative."""
        with self._mutex:
            self._correction += n
        # If this fails, the next batch counts it.
        with suppress(SQLBufferError), self._owing() as owed:
            self._take(self._store.once(), "insert", 0, partly=False, owed=owed)

    def _check_countable(self, reading: FlowReading) -> None:
        if reading.policy is not None and reading.on_standby:
            raise StorageReadOnlyError(
                f"buffer {self._store.info.name!r} has a rate limiter ({reading.policy}), and the "
                f"server is a standby, where rows cannot be counted; store and sample on the "
                f"primary, or remove the limiter there (set_rate_limiter(None))"
            )

    def _check_possible(self, reading: FlowReading, role: Role, n: int) -> None:
        assert reading.policy is not None
        refusal = reading.policy.refusal(reading.counts, role, n)
        if refusal is not None:
            raise FlowControlError(f"buffer {self._store.info.name!r}: {refusal}")

    def _complaint(self, reading: FlowReading, role: Role, n: int, wait_s: float) -> str:
        behind, remedy = (
            ("collectors are", "add collectors")
            if role == "sample"
            else ("learners are", "add learners")
        )
        if n > 1:
            remedy += f", {'sample' if role == 'sample' else 'store'} fewer rows in one call"
        done, waited = ("sampled", "sample") if role == "sample" else ("inserted", "store")
        when = f"within {wait_s:g} s" if wait_s else "now"
        counts = f"{reading.inserted:,} rows inserted and {reading.sampled:,} sampled"
        if isinstance(reading.policy, RatioWindow):
            left = reading.counts
            counts += f" (of which {left.inserted:.1f} and {left.sampled:.1f} still count)"
        return (
            f"buffer {self._store.info.name!r}: {n:,} rows may not be {done} {when}: the {behind} "
            f"behind, with {counts} under {reading.policy}; {remedy}, wait longer (wait_s), or "
            f"change the limiter (set_rate_limiter); buffer.flow() shows who waits to {waited}"
        )

    def _retried(self, work: Callable[[], T]) -> T:
        store = self._store
        return retried(work, store.options.retry_s, store.forget_connections)

    def write_mark(self, role: Role, n: int, holder: str) -> None:
        """Store that a call waits, or that it still does."""
        store = self._store
        with (
            suppress(SQLBufferError),
            translated(store.url),
            hurried(store.engine, ASKED_S) as connection,
        ):
            mark_waiting(connection, store.info.id, holder, self._pid, role, n)

    def clear_mark(self, holder: str) -> None:
        """Store that a call waits no longer; otherwise its mark expires."""
        store = self._store
        with (
            suppress(SQLBufferError),
            translated(store.url),
            writing(store.engine, "relaxed") as connection,
        ):
            clear_waiting(connection, store.info.id, holder)


# Maximum number of batches that are reserved ahead. Number of draws after a refusal that reserve
# one batch only.
MOST_AHEAD, LONGEST_PATIENCE = 16, 64
# A thread that waits longer for another one, which queries the database, sends a query as well.
LONGEST_ASKING_S = 1.0


class SampleCredits:
    """Reserves rows under the rate limiter of a buffer, some batches at a time.

    Reserved rows count as sampled. They are given back when no draw has used any of them between
    two calls of `settle`. After a crash they stay counted.

    Args:
        pacer: Waits for the limiter.
    """

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._mutex, self._asking = threading.Lock(), threading.Lock()
        self._left = 0
        self._is_used = False
        self._n_ahead = self._patience = self._n_until = 0

    def take(self, n: int) -> bool:
        """Take n rows, after a wait if one is needed.

        Returns:
            True if they are counted; False if the buffer has no limit.

        Raises:
            FlowControlError: They may not be sampled in time.
        """
        if not self._pacer.is_limited:
            return False
        with self._mutex:
            self._is_used = True
            n_held = min(n, self._left)
            self._left -= n_held
        if n_held == n:
            return True
        try:
            n_more = self._reserve(n - n_held, n)
        except BaseException:
            self.put_back(n_held)
            raise
        self.put_back(n_held if n_more is None else n_more - (n - n_held))
        return n_more is not None

    def put_back(self, n: int) -> None:
        """Return n rows that were taken or reserved, and not drawn."""
        with self._mutex:
            self._left += n

    def _reserve(self, missing: int, n: int) -> int | None:
        """Reserve the rows that are missing for a batch of n, and perhaps more.

        Return how many, or None if the buffer has no limit.
        """
        # One thread at a time: threads that try at the same time may all pass.
        if self._asking.acquire(timeout=LONGEST_ASKING_S):
            try:
                for ahead in self._tries(n):
                    with suppress(FlowControlError):
                        is_counted = self._pacer.reserve(missing + ahead, 0.0)
                        self._has_passed(ahead)
                        return missing + ahead if is_counted else None
                    self._is_refused(ahead)
            finally:
                self._asking.release()
        return missing if self._pacer.reserve(missing) else None

    def _tries(self, n: int) -> list[int]:
        """Return how many rows to reserve in addition to the missing ones, try by try."""
        self._n_until = max(0, self._n_until - 1)
        ahead = 0 if self._n_until else self._n_ahead * n
        return [ahead, 0] if ahead else [0]

    def _has_passed(self, ahead: int) -> None:
        self._n_ahead = min(max(1, 2 * self._n_ahead), MOST_AHEAD)
        if ahead:
            self._patience = 0

    def _is_refused(self, ahead: int) -> None:
        self._n_ahead = 0
        if ahead:  # the other side is behind: one batch at a time, for a while
            self._patience = min(2 * self._patience + 1, LONGEST_PATIENCE)
            self._n_until = self._patience

    def settle(self, *, is_end: bool = False) -> None:
        """Give back the reserved rows if no draw has used any since the last call.

        Args:
            is_end: Give back all remaining rows.
        """
        with self._mutex:
            n_returned = self._left if is_end or not self._is_used else 0
            self._left, self._is_used = self._left - n_returned, False
            if n_returned:
                self._n_ahead = 0
        if n_returned:
            self._pacer.correct(-n_returned)
