"""The meaning of a condition over arrays: that of `QueryFilter`, for many rows at a time."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.query.condition_tree import Group, Leaf, Node
from sqlbuffer.query.number_bounds import integer_bound, is_number, real_bound
from sqlbuffer.query.paths import Field
from sqlbuffer.query.query_filter import meets

Flags = NDArray[np.bool_]
_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


@dataclass(frozen=True)
class NumberColumn:
    """A column of integers, reals or flags.

    Attributes:
        values: Int64, float64 or bool, of shape (n,); anything where they are missing.
        is_missing: Where there is none, of shape (n,); None: nowhere.
    """

    values: NDArray[Any]
    is_missing: Flags | None = None


@dataclass(frozen=True)
class TextColumn:
    """A column of texts.

    Attributes:
        texts: The distinct ones; None for no text.
        index: Position of each row's text in `texts`, of shape (n,).
    """

    texts: Sequence[str | None]
    index: NDArray[np.int64]


def matching(node: Node, n: int, column: Callable[[Field], NumberColumn | TextColumn]) -> Flags:
    """Return which of n rows meet a condition.

    Args:
        node: The condition.
        n: Number of rows.
        column: Returns the values of the rows.

    Example:
        >>> from sqlbuffer.query.tree_checks import check
        >>> late = check({"field": "step", "op": "gt", "value": 1.5})
        >>> matching(late, 3, lambda field: NumberColumn(np.arange(3))).tolist()
        [False, False, True]
    """
    if isinstance(node, Leaf):
        own = column(node.field)
        if isinstance(own, NumberColumn):
            return _meet(node, own)
        found: Flags = np.array([meets(node, text) for text in own.texts], bool)[own.index]
        return found
    return _joined(node, n, column)


def _joined(group: Group, n: int, column: Callable[[Field], NumberColumn | TextColumn]) -> Flags:
    is_all = group.kind == "all"
    found: Flags = np.full(n, is_all)
    for part in group.parts:
        own = matching(part, n, column)
        found = found & own if is_all else found | own
    return found


def _meet(leaf: Leaf, column: NumberColumn) -> Flags:
    values = column.values
    there = np.ones(len(values), bool) if column.is_missing is None else ~column.is_missing
    if leaf.op == "is_null":
        return there if leaf.negated else ~there
    if leaf.op == "like":  # a number contains nothing, and is in nothing
        return np.zeros(len(values), bool)
    if leaf.op == "in":
        found = _are_members(leaf.value, values) & there
        if not isinstance(leaf.value, str) and None in leaf.value:
            found = found | ~there
    else:
        found = _compare(leaf.op, values, leaf.value) & there
    return ~found if leaf.negated else found


def _are_members(members: Any, values: NDArray[Any]) -> Flags:
    if isinstance(members, str):
        return np.zeros(len(values), bool)
    bounds = [_bound("eq", values, member) for member in members if is_number(member)]
    listed = [bound for op, bound in bounds if op == "eq"]
    return np.isin(values, np.array(listed, _wide(values)))


def _compare(op: str, values: NDArray[Any], target: Any) -> Flags:
    if not is_number(target):
        return np.zeros(len(values), bool)
    bound_op, bound = _bound(op, values, target)
    if bound_op == "const":
        return np.full(len(values), bool(bound))
    own = values.astype(_wide(values), copy=False)
    found: Flags = np.asarray(_ORDER[bound_op](own, bound))
    return found


def _bound(op: str, values: NDArray[Any], target: Any) -> tuple[str, Any]:
    return (real_bound if values.dtype.kind == "f" else integer_bound)(op, target)


def _wide(values: NDArray[Any]) -> type[Any]:
    return np.float64 if values.dtype.kind == "f" else np.int64
