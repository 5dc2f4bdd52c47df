"""What one opener of a buffer chooses for itself."""

from typing import Annotated, Any, Literal, TypedDict, get_args

from pydantic import BeforeValidator

from sqlbuffer.config.setting_checks import (
    checked_choice,
    checked_exponent,
    checked_retry,
    checked_seconds,
    checked_wait,
)
from sqlbuffer.strict_models import StrictModel

RETRY_S = 30.0
Durability = Literal["relaxed", "full"]


def _durability(value: Any) -> Any:
    if value is None:
        return None
    return checked_choice(value, "durability", get_args(Durability), ", or omitted")


class Connection(StrictModel):
    """What one opener of a buffer chooses for itself. Nothing of it is stored.

    Attributes:
        durability: What a write that returned survives. None: the death of any process of the
            client or the server, and what more the server's `synchronous_commit` is set to; SQLite
            may lose the last writes when the power fails. `full`: a power failure too, at the cost
            of a sync of the disk for each write. `relaxed`: on PostgreSQL the last half second may
            be lost when the server dies, and writes do not wait for its disk; on SQLite the same as
            None. A batch is whole or absent in each case.
        retry_s: How long a call is repeated when the server cannot be reached, opening too; a
            write takes effect once. 0 raises immediately. A wrong password, and a role or a
            database that is missing, are raised immediately in any case.
        wait_s: How long a call waits for the buffer's rate limiter before it raises
            `FlowControlError`; 0 raises immediately.
        flush_s: How long a step of `episode()` waits at most before it is stored.
        alpha: Exponent of priorities in this opener's draws. None: the stored one. Draws with
            another one read all priorities of the buffer.

    Raises:
        BufferConfigError: A wrong value.

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
