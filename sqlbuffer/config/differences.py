"""Compare the configuration that a buffer is opened with to the stored one."""

from collections.abc import Collection
from typing import Any

from sqlbuffer.config.buffer_config import PLACES, BufferConfig
from sqlbuffer.errors import BufferConfigError

_REMEDIES = {
    "max_capacity": "buffer.resize(n)",
    "max_episodes": "buffer.resize(max_episodes=n)",
    "rate_limiter": "buffer.set_rate_limiter(...)",
}
_ANOTHER_NAME = "a buffer of another name"


def check_same(
    buffer: str, given: BufferConfig, stored: BufferConfig, ignored: Collection[str] = ()
) -> None:
    """Raise unless a buffer is stored with the settings that it is opened with.

    Args:
        buffer: Name of the buffer.
        given: Settings that it is opened with. Omitted settings are not compared.
        stored: Settings that it is stored with.
        ignored: Settings that are not compared either.

    Raises:
        BufferConfigError: Settings that differ; the message lists each of them.
        FieldError: Only typed fields differ.
    """
    there = stored.settings()
    differing = {
        name: (_shown(name, there[name]), _shown(name, value))
        for name, value in given.given().items()
        if PLACES[name][0] != "fields" and name not in ignored and value != there[name]
    }
    fields = given.fields.differences(stored.fields)
    if not differing:
        given.fields.check_same(stored.fields)
    elif len(differing) + len(fields) == 1:
        ((name, (one, other)),) = differing.items()
        raise BufferConfigError(
            f"buffer {buffer!r} is stored with {name}={one}, and was opened with {name}={other}; "
            f"leave the argument out, or use {_REMEDIES.get(name, _ANOTHER_NAME)}"
        )
    else:
        lines = [f"{name}: stored {one}, given {other}" for name, (one, other) in differing.items()]
        listed = ";\n  ".join([*lines, *fields])
        remedies = dict.fromkeys(_REMEDIES.get(name, _ANOTHER_NAME) for name in differing)
        raise BufferConfigError(
            f"buffer {buffer!r} is stored with other settings than it was opened with:\n  {listed};"
            f"\nleave these out, or use {', '.join(remedies)}"
        )


def _shown(name: str, value: Any) -> str:
    unset = "none" if name in ("compression", "rate_limiter") else "unlimited"
    return unset if value is None else repr(value)
