"""A step of a rollout as it was stored, which is decoded when its rollout is complete."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from sqlbuffer.codec.decoder import decode
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta

# Task and episode of a step, or task and agent where there is no episode.
EpisodeKey = tuple[str, str | None, str | None]
_N_KEYS = 9
# Length of a step in the form of `packed`.
N_PACKED = 7


class RolloutStep(NamedTuple):
    """A step of a rollout: its keys, reward and flags, JSON texts, and the bytes of their arrays.

    Example:
        >>> step = RolloutStep("sums", "a", None, 0, None, None, 1, messages='["?"]')
        >>> RolloutStep.unpacked(step.packed()).row().exp_data.messages
        ['?']
    """

    task_id: str
    agent_id: str
    episode_id: str | None
    step: int
    model_version: int | None
    session_id: str | None
    seq: int | None
    terminated: bool | None = None
    truncated: bool | None = None
    reward: float | None = None
    state: str | None = None
    actions: str | None = None
    messages: str | None = None
    extra: str | None = None
    arrays: bytes | None = None

    @property
    def key(self) -> EpisodeKey:
        """The episode that it belongs to."""
        return key_of(self.task_id, self.agent_id, self.episode_id)

    def row(self) -> DataRow:
        """Return it with its values decoded, without typed fields."""
        meta = ExpMeta(
            self.task_id, agent_id=self.agent_id, step=self.step, episode_id=self.episode_id,
            model_version=self.model_version, session_id=self.session_id,
        )  # fmt: skip
        data = Experience(
            state=decode(self.state, self.arrays), actions=decode(self.actions, self.arrays),
            messages=decode(self.messages, self.arrays), extra=decode(self.extra, self.arrays),
            reward_t=self.reward, terminated=self.terminated, truncated=self.truncated,
        )  # fmt: skip
        return DataRow(meta, data, id="", seq=self.seq)

    def packed(self) -> tuple[Any, ...]:
        """Return it as values of `ScratchLists`."""
        reward = str(self.reward) if self.reward is not None else None  # it may be NaN
        return (orjson.dumps(self[:_N_KEYS]), reward, *self[_N_KEYS + 1 :])

    @classmethod
    def unpacked(cls, values: Sequence[Any]) -> "RolloutStep":
        """Return the step that was packed."""
        keys, reward, *others = values
        number = None if reward is None else float(reward)
        return cls._make((*orjson.loads(keys), number, *others))


def key_of(task_id: str, agent_id: str, episode_id: str | None) -> EpisodeKey:
    """Return the key of an episode, or of the steps of an agent in a task without episodes."""
    return (task_id, agent_id, None) if episode_id is None else (task_id, None, episode_id)
