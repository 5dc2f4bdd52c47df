"""Build conditions as plain data, by chained calls of `QueryBuilder`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from sqlbuffer.checks import checked_instance, checked_items, checked_text
from sqlbuffer.display import html_code, short
from sqlbuffer.errors import ConditionError

Tree = Mapping[str, Any]
MAX_VALUE_DEPTH = 100  # payloads are not nested deeper
MAX_VALUES = 2**20  # in one list


class QueryBuilder:
    """Builds a condition tree by chaining; `and_` and `or_` fold strictly from left to right.

    `a and b or c` is `(a and b) or c`, and `a or b and c` is `(a or b) and c`; `nested` makes a
    separate group. The result of `build` is plain data that JSON can hold.

    Example:
        >>> builder = QueryBuilder().eq("task_id", "t1").and_().gt("step", 3)
        >>> builder.build()["and_"][1]
        {'field': 'step', 'value': 3, 'op': 'gt'}
        >>> early = QueryBuilder().lt("step", 9).or_().between("reward", 0, 1)
        >>> named = QueryBuilder().like("task_name", "maze").or_().not_like("task_name", "test")
        >>> known = QueryBuilder().is_not_null("reward").and_().is_null("adv_t")
        >>> QueryBuilder().nested(early).and_().nested(named).and_().nested(known)
        QueryBuilder((step lt 9 or reward between [0, 1]) and (task_name like 'maze' or
        task_name not_like 'test') and (reward is_not_null and adv_t is_null))
        >>> QueryBuilder().gte("step", 1).and_().lte("step", 9).and_().ne("agent_id", "b")
        QueryBuilder(step gte 1 and step lte 9 and agent_id ne 'b')
        >>> QueryBuilder().in_("agent_id", ["a", "b"]).and_().not_in("task_id", ["t1"])
        QueryBuilder(agent_id in ['a', 'b'] and task_id not_in ['t1'])
    """

    def __init__(self) -> None:
        self._conditions: list[dict[str, Any]] = []
        self._operators: list[str] = []

    def __repr__(self) -> str:
        pairs = zip(self._operators, self._conditions[1:], strict=False)
        return f"QueryBuilder({chain_text(self._conditions[:1], pairs) or 'empty'})"

    def _repr_html_(self) -> str:
        """Return its repr, for notebooks."""
        return html_code(repr(self))

    def eq(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field equals the value; None also matches a missing field.

        Raises:
            ConditionError: The name of the field is not text; or a condition cannot hold the value:
                an array, bytes or a time, a value nested deeper than 100 levels, or a list of more
                than a million values.
        """
        return self._leaf(field, "eq", value)

    def ne(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field does not equal the value; a missing field counts as None.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "ne", value)

    def gt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is greater than the value.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "gt", value)

    def gte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is at least the value.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "gte", value)

    def lt(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is less than the value.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "lt", value)

    def lte(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is at most the value.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "lte", value)

    def between(self, field: str, low: Any, high: Any) -> "QueryBuilder":
        """Match rows whose field is at least `low` and at most `high`.

        Raises:
            ConditionError: As `eq`.
        """
        bounds = [as_data(low, "low"), as_data(high, "high")]
        return self._leaf(field, "between", bounds)

    def in_(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is one of the values, or, for a text value, a substring of it.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "in", value)

    def not_in(self, field: str, value: Any) -> "QueryBuilder":
        """Match rows whose field is none of the values; a missing field counts as None.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "not_in", value)

    def like(self, field: str, value: Any) -> "QueryBuilder":
        """Match text that contains the value (case-sensitive, no wildcards), lists with it as an
        element, or dicts with it as a key.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "like", value)

    def not_like(self, field: str, value: Any) -> "QueryBuilder":
        """Match text, lists or dicts that do not contain the value; a missing field does not
        match.

        Raises:
            ConditionError: As `eq`.
        """
        return self._leaf(field, "not_like", value)

    def is_null(self, field: str) -> "QueryBuilder":
        """Match rows where the field is None or missing.

        Raises:
            ConditionError: The name of the field is not text.
        """
        self._conditions.append({"field": _field_name(field), "op": "is_null"})
        return self

    def is_not_null(self, field: str) -> "QueryBuilder":
        """Match rows whose field exists and is not None.

        Raises:
            ConditionError: The name of the field is not text.
        """
        self._conditions.append({"field": _field_name(field), "op": "is_not_null"})
        return self

    def and_(self) -> "QueryBuilder":
        """Join the conditions so far and the next one by AND."""
        self._operators.append("and_")
        return self

    def or_(self) -> "QueryBuilder":
        """Join the conditions so far and the next one by OR."""
        self._operators.append("or_")
        return self

    def nested(self, builder: "QueryBuilder") -> "QueryBuilder":
        """Add another builder's tree, as it is now, as one group.

        Raises:
            ConditionError: The other builder is not complete, or not a builder; see `build`.
        """
        what = "a QueryBuilder, such as QueryBuilder().eq('task_id', 't1')"
        checked_instance(builder, "builder", QueryBuilder, what, error=ConditionError)
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
                "such as .eq('task_id', 't1'), or give none where all rows are meant"
            )
        n_missing = len(self._conditions) - 1 - len(self._operators)
        if n_missing:
            remedy = (
                f"write .and_() or .or_() between each two conditions, {n_missing} more: "
                ".eq('task_id', 't1').and_().gt('step', 3)"
                if n_missing > 0
                else f"each and_() or or_() joins two conditions: leave out {-n_missing}, or add "
                "the conditions"
            )
            raise ConditionError(
                "Mismatch between condition and operator counts: conditions: "
                f"{len(self._conditions)}, operators: {len(self._operators)}; {remedy}"
            )
        tree = self._conditions[0]
        for operator, condition in zip(self._operators, self._conditions[1:], strict=True):
            tree = {operator: [tree, condition]}
        return dict(tree)

    def _leaf(self, field: str, op: str, value: Any) -> "QueryBuilder":
        value = as_data(value, "value")
        self._conditions.append({"field": _field_name(field), "value": value, "op": op})
        return self


