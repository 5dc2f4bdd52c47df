"""Conditions as a person reads them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sqlbuffer.display.short_values import short

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
