"""Fields of steps in memory, at places of which some have no step."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.mirror.memory.block_map import NONE
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import BARRED

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


def check_kept(memory: StepMemory, names: Sequence[str]) -> None:
    """Raise FieldError where a mirror does not keep a field."""
    for name in names:
        if name not in memory.layout.specs:
            raise FieldError(
                f"the mirror was opened without field {name!r}; add it to fields=[...]"
            )


class StepsAt:
    """Steps by their slots; values of a missing step are zero.

    Args:
        memory: The steps.
        index: Their slots, of any shape; -1 for a missing step.
    """

    def __init__(self, memory: StepMemory, index: Integers) -> None:
        self._memory, self._shape = memory, index.shape
        self._slots = index.reshape(-1)
        self._is_missing = self._slots == NONE
        self._has_missing = np.count_nonzero(self._is_missing) > 0
        self._at = np.maximum(self._slots, 0) if self._has_missing else self._slots

    @cached_property
    def _rows(self) -> NDArray[Any]:
        return self._memory.gathered(self._at)

    def fields(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return declared fields, of shape (*index.shape, *shape); those of varying length padded
        with zeros to the longest, with their lengths.

        Raises:
            FieldError: The mirror does not keep one of them.
        """
        memory = self._memory
        check_kept(memory, names)
        found: dict[str, NDArray[Any]] = {}
        padded = self._padded(names)
        for name in names:
            if name in padded:
                found |= {own: self._shaped(padded[own]) for own in (name, f"{name}_lens")}
            elif name in memory.large:
                found[name] = self._without_missing(memory.large[name].take(self._at, axis=0))
            elif len(names) == 1:
                found[name] = self._without_missing(memory.gathered_field(name, self._at))
            else:
                found |= self._copies([name])
        return found

    def built_in(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return those of `reward`, `terminated` and `truncated` that are named."""
        return self._copies(names)

    def is_any_barred(self) -> Flags:
        """Return in which rows of the index a step may not be sampled, shape (len(index),)."""
        flags = self._memory.gathered_links(self._at)["flags"]
        is_barred = ((flags & BARRED) != 0) & ~self._is_missing
        found: Flags = is_barred.reshape(self._shape).any(axis=tuple(range(1, len(self._shape))))
        return found

    def _copies(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        copies = self._memory.copies.of(self._rows, names)
        return {name: self._without_missing(values) for name, values in copies.items()}

    def _without_missing(self, values: NDArray[Any]) -> NDArray[Any]:
        if self._has_missing:
            values[self._is_missing] = np.zeros((), values.dtype)
        return self._shaped(values)

    def _shaped(self, values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(*self._shape, *values.shape[1:])

    def _padded(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Return the fields of varying length and their lengths, of shape (n, ...)."""
        memory = self._memory
        if memory.tails is None or not any(memory.layout.specs[n].is_variable for n in names):
            return {}
        there = np.flatnonzero(~self._is_missing)
        tails = memory.tails.of(self._slots[there])
        found = memory.layout.tail_columns(self._rows[there], tails, names)
        if not self._has_missing:
            return found
        padded = {}
        for name, values in found.items():
            padded[name] = np.zeros((len(self._slots), *values.shape[1:]), values.dtype)
            padded[name][there] = values
        return padded
