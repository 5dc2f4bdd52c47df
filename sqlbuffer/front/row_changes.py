"""Change the labels, the priorities and the quarantine of rows, and delete rows."""

import logging
from collections.abc import Mapping
from typing import Any

from sqlbuffer.arguments import Rows, checked_numbers, checked_reason, is_condition
from sqlbuffer.checks import checked_age
from sqlbuffer.encoding.priority_values import (
    check_kept,
    checked_seqs,
    checked_update,
    last_of_each,
)
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.front.reading import Conditions
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.steps import PriorityUpdate
from sqlbuffer.storage.labels.values import AnnotationValues, checked_version
from sqlbuffer.storage.labels.writing import Annotated, Annotation
from sqlbuffer.storage.leases.retirement import retire
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")


class RowChanges:
    """Changes the labels, the priorities and the quarantine of rows, and deletes rows.

    Args:
        store: The buffer.
        conditions: Checks which rows a call is about.
    """

    def __init__(self, store: BufferStore, conditions: Conditions) -> None:
        self._store, self._conditions = store, conditions

    def annotate(
        self,
        rows: Any,
        values: Mapping[str, Any],
        extra: Any,
        version: int | None,
        fields: Mapping[str, Any],
    ) -> int:
        """Label rows; return how many. Rows that have left are named in a warning."""
        if extra is None and all(value is None for value in (*values.values(), *fields.values())):
            raise FieldError(
                "annotate() needs reward=..., adv_t=..., v_t=..., extra={...} or a scalar field"
            )
        fields = {name: value for name, value in fields.items() if value is not None}
        late_values = AnnotationValues(values, extra, fields, self._store.layout.specs)
        annotation = self._annotation(rows, late_values, checked_version(version))
        annotated = self._store.labels.annotate(annotation)
        if annotated.missing:
            self._warn_of_missing(annotated, len(annotation.numbers))
        elif not annotated.n_rows and is_condition(rows) and self._removes_used_rows:
            logger.warning(
                "buffer %r: no row matches the condition of annotate(); rows that were used up "
                "under a lease have left; keep_expired=True keeps them",
                self._store.info.name,
            )
        return annotated.n_rows

    @property
    def _removes_used_rows(self) -> bool:
        """Whether rows leave when a lease on them is acknowledged."""
        config = self._store.info.config
        is_counted = config.leases.enabled and config.sampling.max_use is not None
        return is_counted and not config.retention.keep_expired

    def _warn_of_missing(self, annotated: Annotated, n_numbers: int) -> None:
        low, high, missing = annotated.low, annotated.high, annotated.missing
        n_evicted = sum(0 < seq <= low for seq in missing)
        n_unknown = sum(not 0 < seq <= high for seq in missing)
        removed = "deleted"
        if self._removes_used_rows:
            removed += " or used up under a lease (keep_expired=True keeps them)"
        counts = (
            (n_evicted, "evicted"),
            (len(missing) - n_evicted - n_unknown, removed),
            (n_unknown, "never stored"),
        )
        logger.warning(
            "buffer %r: %d of %d rows are not annotated, it does not hold them: %s; seq %s%s",
            self._store.info.name,
            len(missing),
            n_numbers,
            ", ".join(f"{n} {why}" for n, why in counts if n),
            ", ".join(map(str, missing[:10])),
            ", ..." if len(missing) > 10 else "",
        )

    def _annotation(
        self, rows: Any, late_values: AnnotationValues, version: int | None
    ) -> Annotation:
        if is_condition(rows):
            node = self._conditions.node(rows)
            if node == EVERYTHING:
                raise ConditionError(
                    "annotate() needs a condition, or the seq of rows; an empty condition would "
                    "label every row"
                )
            return Annotation(self._store.rows.select_seqs(node), late_values.label(), version)
        if isinstance(rows, (set, frozenset)):
            named = checked_numbers(rows, "annotate")
            return Annotation(named, late_values.label(), version)
        numbers = checked_seqs(rows)
        labels = late_values.labels(len(numbers))
        distinct, last = last_of_each(numbers)
        return Annotation(distinct.tolist(), [labels[i] for i in last.tolist()], version)

    def update_priorities(self, seqs: Any, priorities: Any, eps: float) -> PriorityUpdate:
        """Set the priorities of rows."""
        check_kept(self._store.info.config.priorities.enabled)
        update = checked_update(seqs, priorities, eps)
        n_updated = self._store.priorities.update_priorities(update.seqs, update.priorities)
        return PriorityUpdate(n_updated, len(update.seqs) - n_updated)

    def quarantine(self, rows: Rows, reason: str | None) -> int:
        """Take rows out of sampling; return how many."""
        chosen = self._conditions.rows(rows, "quarantine")
        return self._store.quarantine.add(chosen, checked_reason(reason))

    def release(self, rows: Rows) -> int:
        """Put rows back into sampling; return how many."""
        n_released = self._store.quarantine.release(self._conditions.rows(rows, "release"))
        info = self._store.info
        if info.config.leases.enabled and info.config.sampling.max_use is not None:
            retire(self._store)  # those that were used up while they were in quarantine
        return n_released

    def delete(self, condition: Any, query_condition: Any, older_than: Any) -> int:
        """Delete rows; return how many."""
        return self._store.deletion.delete(*self._leaving(condition, query_condition, older_than))

    def deletable(
        self, condition: Any, query_condition: Any = None, older_than: Any = None
    ) -> tuple[int, int]:
        """Return how many rows `delete` would delete, and how many episodes they are of."""
        return self._store.deletion.count(*self._leaving(condition, query_condition, older_than))

    def _leaving(
        self, condition: Any, query_condition: Any, older_than: Any
    ) -> tuple[Any, float | None]:
        """Return the rows to delete, and their least age in seconds."""
        age = None if older_than is None else checked_age(older_than, "older_than")
        if not is_condition(condition) and query_condition is None:
            return checked_numbers(condition, "delete"), age
        node = self._conditions.node(condition, query_condition)
        if node == EVERYTHING and age is None:
            raise ConditionError("delete() needs a condition; use clear() to delete every row")
        return node, age
