"""Conditions, checked: the fields, paths, operators and values they may have, and the texts that
people type.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlbuffer.checks import refused
from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.builder import QueryBuilder, Tree, as_data

Kind = Literal["text", "int", "real", "bool", "json"]


Segment = str | int


_META: dict[str, Kind] = {
    "task_id": "text",
    "task_name": "text",
    "agent_id": "text",
    "step": "int",
    "execute_time": "real",
    "pre_agent": "text",
    "episode_id": "text",
    "model_version": "int",
    "session_id": "text",
}


_DATA: dict[str, Kind] = {
    "state": "json",
    "actions": "json",
    "messages": "json",
    "extra": "json",
    "reward_t": "real",
    "adv_t": "real",
    "v_t": "real",
    "terminated": "bool",
    "truncated": "bool",
}


# Field name -> (column, kind).
FIELDS: dict[str, tuple[str, Kind]] = {
    **{f"exp_meta.{name}": (name, kind) for name, kind in _META.items()},
    **{f"exp_data.{name}": (name, kind) for name, kind in _DATA.items()},
    "id": ("id", "text"),
    "seq": ("seq", "int"),
    **{name: (name, _META[name]) for name in ("episode_id", "model_version", "session_id")},
    **{name: (name, _DATA[name]) for name in ("terminated", "truncated")},
}


# The same by their short names. A declared field of such a name is meant before them.
SHORT_NAMES: dict[str, tuple[str, Kind]] = {
    **{name: (name, kind) for name, kind in (_META | _DATA).items()},
    "reward": ("reward_t", "real"),
}


# Facts of the episode of a step; a step without an episode has none. Declared fields come first.
EPISODE_FACTS: dict[str, Kind] = {
    "episode_reward": "real",
    "episode_return": "real",
    "episode_length": "int",
    "status": "text",
    "group_id": "text",
    "parent_id": "text",
    "meta": "json",
}


DECLARED = "fields"  # the column of typed fields that are declared with column=True


MAX_PATH_SEGMENTS = 100  # payloads are not nested deeper


MAX_PATH_INDEXES = 4


# An identifier, a list index in brackets, or a quoted key; separated by dots.
_SEGMENT = re.compile(r'\.?\[(-?[0-9]{1,9})\]|\.("(?:[^"\\]|\\.)*"|[^.\["]+)', re.DOTALL)


# Between dots, what JSON would write as an index; anything else, such as 01, is a key.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class Field:
    """A column, with the path of a value inside it if it is a JSON column.

    Attributes:
        name: As the user wrote it.
        column: Column of `experiences`, or a fact of the episode.
        kind: Type of the column.
        path: Keys (str) and list indexes (int).
        is_labelled: Rows may have a value that was given late; known where the condition is used.
    """

    name: str
    column: str
    kind: Kind
    path: tuple[Segment, ...] = ()
    is_labelled: bool = field(default=False, repr=False)

    @property
    def is_of_episode(self) -> bool:
        """It is a fact of the step's episode, which the step itself does not have."""
        return self.column in EPISODE_FACTS


NONE_DECLARED: Mapping[str, bool] = {}


def known_fields(declared: Mapping[str, bool] = NONE_DECLARED) -> list[str]:
    """Return the names that conditions can use, without paths into JSON.

    Args:
        declared: The buffer's own fields, and whether conditions can use each.
    """
    usable = [name for name, is_usable in declared.items() if is_usable]
    return list(dict.fromkeys([*SHORT_NAMES, *EPISODE_FACTS, *FIELDS, *usable]))


def parse_field(name: object, declared: Mapping[str, bool] = NONE_DECLARED) -> Field:
    """Return the field of a name such as `step`, `exp_meta.step` or `state.tags[0]."a.b"`.

    Args:
        name: The name.
        declared: The buffer's own fields, and whether conditions can use each.

    Raises:
        ConditionError: The field is unknown, or the path is malformed; the message names the
            nearest known fields.
    """
    if not isinstance(name, str):
        raise refused(name, "field", "text that names a field, such as 'task_id'", ConditionError)
    if name in FIELDS:
        return Field(name, *FIELDS[name])
    if name in declared:
        return _declared_field(name, declared[name])
    if name in SHORT_NAMES:
        return Field(name, *SHORT_NAMES[name])
    if name in EPISODE_FACTS:
        return Field(name, name, EPISODE_FACTS[name])
    root = re.match(r"(?:exp_data\.)?(state|actions|messages|extra)(?=[.\[])|(meta)(?=[.\[])", name)
    if root is None:
        known = list(FIELDS) if name.startswith("exp_") else known_fields(declared)
        hint = nearest(name, known) or "; known are " + ", ".join(known)
        raise ConditionError(f"unknown field {shown(name)}{hint}")
    path = parse_path(name, root.end())
    if len(path) > MAX_PATH_SEGMENTS:
        raise ConditionError(
            f"the path in field {shown(name)} has more than {MAX_PATH_SEGMENTS} segments"
        )
    if sum(isinstance(segment, int) for segment in path) > MAX_PATH_INDEXES:
        raise ConditionError(f"field {shown(name)} has more than {MAX_PATH_INDEXES} list indexes")
    return Field(name, root[1] or root[2], "json", path)


