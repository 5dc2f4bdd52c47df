"""A replay buffer for the algorithms of Stable-Baselines3.

See `docs/how-to/train-with-stable-baselines3.md`.
"""

from sqlbuffer.errors import MissingExtraError, install

try:
    from stable_baselines3.common.buffers import NStepReplayBuffer  # noqa: F401
except ImportError:
    raise MissingExtraError(
        f"sqlbuffer.integrations.sb3 needs Stable-Baselines3 2.7 or later; run {install('sb3')}"
    ) from None

from sqlbuffer.integrations.sb3.sql_replay_buffer import SQLReplayBuffer

__all__ = ["SQLReplayBuffer"]
