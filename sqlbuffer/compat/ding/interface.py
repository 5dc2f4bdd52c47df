"""The interface of DI-engine's buffers."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from sqlbuffer.compat.ding.config import attribute_dict


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
