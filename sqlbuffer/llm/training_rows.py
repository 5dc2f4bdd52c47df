"""Conversations in the forms that trainers of language models take, such as TRL's."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlbuffer.llm.conversations import Conversation
from sqlbuffer.llm.messages import prompt_length


def messages_row(conversation: Conversation) -> dict[str, Any]:
    """Return a row of a language modelling data set: `messages`.

    Example:
        >>> row = Conversation("t", "a", None, [], 1.0, "complete", "terminated", 1, None, None)
        >>> messages_row(row)
        {'messages': []}
    """
    return {"messages": conversation.messages}


def prompt_completion_row(conversation: Conversation) -> dict[str, Any] | None:
    """Return a row of a prompt-completion data set: `prompt` and `completion`, both messages.

    The prompt is what comes before the first message of the assistant.

    Returns:
        The row; None if the assistant says nothing, or says the first message.
    """
    n_prompt = prompt_length(conversation.messages)
    if not n_prompt:
        return None
    messages = conversation.messages
    return {"prompt": messages[:n_prompt], "completion": messages[n_prompt:]}


def preference_row(chosen: Conversation, rejected: Conversation) -> dict[str, Any] | None:
    """Return a row of a preference data set: `prompt`, `chosen`, `rejected`, and both rewards.

    Returns:
        The row; None if the prompts differ, one has no completion, or the completions are equal.
    """
    better, worse = prompt_completion_row(chosen), prompt_completion_row(rejected)
    if better is None or worse is None or better["prompt"] != worse["prompt"]:
        return None
    if better["completion"] == worse["completion"]:
        return None
    return {
        "prompt": better["prompt"],
        "chosen": better["completion"],
        "rejected": worse["completion"],
        "chosen_reward": chosen.reward,
        "rejected_reward": rejected.reward,
    }


@dataclass
class PreferencePairs:
    """Pairs the best with the worst rollout of each task.

    Only tasks with two rewards that differ by more than `min_margin` have a pair. Among equal best
    or worst rollouts, the first counts.

    Attributes:
        pairs: Numbers of the best and the worst rollout of each task.
        n_skipped: Number of pairs that `rows` has skipped.

    Example:
        >>> rollouts = [(0, "t", 0.0), (1, "t", 1.0), (2, "t", 0.5)]
        >>> PreferencePairs.best_and_worst(rollouts).pairs
        [(1, 0)]
    """

    pairs: list[tuple[int, int]]
    n_skipped: int = 0
    _waiting: dict[int, Conversation] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.partners = {one: other for pair in self.pairs for one, other in (pair, pair[::-1])}
        self._best = {best for best, _ in self.pairs}

    @classmethod
    def best_and_worst(
        cls, rollouts: Iterable[tuple[int, str, float]], min_margin: float = 0.0
    ) -> "PreferencePairs":
        """Choose the pairs by their rewards.

        Args:
            rollouts: Number, task and reward of each; a reward of NaN counts as none.
            min_margin: Rewards of a pair differ by more than this.
        """
        best: dict[str, tuple[int, float]] = {}
        worst: dict[str, tuple[int, float]] = {}
        for number, task, reward in rollouts:
            if math.isnan(reward):
                continue
            if task not in best or reward > best[task][1]:
                best[task] = number, reward
            if task not in worst or reward < worst[task][1]:
                worst[task] = number, reward
        return cls(
            [
                (high[0], worst[task][0])
                for task, high in best.items()
                if high[1] - worst[task][1] > min_margin
            ]
        )

    def rows(self, conversations: Iterable[Conversation]) -> Iterator[dict[str, Any]]:
        """Yield a row of each pair, as soon as both conversations are there.

        Pairs that `preference_row` makes no row of are counted in `n_skipped`.

        Args:
            conversations: Those of all rollouts, in the order of their numbers.
        """
        for number, one in enumerate(conversations):
            if number not in self.partners:
                continue
            other = self._waiting.pop(self.partners[number], None)
            if other is None:
                self._waiting[number] = one
                continue
            row = preference_row(*((one, other) if number in self._best else (other, one)))
            if row is None:
                self.n_skipped += 1
            else:
                yield row
