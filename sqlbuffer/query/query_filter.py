"""The meaning of a condition in plain Python and over arrays.

The SQL of both databases is tested against it.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_dict, checked_instance, checked_iterable
from sqlbuffer.codec.decoder import tag_of
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN, escape_key, unhex_text, untag_float
from sqlbuffer.errors import ConditionError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.tree import (
    DECLARED,
    Field,
    Group,
    Leaf,
    Node,
    Segment,
    check,
    facts_of_episodes,
)
from sqlbuffer.steps import DataRow


def is_number(value: Any) -> bool:
    """Return True if a value compares as a number (bool does, as in Python)."""
    return isinstance(value, (int, float))


def integer_bound(op: str, value: float) -> tuple[str, int | bool]:
    """Return an exact comparison of an integer column for a comparison with any number.

    Args:
        op: `eq`, `gt`, `gte`, `lt` or `lte`.
        value: The number; may be fractional, infinite or NaN.

    Returns:
        An operator with an integer bound, or `("const", b)` where b holds for every integer.
    """
    if value != value:
        return "const", False
    if isinstance(value, float) and math.isinf(value):
        return "const", (op in ("lt", "lte")) == (value > 0) and op != "eq"
    if value != int(value):
        if op == "eq":
            return "const", False
        return ("gte", math.ceil(value)) if op in ("gt", "gte") else ("lte", math.floor(value))
    bound = int(value)
    if not INT64_MIN <= bound <= INT64_MAX:
        return "const", op != "eq" and (op in ("lt", "lte")) == (bound > 0)
    return op, bound


def real_bound(op: str, value: float) -> tuple[str, float]:
    """Return an exact comparison of a real column for a comparison with any number.

    Args:
        op: `eq`, `gt`, `gte`, `lt` or `lte`.
        value: The number; it may be an integer between two floats.

    Returns:
        An operator with a float bound, or `("const", 0.0)` where no number compares so.
    """
    bound = float(value)
    if bound == value:
        return op, bound
    if op == "eq" or value != value:
        return "const", 0.0
    if op in ("gt", "gte"):
        return ("gte" if bound > value else "gt"), bound
    return ("lt" if bound > value else "lte"), bound


NO_FIELDS: Mapping[str, FieldSpec] = {}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}


class QueryFilter:
    """Selects rows in memory by the same rules as the database does.

    Missing equals None; numbers (and booleans) compare with numbers and text with text; a value of
    another type does not match and never raises. Lists and dicts are equal when their elements are.
    Inside them 1 equals 1.0, but not True; NaN equals NaN; -0.0 differs from 0, and a float from
    1e16 on from an integer.

    Args:
        condition: The condition.
        fields: The typed fields of the rows, as `buffer.fields` has them; conditions can name those
            that are declared with `column=True`.

    Raises:
        ArgumentError: `fields` are not those of a buffer.
        ConditionError: A malformed condition, an unknown field, or a fact of episodes.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> rows = [DataRow(ExpMeta("t", None, "a", step, 0.0), Experience()) for step in range(3)]
        >>> late = QueryFilter(QueryBuilder().gt("exp_meta.step", 0).build())
        >>> [row.exp_meta.step for row in late.filter(rows)]
        [1, 2]
        >>> late.check_condition(rows[0])
        False
    """

    def __init__(
        self,
        condition: Tree | QueryBuilder | None,
        fields: Mapping[str, FieldSpec] = NO_FIELDS,
    ) -> None:
        self._fields = dict(checked_dict(fields, "fields", "buffer.fields"))
        for spec in self._fields.values():
            checked_instance(spec, "each value of fields", FieldSpec, "one of buffer.fields")
        self._node = check(condition, {name: spec.column for name, spec in self._fields.items()})
        for fact in facts_of_episodes(self._node):
            if fact.column in ("group_id", "parent_id"):  # rows have them
                continue
            raise ConditionError(
                f"{fact.name!r} is a fact of the row's episode, which only the buffer knows; draw "
                f"or read by this condition: buffer.get_all(condition)"
            )

    def check_condition(self, row: DataRow) -> bool:
        """Return True if the row matches.

        Raises:
            ArgumentError: It is not a `DataRow`.
        """
        return self._matches(self._node, checked_row(row, "row"))

    def filter(self, rows: Iterable[DataRow]) -> list[DataRow]:
        """Return the rows that match, in order.

        Raises:
            ArgumentError: One of them is not a `DataRow`.
        """
        items = checked_iterable(rows, "rows", "a list of rows such as list(buffer)")
        return [row for row in items if self._matches(self._node, checked_row(row, "each of rows"))]

    def _matches(self, node: Node, row: DataRow) -> bool:
        if isinstance(node, Group):
            combine = all if node.kind == "all" else any
            return combine(self._matches(part, row) for part in node.parts)
        field = node.field
        if field.column == DECLARED:
            return meets(node, _declared_value(self._fields[field.name], row))
        return meets(node, _value(field, row))


def checked_row(row: Any, name: str) -> DataRow:
    """Return an argument that is a row.

    Raises:
        ArgumentError: It is something else.
    """
    checked: DataRow = checked_instance(row, name, DataRow, "a DataRow")
    return checked


def _declared_value(spec: FieldSpec, row: DataRow) -> Any:
    """Return a typed field as the tagged tree in the database, also of a row not yet stored."""
    value = row.fields.get(spec.name)
    if value is None and row.seq is None:
        value = spec.default_value
    if value is None:
        return None
    if not hasattr(value, "dtype") or value.dtype != spec.dtype:
        value = spec.cast(value)
    return Encoder().tree(value.item(), spec.name)


def _value(field: Field, row: DataRow) -> Any:
    """Return the field's value; for JSON fields, the tagged tree that the database holds."""
    if field.column in ("id", "seq"):
        return getattr(row, field.column)
    value = getattr(
        row.exp_meta if hasattr(row.exp_meta, field.column) else row.exp_data, field.column
    )
    if field.kind != "json":
        return value
    return value_at(Encoder().tree(value, field.column), field.path)


