"""Open, create and list the buffers of a database.

A buffer whose steps may be replaced in place says so in `buffers.layout`; null is the plain one.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from sqlalchemy import Connection, Engine, RowMapping, Text, cast, insert, null, select, update
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from sqlbuffer.config import BufferConfig, check_reached, check_same
from sqlbuffer.encoding.chunks import comparable_values
from sqlbuffer.errors import (
    UPGRADE,
    BufferConfigError,
    BufferNotFoundError,
    SchemaTooNewError,
    SQLBufferError,
    StorageError,
)
from sqlbuffer.fields import FieldSpec, misspelt_name
from sqlbuffer.rate_limits import Policy, RateLimiter, policy_to_json, rate_limiter_of
from sqlbuffer.spaces import Spaces
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import driver_of, reading
from sqlbuffer.storage.database.urls import Database, key_of, shown_url
from sqlbuffer.storage.dialects import by_database, writing
from sqlbuffer.storage.migrations.migrate import with_schema
from sqlbuffer.storage.schema.metadata import json_literal
from sqlbuffer.storage.schema.number_keys import MOST_BUFFERS
from sqlbuffer.storage.watermarks import last_number

logger = logging.getLogger("sqlbuffer")


def _sqlite_lock_as_writer(connection: Connection, buffer_id: int) -> None:
    """Do nothing: no other transaction writes at the same time."""


def _postgresql_lock_as_writer(connection: Connection, buffer_id: int) -> None:
    """Lock the row of a buffer until the transaction ends, with the rights of any writer."""
    driver_of(connection).execute("SELECT sqlbuffer_lock_v1(%s::integer)", (buffer_id,))


lock_as_writer = by_database(sqlite=_sqlite_lock_as_writer, postgresql=_postgresql_lock_as_writer)


def lock_buffer(connection: Connection, buffer_id: int) -> bool:
    """Lock the row of a buffer until the transaction ends; return False if there is none."""
    statement = (
        select(buffers.c.id).where(buffers.c.id == buffer_id).with_for_update(key_share=True)
    )
    return connection.execute(statement).first() is not None


# Measured: 2,000 blocks are read in about 2 ms, and a block of 512 rows whose weights are like
# errors accepts two draws in five. A buffer without a limit gets the block size of four million
# rows, since its blocks keep their size. At one million rows and with weights like errors, a draw
# takes 2 ms less with blocks of 2,048 than with blocks of 512. It takes 4 ms of 28 more if a few
# weights are far above the others. At ten million rows blocks of 2,048 mean 5,000 blocks instead of
# 20,000, at 1.3 us each on SQLite.
LEAST_BLOCK, MOST_BLOCK, BLOCKS_BITS = 256, 65_536, 11
USUAL_ROWS = 2**22


def block_size(max_capacity: int | None) -> int:
    """Return the number of row numbers in a block of priorities.

    The blocks are few enough to read all of them for each batch.
    """
    bits = ((max_capacity or USUAL_ROWS) - 1).bit_length() - BLOCKS_BITS
    return min(max(LEAST_BLOCK, 1 << max(bits, 0)), MOST_BLOCK)


# Settings that triggers, views and frequent statements read.
HOT_COLUMNS: Mapping[str, Callable[[BufferConfig], Any]] = {
    "max_capacity": lambda config: config.retention.max_capacity,
    "max_episodes": lambda config: config.retention.max_episodes,
    "max_age_s": lambda config: config.retention.max_age,
    "max_bytes": lambda config: config.retention.max_bytes,
    "evict_unit": lambda config: config.retention.evict_by,
    "keep_episodes": lambda config: config.episodes.keep_episodes,
    "open_timeout_s": lambda config: config.episodes.open_timeout_s,
    "has_priorities": lambda config: config.priorities.enabled,
    "has_messages": lambda config: config.payloads.shared_messages,
    "alpha": lambda config: config.priorities.alpha if config.priorities.enabled else None,
    # If rows are leased, the queue counts their uses.
    "has_uses": lambda config: config.sampling.max_use is not None and not config.leases.enabled,
    "has_queue": lambda config: config.leases.enabled,
}


def config_columns(config: BufferConfig) -> dict[str, Any]:
    """Return the columns of `buffers` for the configuration of a new buffer."""
    return {
        **_field_columns(config),
        "flow": flow_column(config.flow.rate_limiter, 0, 0),
        "has_chunks": bool(config.fields.specs),
        **{column: read(config) for column, read in HOT_COLUMNS.items()},
    }


def flow_column(policy: Policy | None, n_inserted: int, n_sampled: int) -> Any:
    """Return the column of a rate limiter, with the counts of rows when it was set."""
    if policy is None:
        return null()
    bounds = (
        {"min_diff": policy.min_diff, "max_diff": policy.max_diff}
        if isinstance(policy, RateLimiter)
        else {}
    )
    counts = {"inserted_before": n_inserted, "sampled_before": n_sampled}
    return json_literal({"limiter": policy_to_json(policy), **bounds, **counts})


def read_config(connection: Connection, buffer_id: int) -> BufferConfig:
    """Return the current configuration of a buffer.

    Raises:
        BufferNotFoundError: The buffer was dropped.
        SchemaTooNewError: A later release has stored it.
    """
    statement = select(buffers.c.name, cast(buffers.c.config, Text)).where(
        buffers.c.id == buffer_id
    )
    row = connection.execute(statement).one_or_none()
    if row is None:
        raise BufferNotFoundError(f"no buffer with buffer_id {buffer_id}; it was dropped")
    return parsed_config(row.config, row.name)


def change_config(
    connection: Connection, buffer_id: int, settings: Mapping[str, Any], **also: Any
) -> None:
    """Change settings of a buffer, in the document and in the columns; lock the buffer.

    Args:
        connection: A transaction that writes.
        buffer_id: The buffer.
        settings: The settings that change, by their names as keyword arguments.
        also: Other columns to set.

    Raises:
        BufferConfigError: Settings that the buffer cannot have.
        BufferNotFoundError: The buffer was dropped.
    """
    lock_buffer(connection, buffer_id)
    config = read_config(connection, buffer_id).replace(settings)
    is_buffer = buffers.c.id == buffer_id
    columns = connection.execute(
        select(*(buffers.c[name] for name in HOT_COLUMNS)).where(is_buffer)
    )
    stored = columns.mappings().one()
    # A role may have the right to change only some of them.
    changed = {
        column: value
        for column, read in HOT_COLUMNS.items()
        if (value := read(config)) != stored[column]
    }
    document = json_literal(config.model_dump(mode="json"))
    connection.execute(
        update(buffers).where(is_buffer).values({"config": document, **changed, **also})
    )


def add_field(connection: Connection, buffer_id: int, spec: FieldSpec) -> bool:
    """Add a typed field to a buffer; return False if it has that field already.

    Raises:
        BufferNotFoundError: The buffer was dropped.
        FieldError: It has another field of that name, or is not one of typed fields.
    """
    lock_buffer(connection, buffer_id)
    config = read_config(connection, buffer_id)
    fields = config.fields.with_field(spec)
    if fields is config.fields:
        return False
    config = config.model_copy(update={"fields": fields})
    columns = _field_columns(config)
    connection.execute(update(buffers).where(buffers.c.id == buffer_id).values(columns))
    return True


def _field_columns(config: BufferConfig) -> dict[str, Any]:
    """Return the columns that say which typed fields a buffer has."""
    added = {name: spec for name, spec in config.fields.specs.items() if spec.added}
    defaults = {name: _comparable(spec) for name, spec in added.items() if spec.column}
    return {
        "config": json_literal(config.model_dump(mode="json")),
        "n_added": max((spec.added for spec in added.values()), default=0),
        "field_defaults": json_literal(defaults) if defaults else null(),
    }


def _comparable(spec: FieldSpec) -> Any:
    """Return the default value of a field as conditions compare it."""
    values = comparable_values(np.asarray(spec.default_value, spec.dtype).reshape(1))
    return values.tolist()[0] if isinstance(values, np.ndarray) else values[0]


def disagreements(connection: Connection) -> dict[str, list[str]]:
    """Return the columns that differ from the stored configuration, by buffer.

    Raises:
        SchemaTooNewError: A later release has stored a configuration.
    """
    table = buffers.c
    rows = connection.execute(
        select(
            table.name,
            cast(table.config, Text),
            cast(table.flow, Text).label("flow"),
            *(table[column] for column in HOT_COLUMNS),
        )
        # Rows never leave an unfinished copy: its columns have no limits.
        .where(table.is_copying.is_(False))
        .order_by(table.name)
    )
    return {row["name"]: _disagreeing(row) for row in rows.mappings()}


def _disagreeing(row: RowMapping) -> list[str]:
    config = parsed_config(row["config"], row["name"])
    pairs = {column: (row[column], read(config)) for column, read in HOT_COLUMNS.items()}
    limiter = None if row["flow"] is None else rate_limiter_of(orjson.loads(row["flow"])["limiter"])
    pairs["flow"] = (limiter, config.flow.rate_limiter)
    return [
        f"{column} is {one!r}, and its configuration says {other!r}"
        for column, (one, other) in pairs.items()
        if one != other
    ]


def parsed_config(stored: str, name: str) -> BufferConfig:
    """Return a configuration that is stored as JSON text.

    Args:
        stored: The text.
        name: The buffer.

    Raises:
        SchemaTooNewError: The text has settings or values that this release does not know.
    """
    try:
        return BufferConfig.model_validate(orjson.loads(stored))
    except SQLBufferError as error:
        raise SchemaTooNewError(
            f"buffer {name!r} is stored with settings that this release of sqlbuffer cannot read "
            f"({error}); a later one can: run {UPGRADE}"
        ) from error


@dataclass
class BufferInfo:
    """A buffer as it was stored when it was opened; fields that are added later are learned.

    Attributes:
        id: Its key in the tables.
        name: Its name.
        config: Its settings.
        block_size: Number of row numbers in a block of priorities.
        layout: Name of its layout; None for rows alone.
        has_chunks: Its steps are in chunks; otherwise each is a row of `experiences`.
    """

    id: int
    name: str
    config: BufferConfig
    block_size: int
    layout: str | None = None
    has_chunks: bool = False


def find_buffer(connection: Connection, name: str) -> BufferInfo | None:
    """Return a buffer by name.

    Raises:
        SchemaTooNewError: A later release has stored its configuration.
    """
    table = buffers.c
    row = connection.execute(
        select(
            table.id, cast(table.config, Text), table.block_size, table.layout, table.has_chunks
        ).where(table.name == name)
    ).one_or_none()
    if row is None:
        return None
    number, config, block_size, layout, has_chunks = row
    settings = parsed_config(config, name)
    return BufferInfo(number, name, settings, block_size, layout, bool(has_chunks))


def buffer_names(connection: Connection) -> list[str]:
    """Return the names of all buffers, in order."""
    return list(connection.scalars(select(buffers.c.name).order_by(buffers.c.name)))


def why_empty(connection: Connection, buffer_id: int) -> str:
    """Return why a buffer has no rows, as text behind its name."""
    buffer = buffers.c
    counted = select(
        last_number(buffer.id),
        buffer.n_expired,
        buffer.n_used_up,
        buffer.n_other_session,
        buffer.n_partial,
        buffer.n_flat,
    ).where(buffer.id == buffer_id)
    n_stored, *n_left = map(int, connection.execute(counted).one())
    if not n_stored:
        return "is empty (nothing has been stored into it)"
    n_others = max(0, n_stored - sum(n_left))
    causes = (
        "expired (max_staleness)",
        "used up (max_use)",
        "of another session (current_session_only)",
        "of groups that stayed incomplete or came late",
        "of groups whose rewards differed too little (min_spread)",
        "evicted, deleted or rolled back",
    )
    departures = ", ".join(
        f"{n:,} {cause}" for n, cause in zip((*n_left, n_others), causes, strict=True) if n
    )
    return f"is empty (all rows that were stored have left: {departures})"


# The layout of buffers whose steps may be replaced in place: readers look for new bytes, and
# copies and exports refuse such buffers. Only `compat.memmap` makes them.
SLOTS = "slots"


def check_known(info: BufferInfo) -> None:
    """Raise unless this version knows what a buffer keeps in addition to its steps.

    Raises:
        BufferConfigError: The buffer has a layout of another version.
    """
    if info.layout not in (None, SLOTS):
        raise BufferConfigError(
            f"buffer {info.name!r} has the layout {info.layout!r}, which this process does not "
            f"know; import the package that made the buffer first, or upgrade sqlbuffer"
        )


def check_resizable(info: BufferInfo) -> None:
    """Raise unless the capacity of a buffer can be changed.

    Raises:
        BufferConfigError: It is one of slots, whose episodes stay until the slots are used again.
    """
    check_known(info)
    if info.layout == SLOTS:
        raise BufferConfigError(
            f"buffer {info.name!r} is one of sqlbuffer.compat.memmap and holds what its slots "
            f"show; make it again with another max_episodes=..."
        )


def open_buffer(
    engine: Engine,
    url: URL,
    name: str,
    config: BufferConfig,
    alpha: float | None = None,
    layout: str | None = None,
    *,
    may_create: bool,
) -> BufferInfo:
    """Return the buffer of that name, and create it if it is missing.

    Several processes may call this at the same time.

    Args:
        engine: An engine of the database.
        url: Its URL, for errors.
        name: The buffer.
        config: Configuration of a new buffer. For a stored buffer the given settings are compared,
            except `alpha` if the opener has its own.
        alpha: The opener's own exponent of priorities.
        layout: The layout of a new buffer.
        may_create: Create the buffer if it is missing.

    Raises:
        BufferConfigError: The stored settings differ from the given ones.
        BufferNotFoundError: No such buffer, and `may_create` is False.
    """
    with translated(url):
        with reading(engine) as connection:
            buffer = find_buffer(connection, name)
        if buffer is None and may_create:
            if alpha is not None and not config.priorities.enabled:
                raise BufferConfigError("alpha goes with priorities=True")
            _create(engine, name, config, layout)
            with reading(engine) as connection:
                buffer = find_buffer(connection, name)
                _warn_of_similar(connection, url, name)
    if buffer is None:
        raise not_found(name, url)
    check_same(name, config, buffer.config, () if alpha is None else ("alpha",))
    if alpha is not None and not buffer.config.priorities.enabled:
        raise BufferConfigError(
            f"buffer {buffer.name!r} has no priorities; make another one with priorities=True"
        )
    if config.fields.spaces is not None and buffer.config.fields.spaces is None:
        return _with_spaces(engine, buffer, config.fields.spaces)
    return buffer


def _with_spaces(engine: Engine, buffer: BufferInfo, spaces: Spaces) -> BufferInfo:
    """Return a buffer that was made without spaces with the ones that are given now.

    They are stored, unless this process may only read.
    """

    def completed(config: BufferConfig) -> BufferConfig:
        return config.model_copy(update={"fields": config.fields.with_spaces(spaces)})

    try:
        with translated(engine.url), writing(engine) as connection:
            lock_buffer(connection, buffer.id)
            config = read_config(connection, buffer.id)
            if config.fields.spaces is None:
                values = _field_columns(completed(config))
                connection.execute(update(buffers).where(buffers.c.id == buffer.id).values(values))
    except StorageError as error:
        logger.debug("the spaces of buffer %r are not stored: %s", buffer.name, error)
    return replace(buffer, config=completed(buffer.config))


# The name of a new buffer is compared with those of this many of the newest.
NAMES_COMPARED = 1_000
_warned_of: set[tuple[Hashable, str]] = set()


def _warn_of_similar(connection: Connection, url: URL, name: str) -> None:
    """Log a warning, once in this process, if a new buffer has nearly the name of another one."""
    newest = select(buffers.c.name).order_by(buffers.c.id.desc()).limit(NAMES_COMPARED)
    similar = misspelt_name(name, connection.scalars(newest).all())
    key = (key_of(url), name)
    if similar is None or key in _warned_of:
        return
    _warned_of.add(key)
    logger.warning(
        "buffer %r is new in %s, next to %r, which has nearly its name; if you meant that one, "
        "open it by name=%r and delete the new one with ReplayBuffer.drop(url, %r); create=False "
        "refuses a name that no buffer has",
        name, shown_url(url), similar, similar, name,
    )  # fmt: skip


def _create(engine: Engine, name: str, config: BufferConfig, layout: str | None) -> None:
    check_reached(config.flow.rate_limiter, config.sampling.min_size)
    size = block_size(config.retention.max_capacity)
    values = {"name": name, "layout": layout, "block_size": size}
    try:
        with writing(engine) as connection:
            made = connection.execute(insert(buffers).values({**values, **config_columns(config)}))
            key: Any = made.inserted_primary_key
            if key.id >= MOST_BUFFERS:
                raise BufferConfigError(
                    f"the database has made {MOST_BUFFERS - 1:,} buffers, including dropped ones, "
                    f"and cannot make more; make {name!r} in another database"
                )
    except IntegrityError:
        # Another process was faster; its settings are compared like those of any stored buffer.
        pass


def list_buffers(url: Database, retry_s: float = 0.0) -> list[str]:
    """Return the names of all buffers, in order."""
    resolved = resolve_url(url)

    def work(engine: Engine) -> list[str]:
        with translated(resolved), reading(engine) as connection:
            return buffer_names(connection)

    return with_schema(url, resolved, retry_s, work)


def not_found(name: str, url: URL) -> BufferNotFoundError:
    """Return the error for a name that no buffer has."""
    return BufferNotFoundError(
        f"no buffer {name!r} in {shown_url(url)}; ReplayBuffer.list(url) names the existing ones"
    )
