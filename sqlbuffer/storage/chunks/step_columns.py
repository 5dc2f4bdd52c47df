"""The values of each step of runs of steps, from the columns of their chunks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.chunks import execute_times
from sqlbuffer.steps import StepIds
from sqlbuffer.storage.chunks.slices import unpacked_rewards
from sqlbuffer.storage.schema.column_types import listed

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


class StepColumns:
    """Runs of consecutive steps, each within a chunk, with the columns of the chunks.

    A list of a chunk may be that of the whole chunk, or that of the run; it is JSON on SQLite.

    Args:
        of: The columns of the tables `chunks` and `chunk_data` by name, a value for each run.
        places: Place of the first step of each run in its chunk; None: all are whole chunks.
        counts: Number of steps of each run; None for whole chunks.

    Attributes:
        run_of: Run of each of the n steps, int64 of shape (n,).
        place: Place of each step in its chunk.
        starts: Where each run begins among the n steps.
    """

    def __init__(
        self,
        of: Mapping[str, Sequence[Any]],
        places: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
    ) -> None:
        self._of = of
        self._n_of = list(of["n_steps"] if counts is None else counts)
        self._places = [0] * len(self._n_of) if places is None else list(places)
        sizes = np.array(self._n_of, np.int64)
        self.run_of = np.repeat(np.arange(len(sizes)), sizes)
        self.starts = np.cumsum(sizes) - sizes
        first_places = np.array(self._places, np.int64)
        self.place: Integers = (
            np.arange(len(self.run_of)) + (first_places - self.starts)[self.run_of]
        )

    def __len__(self) -> int:
        return len(self.run_of)

    def _span(self, run: int) -> slice:
        start = int(self.starts[run])
        return slice(start, start + self._n_of[run])

    def _integers(self, name: str) -> Integers:
        return np.array(self._of[name], np.int64)[self.run_of]

    def _own(self, name: str) -> list[tuple[slice, Sequence[Any]]]:
        """Return for each run with a list where its steps are, and their values."""
        columns = zip(self._of[name], self._places, self._n_of, strict=True)
        own = []
        for run, (values, place, n) in enumerate(columns):
            if values is not None:
                every = listed(values)
                part = every if len(every) in (0, n) else every[place : place + n]
                own.append((self._span(run), part))
        return own

    def spread(self, name: str) -> list[Any]:
        """Return a value that the steps of a chunk share, for each step."""
        values = self._of[name]
        return [value for value, n in zip(values, self._n_of, strict=True) for _ in range(n)]

    def ids(self, given: dict[int, str] | None = None) -> StepIds:
        """Return the id of each step.

        Args:
            given: Ids that users gave, by position among the steps.
        """
        return StepIds(list(map(str, self._of["id"])), self.run_of, self.place, given or {})

    def steps(self) -> Integers:
        """Return the step number of each step."""
        steps = self._integers("step") + self.place
        for span, own in self._own("steps"):
            steps[span] = own
        return steps

    def ts(self) -> Integers:
        """Return the place of each step in its episode; -1 for none."""
        firsts = np.array([-1 if t is None else t for t in self._of["t"]], np.int64)[self.run_of]
        return np.where(firsts >= 0, firsts + self.place, -1)

    def times(self) -> Reals:
        """Return when each step was executed, in seconds since 1970; NaN for none."""
        first, last = (np.array(self._of[name], np.float64) for name in ("first_time", "last_time"))
        runs, sizes = self.run_of, self._integers("n_steps")
        times: Reals = execute_times(first[runs], last[runs], sizes, self.place)
        for span, own in self._own("times"):
            times[span] = np.array(own, np.float64)
        return times

    def reals(self, name: str) -> Reals | None:
        """Return a number of each step, NaN for none; None if no run has any."""
        own = self._own(name)
        if not own:
            return None
        reals = np.full(len(self), np.nan)
        for span, values in own:
            reals[span] = np.array(values, np.float64)
        return reals

    def rewards(self) -> Reals:
        """Return the reward of each step, NaN for none."""
        return unpacked_rewards(self._of["rewards"], self._n_of)

    def flags(self, name: str) -> tuple[Flags, Flags]:
        """Return a flag of each step, and where it is missing."""
        flags, is_missing = np.zeros(len(self), bool), np.ones(len(self), bool)
        for span, own in self._own(name):
            # An empty list means False at every step.
            flags[span] = [value is True for value in own] if own else False
            is_missing[span] = [value is None for value in own] if own else False
        return flags, is_missing

    def payloads(self) -> list[Any]:
        """Return the JSON of each step as a tree, None for none; see `step_payloads`."""
        trees: list[Any] = [None] * len(self)
        for span, own in self._own("payloads"):
            trees[span] = own
        return trees
