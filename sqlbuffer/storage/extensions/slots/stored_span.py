"""Consecutive steps that a slot shows, as they are stored."""

from typing import Any, NamedTuple

Run = tuple[int, int, int]  # slot, first and last t


class StoredSpan(NamedTuple):
    """Consecutive steps, as they are stored.

    Attributes:
        run: Index of the run that they are of.
        t: Place of the first in the episode.
        seq: Number of the first.
        n_steps: How many.
        records: Their typed fields, one step after the other.
        may_have_changed: Steps of the buffer may have been replaced or deleted since.
    """

    run: int
    t: int
    seq: int
    n_steps: int
    records: Any
    may_have_changed: bool