def _step(tree: Any, segment: Segment) -> Any:
    if isinstance(segment, str):
        return tree.get(escape_key(segment)) if isinstance(tree, dict) else None
    if isinstance(tree, dict) and set(tree) == {"$tuple"}:
        tree = tree["$tuple"]
    if isinstance(tree, list):
        return tree[segment] if -len(tree) <= segment < len(tree) else None
    return tree.get(str(segment)) if isinstance(tree, dict) else None


def value_at(tree: Any, path: Sequence[Segment]) -> Any:
    """Return the part of a tagged tree at a path; None if it has none."""
    for segment in path:
        tree = _step(tree, segment)
    return tree


def meets(test: Leaf, value: Any) -> bool:
    """Return whether a value meets a leaf."""
    if test.op == "is_null":
        return (value is None) != test.negated
    if test.op == "like":
        contains = _contains(value, test.value)
        return contains is not None and contains != test.negated
    if test.op == "in":
        return _is_member(value, test.value) != test.negated
    return _compare(test.op, value, test.value) != test.negated


def _compare(op: str, value: Any, target: Any) -> bool:
    if isinstance(target, (list, dict)):
        return op == "eq" and _is_same(value, Encoder().tree(target, ""))
    number = _number(value)
    if is_number(target):
        return number is not None and _ORDER[op](number, target)
    text = _text(value)
    return text is not None and _ORDER[op](text, target)


def _is_member(value: Any, target: Any) -> bool:
    if isinstance(target, str):
        text = _text(value)
        return text is not None and text in target
    return any(value is None if item is None else _compare("eq", value, item) for item in target)


