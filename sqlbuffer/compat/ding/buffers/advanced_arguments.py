"""Checks what callers give to `AdvancedReplayBuffer`: config values, priorities and iterations."""

import math
from collections.abc import Mapping
from typing import Any

from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.compat.ding.errors import (
    ItemError,
    MissingListError,
    PriorityError,
    ReplayConfigError,
)
from sqlbuffer.encoding.priority_values import checked_priority
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.extensions.item_draws import NewPriority

UNIQUE_ID, INDEX, PRIORITY = "replay_unique_id", "replay_buffer_idx", "priority"
# Keys that a sampled item has in addition to the keys that were pushed.
OWN_KEYS = frozenset({UNIQUE_ID, INDEX, PRIORITY, "use", "staleness", "IS"})


def checked_fraction(value: Any, name: str) -> float:
    """Return a number from 0 to 1."""
    real = real_of(value)
    if real is None or not 0 <= real <= 1:
        raise ReplayConfigError(f"{name} is a number from 0 to 1, got {value!r}")
    return real


def checked_limit(value: Any, name: str, above: float | None = None) -> float | None:
    """Return a limit; None: there is none."""
    real = real_of(value)
    if real is None or math.isnan(real) or real < 0 or (above is not None and real <= above):
        least = "from 0 on" if above is None else f"above {above:g}"
        raise ReplayConfigError(f"{name} is a number {least}, float('inf') for none, got {value!r}")
    return None if real == math.inf else real


def checked_ratio(value: Any) -> float:
    """Return a ratio of at least 1."""
    ratio = real_of(value)
    if ratio is None or not 1 <= ratio < math.inf:
        raise ReplayConfigError(f"sample_min_limit_ratio is a number from 1 on, got {value!r}")
    return ratio


def initial_priority(value: Any, i: int) -> float | None:
    """Return the priority that item i brings; None: it brings none."""
    if value is None:
        return None
    try:
        return checked_priority(value)
    except FieldError as error:
        raise ItemError(f"item {i}: {error}") from None


def new_priorities(info: Any) -> dict[str, NewPriority]:
    """Return the contents of an update's lists, by id."""
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise TypeError(f"info is a dict of lists, got {info!r:.100}")
    if PRIORITY not in info:
        return {}
    lists = []
    for key in (UNIQUE_ID, INDEX, PRIORITY):
        if key not in info:
            raise MissingListError(
                f"update takes the lists {UNIQUE_ID!r}, {INDEX!r} and {PRIORITY!r}, as sampled "
                f"items have them; {key!r} is missing"
            )
        lists.append(_listed(info[key]))
        if not isinstance(lists[-1], (list, tuple)):
            raise TypeError(f"{key!r} of an update is a list, got {info[key]!r:.100}")
    given: dict[str, NewPriority] = {}
    for i, (one, place, value) in enumerate(zip(*lists, strict=False)):
        priority, id_ = _new_priority(value, i), str(one)
        before = given.get(id_)
        largest = priority if before is None else max(priority, before.largest)
        given[id_] = NewPriority(integer_of(_listed(place)), priority, largest)
    return given


def _new_priority(value: Any, i: int) -> float:
    try:
        return checked_priority(value)
    except FieldError as error:
        raise PriorityError(f"priority of entry {i}: {error}") from None


def _listed(values: Any) -> Any:
    """Return the elements of a list, an array or a tensor."""
    return values.tolist() if hasattr(values, "tolist") else values


def model_version(value: Any, i: int) -> int | None:
    """Return the iteration that an item was collected at: the least one of several."""
    if value is None or (type(value) is int and abs(value) < 2**62):
        return value
    given = _listed(value)
    several = given if isinstance(given, (list, tuple)) else [given]
    found = [integer_of(_listed(each)) for each in several]
    whole = [each for each in found if each is not None and abs(each) < 2**62]
    if not found or len(whole) < len(found):
        raise ItemError(f"item {i}: collect_iter is an integer or a list of them, got {value!r}")
    return min(whole)


def checked_iteration(value: Any) -> int:
    """Return the learner's iteration."""
    found = integer_of(_listed(value))
    if found is None:
        raise TypeError(f"cur_learner_iter is an integer, got {value!r}")
    return found


def envstep_of(value: Any) -> int:
    """Return the collector's step; -1 where it is not a number."""
    found = integer_of(_listed(value)) if value is not None else None
    return -1 if found is None else found
