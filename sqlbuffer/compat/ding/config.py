"""Configs of buffers: dicts whose keys are attributes too, and checks of their values."""

import copy
import difflib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.compat.ding.errors import ReplayConfigError

# As near as this to a known key an unknown one is taken for a slip.
SLIP = 0.9
# Keys of DI-engine's configs in addition to those of a buffer.
_FOREIGN = frozenset({"cfg_type", "import_names", "replay_buffer_start_size", "replay_start_size"})


class AttributeDict(dict[str, Any]):
    """A dict whose keys are attributes, where `easydict` is not installed.

    Example:
        >>> AttributeDict(monitor={"seconds": 60}).monitor.seconds
        60
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _with_attributes(value))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __deepcopy__(self, memo: dict[int, Any]) -> "AttributeDict":
        return type(self)({key: copy.deepcopy(value, memo) for key, value in self.items()})


def _with_attributes(value: Any) -> Any:
    if isinstance(value, Mapping) and not isinstance(value, AttributeDict):
        return AttributeDict(value)
    return value


def attribute_dict(values: Mapping[str, Any]) -> Any:
    """Return an `EasyDict` where easydict is installed, else a dict that does the same."""
    try:
        from easydict import EasyDict
    except ImportError:
        return AttributeDict(values)
    return EasyDict(values)


def filled(config: Any, defaults: Mapping[str, Any]) -> Any:
    """Return a config whose missing keys are taken from the defaults.

    Args:
        config: A mapping, which is not changed. Unknown keys are kept and not checked.
        defaults: All known keys, with nested mappings.

    Raises:
        ReplayConfigError: It is not a mapping, or an unknown key is nearly a known one.
    """
    return attribute_dict(_merged(config, defaults, "config"))


def _merged(config: Any, defaults: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ReplayConfigError(f"{path} is a dict or an EasyDict, got {config!r}")
    merged = {key: copy.deepcopy(value) for key, value in defaults.items()}
    for key, value in config.items():
        if key not in defaults:
            _check_unknown(key, defaults, path)
            merged[key] = value
        elif isinstance(defaults[key], Mapping) and defaults[key]:
            merged[key] = _merged(value, defaults[key], f"{path}.{key}")
        else:
            merged[key] = value
    return merged


def _check_unknown(key: Any, defaults: Mapping[str, Any], path: str) -> None:
    if not isinstance(key, str):
        raise ReplayConfigError(f"{path}: keys are text, got {key!r}")
    near = difflib.get_close_matches(key, defaults, 1, SLIP)
    if near and key not in _FOREIGN:
        raise ReplayConfigError(f"{path}: unknown key {key!r}; did you mean {near[0]!r}?")


def checked_count(value: Any, name: str, least: int = 1) -> int:
    """Return a whole number of at least `least`.

    Raises:
        ReplayConfigError: It is something else.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        raise ReplayConfigError(f"{name} is a number, got {value!r}")
    if not math.isfinite(value) or int(value) != value or value < least:
        raise ReplayConfigError(f"{name} is a whole number from {least} on, got {value!r}")
    return int(value)


def checked_flag(value: Any, name: str) -> bool:
    """Return a truth value.

    Raises:
        ReplayConfigError: It is something else.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ReplayConfigError(f"{name} is True or False, got {value!r}")
    return bool(value)


def checked_seed(value: Any) -> int | None:
    """Return a seed, or None.

    Raises:
        ReplayConfigError: The seed is not an integer from 0 on.
    """
    return None if value is None else checked_count(value, "seed", 0)


def config_value(cfg: Any, name: str) -> Any:
    """Return the value of a key, of a dict or of an object with attributes.

    Raises:
        ReplayConfigError: The key is missing.
    """
    try:
        return cfg[name] if isinstance(cfg, dict) else getattr(cfg, name)
    except (KeyError, AttributeError):
        raise ReplayConfigError(f"the config lacks {name!r}: {cfg!r:.200}") from None
