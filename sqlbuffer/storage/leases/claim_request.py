"""The request of a consumer, and the rows of the queue that it may claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, Integer, and_, bindparam, cast, or_, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.eligibility.eligible_rows import NO_LIMITS, Eligibility
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.leases.tables import queue_items as items
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of
from sqlbuffer.storage.schema.planner import unindexed
from sqlbuffer.storage.schema.server_clock import is_past

Order = Literal["random", "fifo", "freshest", "stalest"]
GroupBy = Literal["task_id", "episode_id"]
OnPartial = Literal["use", "drop"]

ORDERS: dict[str, tuple[Any, ...]] = {
    "fifo": (items.c.seq,),
    "freshest": (items.c.freshness.desc(), items.c.seq.desc()),
    "stalest": (items.c.freshness, items.c.seq),
}
GROUPS: dict[str, ColumnElement[Any]] = {
    "task_id": items.c.task_id,
    "episode_id": items.c.episode_id,
}
# Names of parameters: they differ from those of columns, which an update uses itself.
BUFFER, LOW, HIGH, SEQS, COUNT = "p_buffer_id", "p_low", "p_high", "p_seqs", "p_count"
LARGEST = 2**63 - 1

in_buffer: Any = items.c.buffer_id == bindparam(BUFFER, type_=Integer())
in_seqs: Any = in_buffer & is_number_of(items.c.seq, bindparam(SEQS, type_=SeqList()))


def _bounds(seq: Any) -> Any:
    low, high = (bindparam(name, type_=BigInteger()) for name in (LOW, HIGH))
    return (seq > low) & (seq <= high)


# Rows of the queue that are in the window, also used up ones that have not left yet.
in_window = in_buffer & _bounds(items.c.seq)


def _held(seq: Any) -> Any:
    return in_buffer & _bounds(seq) & ~items.c.used_up


# Rows of the queue that the buffer holds. If an index other than that of their numbers must find
# them, the bounds must not attract either planner.
held = _held(items.c.seq)
held_unindexed = _held(unindexed(items.c.seq))
# The same by key, written so that the index of freshness does not match.
held_by_key = in_buffer & _bounds(unindexed(items.c.seq)) & (cast(items.c.used_up, Integer) == 0)
# Rows of a consumer that died are free when its lease has run out.
is_free: Any = or_(items.c.leased_until.is_(None), is_past(items.c.leased_until))


@dataclass(frozen=True)
class ClaimRequest:
    """The request for a batch.

    Attributes:
        n: Number of rows, or of groups.
        lease_s: Duration of the lease in seconds.
        order: Order of the rows.
        node: Condition that rows must match; of a group, at least one row.
        group_by: Column that rows of a group share; None if each row is separate.
        min_group_size: Smallest number of rollouts in a complete group.
        group_timeout_s: Seconds to wait for a group after its newest row; None for no limit.
        drops: Delete groups that are incomplete by then.
        steps: How the steps of the buffer are stored.
    """

    n: int
    lease_s: float
    order: Order = "random"
    node: Node = EVERYTHING
    group_by: GroupBy | None = None
    min_group_size: int = 1
    group_timeout_s: float | None = None
    drops: bool = False
    steps: StepLayout = ROWS


@dataclass(frozen=True)
class Scope:
    """The queue of a buffer at one moment.

    Attributes:
        buffer_id: The buffer.
        low: Rows up to this number have left.
        high: The newest row; None for any row that exists.
        limits: Limits that exclude rows.
        first: The first row of the queue, if it is known.
    """

    buffer_id: int
    low: int
    high: int | None = None
    limits: Eligibility = NO_LIMITS
    first: int | None = None

    def parameters(self, **more: Any) -> Mapping[str, Any]:
        """Return the values for the parameters of statements, with further ones."""
        high = LARGEST if self.high is None else self.high
        return {BUFFER: self.buffer_id, LOW: self.low, HIGH: high, **more}


def allowed(limits: Eligibility) -> ColumnElement[bool]:
    """Return the expression for a row that is free, and that no limit excludes."""
    return and_(is_free, limits.hold(items)) if limits else is_free


def matches(node: Node, steps: StepLayout) -> ColumnElement[bool]:
    """Return the expression for a row of the queue whose step matches a condition."""
    table = steps.of(None)
    row = steps.is_numbered(table.c, items.c.buffer_id, items.c.seq)
    # Labels are always resolved: rows may get late values during the wait.
    found = select(1).where(row, compile_condition(resolve_labels(node, has_labels=True), table))
    # PostgreSQL would make a join of it, over all rows of the buffer.
    return found.correlate(items).offset(0).exists()


def claimable(
    limits: Eligibility, node: Node, steps: StepLayout, within: Any = held
) -> ColumnElement[bool]:
    """Return the expression for a row that may be claimed alone.

    Args:
        limits: Limits that exclude rows.
        node: Condition of the request.
        steps: How the steps are stored.
        within: `held` or `held_unindexed`.
    """
    found: ColumnElement[bool] = within & allowed(limits)
    return found if node == EVERYTHING else found & matches(node, steps)
