"""Open, create and list the buffers of a database."""

from typing import Any

from sqlalchemy import Engine, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import BufferConfigError, BufferNotFoundError
from sqlbuffer.fields.buffer_fields import Fields, check_same
from sqlbuffer.storage.buffers.buffer_info import ALPHA, BufferInfo, buffers_by_name, find_buffer
from sqlbuffer.storage.buffers.limits import Limits
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.dialects.connections import writing
from sqlbuffer.storage.migrations.schema_presence import with_schema
from sqlbuffer.storage.schema.metadata import json_literal

_REMEDIES = {
    "max_capacity": "buffer.resize(n)",
    "max_episodes": "buffer.resize(max_episodes=n)",
    "rate_limiter": "buffer.set_rate_limiter(...)",
}


def open_buffer(
    engine: Engine,
    url: URL,
    name: str,
    limits: Limits,
    fields: Fields | None = None,
    compression: str | None = None,
    alpha: float | None = None,
    layout: str | None = None,
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
                "layout": layout,
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


def list_buffers(url: str | URL | Engine | None, retry_s: float = 0.0) -> list[BufferInfo]:
    """Return all buffers by name."""
    resolved = resolve_url(url)

    def work(engine: Engine) -> list[BufferInfo]:
        with translated(resolved), engine.connect() as connection:
            return buffers_by_name(connection)

    return with_schema(url, resolved, retry_s, work)


def not_found(name: str, url: URL) -> BufferNotFoundError:
    """Return the error of a name that no buffer has."""
    return BufferNotFoundError(
        f"no buffer {name!r} in {shown_url(url)}; ReplayBuffer.list(url) names those there are"
    )


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
