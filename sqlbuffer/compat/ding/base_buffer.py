"""The interface of DI-engine's buffers, and their classes by the type in a config."""

import copy
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

from sqlbuffer.compat.ding.config import attribute_dict
from sqlbuffer.compat.ding.errors import ALTERNATIVES, ReplayConfigError, UnknownBufferError


class IBuffer(ABC):
    """The methods of every buffer.

    Attributes:
        config: The keys of its config with their defaults.

    Example:
        >>> from sqlbuffer.compat.ding import NaiveReplayBuffer
        >>> issubclass(NaiveReplayBuffer, IBuffer)
        True
    """

    config: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def default_config(cls) -> Any:
        """Return a copy of the default config: an `EasyDict` where easydict is installed, else a
        dict whose keys are attributes.
        """
        return attribute_dict(
            {**copy.deepcopy(dict(cls.config)), "cfg_type": f"{cls.__name__}Dict"}
        )

    @abstractmethod
    def push(self, data: Any, cur_collector_envstep: int) -> None:
        """Put in an item, or each of a list."""

    @abstractmethod
    def update(self, info: Any) -> Any:
        """Update items with the learner's data."""

    @abstractmethod
    def sample(self, batch_size: int, cur_learner_iter: int) -> list[Any] | None:
        """Draw items."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all items."""

    @abstractmethod
    def count(self) -> int:
        """Return how many items there are."""

    @abstractmethod
    def save_data(self, file_name: Any) -> None:
        """Write all that it holds to a file."""

    @abstractmethod
    def load_data(self, file_name: Any) -> None:
        """Replace the contents by those of a file."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that it holds."""

    @abstractmethod
    def load_state_dict(self, _state_dict: Mapping[str, Any]) -> None:
        """Hold what `state_dict` returned."""


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
