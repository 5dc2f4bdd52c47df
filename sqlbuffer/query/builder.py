"""Conditions as data: built by `QueryBuilder`, checked here, compiled to SQL by
`storage.conditions`.
"""

import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sqlbuffer.codec.encoder import INT64_MAX, INT64_MIN
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.paths import NONE_DECLARED, Field, parse_field

Operator = Literal["eq", "gt", "gte", "lt", "lte", "in", "like", "is_null"]
Tree = Mapping[str, Any]

MAX_DEPTH = 64  # SQLite's parser has a stack of 100 entries, and SQLAlchemy recurses
MAX_CHAIN = 200_000
MAX_VALUE_DEPTH = 100  # payloads are not nested deeper
# Operator -> (the positive one that decides it, negated).
_OPERATORS: dict[str, tuple[Operator, bool]] = {
    "eq": ("eq", False),
    "ne": ("eq", True),
    "gt": ("gt", False),
    "gte": ("gte", False),
    "lt": ("lt", False),
    "lte": ("lte", False),
    "in": ("in", False),
    "not_in": ("in", True),
    "like": ("like", False),
    "not_like": ("like", True),
    "is_null": ("is_null", False),
    "is_not_null": ("is_null", True),
}
_NO_VALUE = {"is_null", "is_not_null"}
# Columns of text where a number means its text.
NUMBER_KEYS = frozenset({"task_id", "agent_id", "pre_agent", "episode_id", "session_id"})