def _is_same(value: Any, target: Any) -> bool:
    if isinstance(target, dict):
        return (
            isinstance(value, dict)
            and value.keys() == target.keys()
            and all(_is_same(value[key], target[key]) for key in target)
        )
    if isinstance(target, list):
        return (
            isinstance(value, list)
            and len(value) == len(target)
            and all(map(_is_same, value, target))
        )
    return isinstance(value, bool) == isinstance(target, bool) and bool(value == target)


def _contains(value: Any, target: Any) -> bool | None:
    """Return True if text, a list or a dict contains a value; None for other values."""
    if isinstance(value, list):
        return any(_is_member(item, [target]) for item in value)
    if isinstance(value, dict) and tag_of(value) is None:
        if isinstance(target, (list, dict)):
            return None
        return isinstance(target, str) and escape_key(target) in value
    text = _text(value)
    return target in text if text is not None and isinstance(target, str) else None


def _number(value: Any) -> int | float | None:
    if isinstance(value, dict) and set(value) == {"$float"}:
        value = untag_float(value["$float"])
    return value if is_number(value) else None


def _text(value: Any) -> str | None:
    if isinstance(value, dict) and set(value) == {"$str"}:
        return unhex_text(value["$str"])
    return value if isinstance(value, str) else None


Flags = NDArray[np.bool_]
_ARRAY_ORDER: dict[str, Callable[[Any, Any], Any]] = {
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
        >>> from sqlbuffer.query.tree import check
        >>> late = check({"field": "step", "op": "gt", "value": 1.5})
        >>> matching(late, 3, lambda field: NumberColumn(np.arange(3))).tolist()
        [False, False, True]
    """
    if isinstance(node, Leaf):
        values = column(node.field)
        if isinstance(values, NumberColumn):
            return _meet(node, values)
        matches: Flags = np.array([meets(node, text) for text in values.texts], bool)[values.index]
        return matches
    return _joined(node, n, column)


def _joined(group: Group, n: int, column: Callable[[Field], NumberColumn | TextColumn]) -> Flags:
    is_all = group.kind == "all"
    flags: Flags = np.full(n, is_all)
    for part in group.parts:
        part_flags = matching(part, n, column)
        flags = flags & part_flags if is_all else flags | part_flags
    return flags


def _meet(leaf: Leaf, column: NumberColumn) -> Flags:
    values = column.values
    there = np.ones(len(values), bool) if column.is_missing is None else ~column.is_missing
    if leaf.op == "is_null":
        return there if leaf.negated else ~there
    if leaf.op == "like":  # a number contains nothing, and is in nothing
        return np.zeros(len(values), bool)
    if leaf.op == "in":
        flags = _are_members(leaf.value, values) & there
        if not isinstance(leaf.value, str) and None in leaf.value:
            flags = flags | ~there
    else:
        flags = _compare_arrays(leaf.op, values, leaf.value) & there
    return ~flags if leaf.negated else flags


def _are_members(members: Any, values: NDArray[Any]) -> Flags:
    if isinstance(members, str):
        return np.zeros(len(values), bool)
    bounds = [_bound("eq", values, member) for member in members if is_number(member)]
    listed = [bound for op, bound in bounds if op == "eq"]
    return np.isin(values, np.array(listed, _wide(values)))


def _compare_arrays(op: str, values: NDArray[Any], target: Any) -> Flags:
    if not is_number(target):
        return np.zeros(len(values), bool)
    bound_op, bound = _bound(op, values, target)
    if bound_op == "const":
        return np.full(len(values), bool(bound))
    wide = values.astype(_wide(values), copy=False)
    flags: Flags = np.asarray(_ARRAY_ORDER[bound_op](wide, bound))
    return flags


def _bound(op: str, values: NDArray[Any], target: Any) -> tuple[str, Any]:
    return (real_bound if values.dtype.kind == "f" else integer_bound)(op, target)


def _wide(values: NDArray[Any]) -> type[Any]:
    return np.float64 if values.dtype.kind == "f" else np.int64
