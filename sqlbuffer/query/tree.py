"""A checked condition: its fields, operators and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.builder import QueryBuilder, Tree, as_data
from sqlbuffer.query.paths import NONE_DECLARED, Field, parse_field

Operator = Literal["eq", "gt", "gte", "lt", "lte", "in", "like", "is_null"]


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


MAX_DEPTH = 64  # SQLite's parser has a stack of 100 entries, and SQLAlchemy recurses
MAX_CHAIN = 200_000
# Operator -> (the positive one that decides it, negated).
OPERATORS: dict[str, tuple[Operator, bool]] = {
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
            f"a condition is a dict such as QueryBuilder().build() makes, got {shown(node)}"
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
        f"underscore), got {shown(list(keys))}"
    )


def _check_group(key: str, parts: Any, declared: Mapping[str, bool], depth: int) -> Group:
    if not isinstance(parts, (list, tuple)):
        raise ConditionError(f"{key} takes a list of conditions, got {shown(parts)}")
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
    if not isinstance(op, str) or op not in OPERATORS:
        raise ConditionError(
            f"unknown operator {shown(op)} on {field.name}; known are "
            f"{', '.join([*OPERATORS, 'between'])}"
        )
    positive, negated = OPERATORS[op]
    if op in _NO_VALUE:
        return Leaf(field, "is_null", None, negated)
    if "value" not in leaf:
        raise ConditionError(f"the condition {op} on {field.name} has no value")
    value = as_data(leaf["value"])
    if value is None and positive == "eq":
        return Leaf(field, "is_null", None, negated)
    return Leaf(field, positive, _CHECKS[positive](field, op, value), negated)


def _check_between(field: Field, bounds: Any) -> Node:
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2:
        raise ConditionError(f"between on {field.name} takes [low, high], got {shown(bounds)}")
    low, high = (_check_ordered(field, "between", as_data(bound)) for bound in bounds)
    return Group("all", (Leaf(field, "gte", low), Leaf(field, "lte", high)))


def _check_equal(field: Field, op: str, value: Any) -> Any:
    _check_storable(field, op, value)
    return _as_key(field, value)


def _check_ordered(field: Field, op: str, value: Any) -> Any:
    if isinstance(value, (list, dict)) or value is None:
        raise ConditionError(f"{op} on {field.name} takes a number or text, got {shown(value)}")
    _check_storable(field, op, value)
    return value


def _check_members(field: Field, op: str, value: Any) -> Any:
    if isinstance(value, dict):
        value = list(value)
    if not isinstance(value, (list, str)):
        raise ConditionError(
            f"{op} on {field.name} takes a list of values (or a text to be part of), got "
            f"{shown(value)}"
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
    """Refuse values that the databases could not compare exactly."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConditionError(
                    f"{op} on {field.name}: the keys of a dict value are text, got {shown(key)}"
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
