"""Check which rows a call is about."""

from sqlbuffer.arguments import Condition, Rows, checked_numbers, is_condition, one_condition
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.query.tree_checks import check
from sqlbuffer.storage.buffers.buffer_info import BufferInfo


class Conditions:
    """Checks the conditions that calls are given.

    Args:
        info: The buffer.
    """

    def __init__(self, info: BufferInfo) -> None:
        self._comparable = info.config.fields.comparable

    def node(self, condition: Condition, query_condition: Condition = None) -> Node:
        """Return a condition checked; it has two names."""
        return check(one_condition(condition, query_condition), self._comparable)

    def rows(self, rows: Rows, call: str) -> Node | list[int]:
        """Return which rows a call is about: a condition checked, or their numbers in order.

        Raises:
            ConditionError: An empty condition.
            FieldError: Neither a condition nor numbers.
        """
        if not is_condition(rows):
            return checked_numbers(rows, call)
        node = self.node(rows)
        if node == EVERYTHING:
            raise ConditionError(f"{call}() needs a condition, or the numbers of rows (seq)")
        return node
