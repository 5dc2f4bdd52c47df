"""Rollouts of language models out of a stream of steps: conversations, and rows for trainers."""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_choice, checked_number
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.interchange.buffer_stream import BufferStream, StreamPiece
from sqlbuffer.llm.conversation_steps import EpisodeKey, RolloutStep, key_of
from sqlbuffer.llm.conversations import Conversation, ConversationAssembler, EpisodeOutcome
from sqlbuffer.llm.training_rows import PreferencePairs, messages_row, prompt_completion_row
from sqlbuffer.steps.column_batch import ColumnBatch
from sqlbuffer.storage.copies.scratch_lists import ScratchLists

RolloutForm = Literal["conversations", "messages", "prompt_completion", "preference"]
ROLLOUT_FORMS: tuple[RolloutForm, ...] = get_args(RolloutForm)
_PAYLOADS = ("state", "actions", "messages", "extra", "arrays")
_COLUMNS = tuple(name for name in RolloutStep._fields if name not in _PAYLOADS)


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
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.

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
        checked_buffer(self.buffer)
        checked_choice(self.form, "form", ROLLOUT_FORMS)
        checked_number(self.min_margin, "min_margin", 0)
        self.on_progress = checked_progress(self.on_progress)
        self.buffer._conditions.node(self.condition)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; see `each`."""
        return self.each()

    def each(self) -> Generator[dict[str, Any], None, None]:
        """Yield the rows; the steps are held until the generator ends or is closed.

        Raises:
            CopyError: The buffer is one of `sqlbuffer.compat`, or steps left before they were read.
            FieldError: A step holds something that is not a message, or a medium such as an image,
                which would become text; the message names the episode.
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
            FieldError: A step holds something that is not a message, or a medium such as an image,
                which would become text; the message names the episode.

        :meta private:
        """
        with _Ends(piece) as ends:
            if self.form == "preference":
                yield from self._pairs(piece, ends)
                return
            for conversation in self._conversations(piece, ends):
                row = _row(self.form, conversation)
                if row is None:
                    self.n_skipped += 1
                else:
                    yield row

    def _conversations(
        self, piece: StreamPiece, ends: "_Ends", *, has_messages: bool = True
    ) -> Iterator[Conversation]:
        """Yield the conversations of a stream, each after its last step was read.

        Args:
            piece: The stream.
            ends: How its episodes have ended.
            has_messages: Whether their messages are wanted.
        """
        own = piece.range
        with ConversationAssembler(ends.of) as assembler:
            for batch in piece:
                self.n_steps += len(batch)
                if self.on_progress is not None:
                    self.on_progress(self.n_steps, int(batch.seq[-1]), range(own.low, own.high))
                yield from assembler.add(rollout_steps(batch, has_payloads=has_messages))
            yield from assembler.rest()

    def _pairs(self, piece: StreamPiece, ends: "_Ends") -> Iterator[dict[str, Any]]:
        """Yield preference pairs: the first reading has the rewards, the second makes the rows."""
        found = self._conversations(piece, ends, has_messages=False)

        def rollouts() -> Iterator[tuple[int, str, float]]:
            for number, each in enumerate(found):
                if each.reward is not None and each.status == "complete":
                    yield number, each.task_id, each.reward

        with PreferencePairs(rollouts(), self.min_margin) as pairs:
            self.n_steps = 0
            yield from pairs.rows(self._conversations(piece, ends))
            self.n_skipped = pairs.n_skipped


class _Ends:
    """How the episodes of a stream have ended, in a temporary file."""

    def __init__(self, piece: StreamPiece) -> None:
        self._ends = ScratchLists(1)
        names = ("task_id", "agent_id", "key", "reward", "last_seq", "status")
        for page in piece.episodes():
            for task, agent, episode, *end in zip(*(page.values[n] for n in names), strict=True):
                if end[:2] != [None, None]:
                    self._ends.append(key_of(task, agent, episode), (json.dumps(end),))

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def of(self, key: EpisodeKey) -> EpisodeOutcome | None:
        """Return how an episode has ended; None if it is open."""
        found = None if key[2] is None else self._ends.last(key)
        return None if found is None else EpisodeOutcome(*json.loads(found[0]))


def rollout_steps(batch: ColumnBatch, *, has_payloads: bool = True) -> Iterator[RolloutStep]:
    """Yield steps with their keys, JSON values, rewards and flags; without typed fields.

    Args:
        batch: The steps.
        has_payloads: Whether their JSON values are wanted.
    """
    columns = [optional_values(batch, name) for name in _COLUMNS]
    if has_payloads:
        columns += [batch.column(name) for name in _PAYLOADS]
    return (RolloutStep(*values) for values in zip(*columns, strict=True))


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
    return messages_row(conversation) if form == "messages" else dict(vars(conversation))
