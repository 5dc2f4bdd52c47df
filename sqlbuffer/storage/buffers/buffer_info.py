"""A buffer as it is stored."""

from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Text, cast, select

from sqlbuffer.fields.buffer_fields import NO_FIELDS, Fields
from sqlbuffer.rate_limits import Policy, policy_from_json
from sqlbuffer.storage.buffers.limits import LEAST_BLOCK
from sqlbuffer.storage.buffers.tables import buffers

ALPHA = 0.6


@dataclass(frozen=True)
class BufferInfo:
    """A buffer as it is stored.

    Attributes:
        id: Its key in the tables.
        name: Its name.
        max_capacity: Rows held at most; None is unlimited.
        evict_by: `row`, `task` or `episode`.
        max_episodes: Episodes held at most; None is unlimited.
        keep_episodes: Rows of `episodes` kept at most once their steps have left.
        open_timeout_s: How long an open episode may be without a write before it is abandoned.
        fields: Its typed fields.
        compression: How the bytes of arrays are compressed; None: not at all.
        priorities: Whether rows have priorities.
        alpha: The exponent of priorities in draws.
        block_size: How many numbers a block of them has.
        max_use: Samples of a row at most; None is unlimited.
        max_staleness: How much older than the clock a sampled row may be; None is unlimited.
        min_size: Rows that the buffer needs before any is sampled.
        track_samples: Whether batches are logged.
        keep_samples_s: How long the log is kept.
        rate_limiter: What limited inserts and samples when it was opened; None: nothing.
        leases: Whether rows are handed out by leases.
        current_session_only: Whether rows of other sessions are not sampled.
        keep_expired: Whether rows stay that can never be sampled again.
        max_row_bytes: How large the payload of a row may be.
        layout: Name of its layout; None: rows alone.
    """

    id: int
    name: str
    max_capacity: int | None
    evict_by: str
    max_episodes: int | None
    keep_episodes: int
    open_timeout_s: float
    fields: Fields = NO_FIELDS
    compression: str | None = None
    priorities: bool = False
    alpha: float = ALPHA
    block_size: int = LEAST_BLOCK
    max_use: int | None = None
    max_staleness: int | None = None
    min_size: int = 0
    track_samples: bool = False
    keep_samples_s: float = 604_800.0
    rate_limiter: Policy | None = None
    leases: bool = False
    current_session_only: bool = False
    keep_expired: bool = False
    max_row_bytes: int = 2**28
    layout: str | None = None


def find_buffer(connection: Connection, name: str) -> BufferInfo | None:
    """Return a buffer by name."""
    row = connection.execute(_select().where(buffers.c.name == name)).one_or_none()
    return None if row is None else _info(row)


def buffers_by_name(connection: Connection) -> list[BufferInfo]:
    """Return all buffers, ordered by name."""
    return [_info(row) for row in connection.execute(_select().order_by(buffers.c.name))]


def _select() -> Any:
    table = buffers.c
    return select(
        table.id,
        table.name,
        table.max_capacity,
        table.evict_unit,
        table.max_episodes,
        table.keep_episodes,
        table.open_timeout_s,
        table.compression,
        table.has_priorities,
        table.alpha,
        table.block_size,
        table.max_use,
        table.max_staleness,
        table.min_size,
        table.track_samples,
        table.keep_samples_s,
        table.has_queue,
        table.current_session_only,
        table.keep_expired,
        table.max_row_bytes,
        table.layout,
        cast(table.flow, Text).label("flow"),
        cast(table.field_specs, Text),
    )


def _info(row: Any) -> BufferInfo:
    *_, specs = row
    fields = NO_FIELDS if specs is None else Fields.from_json(orjson.loads(specs))
    return BufferInfo(
        row.id,
        row.name,
        row.max_capacity,
        row.evict_unit,
        row.max_episodes,
        row.keep_episodes,
        row.open_timeout_s,
        fields,
        row.compression,
        bool(row.has_priorities),
        ALPHA if row.alpha is None else row.alpha,
        row.block_size,
        row.max_use,
        row.max_staleness,
        row.min_size,
        bool(row.track_samples),
        row.keep_samples_s,
        None if row.flow is None else policy_from_json(orjson.loads(row.flow)),
        bool(row.has_queue),
        bool(row.current_session_only),
        bool(row.keep_expired),
        row.max_row_bytes,
        row.layout,
    )
