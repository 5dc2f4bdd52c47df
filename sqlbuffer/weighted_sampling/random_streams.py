"""Streams of random numbers that depend on nothing but a key and some numbers (SplitMix64)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Hashes = NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31, 12))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# The largest number of random numbers made in one step.
_MOST_AT_ONCE = 2**20


def key_of(rng: np.random.Generator) -> int:
    """Return a key for a draw."""
    return int(rng.integers(2**64, dtype=np.uint64))


def mixed(numbers: Hashes) -> Hashes:
    """Mix the numbers with the finalizer of SplitMix64: every bit depends on every bit
    (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
    """
    numbers = (numbers ^ (numbers >> _SHIFTS[0])) * _FACTORS[0]
    numbers = (numbers ^ (numbers >> _SHIFTS[1])) * _FACTORS[1]
    return numbers ^ (numbers >> _SHIFTS[2])


def streams(key: int, *numbers: Integers) -> Hashes:
    """Return the seed of a SplitMix64 generator for each number, or each pair of numbers."""
    found = np.full(np.broadcast_shapes(*(n.shape for n in numbers)), key, np.uint64)
    for each in numbers:
        found = mixed(found + (each.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return found


def uniforms(hashes: Hashes) -> Reals:
    """Return numbers above 0 and below 1."""
    return ((hashes >> _SHIFTS[3]).astype(np.float64) + 0.5) * 2.0**-52


def subkey(key: int, number: int) -> int:
    """Return a key that belongs to another one and a number."""
    return int(streams(key, np.array([number]))[0])


class Arrivals(NamedTuple):
    """Arrivals of several streams.

    Attributes:
        stream: The index of the stream of each.
        clock: When it comes.
        place: A number above 0 and below 1 of its own.
    """

    stream: Integers
    clock: Reals
    place: Reals


def arrivals(seeds: Hashes, limits: Reals) -> Arrivals:
    """Return the arrivals at rate 1 in each stream below its limit.

    A larger limit gives the same arrivals and more.
    """
    found = [(np.empty(0, np.int64), np.empty(0), np.empty(0))]
    active = np.flatnonzero(limits > 0)
    clock, n_before, n = np.zeros(active.size), 0, 1
    while active.size:
        n = max(1, min(n, _MOST_AT_ONCE // active.size))
        numbers = np.arange(n_before, n_before + n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        states = seeds[active][:, None] + numbers * _GOLDEN
        gaps = -np.log(uniforms(mixed(states)))
        gaps[:, 0] += clock
        clocks = np.cumsum(gaps, axis=1)
        is_early = clocks < limits[active][:, None]
        places = uniforms(mixed(states[is_early] + _GOLDEN))
        found.append((active[np.nonzero(is_early)[0]], clocks[is_early], places))
        goes_on = is_early[:, -1]
        active, clock = active[goes_on], clocks[goes_on, -1]
        n_before, n = n_before + n, 2 * n
    parts = [np.concatenate(part) for part in zip(*found, strict=True)]
    return Arrivals(*parts)
