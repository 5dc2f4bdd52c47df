"""The calls that take rows out of sampling, and back."""

from sqlbuffer.arguments import Rows, checked_reason
from sqlbuffer.front.shared import Parts
from sqlbuffer.storage.leases.retirement import retire


class Quarantining(Parts):
    """The calls of `ReplayBuffer` that take rows out of sampling without deleting them."""

    def quarantine(self, condition_or_seqs: Rows, *, reason: str | None = None) -> int:
        """Take the rows that match now out of sampling; `v_quarantine` lists them.

        They are not drawn, and neither is what they are part of: tasks, transitions, windows and
        episodes with one of them. Everything else sees them as before, and they are evicted in
        their turn. Rows that match later are not in quarantine.

        Args:
            condition_or_seqs: A condition, or the numbers of rows: `info["seq"]` of a batch. Those
                that the buffer does not hold are passed over.
            reason: Kept with each row; one that is in quarantine already keeps its own.

        Returns:
            How many rows were not in quarantine before.

        Raises:
            ConditionError: An empty condition, or a malformed one.
            FieldError: Numbers that are none, or a reason that is no text.
            StorageReadOnlyError: The role may not: it is a right of learners.

        Example:
            >>> from sqlbuffer import QueryBuilder, ReplayBuffer
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.add(state=1, task_id="good").inserted
            1
            >>> buffer.add(state=2, task_id="bad").inserted
            1
            >>> bad = QueryBuilder().eq("exp_meta.task_id", "bad")
            >>> buffer.quarantine(bad, reason="the judge crashed")
            1
            >>> [row.exp_meta.task_id for row in buffer.sample(9)], len(buffer)
            (['good'], 2)
            >>> buffer.release(bad), len(buffer.sample(9))
            (1, 2)
        """
        rows = self._rows(condition_or_seqs, "quarantine")
        return self._store.quarantine(rows, checked_reason(reason))

    def release(self, condition_or_seqs: Rows) -> int:
        """Put rows in quarantine that match now back into sampling.

        Args:
            condition_or_seqs: See `quarantine`.

        Returns:
            How many rows were in quarantine.

        Raises:
            ConditionError: An empty condition, or a malformed one.
            FieldError: Numbers that are none.
            StorageReadOnlyError: The role may not: it is a right of learners.
        """
        n_released = self._store.release(self._rows(condition_or_seqs, "release"))
        info = self._store.info
        if info.leases and info.max_use is not None:
            retire(self._store)  # those that were used up meanwhile
        return n_released
