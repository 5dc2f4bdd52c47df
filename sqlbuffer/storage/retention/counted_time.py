"""The time that counts for the age of steps, which nobody can set.

Counted time begins as that of the database's clock, in Unix seconds. From one look to the next of
the same machine it goes on as far as the machine's monotonic clock, whatever the database's clock
shows. Between looks of different machines, or around a restart, only the database's clock tells how
much passed: it counts unless it is more than half of `max_age`. More waits until a person accepts
it. So no clock that is set makes steps old.
"""

import os
import sys
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import Column, Connection, Double, Table, text

from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata

clock_looks = Table(
    "clock_looks",
    metadata,
    buffer_key(),
    Column(
        "clock_id",
        KEY,
        primary_key=True,
        comment="a monotonic clock: that of a machine since it started, or of a process",
    ),
    Column(
        "at",
        Double,
        nullable=False,
        comment="time of the database's clock, in Unix seconds",
    ),
    Column(
        "clock_s",
        Double,
        nullable=False,
        comment="time of the monotonic clock at that moment, in seconds",
    ),
    Column("counted_at", Double, nullable=False, comment="counted time at that moment"),
    info={"writer_may": "INSERT, UPDATE, DELETE", "learner_may": "INSERT, UPDATE, DELETE"},
)

# Difference of two clocks that is not a move: the time of a statement, and a clock that is slewed
# (at most 500 in a million).
TOLERANCE_S, DRIFT = 5.0, 0.001
# A time that no machine saw counts up to this part of `max_age`, or so long without one.
MOST_UNSEEN, MOST_UNSEEN_S = 0.5, 3_600.0
# Looks of more clocks are forgotten, oldest first; and those of so many clocks are compared.
MOST_CLOCKS, COMPARED_CLOCKS = 200, 5


class Witness(NamedTuple):
    """A moment of a monotonic clock, which no one can set."""

    clock_id: str
    clock_s: float


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_own: dict[int, str] = {}


@cache
def _machine_clock() -> str | None:
    """Return the id of a clock that all processes of this machine share until it restarts."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return None
    try:
        # A container may have a namespace with other times.
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None


def witness() -> Witness:
    """Return the present moment of a clock that also counts while the machine sleeps.

    It is the machine's on Linux; elsewhere it is of this process.
    """
    machine = _machine_clock()
    if machine is not None:
        return Witness(machine, time.clock_gettime(time.CLOCK_BOOTTIME))
    clock_id = _own.setdefault(os.getpid(), str(uuid4()))
    # Python's own stops on macOS while the machine sleeps.
    clock_s = time.clock_gettime(time.CLOCK_MONOTONIC) if sys.platform == "darwin" else (
        time.monotonic()
    )  # fmt: skip
    return Witness(clock_id, clock_s)


_OWN_LOOK = text(
    "SELECT clock_s, at, counted_at FROM clock_looks WHERE buffer_id = :id AND clock_id = :clock_id"
)
# The least time that passed, as the looks of some clocks tell: one of them may have been behind.
_LEAST_PASSED = text(
    "SELECT min(l.counted_at + :at - l.at) FROM (SELECT counted_at, at FROM clock_looks "
    f"WHERE buffer_id = :id ORDER BY counted_at DESC LIMIT {COMPARED_CLOCKS}) l"
)
_KEEP_LOOK = text(
    "INSERT INTO clock_looks (buffer_id, clock_id, at, clock_s, counted_at) "
    "VALUES (:id, :clock_id, :at, :clock_s, :counted_at) ON CONFLICT (buffer_id, clock_id) "
    "DO UPDATE SET at = excluded.at, clock_s = excluded.clock_s, counted_at = excluded.counted_at"
)
_FORGET_LOOKS = text(
    "DELETE FROM clock_looks WHERE buffer_id = :id AND clock_id IN (SELECT l.clock_id FROM "
    "clock_looks l WHERE l.buffer_id = :id ORDER BY l.counted_at DESC "
    f"LIMIT 1000 OFFSET {MOST_CLOCKS})"
)


class CountedTime(NamedTuple):
    """The time that counts at some moment.

    Attributes:
        at: Counted time; None before the first look.
        unseen_s: Seconds that passed by the database's clock and do not count, because no machine
            saw them; 0: none.
        moved_s: How far the database's clock was set while a machine saw it, back below 0.
        has_moved: It was set since the last look: times stored with steps are not comparable.
    """

    at: float | None
    unseen_s: float = 0.0
    moved_s: float = 0.0
    has_moved: bool = False

    def accepted(self) -> "CountedTime":
        """Return the time if the database's clock is right: what no machine saw counts."""
        at = None if self.at is None else self.at + self.unseen_s
        return CountedTime(at, has_moved=self.has_moved or self.unseen_s > 0)


def count_time(
    connection: Connection,
    buffer_id: int,
    before: CountedTime,
    now: float,
    moment: Witness,
    max_age: float | None,
) -> CountedTime:
    """Return the counted time now, and remember the look.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        before: The counted time at the last look.
        now: Time of the database's clock.
        moment: The present moment of a monotonic clock.
        max_age: Largest age of a step, in seconds; None: unlimited.
    """
    values = {"id": buffer_id, "clock_id": moment.clock_id, "at": now, "clock_s": moment.clock_s}
    own = connection.execute(_OWN_LOOK, values).one_or_none()
    if before.at is None:
        counted = CountedTime(now)
    elif own is not None:
        passed = max(moment.clock_s - own.clock_s, 0.0)
        at = max(before.at, own.counted_at + passed)
        counted = _after_move(before, at, now - own.at - passed, TOLERANCE_S + DRIFT * passed)
    else:
        least = connection.execute(_LEAST_PASSED, values).scalar()
        gap = 0.0 if least is None else least - before.at
        if gap > (MOST_UNSEEN_S if max_age is None else max_age * MOST_UNSEEN):
            unseen_s = 0.0 if max_age is None else before.unseen_s + gap
            counted = CountedTime(before.at, unseen_s, before.moved_s, True)
        else:
            counted = _after_move(before, before.at + max(gap, 0.0), min(gap, 0.0), TOLERANCE_S)
        connection.execute(_FORGET_LOOKS, values)
    connection.execute(_KEEP_LOOK, {**values, "counted_at": counted.at})
    return counted


def _after_move(before: CountedTime, at: float, moved_s: float, tolerance_s: float) -> CountedTime:
    """Return a counted time after the database's clock moved, if it did."""
    if abs(moved_s) <= tolerance_s:
        return CountedTime(at, before.unseen_s, before.moved_s)
    # Set back, it takes back what was not seen.
    unseen_s = before.unseen_s + min(moved_s, 0.0)
    in_all = before.moved_s + moved_s + (before.unseen_s - max(unseen_s, 0.0))
    return CountedTime(
        at,
        unseen_s if unseen_s > TOLERANCE_S else 0.0,
        in_all if abs(in_all) > TOLERANCE_S else 0.0,
        True,
    )


def remember_accepted(
    connection: Connection, buffer_id: int, counted: CountedTime, now: float, moment: Witness
) -> None:
    """Remember a counted time that a person has accepted as the look of this machine."""
    values = {
        "id": buffer_id, "clock_id": moment.clock_id, "at": now, "clock_s": moment.clock_s,
        "counted_at": counted.at,
    }  # fmt: skip
    connection.execute(_KEEP_LOOK, values)
