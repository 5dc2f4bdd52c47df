"""Open, create and list the buffers of a database."""

from typing import Any

from sqlalchemy import Engine, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from sqlbuffer.config import BufferConfig, check_reached, check_same
from sqlbuffer.errors import BufferConfigError, BufferNotFoundError
from sqlbuffer.storage.buffers.block_size import block_size
from sqlbuffer.storage.buffers.buffer_info import BufferInfo, buffer_names, find_buffer
from sqlbuffer.storage.buffers.stored_config import config_columns
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.database.urls import Database, shown_url
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.migrations.schema_presence import with_schema
from sqlbuffer.storage.schema.number_keys import MOST_BUFFERS


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
            found = find_buffer(connection, name)
        if found is None and may_create:
            if alpha is not None and not config.priorities.enabled:
                raise BufferConfigError("alpha goes with priorities=True")
            _create(engine, name, config, layout)
            with reading(engine) as connection:
                found = find_buffer(connection, name)
    if found is None:
        raise not_found(name, url)
    check_same(name, config, found.config, () if alpha is None else ("alpha",))
    if alpha is not None and not found.config.priorities.enabled:
        raise BufferConfigError(
            f"buffer {found.name!r} has no priorities; make another one with priorities=True"
        )
    return found


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