def _declared_field(name: str, is_usable: bool) -> Field:
    if not is_usable:
        raise ConditionError(
            f"field {shown(name)} is kept among the arrays of a row, where conditions do not look; "
            f"declare it with column=True, or store a copy in extra"
        )
    return Field(name, DECLARED, "json", (name,))


def parse_path(name: str, start: int) -> tuple[Segment, ...]:
    """Return the keys and indexes that a name has from a place on.

    Raises:
        ConditionError: A malformed path.
    """
    path: list[Segment] = []
    while start < len(name):
        match = _SEGMENT.match(name, start)
        if match is None:
            raise ConditionError(
                f"malformed path in field {shown(name)} at position {start}: "
                'write keys as .key or ."a key" and indexes as [0]'
            )
        index, key = match.groups()
        if index is not None:
            path.append(int(index))
        elif key.startswith('"'):
            path.append(re.sub(r"\\(.)", r"\1", key[1:-1], flags=re.DOTALL))
        else:
            path.append(int(key) if _INDEX.fullmatch(key) else key)
        start = match.end()
    return tuple(path)


def nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint at the known names that are like an unknown one; empty: there are none."""
    name = name[:100]
    by_last_part = [
        candidate for candidate in known if candidate.rpartition(".")[2] == name.rpartition(".")[2]
    ]
    similar = by_last_part or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return "; did you mean " + " or ".join(similar) + "?" if similar else ""


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
NUMBER_KEYS = frozenset(
    {"task_id", "agent_id", "pre_agent", "episode_id", "session_id", "group_id", "parent_id"}
)


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


def facts_of_episodes(node: Node) -> list[Field]:
    """Return the facts of episodes that a condition names."""
    if isinstance(node, Group):
        return [fact for part in node.parts for fact in facts_of_episodes(part)]
    return [node.field] if node.field.is_of_episode else []


def condition_of(
    fields: Mapping[str, FieldSpec], condition: str | None, equals: Sequence[str] | None
) -> Tree | None:
    """Return the condition that `--condition` and `--eq` make; None if neither is given.

    Args:
        fields: The typed fields of the buffer.
        condition: A condition tree as JSON.
        equals: Texts `field=value`.

    Raises:
        ConditionError: Malformed JSON, or no `=`.
    """
    trees = [] if condition is None else [_tree(condition)]
    trees += [_equal(text, fields) for text in equals or ()]
    if not trees:
        return None
    return trees[0] if len(trees) == 1 else {"and_": trees}


def _tree(text: str) -> Any:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise ConditionError(
            f"the condition is not JSON: {error}; write what QueryBuilder().build() returns, "
            """such as '{"field": "step", "op": "gt", "value": 3}'"""
        ) from None
    if not tree:
        raise ConditionError("the condition is empty; leave it out to mean every row")
    return tree


def _equal(text: str, specs: Mapping[str, FieldSpec]) -> dict[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise ConditionError(
            f"the condition has the form field=value, such as task_id=t1; got {shown(text)}"
        )
    return typed_leaf(name.strip(), "eq", value, specs)


def typed_leaf(
    field: str, op: str, value: str, specs: Mapping[str, FieldSpec], *, is_text: bool = False
) -> dict[str, Any]:
    """Return a leaf whose value a person typed: JSON for fields that are not text.

    Args:
        field: Name of the field.
        op: The operator.
        value: The value.
        specs: The typed fields of the buffer.
        is_text: The value is a text for any field.

    Raises:
        ConditionError: The field is unknown.
    """
    kind = parse_field(field, {name: spec.column for name, spec in specs.items()}).kind
    is_text = is_text or kind == "text" or (field in specs and specs[field].dtype.kind == "U")
    return {"field": field, "op": op, "value": value if is_text else _value(value)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
