"""Which buffers a database has: open, create, list, drop."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection, Engine, Text, cast, insert, literal, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import BufferConfigError, BufferNotFoundError, StorageError
from sqlbuffer.fields.buffer_fields import NO_FIELDS, Fields, check_same
from sqlbuffer.rate_limits import Policy, policy_from_json, policy_to_json
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import (
    close_idle,
    engine_for,
    is_memory,
    resolve_url,
    was_reached,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried_at_opening
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.migrations import migrate
from sqlbuffer.storage.schema.metadata import JSON

# The oldest that the tests ran on.
OLDEST_VERSIONS = {"sqlite": (3, 38), "postgresql": (15,)}
# Measured: 2,000 blocks are read in about 2 ms, and a block of 512 rows whose weights
# are like errors accepts two draws in five. A buffer without a limit is taken for one of four
# million, since its blocks keep their size: with blocks of 2,048 a draw at one million rows takes
# 2 ms less than with 512 for weights like errors, 4 ms of 28 more where a few are far above the
# others; but at ten million rows it reads 5,000 blocks instead of 20,000, at 1.3 us each on SQLite.
LEAST_BLOCK, MOST_BLOCK, BLOCKS_BITS = 256, 65_536, 11
USUAL_ROWS = 2**22
ALPHA = 0.6
T = TypeVar("T")

_REMEDIES = {
    "max_capacity": "buffer.resize(n)",
    "max_episodes": "buffer.resize(max_episodes=n)",
    "rate_limiter": "buffer.set_rate_limiter(...)",
}


@dataclass(frozen=True)
class Limits:
    """What a buffer holds at most; None: as it is stored, or the default of a new buffer.

    Attributes:
        max_capacity: Rows.
        evict_by: What leaves at once.
        max_episodes: Episodes; they leave whole.
        keep_episodes: Rows of `episodes` whose steps have left.
        open_timeout_s: How long an open episode may be without a write before it is abandoned.
        priorities: Whether rows have priorities.
        max_use: How often a row is sampled at most.
        max_staleness: By how much a row may be older than the clock to be sampled.
        min_size: How many rows there must be before any is sampled.
        track_samples: Whether batches are noted.
        keep_samples_s: How long the notes are kept.
        rate_limiter: What limits inserts and samples.
        leases: Whether rows are handed out by leases.
        current_session_only: Whether rows of other sessions are not sampled.
        keep_expired: Whether rows stay that may never be sampled again.
        max_row_bytes: How large the payload of a row may be.
    """

    max_capacity: int | None = None
    evict_by: str | None = None
    max_episodes: int | None = None
    keep_episodes: int | None = None
    open_timeout_s: float | None = None
    priorities: bool | None = None
    max_use: int | None = None
    max_staleness: int | None = None
    min_size: int | None = None
    track_samples: bool | None = None
    keep_samples_s: float | None = None
    rate_limiter: Policy | None = None
    leases: bool | None = None
    current_session_only: bool | None = None
    keep_expired: bool | None = None
    max_row_bytes: int | None = None

    def columns(self) -> dict[str, Any]:
        """Return what a new row of `buffers` has."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        unit = given.pop("evict_by", "row" if self.max_episodes is None else "episode")
        has_priorities = given.pop("priorities", False)
        has_queue = given.pop("leases", False)
        if (policy := given.pop("rate_limiter", None)) is not None:
            given["flow"] = json_literal(
                {**policy_to_json(policy), "inserted_before": 0, "sampled_before": 0}
            )
        return {
            **given,
            "evict_unit": unit,
            "has_priorities": has_priorities,
            # Where rows are leased, the queue counts their uses.
            "has_uses": self.max_use is not None and not has_queue,
            "has_queue": has_queue,
            "block_size": block_size(self.max_capacity),
        }


def json_literal(value: Any) -> Any:
    """Return a value as the expression of a JSON column."""
    return cast(literal(orjson.dumps(value).decode(), Text()), JSON)


def block_size(max_capacity: int | None) -> int:
    """Return how many numbers a block of priorities has: few enough blocks to read all of them for
    each batch.
    """
    bits = ((max_capacity or USUAL_ROWS) - 1).bit_length() - BLOCKS_BITS
    return min(max(LEAST_BLOCK, 1 << max(bits, 0)), MOST_BLOCK)


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
        alpha: Their exponent in what is drawn.
        block_size: How many numbers a block of them has.
        max_use: How often a row is sampled at most; None is unlimited.
        max_staleness: By how much a row may be older than the clock to be sampled; None is
            unlimited.
        min_size: How many rows there must be before any is sampled.
        track_samples: Whether batches are noted.
        keep_samples_s: How long the notes are kept.
        rate_limiter: What limited inserts and samples when it was opened; None: nothing.
        leases: Whether rows are handed out by leases.
        current_session_only: Whether rows of other sessions are not sampled.
        keep_expired: Whether rows stay that may never be sampled again.
        max_row_bytes: How large the payload of a row may be.
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


