"""Settings of one process that opens a buffer."""

from typing import Annotated, Any, Literal, TypedDict, get_args

from pydantic import BeforeValidator, Field

from sqlbuffer.config.setting_checks import (
    checked_capacity,
    checked_choice,
    checked_exponent,
    checked_retry,
    checked_seconds,
    checked_wait,
)
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.strict_models import StrictModel

RETRY_S = 30.0
Durability = Literal["relaxed", "full"]


def _durability(value: Any) -> Any:
    if value is None:
        return None
    return checked_choice(value, "durability", get_args(Durability), ", or omitted")


def _read_url(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value):
        return value
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

    durability: Annotated[Durability | None, BeforeValidator(_durability)] = None
    retry_s: Annotated[float, BeforeValidator(lambda value: checked_retry("retry_s", value))] = (
        RETRY_S
    )
    wait_s: Annotated[float, BeforeValidator(lambda value: checked_wait("wait_s", value))] = 300.0
    flush_s: Annotated[float, BeforeValidator(lambda value: checked_seconds("flush_s", value))] = (
        1.0
    )
    max_pending: Annotated[
        int | None, BeforeValidator(lambda value: checked_capacity(value, "max_pending"))
    ] = None
    read_url: Annotated[str | None, BeforeValidator(_read_url), Field(repr=False)] = None
    max_lag_s: Annotated[
        float | None,
        BeforeValidator(lambda value: None if value is None else checked_wait("max_lag_s", value)),
    ] = None
    alpha: Annotated[
        float | None,
        BeforeValidator(lambda v: None if v is None else checked_exponent(v, "alpha")),
    ] = None


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
