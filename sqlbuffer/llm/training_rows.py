"""Conversations in the forms that trainers of language models take, such as TRL's."""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from sqlbuffer.llm.conversations import Conversation
from sqlbuffer.llm.messages import prompt_length
from sqlbuffer.storage.copies.scratch_lists import ScratchLists


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


class PreferencePairs:
    """Pairs the best with the worst rollout of each task.

    Only tasks with two rewards that differ by more than `min_margin` have a pair. Among equal best
    or worst rollouts, the first counts. The choice, and conversations that wait for the other one
    of their pair, are in temporary files, which are removed when the `with` block ends.

    Args:
        rollouts: Number, task and reward of each; a reward of NaN counts as none.
        min_margin: Rewards of a pair differ by more than this.

    Attributes:
        n_pairs: Number of pairs.
        n_skipped: Number of pairs that `rows` has skipped.

    Example:
        >>> with PreferencePairs([(0, "t", 0.0), (1, "t", 1.0), (2, "t", 0.5)]) as pairs:
        ...     pairs.n_pairs
        1
    """

    def __init__(self, rollouts: Iterable[tuple[int, str, float]], min_margin: float = 0.0) -> None:
        self.n_pairs = self.n_skipped = 0
        # By its number: the other rollout of a pair, and whether this one is the best.
        self._partners, self._waiting = ScratchLists(2), ScratchLists(1)
        with ScratchLists(4) as chosen:
            for number, task, reward in rollouts:
                _choose(chosen, number, task, reward)
            for key in chosen:
                ((best, most, worst, least),) = chosen.pop(key)
                if most - least > min_margin:
                    self.n_pairs += 1
                    self._partners.append((best,), (worst, True))
                    self._partners.append((worst,), (best, False))

    def __enter__(self) -> "PreferencePairs":
        return self

    def __exit__(self, *_: object) -> None:
        self._partners.close()
        self._waiting.close()

    def rows(self, conversations: Iterable[Conversation]) -> Iterator[dict[str, Any]]:
        """Yield a row of each pair, as soon as both conversations are there.

        Pairs that `preference_row` makes no row of are counted in `n_skipped`.

        Args:
            conversations: Those of all rollouts, in the order of their numbers.
        """
        for number, one in enumerate(conversations):
            found = self._partners.last((number,))
            if found is None:
                continue
            partner, is_best = found
            waiting = self._waiting.pop((partner,))
            if not waiting:
                self._waiting.append((number,), (json.dumps(vars(one)),))
                continue
            other = Conversation(**json.loads(waiting[0][0]))
            row = preference_row(*((one, other) if is_best else (other, one)))
            if row is None:
                self.n_skipped += 1
            else:
                yield row


def _choose(chosen: ScratchLists, number: int, task: str, reward: float) -> None:
    """Note a rollout if it is the best or the worst of its task so far."""
    if math.isnan(reward):
        return
    known = chosen.last((task,))
    best, most, worst, least = known or (number, reward, number, reward)
    if reward > most:
        best, most = number, reward
    if reward < least:
        worst, least = number, reward
    own = (best, most, worst, least)
    if own != known:
        chosen.pop((task,))
        chosen.append((task,), own)
