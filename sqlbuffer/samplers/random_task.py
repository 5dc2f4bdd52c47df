"""Uniform over tasks."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sqlbuffer.samplers.base import TaskSampler
from sqlbuffer.samplers.seeding import Seeding

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates

SMALL_SPAN = 4096
# Most batches take one or two; a scan over the keys costs more than all of them.
PROBE_ROUNDS = 8
LOWEST_HIT_RATE = 1 / 256
# Fewer numbers are not enough: of 320, one or none is a hit in 300 batches where one in 40 is.
FEWEST_TO_JUDGE = 1024
# Where hits are rarer, tasks are long: the batch has about as many rows as numbers are looked up,
# and each row takes longer to read. A number takes about as long as 36 rows of a scan, so that this
# share of the window is a quarter of one: the cost if few tasks match.
MOST_PROBED_SHARE = 1 / 128
MOST_AT_ONCE = 32_768


class RandomTaskSample(TaskSampler):
    """Draws distinct tasks uniformly, independent of their numbers of rows.

    It draws numbers of the window and keeps those that are the first matching row of their task.
    Every task has one such row, so all tasks are equally likely. If few tasks match, or if tasks
    have a large share of the buffer, it reads the keys of all rows and puts the matching tasks into
    random order.

    Args:
        seed: Seed that repeats the same sequence of batches over the same live rows.

    Raises:
        ArgumentError: The seed is not an integer from 0 on.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> _ = [buffer.add(state=step, task_id="walk") for step in range(3)]
        >>> [len(task) for task in buffer.sample_tasks(1, sampler=RandomTaskSample(seed=7))]
        [3]
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self._seeding = Seeding(seed)

    def __repr__(self) -> str:
        return f"RandomTaskSample(seed={self._seeding.seed})"

    def choose_tasks(self, candidates: "Candidates", batch_size: int) -> Sequence[str]:
        """Return up to `batch_size` task ids, uniform over the tasks with a row that matches."""
        rng = self._seeding.generator()
        if candidates.span > max(SMALL_SPAN, 16 * batch_size) and not candidates.selective:
            found = self._probe(candidates, batch_size, rng)
            if found is not None:
                return found
        if self._seeding.seed is None:
            return candidates.random_tasks(batch_size)
        tasks = candidates.tasks()
        order = rng.permutation(len(tasks))[:batch_size]
        return [tasks[i] for i in order]

    @staticmethod
    def _probe(
        candidates: "Candidates", batch_size: int, rng: np.random.Generator
    ) -> Sequence[str] | None:
        found: dict[str, None] = {}
        drawn, hits, size = 0, 0, 8 * batch_size + 256
        most = max(FEWEST_TO_JUDGE, int(MOST_PROBED_SHARE * candidates.span))
        for _ in range(PROBE_ROUNDS):
            numbers = candidates.low + 1 + (rng.random(size) * candidates.span).astype(np.int64)
            seqs: list[int] = numbers.tolist()
            tasks = candidates.first_of_tasks(list(dict.fromkeys(seqs)))
            hits += sum(seq in tasks for seq in seqs)
            drawn += size
            found.update((tasks[seq], None) for seq in seqs if seq in tasks)
            if len(found) >= batch_size:
                return list(found)[:batch_size]
            hit_rate = max(hits, 1) / drawn
            size = math.ceil(1.2 * (batch_size - len(found)) / hit_rate) + 64
            if hit_rate < LOWEST_HIT_RATE:
                if drawn >= most:
                    return None
                size = min(size, max(most - drawn, FEWEST_TO_JUDGE), MOST_AT_ONCE)
        return None
