"""What a consumer asks for, and which rows of the queue it may have."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from sqlalchemy import and_, or_, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query import EVERYTHING, Node
from sqlbuffer.storage import functions as fn
from sqlbuffer.storage import statements
from sqlbuffer.storage.limits import NO_LIMITS, Limits
from sqlbuffer.storage.models import experiences
from sqlbuffer.storage.models import queue_items as items

Order = Literal["random", "fifo", "freshest", "stalest"]
GroupBy = Literal["task_id", "episode_id"]

ORDERS: dict[str, tuple[Any, ...]] = {
    "fifo": (items.c.seq,),
    "freshest": (items.c.freshness.desc(), items.c.seq.desc()),
    "stalest": (items.c.freshness, items.c.seq),
}
GROUPS: dict[str, ColumnElement[Any]] = {
    "task_id": items.c.task_id,
    "episode_id": items.c.episode_id,
}


@dataclass(frozen=True)
class Wanted:
    """A batch that is asked for.

    Attributes:
        n: How many rows, or groups.
        lease_s: How long they are held.
        order: Which first.
        node: Which rows; of a group, one that matches will do.
        group_by: What rows of a group have in common; None: each row by itself.
        min_group_size: How many rollouts a whole group has at least.
        group_timeout_s: How long after its newest row a group is waited for; None: for ever.
        drops: Groups that are not whole by then are deleted.
    """

    n: int
    lease_s: float
    order: Order = "random"
    node: Node = EVERYTHING
    group_by: GroupBy | None = None
    min_group_size: int = 1
    group_timeout_s: float | None = None
    drops: bool = False


@dataclass(frozen=True)
class Scope:
    """The queue of a buffer at one moment.

    Attributes:
        buffer_id: The buffer.
        low: Rows up to it have left.
        high: The newest row; None: whatever there is.
        limits: What bars rows.
        node: Which rows are asked for.
    """

    buffer_id: int
    low: int
    high: int | None = None
    limits: Limits = NO_LIMITS
    node: Node = EVERYTHING

    @cached_property
    def held(self) -> ColumnElement[bool]:
        """The expression for a row of the queue that the buffer holds."""
        found = (items.c.buffer_id == self.buffer_id) & (items.c.seq > self.low)
        found = found & ~items.c.used_up
        return found if self.high is None else found & (items.c.seq <= self.high)

    @cached_property
    def allowed(self) -> ColumnElement[bool]:
        """The expression for one that nobody holds and no limit bars."""
        return and_(is_free(), self.limits.hold(items)) if self.limits else is_free()

    @cached_property
    def matches(self) -> ColumnElement[bool]:
        """The expression for one that matches what is asked for."""
        row = statements.matching(self.buffer_id, self.node) & (experiences.c.seq == items.c.seq)
        # PostgreSQL would make a join of it, over all rows of the buffer.
        return select(1).where(row).correlate(items).offset(0).exists()

    @property
    def claimable(self) -> ColumnElement[bool]:
        """The expression for a row that may be claimed by itself."""
        found = self.held & self.allowed
        return found if self.node == EVERYTHING else found & self.matches


def is_free() -> ColumnElement[bool]:
    """Return the expression for a row of the queue that nobody holds: what a consumer that died
    held is free when its lease has run out.
    """
    return or_(items.c.leased_until.is_(None), fn.is_past(items.c.leased_until))
