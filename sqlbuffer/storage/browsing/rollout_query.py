"""Filter, order and result of a page of rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlbuffer.query.tree import Node

# Rollouts that no index orders or finds are searched among the newest ones.
LOOKED_AT = 10_000
LOOKED_AT_BY_CONDITION = 1_000
# Name of an order -> its column, and True if it descends. Rollouts without a value come last.
INDEXED_SORTS = {
    "newest": ("first_seq", True),
    "oldest": ("first_seq", False),
    "best": ("return", True),
    "worst": ("return", False),
    "longest": ("length", True),
    "shortest": ("length", False),
    "spread": ("spread", True),
}
_OTHER_COLUMNS = {
    "episode": "key",
    "task": "task_id",
    "agent": "agent_id",
    "status": "status",
    "own reward": "reward",
    "model": "model_version",
    "began": "started_at",
    "ended": "ended_at",
}
SORTS = INDEXED_SORTS | {
    f"{name}{ending}": (column, bool(ending))
    for name, column in _OTHER_COLUMNS.items()
    for ending in ("", " descending")
}


@dataclass(frozen=True)
class RolloutQuery:
    """Filter and order of a page of rollouts.

    Attributes:
        sort: One of `SORTS`.
        task_id: Task of the rollouts.
        episode_id: The user's id of the episode.
        agent_id: Agent of the rollouts.
        status: `open`, `complete`, `aborted` or `abandoned`.
        model_version: Version of the model.
        least_return: Smallest return.
        most_return: Largest return.
        condition: Condition that at least one step must match.
        after: `RolloutPage.after` of the page before, for the same query: numbers and texts, in the
            order of the columns that sort the page.
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
        """The query leaves out some rollouts."""
        wanted = (
            self.task_id, self.episode_id, self.agent_id, self.status, self.model_version,
            self.least_return, self.most_return, self.condition,
        )  # fmt: skip
        return any(value is not None for value in wanted)

    @property
    def is_indexed(self) -> bool:
        """Indexes alone find the rollouts in their order."""
        return not self.is_filtered and self.sort in INDEXED_SORTS


@dataclass(frozen=True)
class ListedRollout:
    """An episode, or the steps of a task that belong to no episode.

    Attributes:
        task_id: The task.
        number: Key of the episode in `episodes`; 0 for the steps without an episode.
        length: Steps written.
        return_: Sum of their rewards; None if no step has one.
        first_seq: Number of the first step.
        last_seq: Number of the last step.
        is_held: The last step is still held.
        spread: Spread of the returns of the task's episodes; None if there are no returns.
        episode_id: The user's id of the episode.
        agent_id: The acting agent.
        status: `open`, `complete`, `aborted` or `abandoned`; None without an episode.
        reward: Reward of the episode itself.
        model_version: Version of the model at its start.
        started_at: Time when its first step was written; text on SQLite.
        ended_at: Time when its end was written.
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
        rollouts: Rollouts of the page.
        after: Argument `after` of the next page; None for the last page.
        looked_at: Number of the newest rollouts that were filtered and sorted; None for all.
    """

    rollouts: list[ListedRollout]
    after: list[Any] | None
    looked_at: int | None
