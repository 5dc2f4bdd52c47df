"""The keyword arguments that open a buffer: settings that are stored, and the opener's own."""

from collections.abc import Mapping
from typing import Any

from sqlbuffer.checks import checked_instance
from sqlbuffer.config.buffer_config import (
    DEFAULT_CONFIG,
    PLACES,
    BufferConfig,
    BufferSettings,
    unknown_setting,
)
from sqlbuffer.config.connection import DEFAULT_CONNECTION, Connection, ConnectionSettings
from sqlbuffer.errors import FieldError

# Their names; `alpha` is in both models.
SETTINGS = tuple(dict.fromkeys((*PLACES, *Connection.model_fields)))


class OpenerSettings(BufferSettings, ConnectionSettings, total=False):
    """The settings that `ReplayBuffer` takes as keyword arguments."""


def with_settings(
    config: BufferConfig | None, connection: Connection | None, settings: Mapping[str, Any]
) -> tuple[BufferConfig, Connection]:
    """Return two models with settings that override theirs.

    Args:
        config: Stored settings; None: the defaults.
        connection: Settings of this process; None: the defaults.
        settings: Settings of both by name; `alpha` is in both. A stored setting that is None is
            ignored.

    Raises:
        BufferConfigError: A value is invalid.
        FieldError: A field is malformed.
        ArgumentError: An unknown setting, or something else than a model.
    """
    _check_models(config, connection)
    for name in settings:
        if name not in SETTINGS:
            raise unknown_setting(name, SETTINGS)
    own = {name: settings[name] for name in Connection.model_fields if name in settings}
    stored = {
        name: value
        for name, value in settings.items()
        if value is not None and (name == "alpha" or name not in own)
    }
    if "observation_fields" in stored and config is None and "fields" not in stored:
        raise FieldError("observation_fields go with fields=...; leave both out to reopen")
    connection = connection or DEFAULT_CONNECTION
    return (
        (config or DEFAULT_CONFIG).replace(stored),
        Connection(**{**connection.model_dump(exclude_unset=True), **own}),
    )


def _check_models(config: Any, connection: Any) -> None:
    if config is not None:
        what = "a BufferConfig, such as BufferConfig.of(max_capacity=1000)"
        checked_instance(config, "config", BufferConfig, what)
    if connection is not None:
        what = "a Connection, such as Connection(wait_s=10)"
        checked_instance(connection, "connection", Connection, what)
