"""Sums of new steps, by rollout."""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk

# The sum of such numbers never overflows, which would be an error on PostgreSQL. Larger ones count
# as infinite, in the triggers too.
LARGEST = 1e290


class AddedSteps:
    """Adds up steps by rollout.

    Attributes:
        rollouts: For each task and number of the episode (0 without one): number of steps, sum of
            their rewards (None if none has one), and numbers of the first and the last step.
    """

    def __init__(self) -> None:
        self.rollouts: dict[tuple[str, int], list[Any]] = {}

    @classmethod
    def of_chunks(cls, numbered: Sequence[NumberedChunk]) -> "AddedSteps":
        """Return the sums of the steps of chunks."""
        added = cls()
        totals = _totals([one.chunk.reward for one in numbered])
        for (chunk, first_seq, episode_id, *_), total in zip(numbered, totals, strict=True):
            last_seq = first_seq + chunk.n_steps - 1
            key = chunk.task_id, episode_id or 0
            added._add(key, chunk.n_steps, total, first_seq, last_seq)
        return added

    @classmethod
    def of_rows(
        cls,
        task_ids: Iterable[str],
        episode_ids: Iterable[int | None],
        rewards: Iterable[float | None],
        seqs: Sequence[int],
    ) -> "AddedSteps":
        """Return the sums of rows, given as one value of each argument for each row."""
        added = cls()
        for task_id, episode_id, reward, seq in zip(
            task_ids, episode_ids, rewards, seqs, strict=True
        ):
            # NaN means that there is no reward.
            total = None if reward is None or reward != reward else within_range(reward)
            added._add((task_id, episode_id or 0), 1, total, seq, seq)
        return added

    def _add(
        self, key: tuple[str, int], n: int, total: float | None, first_seq: int, last_seq: int
    ) -> None:
        found = self.rollouts.get(key)
        if found is None:
            self.rollouts[key] = [n, total, first_seq, last_seq]
            return
        found[0] += n
        if total is not None:
            found[1] = total if found[1] is None else found[1] + total
        found[2] = min(found[2], first_seq)
        found[3] = max(found[3], last_seq)


def within_range(value: float) -> float:
    """Return a number, or an infinity in place of one that is too large to be added up."""
    return math.copysign(math.inf, value) if abs(value) > LARGEST else value


def _totals(column: Sequence[Any]) -> list[float | None]:
    """Return the sum of the rewards of each chunk; None if no step has one."""
    if set(map(type, column)) == {np.ndarray}:
        starts = list(accumulate(map(len, column[:-1]), initial=0))
        with np.errstate(invalid="ignore", over="ignore"):
            totals: list[float | None] = np.add.reduceat(np.concatenate(column), starts).tolist()
        if all(-LARGEST < total < LARGEST for total in totals if total is not None):
            return totals
    return list(map(_total, column))


def _total(rewards: Any) -> float | None:
    """Return the sum of the rewards of a chunk; None if no step has one."""
    if rewards is None:
        return None
    values = np.array(rewards, np.float64)  # None is NaN
    with np.errstate(invalid="ignore"):  # one infinity minus another
        total = float(values.sum())
    if abs(total) < LARGEST:
        return total
    values = values[~np.isnan(values)]
    return sum(map(within_range, values.tolist())) if len(values) else None
