"""Make one conversation of the steps of an episode."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sqlbuffer.errors import FieldError
from sqlbuffer.llm.conversation_steps import N_PACKED, EpisodeKey, RolloutStep
from sqlbuffer.llm.messages import Message, joined_messages
from sqlbuffer.steps.data_rows import DataRow, Experience
from sqlbuffer.storage.copies.scratch_lists import ScratchLists


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


@dataclass(frozen=True)
class EpisodeOutcome:
    """How an episode has ended.

    Attributes:
        reward: Its own reward, if it has one.
        last_seq: Number of its last step; None if it has not ended.
        status: See `Conversation`.
    """

    reward: float | None
    last_seq: int | None
    status: str


@dataclass
class _Open:
    """A conversation that has begun: steps of the current batch, and whether there are others."""

    end: EpisodeOutcome | None
    last_step: int | None = None
    is_parked: bool = False
    steps: list[RolloutStep] = field(default_factory=list)


class ConversationAssembler:
    """Collects steps that come in insert order until their episodes have ended.

    Steps of episodes that have begun and not ended wait in a temporary file, which is removed when
    the `with` block ends. Steps without an episode are one until a flag ends it, or until the
    number of the step does not rise.

    Args:
        end_of: Function that returns how an episode has ended; None for an open one.

    Example:
        >>> keys = ("sums", "a", None, 0, None, None, 1)
        >>> step = RolloutStep(*keys, reward=0.5, terminated=True, messages='["?"]')
        >>> with ConversationAssembler() as assembler:
        ...     [done.n_steps for done in assembler.add([step])]
        [1]
    """

    def __init__(
        self, end_of: Callable[[EpisodeKey], EpisodeOutcome | None] = lambda _: None
    ) -> None:
        self._end_of = end_of
        self._open: dict[EpisodeKey, _Open] = {}
        self._parked = ScratchLists(N_PACKED)

    def __enter__(self) -> "ConversationAssembler":
        return self

    def __exit__(self, *_: object) -> None:
        self._parked.close()

    def add(self, steps: Iterable[RolloutStep]) -> Iterator[Conversation]:
        """Take steps; yield the conversations that they end."""
        for step in steps:
            key = step.key
            known = self._opened(key)
            if key[2] is None and known.last_step is not None and step.step <= known.last_step:
                yield self._done(key, "complete")
                known = self._opened(key)
            known.steps.append(step)
            known.last_step = step.step
            is_last = known.end is not None and known.end.last_seq == step.seq
            if step.terminated or step.truncated or is_last:
                yield self._done(key, known.end.status if known.end and is_last else "complete")
        for key, known in self._open.items():
            for step in known.steps:
                self._parked.append(key, step.packed())
        self._open.clear()

    def rest(self) -> Iterator[Conversation]:
        """Yield the conversations that have not ended, in the order in which they began."""
        for each in self._parked:
            key = cast(EpisodeKey, each)
            self._open[key] = _Open(self._end_of(key), is_parked=True)
            yield self._done(key, "complete" if key[2] is None else "open")

    def _opened(self, key: EpisodeKey) -> _Open:
        if key not in self._open:
            own = self._open[key] = _Open(self._end_of(key))
            last = self._parked.last(key)
            if last is not None:
                own.is_parked, own.last_step = True, RolloutStep.unpacked(last).step
        return self._open[key]

    def _done(self, key: EpisodeKey, status: str) -> Conversation:
        own = self._open.pop(key)
        parked = self._parked.pop(key) if own.is_parked else []
        steps = [*map(RolloutStep.unpacked, parked), *own.steps]
        reward = None if own.end is None else own.end.reward
        return conversation([step.row() for step in steps], reward, status)


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
