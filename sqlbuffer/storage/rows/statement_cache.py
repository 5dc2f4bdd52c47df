"""Keep built statements, since building one takes longer than running it."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from sqlbuffer.query.tree import EVERYTHING, Group, Leaf

P = ParamSpec("P")
T = TypeVar("T")


def remembered(make: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls `make`, and keeps its last 64 results.

    It keeps no statement of a condition, in its arguments or in their `node`: a condition on 1
    equals one on True, and would get its statement.
    """
    kept: Any = lru_cache(maxsize=64)(make)

    def statement(*args: P.args, **kwargs: P.kwargs) -> T:
        nodes = [getattr(value, "node", value) for value in args]
        has_condition = any(isinstance(n, (Group, Leaf)) and n != EVERYTHING for n in nodes)
        found: T = (make if has_condition else kept)(*args, **kwargs)
        return found

    return statement
