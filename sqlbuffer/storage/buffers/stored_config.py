"""The configuration of a buffer in the database: one JSON document, and columns that SQL reads."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, Text, cast, null, select, update

from sqlbuffer.config import BufferConfig
from sqlbuffer.errors import BufferNotFoundError, SchemaTooNewError, SQLBufferError
from sqlbuffer.extras import UPGRADE
from sqlbuffer.rate_limits import Policy, RateLimiter, policy_to_json, rate_limiter_of
from sqlbuffer.storage.buffers.locks import lock_buffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.schema.metadata import json_literal

# Settings that triggers, views and frequent statements read.
HOT_COLUMNS: Mapping[str, Callable[[BufferConfig], Any]] = {
    "max_capacity": lambda config: config.retention.max_capacity,
    "max_episodes": lambda config: config.retention.max_episodes,
    "evict_unit": lambda config: config.retention.evict_by,
    "keep_episodes": lambda config: config.episodes.keep_episodes,
    "open_timeout_s": lambda config: config.episodes.open_timeout_s,
    "has_priorities": lambda config: config.priorities.enabled,
    "alpha": lambda config: config.priorities.alpha if config.priorities.enabled else None,
    # If rows are leased, the queue counts their uses.
    "has_uses": lambda config: config.sampling.max_use is not None and not config.leases.enabled,
    "has_queue": lambda config: config.leases.enabled,
}


def config_columns(config: BufferConfig) -> dict[str, Any]:
    """Return the columns of `buffers` for the configuration of a new buffer."""
    return {
        "config": json_literal(config.model_dump(mode="json")),
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
    own = select(buffers.c.name, cast(buffers.c.config, Text)).where(buffers.c.id == buffer_id)
    found = connection.execute(own).one_or_none()
    if found is None:
        raise BufferNotFoundError(f"no buffer with buffer_id {buffer_id}; it was dropped")
    return parsed_config(found.config, found.name)


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
    own = buffers.c.id == buffer_id
    columns = connection.execute(select(*(buffers.c[name] for name in HOT_COLUMNS)).where(own))
    stored = columns.mappings().one()
    # A role may have the right to change only some of them.
    changed = {
        column: value
        for column, read in HOT_COLUMNS.items()
        if (value := read(config)) != stored[column]
    }
    document = json_literal(config.model_dump(mode="json"))
    connection.execute(update(buffers).where(own).values({"config": document, **changed, **also}))


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
