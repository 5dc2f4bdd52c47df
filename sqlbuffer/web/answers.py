"""The prompt of a group of rollouts, and the final answer of each."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.llm.advantages import group_advantages
from sqlbuffer.storage.browsing.rollouts import ListedRollout, Rollout
from sqlbuffer.storage.browsing.steps import KeyPage, key_page, read_steps
from sqlbuffer.web.transcript import (
    ShownText,
    Turn,
    last_line,
    shown_text,
    whole_conversation,
)

MOST_SECONDS = 2.0
# Steps at an end of a rollout that are read for its prompt or its answer.
MOST_STEPS = 8
MOST_PROMPT_TURNS = 20
ANSWER_LINES, ANSWER_CHARS, FOLDED_CHARS = 4, 240, 2_000
# Of the end of an answer: about two lines.
END_CHARS = 140


@dataclass(frozen=True)
class Answer:
    """The final answer of a rollout.

    Attributes:
        seq: Step that has it.
        place: Position of its message in that step.
        part: Part of the message that is shown: `text`, or a call of a tool.
        text: The answer, shortened.
        end: Its end on one line, where the result is; empty if it is short.
    """

    seq: int
    place: int
    part: str
    text: ShownText
    end: str


@dataclass(frozen=True)
class GroupTexts:
    """What the rollouts of a page of a group were asked and said.

    Attributes:
        prompt: Messages before the first one of the assistant, of the first rollout with any.
        prompt_of: That rollout; None if no rollout has a conversation.
        n_prompt: Number of these messages; `prompt` has the first ones.
        answers: Final answers by the first number of the rollout.
        n_unread: Number of rollouts that were not read for lack of time.
    """

    prompt: list[Turn]
    prompt_of: ListedRollout | None
    n_prompt: int
    answers: dict[int, Answer]
    n_unread: int


def group_texts(connection: Any, buffer: Any, listed: Sequence[ListedRollout]) -> GroupTexts:
    """Return the prompt and the answers of listed rollouts, as far as `MOST_SECONDS` allow.

    Args:
        connection: A transaction.
        buffer: The buffer.
        listed: The rollouts.
    """
    deadline = time.monotonic() + MOST_SECONDS
    prompt: list[Turn] = []
    prompt_of: ListedRollout | None = None
    answers: dict[int, Answer] = {}
    n_read = 0
    for row in listed:
        if time.monotonic() > deadline:
            break
        rollout = Rollout(row.task_id, row.number or None)
        if prompt_of is None and (asked := _prompt(connection, buffer, rollout)):
            prompt, prompt_of = asked, row
        answer = _answer(connection, buffer, rollout)
        if answer is not None:
            answers[row.first_seq] = answer
        n_read += 1
    n_unread = len(listed) - n_read
    return GroupTexts(prompt[:MOST_PROMPT_TURNS], prompt_of, len(prompt), answers, n_unread)


def _prompt(connection: Any, buffer: Any, rollout: Rollout) -> list[Turn]:
    """Return the messages of a rollout before the first one of the assistant."""
    asked: list[Turn] = []
    for n in (1, MOST_STEPS):
        turns = _turns(connection, buffer, key_page(connection, buffer, rollout, n))
        said = (i for i, turn in enumerate(turns) if turn.said.role == "assistant")
        end = next(said, None)
        asked = turns[:end]
        if end is not None:
            break
    return asked


def _answer(connection: Any, buffer: Any, rollout: Rollout) -> Answer | None:
    """Return the last message of the assistant."""
    for n in (1, MOST_STEPS):
        keys = key_page(connection, buffer, rollout, n, is_last=True)
        for turn in reversed(_turns(connection, buffer, keys)):
            if turn.said.role == "assistant" and (turn.said.text or turn.said.calls):
                return _shown(turn)
        if not keys.has_more:
            break
    return None


def _shown(turn: Turn) -> Answer:
    said, part = turn.said, "text"
    text = said.text
    end = last_line(text, END_CHARS) if text.count("\n") > 2 or len(text) > END_CHARS else ""
    if not text:
        part, text = "call0", f"→ {said.calls[0].name}\n{said.calls[0].arguments}"
    shown = shown_text(text, ANSWER_LINES, ANSWER_CHARS, FOLDED_CHARS)
    return Answer(turn.seq, turn.place, part, shown, end)


def _turns(connection: Any, buffer: Any, keys: KeyPage) -> list[Turn]:
    without = (*buffer.layout.specs, "extra")
    steps, _ = read_steps(connection, buffer, keys.keys, without=without)
    return whole_conversation(
        (step.key.seq, data.messages, data.actions, data.state)
        for step in steps
        if step.row is not None
        for data in (step.row.exp_data,)
    )


def advantages_of(rewards: Mapping[int, float | None]) -> dict[int, float]:
    """Return the advantage of each rollout of one group that has a finite reward.

    Args:
        rewards: Rewards by the number of the episode.

    Example:
        >>> advantages = advantages_of({1: 1.0, 2: None, 3: 0.0, 4: float("inf")})
        >>> {number: round(advantage, 3) for number, advantage in advantages.items()}
        {1: 0.707, 3: -0.707}
    """
    known = {
        number: reward
        for number, reward in rewards.items()
        if reward is not None and math.isfinite(reward)
    }
    values = group_advantages(list(known.values()), [0] * len(known))
    return {number: float(value) for number, value in zip(known, values, strict=True)}