def _field_name(field: Any) -> str:
    what = "text that names a field, such as 'task_id'"
    return checked_text(field, "field", what, error=ConditionError)


def as_data(value: Any, name: str = "value", depth: int = 0) -> Any:
    """Return a value of a condition as JSON has it, with the same meaning.

    Args:
        value: The value.
        name: Its name in messages.
        depth: Number of lists and dicts around it.

    Raises:
        ConditionError: A condition cannot hold the value.
    """
    if depth > MAX_VALUE_DEPTH:
        raise ConditionError(
            f"{name}: a value in a condition is nested deeper than {MAX_VALUE_DEPTH} levels"
        )
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return as_data(value.item(), name)
    if isinstance(value, Mapping):
        return {key: as_data(item, name, depth + 1) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        raise ConditionError(
            f"{name}: arrays cannot be compared in a condition; compare a column or a JSON number"
        )
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray, np.generic, type)):
        items = checked_items(value, name, "a list of values", MAX_VALUES, error=ConditionError)
        return [as_data(item, name, depth + 1) for item in items]
    raise ConditionError(
        f"{name}: a condition holds None, bool, int, float, text, lists and dicts, got "
        f"{type(value).__name__}; for a time, compare execute_time with seconds since 1970"
    )


SHOWN_CONDITIONS = 10


_DEEPEST = 5


def chain_text(
    first: Sequence[Mapping[str, Any]],
    others: Iterable[tuple[str, Mapping[str, Any]]],
    depth: int = 0,
) -> str:
    """Return conditions and the operators between them, such as `step gt 3 or (a eq 1 and b eq 2)`.

    Args:
        first: The first condition, if there is one.
        others: The operator before each of the others, and the condition.
        depth: Number of groups around it.
    """
    parts = [_text(condition, depth) for condition in first]
    pairs = iter(others)
    for operator, condition in islice(pairs, SHOWN_CONDITIONS - 1):
        parts.append(f"{operator.rstrip('_')} {_text(condition, depth)}")
    n_more = sum(1 for _ in pairs)
    return " ".join([*parts, f"... {n_more} more"] if n_more else parts)


def _text(condition: Mapping[str, Any], depth: int) -> str:
    if "field" in condition:
        value = f" {short(condition['value'])}" if "value" in condition else ""
        return f"{condition['field']} {condition['op']}{value}"
    return f"({_group(condition, depth + 1)})" if depth < _DEEPEST else "(...)"


def _group(tree: Mapping[str, Any], depth: int) -> str:
    """Return the chain that a tree of `QueryBuilder.build` was folded from."""
    others: list[tuple[str, Mapping[str, Any]]] = []
    while "field" not in tree:
        ((operator, (left, right)),) = tree.items()
        others.append((operator, right))
        tree = left
    return chain_text([tree], reversed(others), depth)
