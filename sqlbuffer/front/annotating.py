"""The call that gives rows rewards, and more, after they were stored."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sqlbuffer.arguments import checked_numbers
from sqlbuffer.encoding.priority_values import checked_seqs
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.front.shared import Parts
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.storage.labels.label_values import checked_label, checked_labels, checked_version
from sqlbuffer.storage.labels.labelling import Annotation


class Annotating(Parts):
    """The call of `ReplayBuffer` that labels rows."""

    def annotate(
        self,
        condition_or_seqs: Any,
        *,
        reward_t: Any = None,
        adv_t: Any = None,
        v_t: Any = None,
        extra: Any = None,
        version: int | None = None,
        reward: Any = None,
    ) -> int:
        """Give rows values that arrive after they were stored: rewards, judges' scores, advantages.

        The rows stay as they are; what is given is kept beside them, every version of it, and from
        then on conditions, samplers, n-step sums and views see it in the place of the row's own
        value. Of each value, and of each key of extra, the one of the highest version holds,
        whichever came last. A version that is given again adds to what it said before: a call that
        is repeated changes nothing. Priorities do not change.

        Args:
            condition_or_seqs: A condition; or the rows' numbers, shape (b,): `info["seq"]` of a
                batch, or `row.seq`. The last of equal ones counts. A set of them has no order, and
                takes one value for all.
            reward_t: Rewards: one finite number for all rows; or, with numbers of rows, an array of
                shape (b,).
            adv_t: Advantages, likewise.
            v_t: Value estimates, likewise.
            extra: A dict of JSON values for all rows; or, with numbers of rows, b of them. Its keys
                are added to the row's extra, or replace those there.
            version: Its version, an integer of 64 bits. Omitted: one more than the highest of the
                rows, from 1 on.
            reward: Other name of `reward_t`.

        Returns:
            How many rows were annotated; those that the buffer does not hold are skipped.

        Raises:
            ConditionError: A malformed condition, or an empty one.
            FieldError: Nothing is given, a number that is not finite, no JSON, or another shape;
                nothing is written.

        Example:
            >>> from sqlbuffer import QueryBuilder, ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state="a long answer", task_id="t1").inserted
            1
            >>> of_t1 = QueryBuilder().eq("exp_meta.task_id", "t1").build()
            >>> buffer.annotate(of_t1, reward=0.5, extra={"judge": "strict"})
            1
            >>> [(row.exp_data.reward_t, row.exp_data.extra) for row in buffer]
            [(0.5, {'judge': 'strict'})]
        """
        if reward is not None and reward_t is not None:
            raise FieldError("give reward=... or reward_t=..., not both")
        values = {"reward_t": reward if reward_t is None else reward_t, "adv_t": adv_t, "v_t": v_t}
        if extra is None and all(value is None for value in values.values()):
            raise FieldError("annotate() needs reward=..., adv_t=..., v_t=... or extra={...}")
        version = checked_version(version)
        return self._store.annotate(self._annotation(condition_or_seqs, values, extra, version))

    def _annotation(
        self, rows: Any, values: Mapping[str, Any], extra: Any, version: int | None
    ) -> Annotation:
        if rows is None or isinstance(rows, (Mapping, QueryBuilder)):
            node = self._node(rows)
            if node == EVERYTHING:
                raise ConditionError(
                    "annotate() needs a condition, or the seq of rows; an empty condition would "
                    "label every row"
                )
            return Annotation(self._store.select_seqs(node), checked_label(values, extra), version)
        if isinstance(rows, (set, frozenset)):
            named = checked_numbers(rows, "annotate")
            return Annotation(named, checked_label(values, extra), version)
        numbers = checked_seqs(rows)
        labels = checked_labels(values, extra, len(numbers))
        # The last of each, in order: those who label the same rows do not cross.
        distinct, from_end = np.unique(numbers[::-1], return_index=True)
        last = (len(numbers) - 1 - from_end).tolist()
        return Annotation(distinct.tolist(), [labels[i] for i in last], version)
