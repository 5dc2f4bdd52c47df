"""A checked condition: leaves that compare a field with a value, and groups of leaves."""

from dataclasses import dataclass
from typing import Any, Literal

from sqlbuffer.query.paths import Field

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
