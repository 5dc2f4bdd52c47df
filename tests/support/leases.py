"""What the tables say of leases, and what time does to them."""

from typing import Any

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from tests.support.sql import is_sqlite, run

# Of leases and their rows, without those that are kept for a checkpoint.
_RUNS_OUT = "leased_until < '9999-01-01'"


def row_of(step: int, *, task: str = "t", **meta: Any) -> DataRow:
    return DataRow(
        ExpMeta(task, None, "a", step, float(step), **meta),
        Experience({"step": step}, [0], reward_t=float(step)),
    )


def store(buffer: ReplayBuffer, steps: range, *, task: str = "t", **meta: Any) -> None:
    buffer.store_batch([row_of(step, task=task, **meta) for step in steps])


def expire(url: str) -> None:
    """Have every lease run out a second ago."""
    ago = (
        "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-1 seconds')"
        if is_sqlite(url)
        else "clock_timestamp() - interval '1 second'"
    )
    for table in ("queue_items", "leases"):
        run(url, f"UPDATE {table} SET leased_until = {ago} WHERE {_RUNS_OUT}")


def grow_old(url: str, where: str, seconds: int = 1_000) -> None:
    """Have rows of the queue be written so many seconds earlier."""
    earlier = (
        f"strftime('%Y-%m-%dT%H:%M:%fZ', inserted_at, '-{seconds} seconds')"
        if is_sqlite(url)
        else f"inserted_at - interval '{seconds} seconds'"
    )
    run(url, f"UPDATE queue_items SET inserted_at = {earlier} WHERE {where}")


def put_clock_back(url: str, seconds: int) -> None:
    """Have leases be as they are after the clock was put back by so many seconds."""
    for table, column in (
        ("queue_items", "leased_until"), ("leases", "leased_until"), ("leases", "claimed_at"),
    ):  # fmt: skip
        later = (
            f"strftime('%Y-%m-%dT%H:%M:%fZ', {column}, '{seconds} seconds')"
            if is_sqlite(url)
            else f"{column} + interval '{seconds} seconds'"
        )
        run(url, f"UPDATE {table} SET {column} = {later} WHERE {_RUNS_OUT}")


def uses_of(url: str) -> dict[int, int]:
    return dict(run(url, "SELECT seq, n_uses FROM queue_items ORDER BY seq"))


def steps_leased(buffer: ReplayBuffer, n: int, **options: Any) -> list[int]:
    """Return the steps of a batch that is given back."""
    try:
        with buffer.lease(n, timeout_s=0, **options) as batch:
            raise GivenBack
    except GivenBack:
        return [row.exp_meta.step for row in batch]


def none_left(buffer: ReplayBuffer, n: int = 1, **options: Any) -> str:
    """Return what is said where so many cannot be claimed; fail where they can."""
    try:
        with buffer.lease(n, timeout_s=0, **options):
            raise AssertionError("there was a batch")
    except InsufficientDataError as error:
        return str(error)


class GivenBack(Exception):
    """Ends a block without an acknowledgement."""
