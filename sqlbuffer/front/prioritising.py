"""The call that sets priorities."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from sqlbuffer.encoding.priority_values import (
    MOST_PRIORITY,
    check_kept,
    checked_eps,
    checked_priorities,
    checked_seqs,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.front.shared import Parts

EPS = 1e-6


@dataclass(frozen=True)
class PriorityUpdate:
    """What became of the rows of one update; each is counted once.

    Attributes:
        updated: Rows that have their new priority.
        missing: Rows that the buffer does not hold, such as those that were evicted meanwhile.

    Example:
        >>> PriorityUpdate(updated=255, missing=1).missing
        1
    """

    updated: int
    missing: int


class Prioritising(Parts):
    """The call of `ReplayBuffer` that sets priorities."""

    def update_priorities(self, seqs: Any, priorities: Any, eps: float = EPS) -> PriorityUpdate:
        """Set the priorities of rows, to |TD error| + eps as a rule (Schaul et al. 2016, section
        3.3): one statement, whatever their number. Rows that were evicted meanwhile are skipped.

        Args:
            seqs: The rows, shape (b,): `info["seq"]` of a batch. The last of equal ones counts.
            priorities: Their priorities, shape (b,), or one for all; from 0 to 1e100.
            eps: Added to each, so that none is 0: such a row is never drawn.

        Returns:
            How many rows were updated, and how many the buffer does not hold.

        Raises:
            FieldError: NaN, a number out of range, another shape or type, or a buffer without
                priorities; nothing is written.

        Example:
            >>> from sqlbuffer import ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://", priorities=True)
            >>> buffer.add(state=1).inserted
            1
            >>> buffer.update_priorities([1, 99], [0.5, 0.7])
            PriorityUpdate(updated=1, missing=1)
        """
        check_kept(self._store.info.priorities)
        numbers = checked_seqs(seqs)
        reals = np.array(checked_priorities(priorities, len(numbers), "priorities"))
        reals = reals + checked_eps(eps)
        if len(reals) and reals.max() > MOST_PRIORITY:
            raise FieldError(f"priorities: with eps {eps!r} the largest is above {MOST_PRIORITY:g}")
        # The last of each, in order: learners that update the same rows do not cross.
        distinct, from_end = np.unique(numbers[::-1], return_index=True)
        n_updated = self._store.update_priorities(distinct.tolist(), reals[::-1][from_end].tolist())
        return PriorityUpdate(n_updated, len(distinct) - n_updated)
