"""The data types of fragments: `minestudio.online.utils.rollout.datatypes`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sqlbuffer.errors import MissingExtraError, install

logger = logging.getLogger("sqlbuffer")


@dataclass(frozen=True)
class FragmentIndex:
    """The index of a fragment: its worker, and its number there.

    Attributes:
        worker_uuid: Id of the worker.
        fid_in_worker: Number of the fragment in that worker, counted from 0.

    Example:
        >>> FragmentIndex("w", 0) == FragmentIndex("w", 0)
        True
    """

    worker_uuid: str
    fid_in_worker: int


@dataclass(frozen=True)
class FragmentMetadata:
    """The version, session and worker of a fragment: the rules of the buffer depend on them.

    Attributes:
        model_version: Version of the model at the first step of the fragment.
        session_id: The training session at its first step.
        worker_uuid: The worker.
        fid_in_worker: The number of the fragment there.

    Example:
        >>> FragmentMetadata(model_version=3, session_id="s", worker_uuid="w", fid_in_worker=0)
        FragmentMetadata(model_version=3, session_id='s', worker_uuid='w', fid_in_worker=0)
    """

    model_version: int
    session_id: str
    worker_uuid: str
    fid_in_worker: int


@dataclass
class SampleFragment:
    """T steps of one worker; they may cross episodes.

    Attributes:
        obs: Nested dict of arrays of shape (T, ...), or one array.
        action: Dict of arrays of shape (T, k), or one array.
        next_done: Whether the episode ended with the step; bool of shape (T,).
        reward: float32 of shape (T,).
        first: Whether the episode began with the step; bool of shape (T,).
        in_state: The recurrent state before the first step: arrays or tensors, nested.
        worker_uuid: The worker.
        fid_in_worker: The number of the fragment there.
        next_obs: The observation after the last step, not stacked.
        episode_uuids: The episode of each step: T strings.

    Example:
        >>> steps = np.zeros(2, np.float32)
        >>> done = np.zeros(2, bool)
        >>> one = SampleFragment(
        ...     obs={"x": steps}, action={"a": steps}, next_done=done, reward=steps, first=done,
        ...     in_state=[], worker_uuid="w", fid_in_worker=0, next_obs={"x": 0.0},
        ...     episode_uuids=["e", "e"],
        ... )
        >>> one.index
        FragmentIndex(worker_uuid='w', fid_in_worker=0)
    """

    obs: Any
    action: Any
    next_done: Any
    reward: Any
    first: Any
    in_state: Any
    worker_uuid: str
    fid_in_worker: int
    next_obs: Any
    episode_uuids: list[str]

    @property
    def index(self) -> FragmentIndex:
        """Index of the fragment."""
        return FragmentIndex(self.worker_uuid, self.fid_in_worker)

    def follows(self, other: "SampleFragment") -> bool:
        """Return True if it begins where another one ended, with no step between them.

        MineStudio's workers number only sent fragments: those they discarded between two fragments
        does not show in the numbers, and advantages must not be carried across.

        Args:
            other: The fragment before; both with `obs`, `next_obs`, `first`, `next_done` and
                `episode_uuids`.

        Returns:
            Whether it is the next number of the same worker, of the same episode unless that ended,
            and its first observation is the one after the other's last step.
        """
        if self.index != FragmentIndex(other.worker_uuid, other.fid_in_worker + 1):
            return False
        ended = bool(other.next_done[-1])
        if bool(self.first[0]) != ended:
            return False
        if not ended and self.episode_uuids[0] != other.episode_uuids[-1]:
            return False
        return _is_first(self.obs, other.next_obs)

    def print(self) -> None:
        """Log each of its fields."""
        for field in fields(self):
            logger.info("%s, %s: %s", self.index, field.name, getattr(self, field.name))


@dataclass
class StepRecord:
    """One step as rollout workers collect it; the buffer itself stores fragments.

    Attributes:
        worker_uuid: Id of the worker.
        obs: Observation.
        state: Recurrent state before the step.
        action: Action.
        last_reward: Reward of the step before.
        last_terminated: True if the episode ended with the step before.
        last_truncated: True if the episode was cut after the step before.
        model_version: Version of the model.
        episode_uuid: Id of the episode.
        session_id: Id of the training session.

    Example:
        >>> StepRecord("w", {}, None, {}, 0.0, False, False, 1, "e", "s").model_version
        1
    """

    worker_uuid: str
    obs: dict[str, Any]
    state: Any
    action: dict[str, Any]
    last_reward: float
    last_terminated: bool
    last_truncated: bool
    model_version: int
    episode_uuid: str
    session_id: str


class FragmentDataDict(dict[FragmentIndex, Any]):
    """Values by fragment, such as log-probabilities or advantages.

    Example:
        >>> found = FragmentDataDict()
        >>> found[FragmentIndex("w", 0)] = np.zeros(2)
        >>> list(found)
        [FragmentIndex(worker_uuid='w', fid_in_worker=0)]
    """

    def format_batch(self, fragments: Sequence[Any], device: Any) -> Any:
        """Return the parts of fragments that exist, stacked, as tensors.

        Args:
            fragments: The fragments, n of them, by their `index`.
            device: Where the tensors go.

        Returns:
            What one has, with a leading dimension of n: arrays and tensors are stacked, dicts and
            lists by key and place; numbers become one tensor, text a list.

        Raises:
            KeyError: There is nothing of one.
            MissingExtraError: No torch.
        """
        return _on_device(_stacked([self[fragment.index] for fragment in fragments]), device)


def _is_first(obs: Any, one: Any) -> bool:
    """Return True if an observation is the first of those that are stacked."""
    if isinstance(obs, dict):
        parts = one if isinstance(one, dict) else {}
        return obs.keys() == parts.keys() and all(_is_first(obs[key], parts[key]) for key in obs)
    first, other = np.asarray(obs[0]), np.asarray(one)
    is_real = {first.dtype.kind, other.dtype.kind} <= set("fc")
    return np.array_equal(first, other, equal_nan=is_real)


def _stacked(items: list[Any]) -> Any:
    """Return values of one kind as one, stacked in a new first dimension."""
    first: Any = items[0] if items else None
    if isinstance(first, np.ndarray):
        return np.stack(items)
    if hasattr(first, "detach"):
        return imported_torch("format_batch").stack(items)
    if hasattr(first, "keys"):
        return {key: _stacked([item[key] for item in items]) for key in first}
    if isinstance(first, list):
        return [_stacked([item[i] for item in items]) for i in range(len(first))]
    if isinstance(first, (int, float, np.generic)):
        return np.array(items)
    return items


def _on_device(value: Any, device: Any) -> Any:
    """Return a value with its arrays as tensors on a device."""
    if isinstance(value, np.ndarray):
        return imported_torch("format_batch").as_tensor(value, device=device)
    if hasattr(value, "detach"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _on_device(item, device) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_device(item, device) for item in value)
    return value


def imported_torch(what: str) -> Any:
    """Return torch.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"{what} needs torch; run {install('torch')}") from error
    return torch
