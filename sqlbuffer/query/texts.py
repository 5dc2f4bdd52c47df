"""Conditions as a person types and reads them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.builder import Tree
from sqlbuffer.query.paths import parse_field


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
    field = name.strip()
    kind = parse_field(field, {name: spec.column for name, spec in specs.items()}).kind
    is_text = kind == "text" or (field in specs and specs[field].dtype.kind == "U")
    return {"field": field, "op": "eq", "value": value if is_text else _value(value)}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
