"""The classes of buffers by the type in a config."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sqlbuffer.compat.ding.alternatives import ALTERNATIVES
from sqlbuffer.compat.ding.errors import ReplayConfigError, UnknownBufferError

Class = TypeVar("Class", bound=type)

_classes: dict[str, Any] = {}


def register_buffer(name: str) -> Callable[[Class], Class]:
    """Register a class for configs of a type.

    Args:
        name: The type.

    Example:
        >>> from sqlbuffer.compat.ding import NaiveReplayBuffer, get_buffer_cls
        >>> @register_buffer("mine")
        ... class Mine(NaiveReplayBuffer):
        ...     pass
        >>> get_buffer_cls({"type": "mine"}) is Mine
        True
    """

    def register(cls: Class) -> Class:
        _classes[name] = cls
        return cls

    return register


def create_buffer(cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """Return a new buffer.

    Args:
        cfg: Its config; `type` says which, and `import_names` lists modules to import before.
        args: Given on to its class.
        kwargs: Given on to its class.

    Raises:
        UnknownBufferError: No buffer of that type.
        ImportError: This package does not have it; the message names the replacement.

    Example:
        >>> buffer = create_buffer({"type": "naive", "replay_buffer_size": 100})
        >>> buffer.push([{"obs": 1}, {"obs": 2}], cur_collector_envstep=0)
        >>> buffer.count(), sorted(item["obs"] for item in buffer.sample(2, cur_learner_iter=0))
        (2, [1, 2])
    """
    names = _checked(cfg).get("import_names") or ()
    for module in [names] if isinstance(names, str) else names:
        importlib.import_module(module)
    return _class_of(cfg, "not support buildable-object type: ")(cfg, *args, **kwargs)


def get_buffer_cls(cfg: Mapping[str, Any]) -> Any:
    """Return the class of the buffer that a config says.

    Raises:
        UnknownBufferError: No buffer of that type.
        ImportError: This package does not have it; the message names the replacement.

    Example:
        >>> get_buffer_cls({"type": "naive"}).__name__
        'NaiveReplayBuffer'
    """
    return _class_of(_checked(cfg), "no buffer of type ")


def _checked(cfg: Any) -> Mapping[str, Any]:
    if not isinstance(cfg, Mapping):
        raise ReplayConfigError(f"config is a dict or an EasyDict, got {cfg!r}")
    return cfg


def _class_of(cfg: Mapping[str, Any], refusal: str) -> Any:
    kind = cfg.get("type")
    if isinstance(kind, str) and kind in _classes:
        return _classes[kind]
    if isinstance(kind, str) and kind in ALTERNATIVES:
        raise ALTERNATIVES.error(kind)
    raise UnknownBufferError(
        f"{refusal}{kind!r}; the config's type is one of {', '.join(sorted(_classes))}"
    )
