"""What the replay buffers of Stable-Baselines3 and TorchRL share: checks of their arguments, forks,
and episodes that end with the process.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakMethod

from sqlbuffer.arguments import check_n_step
from sqlbuffer.config import SETTINGS, unknown_setting
from sqlbuffer.errors import BufferConfigError, SQLBufferError
from sqlbuffer.processes import at_process_end

logger = logging.getLogger("sqlbuffer")


def check_settings(
    settings: Mapping[str, Any], own: Sequence[str], refused: Mapping[str, str]
) -> None:
    """Raise where a setting cannot be.

    Args:
        settings: The arguments beyond the named ones.
        own: Names of the named ones.
        refused: What to do instead, by the name of an argument that has no meaning here.

    Raises:
        BufferConfigError: An argument has no meaning here; says what to do.
        ArgumentError: An argument of an unknown name; says which is meant.
    """
    for name, instead in refused.items():
        if name in settings:
            raise BufferConfigError(f"SQLReplayBuffer takes no {name}=...: {instead}")
    for name in settings:
        if name not in SETTINGS and name not in own:
            raise unknown_setting(name, (*own, *SETTINGS))


def checked_gamma(n_steps: int, gamma: float | None, *, same_as: str, default: float) -> float:
    """Return the discount of one step; a different one than that of the targets is wrong.

    Args:
        n_steps: Largest number of steps that an item spans.
        gamma: The given discount, or None.
        same_as: What has the same discount, for the message.
        default: The discount without one; a single step does not use it.

    Raises:
        BufferConfigError: There are several steps, and no discount.
        ArgumentError: A value is invalid.
    """
    check_n_step(n_steps, 1.0 if gamma is None else gamma)
    if gamma is not None:
        return float(gamma)
    if n_steps > 1:
        raise BufferConfigError(f"n_steps={n_steps} needs gamma=..., the same as {same_as}")
    return default


class StartsInEachProcess:
    """Begins again in a process that was forked."""

    _pid: int

    def _start(self) -> None:
        """Begin without what belongs to one process."""
        self._pid = os.getpid()

    @property
    def _is_in_this_process(self) -> bool:
        return self._pid == os.getpid()

    def _be_in_this_process(self) -> None:
        if not self._is_in_this_process:
            self._start()


_ends: "dict[WeakMethod[Callable[[], None]], int]" = {}  # with the process that each belongs to


def end_with_process(end: Callable[[], None]) -> None:
    """Have this process end open episodes when it ends.

    Args:
        end: A method that ends those of its object.
    """
    _ends[WeakMethod(end, _forget)] = os.getpid()
    at_process_end(_end_all, priority=1)  # before what waits is stored


def _forget(end: "WeakMethod[Callable[[], None]]") -> None:
    _ends.pop(end, None)


def _end_all() -> None:
    for reference, pid in list(_ends.items()):
        end = reference()
        if end is None or pid != os.getpid():
            continue
        try:
            end()
        except SQLBufferError as error:
            logger.error("an episode of an environment stays open: %s", error)
