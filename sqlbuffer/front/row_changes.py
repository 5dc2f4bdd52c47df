"""Change the labels, the priorities and the quarantine of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Rows, checked_numbers, checked_reason, is_condition
from sqlbuffer.encoding.priority_values import (
    MOST_PRIORITY,
    check_kept,
    checked_eps,
    checked_priorities,
    checked_seqs,
)
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.front.condition_checks import Conditions
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.storage.labels.label_values import checked_label, checked_labels, checked_version
from sqlbuffer.storage.labels.labelling import Annotation
from sqlbuffer.storage.leases.retirement import retire
from sqlbuffer.storage.store import BufferStore

EPS = 1e-6


@dataclass(frozen=True)
class PriorityUpdate:
    """What became of the rows of one update; each is counted once.

    Attributes:
        updated: Rows that have their new priority.
        missing: Rows that the buffer does not hold, such as evicted ones.

    Example:
        >>> PriorityUpdate(updated=255, missing=1).missing
        1
    """

    updated: int
    missing: int


class RowChanges:
    """Changes the labels, the priorities and the quarantine of rows.

    Args:
        store: The buffer.
        conditions: Checks which rows a call is about.
    """

    def __init__(self, store: BufferStore, conditions: Conditions) -> None:
        self._store, self._conditions = store, conditions

    def annotate(
        self, rows: Any, values: Mapping[str, Any], extra: Any, version: int | None
    ) -> int:
        """Label rows; return how many."""
        if extra is None and all(value is None for value in values.values()):
            raise FieldError("annotate() needs reward=..., adv_t=..., v_t=... or extra={...}")
        annotation = self._annotation(rows, values, extra, checked_version(version))
        return self._store.labels.annotate(annotation)

    def _annotation(
        self, rows: Any, values: Mapping[str, Any], extra: Any, version: int | None
    ) -> Annotation:
        if is_condition(rows):
            node = self._conditions.node(rows)
            if node == EVERYTHING:
                raise ConditionError(
                    "annotate() needs a condition, or the seq of rows; an empty condition would "
                    "label every row"
                )
            return Annotation(
                self._store.rows.select_seqs(node), checked_label(values, extra), version
            )
        if isinstance(rows, (set, frozenset)):
            named = checked_numbers(rows, "annotate")
            return Annotation(named, checked_label(values, extra), version)
        numbers = checked_seqs(rows)
        labels = checked_labels(values, extra, len(numbers))
        distinct, last = _last_of_each(numbers)
        return Annotation(distinct.tolist(), [labels[i] for i in last.tolist()], version)

    def update_priorities(self, seqs: Any, priorities: Any, eps: float) -> PriorityUpdate:
        """Set the priorities of rows."""
        check_kept(self._store.info.config.priorities.enabled)
        numbers = checked_seqs(seqs)
        reals = np.array(checked_priorities(priorities, len(numbers), "priorities"))
        reals = reals + checked_eps(eps)
        if len(reals) and reals.max() > MOST_PRIORITY:
            raise FieldError(f"priorities: with eps {eps!r} the largest is above {MOST_PRIORITY:g}")
        distinct, last = _last_of_each(numbers)
        n_updated = self._store.priorities.update_priorities(
            distinct.tolist(), reals[last].tolist()
        )
        return PriorityUpdate(n_updated, len(distinct) - n_updated)

    def quarantine(self, rows: Rows, reason: str | None) -> int:
        """Take rows out of sampling; return how many."""
        chosen = self._conditions.rows(rows, "quarantine")
        return self._store.retention.quarantine(chosen, checked_reason(reason))

    def release(self, rows: Rows) -> int:
        """Put rows back into sampling; return how many."""
        n_released = self._store.retention.release(self._conditions.rows(rows, "release"))
        info = self._store.info
        if info.config.leases.enabled and info.config.sampling.max_use is not None:
            retire(self._store)  # those that were used up meanwhile
        return n_released


def _last_of_each(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct numbers in ascending order, and the last place of each.

    In this order, two processes that change the same rows do not wait for each other.
    """
    distinct, from_end = np.unique(numbers[::-1], return_index=True)
    return distinct, len(numbers) - 1 - from_end
