"""Steps that were stored together, with the places of those that are missing filled."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.interchange.parquet.arrow_schema import load_pyarrow
from sqlbuffer.interchange.parquet.arrow_values import times, whole


class StepRuns:
    """Steps that were stored together; missing steps between them are filled in.

    Attributes:
        source: Index of each step; for a filled one, that of the first step of its run.
        is_filled: True for a filled step.
        seq: Number of each step.
        run_of: Run of each step.
        place: Place of each step in its run.
        ranges: The first step of each run, and the one after its last.
    """

    def __init__(self, seq: NDArray[np.int64], first_seq: NDArray[np.int64]) -> None:
        starts = np.flatnonzero(np.diff(first_seq, prepend=first_seq[:1] - 1))
        ends = np.append(starts[1:], len(seq))
        self.first_seq = first_seq[starts]
        counts = seq[ends - 1] - self.first_seq + 1
        stops = np.cumsum(counts)
        begins = stops - counts
        n = int(stops[-1])
        self.run_of = np.repeat(np.arange(len(starts)), counts)
        self.place = np.arange(n) - begins[self.run_of]
        self.seq = self.first_seq[self.run_of] + self.place
        self.ranges = list(zip(begins.tolist(), stops.tolist(), strict=True))
        self.begins = begins
        self.has_gaps = n > len(seq)
        self.source, self.is_filled = np.arange(n), np.zeros(n, bool)
        if self.has_gaps:
            at = np.searchsorted(seq, self.seq).clip(max=len(seq) - 1)
            self.is_filled = seq[at] != self.seq
            self.source = np.where(self.is_filled, starts[self.run_of], at)
            # The first step of each run that is not filled.
            self.held = begins + (seq[starts] - self.first_seq)
        else:
            self.held = begins

    def firsts(self, column: Any) -> list[Any]:
        """Return the value of a column that the steps of a run have in common."""
        own = whole(column).take(load_pyarrow().array(self.held))
        found: list[Any] = times(own) if str(own.type).startswith("timestamp") else own.to_pylist()
        return found

    def continued(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that increase by one in the place of those of filled steps."""
        if not self.has_gaps:
            return values
        held = self.held[self.run_of]
        return np.where(self.is_filled, values[held] + self.place - self.place[held], values)