def ensure_schema(engine: Engine, url: URL, create: bool | None) -> None:
    """See that the schema is the package's; make it in a new SQLite database, elsewhere only if
    asked.

    Args:
        engine: The engine.
        url: Its resolved URL.
        create: True makes a missing schema, False never does, None does in a SQLite database
            without any table.

    Raises:
        SchemaMissingError, SchemaOutdatedError, SchemaTooNewError: See `migrate.check`.
    """
    if url.get_backend_name() == "sqlite" and not is_memory(url) and create is False:
        _want_file(url)
    with translated(url), engine.connect() as connection:
        _check_version(connection)
        revision = migrate.current(connection)
        if revision is not None:
            migrate.check(connection, url)
            migrate.keep_file_pragmas(connection)
            return
        new_file = (
            engine.dialect.name == "sqlite" and create is None and migrate.is_empty(connection)
        )
        if not (create or new_file):
            migrate.check(connection, url)
    migrate.upgrade(engine)


def _check_version(connection: Connection) -> None:
    version = connection.dialect.server_version_info or ()
    oldest = OLDEST_VERSIONS[connection.dialect.name]
    if version < oldest:
        have, need = (".".join(map(str, numbers)) for numbers in (version, oldest))
        name = {"sqlite": "SQLite (of Python's sqlite3)", "postgresql": "PostgreSQL"}
        raise StorageError(
            f"{name[connection.dialect.name]} is {have}; sqlbuffer needs {need} or later"
        )


def _want_file(url: URL) -> None:
    name = url.database or ""
    if not name.startswith("file:") and not os.path.exists(name):
        raise BufferNotFoundError(
            f"there is no file {Path(name)}; check the path, or create it by opening it with "
            f"create=True"
        )


def open_buffer(
    engine: Engine,
    url: URL,
    name: str,
    limits: Limits,
    fields: Fields | None = None,
    compression: str | None = None,
    alpha: float | None = None,
    *,
    may_create: bool,
) -> BufferInfo:
    """Return the buffer of that name, creating it where it is missing; safe for several processes
    at once.

    Raises:
        BufferConfigError: The stored settings are others than the given ones.
        BufferNotFoundError: No such buffer, and none may be created.
    """
    with translated(url):
        with engine.connect() as connection:
            found = find_buffer(connection, name)
        if found is None and may_create:
            if alpha is not None and not limits.priorities:
                raise BufferConfigError("alpha goes with priorities=True")
            values: dict[str, Any] = {
                "name": name,
                "compression": compression,
                "alpha": (ALPHA if alpha is None else alpha) if limits.priorities else None,
                **limits.columns(),
            }
            if fields is not None and (fields.specs or fields.meta):
                values["field_specs"] = json_literal(fields.to_json())
            try:
                with writing(engine) as connection:
                    connection.execute(insert(buffers).values(values))
            except IntegrityError:
                # Another process was faster; its settings are compared like any other stored ones.
                pass
            with engine.connect() as connection:
                found = find_buffer(connection, name)
    if found is None:
        raise not_found(name, url)
    for setting, given in {**vars(limits), "compression": compression}.items():
        _compare(setting, given, getattr(found, setting), found)
    if alpha is not None and not found.priorities:
        raise BufferConfigError(
            f"buffer {found.name!r} has no priorities; make another one with priorities=True"
        )
    if fields is not None:
        check_same(fields, found.fields)
    return found


def _compare(setting: str, given: Any, stored: Any, found: BufferInfo) -> None:
    if given is not None and given != stored:
        unset = "none" if setting in ("compression", "rate_limiter") else "unlimited"
        shown = unset if stored is None else repr(stored)
        remedy = _REMEDIES.get(setting, "a buffer of another name")
        raise BufferConfigError(
            f"buffer {found.name!r} is stored with {setting}={shown}, and was opened with "
            f"{setting}={given!r}; "
            f"leave the argument out, or use {remedy}"
        )


def list_buffers(url: str | URL | Engine | None, retry_s: float = 0.0) -> list[BufferInfo]:
    """Return all buffers by name."""
    resolved = resolve_url(url)

    def work(engine: Engine) -> list[BufferInfo]:
        with translated(resolved), engine.connect() as connection:
            return [_info(row) for row in connection.execute(_select().order_by(buffers.c.name))]

    return with_schema(url, resolved, retry_s, work)


def with_schema(
    url: str | URL | Engine | None,
    resolved: URL,
    retry_s: float,
    work: Callable[[Engine], T],
) -> T:
    """Return what `work` returns, called with an engine of a database with the schema; see
    `retried_at_opening`.
    """
    own = url if isinstance(url, Engine) else None

    def attempt() -> T:
        engine = own if own is not None else engine_for(resolved)
        ensure_schema(engine, resolved, create=False)
        return work(engine)

    return retried_at_opening(
        attempt, retry_s, lambda: close_idle(resolved), lambda: was_reached(resolved, own)
    )


def find_buffer(connection: Connection, name: str) -> BufferInfo | None:
    """Return a buffer by name."""
    row = connection.execute(_select().where(buffers.c.name == name)).one_or_none()
    return None if row is None else _info(row)


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
    )


def not_found(name: str, url: URL) -> BufferNotFoundError:
    """Return the error of a name that no buffer has."""
    return BufferNotFoundError(
        f"no buffer {name!r} in {shown_url(url)}; ReplayBuffer.list(url) names those there are"
    )
