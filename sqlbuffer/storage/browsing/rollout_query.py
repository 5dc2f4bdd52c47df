"""Which rollouts a page lists, and what it says of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.query.condition_tree import Node

# What no index orders or finds is looked for among the newest ones.
LOOKED_AT = 10_000
LOOKED_AT_BY_CONDITION = 1_000
# The name of an order -> its column, and whether it descends.
SORTS = {
    "newest": ("first_seq", True),
    "oldest": ("first_seq", False),
    "best": ("return", True),
    "worst": ("return", False),
    "longest": ("length", True),
    "shortest": ("length", False),
    "spread": ("spread", True),
}


@dataclass(frozen=True)
class RolloutQuery:
    """Which rollouts, and in which order.

    Attributes:
        sort: One of `SORTS`.
        task_id: Of this task alone.
        episode_id: With this id of the user's.
        agent_id: Of this agent alone.
        status: `open`, `complete` or `aborted`.
        model_version: Of this version of the model.
        least_return: With at least this return.
        most_return: With at most this return.
        condition: With a step that matches.
        after: Where the page before ended, as `RolloutPage.after` says for the same query; numbers
            and texts, in the order of the columns that it is ordered by.
    """

    sort: str = "newest"
    task_id: str | None = None
    episode_id: str | None = None
    agent_id: str | None = None
    status: str | None = None
    model_version: int | None = None
    least_return: float | None = None
    most_return: float | None = None
    condition: Node | None = None
    after: Sequence[Any] | None = None

    @property
    def is_filtered(self) -> bool:
        """Some rollouts are left out, so that indexes alone do not find the others."""
        return self.is_narrowed or self.task_id is not None

    @property
    def is_narrowed(self) -> bool:
        """Rollouts are left out by more than their task."""
        wanted = (
            self.episode_id, self.agent_id, self.status, self.model_version, self.least_return,
            self.most_return, self.condition,
        )  # fmt: skip
        return any(value is not None for value in wanted)


@dataclass(frozen=True)
class ListedRollout:
    """An episode, or the steps of a task that belong to none.

    Attributes:
        task_id: The task.
        number: Key of the episode in `episodes`; 0: the steps without an episode.
        length: Steps written.
        return_: Sum of their rewards; None: none has one.
        first_seq: Number of the first step.
        last_seq: Number of the last step.
        is_held: The last step is still held.
        spread: How much the returns of the task's episodes differ; None: there is none.
        episode_id: The user's id of the episode.
        agent_id: Who acts.
        status: `open`, `complete`, `aborted` or `abandoned`; None without an episode.
        reward: The episode's own reward.
        model_version: Version of the model at its start.
        started_at: When its first step was written; text on SQLite.
        ended_at: When its end was written.
    """

    task_id: str
    number: int
    length: int
    return_: float | None
    first_seq: int
    last_seq: int
    is_held: bool
    spread: float | None
    episode_id: str | None
    agent_id: str | None
    status: str | None
    reward: float | None
    model_version: int | None
    started_at: Any
    ended_at: Any


@dataclass(frozen=True)
class RolloutPage:
    """A page of rollouts.

    Attributes:
        rollouts: They.
        after: What the next page is asked with; None: this is the last.
        looked_at: Only that many of the newest were looked at; None: all.
    """

    rollouts: list[ListedRollout]
    after: list[Any] | None
    looked_at: int | None
