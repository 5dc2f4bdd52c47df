"""Converters turn what a sampler found into what the learner wants."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.steps.data_rows import DataRow

T = TypeVar("T")


class Converter(ABC, Generic[T]):
    """Converts the rows of a batch, or of one task.

    Example:
        >>> class Rewards(Converter[float]):
        ...     def to_dataset_row(self, task_experience):
        ...         return sum(row.exp_data.reward_t or 0.0 for row in task_experience)
    """

    @abstractmethod
    def to_dataset_row(self, task_experience: Any) -> T:
        """Return the converted value.

        Args:
            task_experience: From `sample`, the whole batch; from `sample_tasks`, the rows of one
                task.
        """


class DefaultConverter(Converter[Any]):
    """Returns its argument.

    Example:
        >>> DefaultConverter().to_dataset_row([1])
        [1]
    """

    def to_dataset_row(self, task_experience: Any) -> Any:
        """Return the argument itself."""
        return task_experience


class ColumnsConverter(Converter[dict[str, NDArray[Any]]]):
    """Turns rows into columns: a dict of arrays with one entry a row.

    Numbers that are None become NaN. A payload column (`state`, `actions`, ...) becomes one stacked
    array where all rows hold numbers or arrays of one shape, and an array of objects otherwise.

    Args:
        columns: Which columns, by their name in `ExpMeta`, `Experience` or `DataRow`, or by that of
            a typed field.

    Example:
        >>> from sqlbuffer import DataRow, Experience, ExpMeta
        >>> meta = ExpMeta("t", None, "a", 1, 0.0)
        >>> rows = [DataRow(meta, Experience(state=[i, 0.5])) for i in range(3)]
        >>> ColumnsConverter(["step", "state"]).to_dataset_row(rows)["state"].shape
        (3, 2)
    """

    DEFAULT = (
        "seq",
        "id",
        "task_id",
        "agent_id",
        "step",
        "state",
        "actions",
        "reward_t",
        "terminated",
        "truncated",
    )

    def __init__(self, columns: "list[str] | tuple[str, ...]" = DEFAULT) -> None:
        self.columns = tuple(columns)

    def to_dataset_row(self, task_experience: "list[DataRow]") -> dict[str, NDArray[Any]]:
        """Return `{column: array}`, each of length `len(task_experience)`.

        Raises:
            FieldError: A row has no field of that name.
        """
        return {name: _column(name, task_experience) for name in self.columns}


def _column(name: str, rows: "list[DataRow]") -> NDArray[Any]:
    get = _GETTERS.get(name)
    if get is not None:
        return _array(name, [get(row) for row in rows])
    lacking = next((row for row in rows if name not in row.fields), None)
    if lacking is not None:
        known = ", ".join([*lacking.fields, *_GETTERS])
        raise FieldError(f"the row with seq {lacking.seq} has no column {name!r}; it has {known}")
    values = [row.fields[name] for row in rows]
    # Values of varying length have different shapes.
    return np.stack(values) if len(set(map(np.shape, values))) == 1 else _objects(values)


def _getters() -> dict[str, Callable[[DataRow], Any]]:
    from dataclasses import fields

    from sqlbuffer.steps.data_rows import Experience, ExpMeta

    def of_meta(name: str) -> Callable[[DataRow], Any]:
        return lambda row: getattr(row.exp_meta, name)

    def of_data(name: str) -> Callable[[DataRow], Any]:
        return lambda row: getattr(row.exp_data, name)

    return {
        "seq": lambda row: row.seq,
        "id": lambda row: row.id,
        **{f.name: of_meta(f.name) for f in fields(ExpMeta)},
        **{f.name: of_data(f.name) for f in fields(Experience)},
    }


_GETTERS = _getters()
_DTYPES = {
    **dict.fromkeys(("execute_time", "reward_t", "adv_t", "v_t"), np.float64),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
}


def _array(name: str, values: list[Any]) -> NDArray[Any]:
    if name in _DTYPES:
        if _DTYPES[name] is np.bool_:
            return np.array([bool(value) for value in values], np.bool_)
        return np.array([np.nan if value is None else value for value in values], np.float64)
    if name in ("seq", "step"):
        return np.array(values, np.int64)
    stacked = _stacked(values) if name in ("state", "actions") else None
    return _objects(values) if stacked is None else stacked


def _objects(values: list[Any]) -> NDArray[Any]:
    objects = np.empty(len(values), object)
    for i, value in enumerate(values):
        objects[i] = value
    return objects


def _stacked(values: list[Any]) -> NDArray[Any] | None:
    """Return one array of all values, or None where they are not numbers of one shape."""
    try:
        stacked = np.asarray(values)
    except ValueError:
        return None
    return stacked if stacked.dtype.kind in "biufc" else None