class QueryBuilder:
    """Builds a condition tree by chaining; `and_` and `or_` fold strictly from left to right.

    `a and b or c` is `(a and b) or c`, and `a or b and c` is `(a or b) and c`; `nested` makes a
    group of its own. The result of `build` is plain data that JSON can hold.

    Example:
        >>> builder = QueryBuilder().eq("exp_meta.task_id", "t1").and_().gt("exp_meta.step", 3)
        >>> builder.build()["and_"][1]
        {'field': 'exp_meta.step', 'value': 3, 'op': 'gt'}
    """

    def __init__(self) -> None:
        self._conditions: list[dict[str, Any]] = []
        self._operators: list[str] = []

    def eq(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field equals the value; None also matches a missing field."""
        return self._leaf(field, "eq", value)

    def ne(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field does not equal the value; a missing field counts as None."""
        return self._leaf(field, "ne", value)

    def gt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is greater than the value."""
        return self._leaf(field, "gt", value)

    def gte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is at least the value."""
        return self._leaf(field, "gte", value)

    def lt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is less than the value."""
        return self._leaf(field, "lt", value)

    def lte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is at most the value."""
        return self._leaf(field, "lte", value)

    def between(self, field: str, low: Any, high: Any) -> "QueryBuilder":
        """Match rows whose field is at least `low` and at most `high`."""
        return self._leaf(field, "between", [low, high])

    def in_(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is one of the values, or, for a text value, a substring of it."""
        return self._leaf(field, "in", value)

    def not_in(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is none of the values; a missing field counts as None."""
        return self._leaf(field, "not_in", value)

    def like(self, field: str, value: Any) -> "QueryBuilder":
        """Match text that contains the value (case-sensitive, no wildcards), lists with it as an
        element, or dicts with it as a key.
        """
        return self._leaf(field, "like", value)

    def not_like(self, field: str, value: Any) -> "QueryBuilder":
        """Match text, lists or dicts that do not contain the value; a missing field does not
        match.
        """
        return self._leaf(field, "not_like", value)

    def is_null(self, field: str) -> "QueryBuilder":
        """Match rows where the field is None or missing."""
        self._conditions.append({"field": field, "op": "is_null"})
        return self

    def is_not_null(self, field: str) -> "QueryBuilder":
        """Match rows where the field is there and not None."""
        self._conditions.append({"field": field, "op": "is_not_null"})
        return self

    def and_(self) -> "QueryBuilder":
        """Join what stands so far and the next condition by AND."""
        self._operators.append("and_")
        return self

    def or_(self) -> "QueryBuilder":
        """Join what stands so far and the next condition by OR."""
        self._operators.append("or_")
        return self

    def nested(self, builder: "QueryBuilder") -> "QueryBuilder":
        """Add another builder's tree, as it is now, as one group."""
        self._conditions.append(builder.build())
        return self

    def build(self) -> dict[str, Any]:
        """Return the condition tree; the builder stays usable.

        Raises:
            ConditionError: The number of operators is not one less than the number of conditions.
        """
        if not self._conditions:
            raise ConditionError(
                "Mismatch between condition and operator counts: the condition is empty; add one, "
                "such as .eq('exp_meta.task_id', 't1'), or give none where all rows are meant"
            )
        if len(self._operators) != len(self._conditions) - 1:
            raise ConditionError(
                f"Mismatch between condition and operator counts: {len(self._conditions)} "
                f"conditions need "
                f"{len(self._conditions) - 1} of and_() / or_() between them, got "
                f"{len(self._operators)}"
            )
        tree = self._conditions[0]
        for operator, condition in zip(self._operators, self._conditions[1:], strict=True):
            tree = {operator: [tree, condition]}
        return dict(tree)

    def _leaf(self, field: str, op: str, value: Any) -> "QueryBuilder":
        self._conditions.append({"field": field, "value": _as_data(value), "op": op})
        return self


@dataclass(frozen=True)
class Leaf:
    """A checked leaf: a positive operator on a field, perhaps negated.

    A negated `eq`, `in` or `is_null` matches all that the positive one does not. A negated `like`
    matches only text, lists and dicts.
    """

    field: Field
    op: Operator
    value: Any
    negated: bool = False


@dataclass(frozen=True)
class Group:
    """A checked inner node; an empty `all` matches everything, an empty `any` nothing."""

    kind: Literal["all", "any"]
    parts: tuple["Node", ...]


Node = Leaf | Group
EVERYTHING = Group("all", ())
NOTHING = Group("any", ())


def check(
    condition: "Tree | QueryBuilder | None", declared: Mapping[str, bool] = NONE_DECLARED
) -> Node:
    """Check a condition tree and return it with fields resolved and values in the form the
    evaluators take.

    Args:
        condition: A tree, a builder, or None or `{}` for no condition.
        declared: The buffer's own fields, and whether conditions can use each.

    Raises:
        ConditionError: An unknown field or operator, a malformed node or a value that cannot be
            compared.
    """
    if condition is None:
        return EVERYTHING
    if isinstance(condition, QueryBuilder):
        condition = condition.build()
    if isinstance(condition, Mapping) and not condition:
        return EVERYTHING
    return _check_node(condition, declared, 0)


def _check_node(node: Any, declared: Mapping[str, bool], depth: int) -> Node:
    if not isinstance(node, Mapping):
        raise ConditionError(
            f"a condition is a dict such as QueryBuilder().build() makes, got {reprlib.repr(node)}"
        )
    if depth > MAX_DEPTH:
        raise ConditionError(f"the condition is nested deeper than {MAX_DEPTH} levels")
    keys = set(node)
    if keys <= {"field", "op", "value"} and {"field", "op"} <= keys:
        return _check_leaf(node, declared)
    if len(keys) == 1:
        ((key, parts),) = node.items()
        if key == "nested":
            return _check_node(parts, declared, depth + 1)
        if key in ("and_", "or_"):
            return _check_group(key, parts, declared, depth)
    raise ConditionError(
        f"a condition node has the keys field, op and value, or one key and_ or or_ (with the "
        f"underscore), got {sorted(map(str, keys))}"
    )


def _check_group(key: str, parts: Any, declared: Mapping[str, bool], depth: int) -> Group:
    if not isinstance(parts, (list, tuple)):
        raise ConditionError(f"{key} takes a list of conditions, got {reprlib.repr(parts)}")
    kind: Literal["all", "any"] = "all" if key == "and_" else "any"
    flat: list[Node] = []
    # A chain of one operator is a deep left-leaning tree; as one flat group it is neither deep here
    # nor in SQL.
    pending, n_seen = list(reversed(parts)), 0
    while pending:
        part, n_seen = pending.pop(), n_seen + 1
        if n_seen > MAX_CHAIN:
            raise ConditionError(f"{key} joins more than {MAX_CHAIN} conditions, or itself")
        if (
            isinstance(part, Mapping)
            and set(part) == {key}
            and isinstance(part[key], (list, tuple))
        ):
            pending.extend(reversed(part[key]))
        else:
            flat.append(_check_node(part, declared, depth + 1))
    return Group(kind, tuple(flat))


def _check_leaf(leaf: Mapping[str, Any], declared: Mapping[str, bool]) -> Node:
    field, op = parse_field(leaf["field"], declared), leaf["op"]
    if op == "between":
        return _check_between(field, leaf.get("value"))
    if not isinstance(op, str) or op not in _OPERATORS:
        raise ConditionError(
            f"unknown operator {op!r} on {field.name}; known are "
            f"{', '.join([*_OPERATORS, 'between'])}"
        )
    positive, negated = _OPERATORS[op]
    if op in _NO_VALUE:
        return Leaf(field, "is_null", None, negated)
    if "value" not in leaf:
        raise ConditionError(f"the condition {op} on {field.name} has no value")
    value = _as_data(leaf["value"])
    if value is None and positive == "eq":
        return Leaf(field, "is_null", None, negated)
    return Leaf(field, positive, _CHECKS[positive](field, op, value), negated)


def _check_between(field: Field, bounds: Any) -> Node:
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise ConditionError(
            f"between on {field.name} takes [low, high], got {reprlib.repr(bounds)}"
        )
    low, high = (_check_ordered(field, "between", _as_data(bound)) for bound in bounds)
    return Group("all", (Leaf(field, "gte", low), Leaf(field, "lte", high)))


def _check_equal(field: Field, op: str, value: Any) -> Any:
    _check_storable(field, op, value)
    return _as_key(field, value)


def _check_ordered(field: Field, op: str, value: Any) -> Any:
    if isinstance(value, (list, dict)) or value is None:
        raise ConditionError(
            f"{op} on {field.name} takes a number or text, got {reprlib.repr(value)}"
        )
    _check_storable(field, op, value)
    return value


def _check_members(field: Field, op: str, value: Any) -> Any:
    if isinstance(value, dict):
        value = list(value)
    if not isinstance(value, (list, str)):
        raise ConditionError(
            f"{op} on {field.name} takes a list of values (or a text to be part of), got "
            f"{reprlib.repr(value)}"
        )
    if isinstance(value, str):
        return value
    return tuple(item if item is None else _check_equal(field, op, item) for item in value)


def _check_contained(field: Field, op: str, value: Any) -> Any:
    _check_storable(field, op, value)
    return value


_CHECKS = {
    "eq": _check_equal,
    "gt": _check_ordered,
    "gte": _check_ordered,
    "lt": _check_ordered,
    "lte": _check_ordered,
    "in": _check_members,
    "like": _check_contained,
}


def _check_storable(field: Field, op: str, value: Any) -> None:
    """Refuse what the databases could not compare exactly."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConditionError(
                    f"{op} on {field.name}: the keys of a dict value are text, got {key!r}"
                )
            _check_storable(field, op, item)
    elif isinstance(value, list):
        for item in value:
            _check_storable(field, op, item)
    elif isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
        raise ConditionError(f"{op} on {field.name}: an integer beyond 64 bits cannot be compared")


def _as_key(field: Field, value: Any) -> Any:
    """Keys may be numbers to users: `eq("exp_meta.task_id", 7)` means "7", since storing 7 does."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if field.column in NUMBER_KEYS and is_number:
        return str(value)
    return value


def _as_data(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON has it, without touching what it means."""
    if depth > MAX_VALUE_DEPTH:
        raise ConditionError(
            f"a value in a condition is nested deeper than {MAX_VALUE_DEPTH} levels"
        )
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic):
        return _as_data(value.item())
    if isinstance(value, Mapping):
        return {key: _as_data(item, depth + 1) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        raise ConditionError(
            "arrays cannot be compared in a condition; compare a column or a JSON number"
        )
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        return [_as_data(item, depth + 1) for item in value]
    raise ConditionError(
        f"a condition holds None, bool, int, float, text, lists and dicts, got "
        f"{type(value).__name__}; "
        "for a time, compare exp_meta.execute_time with seconds since 1970"
    )


def is_number(value: Any) -> bool:
    """Tell whether a value compares as a number (bool does, as in Python)."""
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
        value: The number; may be an integer that lies between two floats.

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
