"""Settings of one process that opens a buffer."""

from typing import Annotated, Any, Literal, TypedDict, get_args

from pydantic import BeforeValidator, Field

from sqlbuffer.checks import (
    checked_choice,
    checked_duration,
    checked_integer,
    checked_number,
    checked_seconds,
)
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.strict_models import StrictModel, setting

RETRY_S = 30.0
Durability = Literal["relaxed", "full"]


def _read_url(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value):
        return value
    # Not quoted: it may have a password.
    raise BufferConfigError(f"read_url is the URL of a standby as text, got {type(value).__name__}")


class Connection(StrictModel):
    """Settings of one process that opens a buffer. They are not stored.

    Attributes:
        durability: Failures that a completed write survives. None: the death of any process of the
            client or the server; on PostgreSQL also what its `synchronous_commit` covers. SQLite
            may lose the last writes in a power failure. `full`: a power failure too, at the cost of
            a disk sync for each write. `relaxed`: on PostgreSQL, writes do not wait for the disk,
            and the last half second may be lost when the server dies; on SQLite the same as None.
            In each case a batch is stored whole or not at all.
        retry_s: Seconds for which a call is repeated while the server cannot be reached; also for
            opening. A write takes effect once. 0 raises immediately. A wrong password, a missing
            role and a missing database always raise immediately.
        wait_s: Seconds that a call waits for the buffer's rate limiter before it raises
            `FlowControlError`; 0 raises immediately.
        flush_s: Longest time in seconds until a pending step of `episode()` is stored, unless the
            rate limiter or the database holds it up.
        max_pending: Largest number of pending steps of `episode()`, `record()` and `add`; a call
            that would exceed it waits. A process that is killed loses them. None: 1,024 if the
            buffer has a rate limiter, else 10,000.
        read_url: URL of a standby of the database. Reads, draws that are not counted, mirrors,
            copies and exports use it; they see what this process has written. Writes, leases, and
            the draws of a buffer with `max_use`, `track_samples` or a rate limiter use the primary.
        max_lag_s: Largest lag in seconds of the standby; reads of one that is further behind raise
            `StorageBusyError`. None: any.
        alpha: Exponent of priorities in this process's draws. None: the stored one. Draws with a
            different one read all priorities of the buffer.

    Raises:
        BufferConfigError: A value is invalid.

    Example:
        >>> Connection(durability="full", wait_s=10)
        Connection(durability='full', wait_s=10.0)
    """

    durability: Annotated[
        Durability | None,
        setting(checked_choice, get_args(Durability), or_none=True, more=", or omitted"),
    ] = None
    retry_s: Annotated[float, setting(checked_seconds)] = RETRY_S
    wait_s: Annotated[float, setting(checked_seconds)] = 300.0
    flush_s: Annotated[float, setting(checked_duration)] = 1.0
    max_pending: Annotated[int | None, setting(checked_integer, 1, or_none=True)] = None
    read_url: Annotated[str | None, BeforeValidator(_read_url), Field(repr=False)] = None
    max_lag_s: Annotated[float | None, setting(checked_seconds, or_none=True)] = None
    alpha: Annotated[float | None, setting(checked_number, 0, 1, or_none=True)] = None


DEFAULT_CONNECTION = Connection()


class ConnectionSettings(TypedDict, total=False):
    """The settings of `Connection` as keyword arguments; `alpha` is one of `BufferSettings`."""

    durability: Durability | None
    retry_s: float
    wait_s: float
    flush_s: float
    max_pending: int | None
    read_url: str | None
    max_lag_s: float | None
