"""Rollouts of language models out of a stream of steps: conversations, and rows for trainers."""

from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.codec.decoder import decode
from sqlbuffer.copying.buffer_copy import OnProgress
from sqlbuffer.interchange.buffer_stream import BufferStream, StreamPiece
from sqlbuffer.llm.conversations import (
    Conversation,
    ConversationAssembler,
    EpisodeKey,
    key_of,
)
from sqlbuffer.llm.training_rows import PreferencePairs, messages_row, prompt_completion_row
from sqlbuffer.steps.column_batch import ColumnBatch
from sqlbuffer.steps.data_rows import DataRow, Experience, ExpMeta

RolloutForm = Literal["conversations", "messages", "prompt_completion", "preference"]
ROLLOUT_FORMS: tuple[RolloutForm, ...] = get_args(RolloutForm)
_META = ("task_id", "agent_id", "episode_id", "step", "model_version", "session_id")
_PAYLOADS = ("state", "actions", "messages", "extra")


@dataclass
class RolloutRows:
    """Rows of rollouts. Each iteration reads the steps that the buffer has at that time.

    Args:
        buffer: The buffer.
        form: Form of a row. `conversations`: an episode, with `messages`, `reward`, `status`,
            `stop_reason` and its ids. `messages`, `prompt_completion` and `preference` are TRL's
            data sets of the same names. A preference pair is the best and the worst ended episode
            of a task.
        condition: Condition that steps must match.
        min_margin: Difference that the rewards of a preference pair must exceed.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.

    Attributes:
        n_skipped: Number of episodes or pairs that the last iteration skipped: those without
            messages or without an answer, and pairs whose prompts differ or whose answers are
            equal.
        n_steps: Number of steps that the last iteration has read.

    Raises:
        ValueError: The form is unknown.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> with buffer.episode("sums") as episode:
        ...     _ = episode.append(messages=["2 + 2?"], actions=["4"], reward=1.0, terminated=True)
        >>> [row["completion"] for row in RolloutRows(buffer, "prompt_completion")]
        [[{'role': 'assistant', 'content': '4'}]]
        >>> sum(1 for row in RolloutRows(buffer, "messages").each())
        1
    """

    buffer: ReplayBuffer
    form: RolloutForm = "conversations"
    condition: Condition = None
    min_margin: float = 0.0
    on_progress: OnProgress | None = None
    n_skipped: int = field(init=False, default=0)
    n_steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.form not in ROLLOUT_FORMS:
            raise ValueError(
                f"a row is one of {', '.join(map(repr, ROLLOUT_FORMS))}, not {self.form!r}"
            )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; see `each`."""
        return self.each()

    def each(self) -> Generator[dict[str, Any], None, None]:
        """Yield the rows; the steps are held until the generator ends or is closed.

        Raises:
            CopyError: The buffer is one of `sqlbuffer.compat`, or steps left before they were read.
            FieldError: A step holds something that is not a message.
        """
        self.n_skipped = self.n_steps = 0
        with BufferStream(self.buffer, self.condition, fields=()) as stream:
            for piece in stream.pieces(1):
                yield from self.of(piece)

    def of(self, piece: StreamPiece) -> Iterator[dict[str, Any]]:
        """Yield the rows of the steps of a stream.

        Args:
            piece: The whole stream.

        Raises:
            FieldError: A step holds something that is not a message.
        """
        episodes = _Episodes.of(piece)
        if self.form == "preference":
            yield from self._pairs(piece, episodes)
            return
        for conversation in self._conversations(piece, episodes):
            row = _row(self.form, conversation)
            if row is None:
                self.n_skipped += 1
            else:
                yield row

    def _conversations(
        self, piece: StreamPiece, episodes: "_Episodes", *, has_messages: bool = True
    ) -> Iterator[Conversation]:
        """Yield the conversations of a stream, each after its last step was read.

        Args:
            piece: The stream.
            episodes: Data of its episodes.
            has_messages: Whether their messages are wanted.
        """
        assembler = ConversationAssembler(episodes.rewards)
        own = piece.range
        for batch in piece:
            rows = data_rows(batch, has_payloads=has_messages)
            self.n_steps += len(rows)
            if self.on_progress is not None:
                self.on_progress(self.n_steps, int(batch.seq[-1]), range(own.low, own.high))
            yield from assembler.add(rows, episodes.ended_at(batch.seq))
        yield from assembler.rest()

    def _pairs(self, piece: StreamPiece, episodes: "_Episodes") -> Iterator[dict[str, Any]]:
        """Yield preference pairs: the first reading has the rewards, the second makes the rows."""
        found = self._conversations(piece, episodes, has_messages=False)

        def rollouts() -> Iterator[tuple[int, str, float]]:
            for number, each in enumerate(found):
                if each.reward is not None and each.status == "complete":
                    yield number, each.task_id, each.reward

        pairs = PreferencePairs.best_and_worst(rollouts(), self.min_margin)
        self.n_steps = 0
        yield from pairs.rows(self._conversations(piece, episodes))
        self.n_skipped = pairs.n_skipped


@dataclass(frozen=True)
class _Episodes:
    """Data of the episodes of a stream.

    Attributes:
        rewards: Own rewards of the episodes that have one.
        ends: Numbers of the last steps of ended episodes, ascending.
        is_aborted: True for each of them that was aborted.
    """

    rewards: dict[EpisodeKey, float]
    ends: NDArray[np.int64]
    is_aborted: NDArray[np.bool_]

    @classmethod
    def of(cls, piece: StreamPiece) -> "_Episodes":
        rewards: dict[EpisodeKey, float] = {}
        ends: list[int] = []
        aborted: list[bool] = []
        for page in piece.episodes():
            own = page.values
            names = ("task_id", "agent_id", "key", "reward", "last_seq", "status")
            for task, agent, episode, reward, last, status in zip(
                *(own[name] for name in names), strict=True
            ):
                if reward is not None:
                    rewards[key_of(task, agent, episode)] = reward
                if last is not None:
                    ends.append(last)
                    aborted.append(status == "aborted")
        order = np.argsort(np.array(ends, np.int64), kind="stable")
        return cls(rewards, np.array(ends, np.int64)[order], np.array(aborted, bool)[order])

    def ended_at(self, seqs: NDArray[np.int64]) -> dict[int, str]:
        """Return the status of episodes by their last step, of those that end with some steps."""
        low, high = np.searchsorted(self.ends, seqs[0]), np.searchsorted(self.ends, seqs[-1] + 1)
        statuses = (
            "aborted" if each else "complete" for each in self.is_aborted[low:high].tolist()
        )
        return dict(zip(self.ends[low:high].tolist(), statuses, strict=True))


def data_rows(batch: ColumnBatch, *, has_payloads: bool = True) -> list[DataRow]:
    """Return steps with their keys, JSON values, rewards and flags; without typed fields.

    Args:
        batch: The steps.
        has_payloads: Whether their JSON values are wanted.
    """
    metas = [
        ExpMeta(
            task_id, agent_id=agent_id, step=step, episode_id=episode_id,
            model_version=model_version, session_id=session_id,
        )
        for task_id, agent_id, episode_id, step, model_version, session_id in zip(
            *(optional_values(batch, name) for name in _META), strict=True
        )
    ]  # fmt: skip
    numbers = {name: optional_values(batch, name) for name in ("reward", "terminated", "truncated")}
    texts = {name: batch.column(name) for name in _PAYLOADS if has_payloads}
    arrays = batch.column("arrays")
    rows = []
    for i, (seq, meta) in enumerate(zip(batch.seq.tolist(), metas, strict=True)):
        values = {name: decode(own[i], arrays[i]) for name, own in texts.items()}
        data = Experience(
            **values, reward_t=numbers["reward"][i], terminated=numbers["terminated"][i],
            truncated=numbers["truncated"][i],
        )  # fmt: skip
        rows.append(DataRow(meta, data, id="", seq=seq))
    return rows


def optional_values(batch: ColumnBatch, name: str) -> list[Any]:
    """Return the values of a column, None for missing ones."""
    values = batch.column(name)
    if isinstance(values, list):
        return values
    found: list[Any] = values.tolist()
    if name in batch.is_null:
        missing = batch.is_null[name].tolist()
        return [None if gone else value for value, gone in zip(found, missing, strict=True)]
    return found


def _row(form: RolloutForm, conversation: Conversation) -> dict[str, Any] | None:
    if form == "prompt_completion":
        return prompt_completion_row(conversation)
    if not conversation.messages:
        return None
    return messages_row(conversation) if form == "messages" else asdict(conversation)
