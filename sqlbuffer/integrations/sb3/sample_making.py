"""Make the samples of Stable-Baselines3 from batches of a mirror."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

from sqlbuffer.integrations.sb3.space_fields import ACTION, NEXT, SpaceFields
from sqlbuffer.loading.loader import Loader
from sqlbuffer.mirror.buffer_mirror import Mirror
from sqlbuffer.steps import Batch

Samples = Any  # ReplayBufferSamples, or DictReplayBufferSamples
Floats = NDArray[np.float32]


class SampleMaker:
    """Makes samples as the replay buffers of Stable-Baselines3 do, with the same arithmetic.

    Args:
        fields: The fields of a step.
        n_steps: Largest number of steps that a transition spans.
        gamma: Discount of one step.
        ends_at_limits: Whether an episode that was cut at a time limit counts as done.
    """

    def __init__(
        self, fields: SpaceFields, n_steps: int, gamma: float, *, ends_at_limits: bool
    ) -> None:
        self._fields, self._n_steps, self._gamma = fields, n_steps, gamma
        self._ends_at_limits = ends_at_limits

    def batches(self, mirror: Mirror, batch_size: int, seed: int) -> Iterator[Batch]:
        """Return batches drawn from a mirror with replacement, without end."""
        loader: Loader[Batch]
        if self._n_steps == 1:
            loader = mirror.loader("step", batch_size, replace=True, seed=seed)
        else:
            observed = [part.field for part in self._fields.parts]
            loader = mirror.loader(
                "n_step", batch_size, n_step=self._n_steps, gamma=self._gamma, replace=True,
                fields=[*observed, ACTION, "truncated"], sequence_fields=["reward"], seed=seed,
            )  # fmt: skip
        return iter(loader)

    def samples(self, batch: Batch, buffer: BaseBuffer, env: Any) -> Samples:
        """Return a batch as samples.

        Args:
            batch: The batch.
            buffer: Makes tensors.
            env: The `VecNormalize` that normalizes; None: nothing is normalized.
        """

        def tensor(array: NDArray[Any]) -> Any:
            return buffer.to_torch(array, copy=False)  # a batch shares no memory with the mirror

        before, after = (
            self._observation(batch, prefix, buffer, env, tensor) for prefix in ("", NEXT)
        )
        is_done = batch.terminated
        if self._ends_at_limits:
            is_done = is_done | batch.truncated
        dones = is_done.astype(np.float32).reshape(-1, 1)
        made = DictReplayBufferSamples if self._fields.is_dict else ReplayBufferSamples
        if self._n_steps == 1:
            rewards = buffer._normalize_reward(batch.reward.reshape(-1, 1), env)
            discounts = None
        else:
            rewards, discounts = self._returns(batch, buffer, env)
            discounts = tensor(discounts)
        return made(before, tensor(batch[ACTION]), after, tensor(dones), tensor(rewards), discounts)

    def _observation(
        self, batch: Batch, prefix: str, buffer: BaseBuffer, env: Any, tensor: Any
    ) -> Any:
        parts = self._fields.parts
        if not self._fields.is_dict:
            return tensor(buffer._normalize_obs(batch[prefix + parts[0].field], env))
        values = {part.key: batch[prefix + part.field] for part in parts}
        return {key: tensor(own) for key, own in buffer._normalize_obs(values, env).items()}

    def _returns(self, batch: Batch, buffer: BaseBuffer, env: Any) -> tuple[Floats, Floats]:
        """Return the discounted sums of rewards, and the discounts of what follows.

        The operations are those of `NStepReplayBuffer`, in its order, so that results are equal to
        the last bit. Rewards are normalized one by one.
        """
        n_steps, gamma = batch.info["n_steps"].reshape(-1, 1), self._gamma
        rewards = buffer._normalize_reward(batch.seq_reward, env)
        mask = np.arange(self._n_steps).reshape(1, -1) < n_steps
        discounts = gamma ** np.arange(self._n_steps, dtype=np.float32).reshape(1, -1)
        returns: Floats = (rewards * discounts * mask).sum(axis=1, keepdims=True)
        return returns, gamma ** n_steps.astype(np.float32)
