"""Consecutive steps of a slot, in their stored form."""

from typing import Any, NamedTuple

Run = tuple[int, int, int]  # slot, first and last t


class StoredSpan(NamedTuple):
    """Consecutive steps in their stored form.

    Attributes:
        run: Index of their run.
        t: Place of the first one in the episode.
        seq: Number of the first one.
        n_steps: Number of steps.
        records: Their typed fields, one step after the other.
        may_have_changed: Steps of the buffer may have been replaced or deleted since.
    """

    run: int
    t: int
    seq: int
    n_steps: int
    records: Any
    may_have_changed: bool
