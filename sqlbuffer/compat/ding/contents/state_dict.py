"""The state dict of a ring: its items in their places, and its counters."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sqlbuffer.compat.ding.errors import ReplayError

KEYS = ("tail", "valid_count", "push_count")


class MissingDataError(ReplayError, AssertionError):
    """A state without items."""


class RingState(NamedTuple):
    """The contents of a state.

    Attributes:
        items: The items, the oldest first.
        push_count: Number of pushed items; None where the state does not say.
        tail: Place of the next item; None if the state has none.
    """

    items: list[Any]
    push_count: int | None = None
    tail: int | None = None


def in_places(items: Sequence[Any], tail: int, size: int) -> list[Any]:
    """Return items in the places of a ring; None for an empty place."""
    places: list[Any] = [None] * size
    for i, item in enumerate(items):
        places[(tail - len(items) + i) % size] = item
    return places


def ring_state(state: Any, size: int) -> RingState:
    """Return the contents of a state, as far as a buffer of this size can hold them.

    Raises:
        ReplayError: The state has no `data`, or its parts do not fit together.
    """
    data = data_of(state)
    if not all(key in state for key in KEYS):
        # Alone it says nothing of which None is an item.
        return RingState([item for item in data if item is not None])
    tail, valid, pushed = (_count(state, key) for key in KEYS)
    if valid > len(data) or (len(data) and tail >= len(data)):
        raise ReplayError(
            f"a state of {len(data)} places cannot have valid_count={valid} and tail={tail}"
        )
    items = [data[(tail - valid + i) % len(data)] for i in range(valid)]
    kept = items[-size:]
    return RingState(kept, pushed, tail if len(data) == size else len(kept) % size)


def data_of(state: Any) -> Sequence[Any]:
    """Return the items of a state, None in empty places.

    Raises:
        MissingDataError: It lacks `data`.
        ReplayError: `data` is not a list.
    """
    if not isinstance(state, Mapping) or "data" not in state:
        raise MissingDataError("a state is a dict with 'data', as state_dict() returns it")
    data = state["data"]
    if not isinstance(data, (list, tuple)):
        raise ReplayError(f"'data' of a state is a list of items, got {type(data).__name__}")
    return data


def _count(state: Mapping[str, Any], key: str) -> int:
    value = state[key]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise ReplayError(f"{key!r} of a state is a whole number from 0 on, got {value!r}")
    return int(value)
