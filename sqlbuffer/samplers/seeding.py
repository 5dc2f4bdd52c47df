"""Random numbers for one call of a sampler."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from sqlbuffer.checks import checked_integer

T = TypeVar("T")
MAX_SEED = 2**128 - 1  # as many bits as numpy makes of it


def checked_seed(seed: Any) -> int | None:
    """Return a seed, or None.

    Raises:
        ArgumentError: Something else.
    """
    return None if seed is None else checked_integer(seed, "seed", 0, MAX_SEED, more=", or None")


class Seeding:
    """Gives each call its own generator: the same sequence for the same seed, or fresh entropy
    without one.

    Each call's numbers depend on the seed and the number of the call alone, not on how many an
    earlier call drew.
    """

    def __init__(self, seed: int | None) -> None:
        self.seed = checked_seed(seed)
        self._path: tuple[int, ...] = ()
        self._n_calls = 0

    def restart(self, path: Sequence[int]) -> None:
        """Begin the sequence that belongs to a seed and a path of numbers, such as those of a
        worker and of its batch; sequences of different paths are independent.
        """
        self._path, self._n_calls = tuple(path), 0

    def generator(self) -> np.random.Generator:
        """Return the generator of the next call."""
        if self.seed is None:
            return np.random.default_rng()
        call, self._n_calls = self._n_calls, self._n_calls + 1
        if not self._path:
            return np.random.default_rng([self.seed, call])
        return generator_of(self.seed, *self._path, call)


def generator_of(seed: int, *path: int) -> np.random.Generator:
    """Return the generator of a seed and a path of numbers."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))


def own_copy(sampler: T) -> T:
    """Return a sampler to restart without touching the sequence of the given one: a copy where it
    is seeded, the sampler itself where it is not.
    """
    seedings = _seedings(sampler)
    if not seedings:
        return sampler
    copied = copy.copy(sampler)
    for name, seeding in seedings.items():
        setattr(copied, name, copy.copy(seeding))
    return copied


def restart(sampler: Any, path: Sequence[int]) -> None:
    """Make a sampler begin the sequence of its seed and a path of numbers."""
    for seeding in _seedings(sampler).values():
        seeding.restart(path)


def _seedings(sampler: Any) -> dict[str, Seeding]:
    attributes = getattr(sampler, "__dict__", {})
    return {name: value for name, value in attributes.items() if isinstance(value, Seeding)}
