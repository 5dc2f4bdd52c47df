"""Make one conversation of the steps of an episode."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.errors import FieldError
from sqlbuffer.llm.messages import Message, joined_messages
from sqlbuffer.steps.data_rows import DataRow, Experience

# Task and episode of a step, or task and agent where there is no episode.
EpisodeKey = tuple[str, str | None, str | None]


@dataclass(frozen=True)
class Conversation:
    """An episode of a language model.

    Attributes:
        task_id: Task of the episode.
        agent_id: Agent of the first step.
        episode_id: Id of the episode; None for steps of a task and agent without an episode.
        messages: Messages of the episode; see `sqlbuffer.llm.messages.joined_messages`.
        reward: The episode's own reward, or else the sum of its steps' rewards; None if there is
            neither.
        status: `complete`, `aborted`, or `open`: the episode has not ended.
        stop_reason: `stop_reason` or `finish_reason` of the last step's `extra`, or else
            `terminated` or `truncated`, or else the status.
        n_steps: Number of steps.
        model_version: Version of the model that acted in its first step.
        session_id: Training session of its first step.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> data = Experience(messages=["2 + 2?"], actions=["4"], reward_t=1.0, terminated=True)
        >>> conversation([DataRow(ExpMeta("sums"), data)]).stop_reason
        'terminated'
    """

    task_id: str
    agent_id: str
    episode_id: str | None
    messages: list[Message]
    reward: float | None
    status: str
    stop_reason: str
    n_steps: int
    model_version: int | None
    session_id: str | None


def conversation(
    rows: Sequence[DataRow], episode_reward: float | None = None, status: str = "open"
) -> Conversation:
    """Return the conversation of an episode.

    Args:
        rows: Its steps in their order, at least one.
        episode_reward: The episode's own reward.
        status: Status of the episode.

    Raises:
        FieldError: A step holds something that is not a message; the text names the episode.
    """
    meta, last = rows[0].exp_meta, rows[-1].exp_data
    rewards = [row.exp_data.reward_t for row in rows if row.exp_data.reward_t is not None]
    total = float(sum(rewards)) if rewards else None
    return Conversation(
        meta.task_id, meta.agent_id, meta.episode_id, _messages(rows),
        total if episode_reward is None else episode_reward, status, _stop_reason(last, status),
        len(rows), meta.model_version, meta.session_id,
    )  # fmt: skip


@dataclass
class ConversationAssembler:
    """Collects steps that come in insert order until their episodes have ended.

    It keeps the steps of episodes that have begun and not ended. Steps without an episode are one
    until a flag ends it, or until the number of the step does not rise.

    Attributes:
        episode_rewards: The own rewards of episodes that have one.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> assembler = ConversationAssembler()
        >>> data = Experience(messages=["2 + 2?"], actions=["4"], terminated=True)
        >>> [done.n_steps for done in assembler.add([DataRow(ExpMeta("sums"), data)])]
        [1]
    """

    episode_rewards: dict[EpisodeKey, float] = field(default_factory=dict)
    _open: dict[EpisodeKey, list[DataRow]] = field(default_factory=dict)

    def add(
        self, rows: Iterable[DataRow], ended: Mapping[int, str] | None = None
    ) -> Iterator[Conversation]:
        """Take steps; yield the conversations that they end.

        Args:
            rows: The steps.
            ended: The status of episodes that have ended, by the number of their last step.
        """
        for row in rows:
            key, data = episode_key(row), row.exp_data
            known = self._open.setdefault(key, [])
            if known and key[2] is None and row.exp_meta.step <= known[-1].exp_meta.step:
                yield self._done(key, "complete")
                known = self._open.setdefault(key, [])
            known.append(row)
            status = (ended or {}).get(row.seq or 0)
            if data.terminated or data.truncated or status is not None:
                yield self._done(key, status or "complete")

    def rest(self) -> Iterator[Conversation]:
        """Yield the conversations that have not ended."""
        for key in list(self._open):
            yield self._done(key, "complete" if key[2] is None else "open")

    def _done(self, key: EpisodeKey, status: str) -> Conversation:
        return conversation(self._open.pop(key), self.episode_rewards.get(key), status)


def episode_key(row: DataRow) -> EpisodeKey:
    """Return which episode a step belongs to."""
    return key_of(row.exp_meta.task_id, row.exp_meta.agent_id, row.exp_meta.episode_id)


def key_of(task_id: str, agent_id: str, episode_id: str | None) -> EpisodeKey:
    """Return the key of an episode, or of the steps of an agent in a task without episodes."""
    return (task_id, agent_id, None) if episode_id is None else (task_id, None, episode_id)


def _messages(rows: Sequence[DataRow]) -> list[Message]:
    try:
        return joined_messages((_said(row), row.exp_data.actions) for row in rows)
    except ValueError as error:
        meta = rows[0].exp_meta
        raise FieldError(f"task {meta.task_id!r}, episode {meta.episode_id!r}: {error}") from error


def _said(row: DataRow) -> Any:
    """Return the messages of a step; a text as its state is a message of the user."""
    data = row.exp_data
    if data.messages is None and isinstance(data.state, str):
        return data.state
    return data.messages


def _stop_reason(last: Experience, status: str) -> str:
    extra = last.extra or {}
    for key in ("stop_reason", "finish_reason"):
        if extra.get(key) is not None:
            return str(extra[key])
    if last.terminated:
        return "terminated"
    return "truncated" if last.truncated else status
