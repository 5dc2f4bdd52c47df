"""Steps as they are read in bulk: column by column, with the values that neighbours share."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass
class RaggedValues:
    """Values of varying length of n steps.

    Attributes:
        values: All items, one step after the other.
        offsets: Where the items of each step begin, and the end, int64 of shape (n + 1,).
        shape: Shape of a value, -1 in the place of the length that varies.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[Any]:
        """Return the value of one step, in its own shape."""
        own = self.values[self.offsets[i] : self.offsets[i + 1]]
        return own.reshape(self.shape)

    def take(self, places: NDArray[np.int64]) -> "RaggedValues":
        """Return the values of some steps."""
        sizes = np.diff(self.offsets)[places]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        items = np.arange(offsets[-1]) + np.repeat(self.offsets[places] - offsets[:-1], sizes)
        return RaggedValues(self.values[items], offsets, self.shape)


@dataclass
class StepIds:
    """The ids of n steps; each id is made when it is read.

    Attributes:
        prefixes: Start of the ids of each run's steps.
        run_of: Run of each step, int64 of shape (n,).
        numbers: Number at the end of each id, int64 of shape (n,).
        given: Ids that users gave to steps, by position among the n.
    """

    prefixes: list[str]
    run_of: NDArray[np.int64]
    numbers: NDArray[np.int64]
    given: dict[int, str]

    def __len__(self) -> int:
        return len(self.numbers)

    def tolist(self) -> list[str]:
        """Return all ids."""
        pairs = zip(self.run_of.tolist(), self.numbers.tolist(), strict=True)
        found = [f"{self.prefixes[run]}/{number}" for run, number in pairs]
        for place, id_ in self.given.items():
            found[place] = id_
        return found

    def take(self, places: NDArray[np.int64]) -> "StepIds":
        """Return the ids of some steps."""
        given = {}
        if self.given:
            own = (self.given.get(place) for place in places.tolist())
            given = {place: id_ for place, id_ in enumerate(own) if id_ is not None}
        return StepIds(self.prefixes, self.run_of[places], self.numbers[places], given)


@dataclass
class ColumnBatch:
    """Some steps, column by column.

    Consecutive steps that were stored together are a run, which has one task, agent, episode and
    session. `column` returns any column with a value for each step.

    Attributes:
        seq: Number of each of the n steps, ascending, int64 of shape (n,).
        run_of: Run of each step, int64 of shape (n,).
        shared: Lists with a value for each run: `first_seq`, `task_id`, `task_name`, `agent_id`,
            `pre_agent`, `episode_id`, `session_id`, `model_version` and `inserted_at`.
        own: A value for each step: `id`, `t` and `step`; `reward`, `advantage`, `value` and
            `execute_time`, float64; `terminated` and `truncated`, bool; lists of JSON texts:
            `state`, `actions`, `messages` and `extra`; `arrays`, the bytes that the JSON refers to;
            `priority`, float64; `uses`; `quarantined_at` and `quarantine_reason`. None in a list
            means no value; a list may be missing if no step has a value.
        fields: The typed fields: arrays of shape (n, *shape), and `RaggedValues`.
        is_null: True where the number or flag of a step is missing, bool of shape (n,), by the name
            of the column. A column without missing values is left out.
    """

    seq: NDArray[np.int64]
    run_of: NDArray[np.int64]
    shared: dict[str, list[Any]]
    own: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)
    is_null: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seq)

    def column(self, name: str) -> Any:
        """Return a column with a value for each step: an array, `RaggedValues` or a list.

        Args:
            name: Its name. A typed field comes before a built-in column of the same name.
        """
        if name in self.fields:
            return self.fields[name]
        if name == "seq":
            return self.seq
        if name in self.own:
            values = self.own[name]
            return values.tolist() if isinstance(values, StepIds) else values
        if name not in self.shared:
            return [None] * len(self)
        each = np.empty(len(self.shared[name]), object)
        each[:] = self.shared[name]
        return each[self.run_of].tolist()

    def take(self, places: NDArray[np.int64]) -> "ColumnBatch":
        """Return some of the steps, in an order."""
        return ColumnBatch(
            self.seq[places],
            self.run_of[places],
            self.shared,
            {name: taken(values, places) for name, values in self.own.items()},
            {name: taken(values, places) for name, values in self.fields.items()},
            {name: mask[places] for name, mask in self.is_null.items()},
        )


def taken(values: Any, places: NDArray[np.int64]) -> Any:
    """Return some values of a column, in an order."""
    if isinstance(values, (RaggedValues, StepIds)):
        return values.take(places)
    if isinstance(values, list):
        return list(map(values.__getitem__, places.tolist()))
    return values[places]
