"""Converters turn the rows of a sampler into the input of a learner."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_names
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.query.paths import SHORT_NAMES, Field, Segment, nearest, parse_field
from sqlbuffer.steps import DataRow

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
            task_experience: The whole batch in `sample`; the rows of one task in `sample_tasks`.
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
    """Turns rows into columns: a dict of arrays with one entry for each row.

    Numbers that are None become NaN. A payload column (`state`, `actions`, ...) becomes one stacked
    array if all rows have numbers or arrays of one shape. Otherwise it becomes an array of objects.

    Args:
        columns: Names of columns, as in conditions: `task_id`, `reward`, `state.x`, a typed field.
            A value that a row does not have is None.

    Raises:
        FieldError: The columns are not a list of names.

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
        self.columns = tuple(checked_names(columns, "columns", "['step', 'state']"))

    def to_dataset_row(self, task_experience: "list[DataRow]") -> dict[str, NDArray[Any]]:
        """Return `{column: array}`, each of length `len(task_experience)`.

        Raises:
            FieldError: A row has no field of that name.
        """
        return {name: _column(name, task_experience) for name in self.columns}


def _column(name: str, rows: "list[DataRow]") -> NDArray[Any]:
    field = _built_in(name)
    if field is not None and not any(name in row.fields for row in rows):
        return _array(field, [_value(row, field) for row in rows])
    lacking = next((row for row in rows if name not in row.fields), None)
    if lacking is not None:
        known = [*lacking.fields, "seq", "id", *SHORT_NAMES]
        raise FieldError(
            f"the row with seq {lacking.seq} has no column {shown(name)}; it has {', '.join(known)}"
            f"{nearest(name, known)}"
        )
    values = [row.fields[name] for row in rows]
    # Values of varying length have different shapes.
    return np.stack(values) if len(set(map(np.shape, values))) == 1 else _objects(values)


def _built_in(name: str) -> Field | None:
    """Return the field that every row has by this name; None: only a typed field can be meant."""
    try:
        return parse_field(name)
    except ConditionError as error:
        if isinstance(name, str) and name.isidentifier():
            return None
        raise FieldError(str(error)) from None


def _value(row: DataRow, field: Field) -> Any:
    if field.column in ("id", "seq"):
        return getattr(row, field.column)
    part = row.exp_meta if hasattr(row.exp_meta, field.column) else row.exp_data
    value = getattr(part, field.column)
    for segment in field.path:
        value = _inside(value, segment)
    return value


def _inside(value: Any, segment: Segment) -> Any:
    """Return the part of a value at a key or an index; None if there is none."""
    if isinstance(value, Mapping):
        return value.get(segment, value.get(str(segment)))
    if isinstance(segment, str):
        return getattr(value, segment, None)
    is_list = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
    return value[segment] if is_list and -len(value) <= segment < len(value) else None


_DTYPES = {
    **dict.fromkeys(("execute_time", "reward_t", "adv_t", "v_t"), np.float64),
    **dict.fromkeys(("terminated", "truncated"), np.bool_),
}


def _array(field: Field, values: list[Any]) -> NDArray[Any]:
    name = field.column
    if name in _DTYPES:
        if _DTYPES[name] is np.bool_:
            return np.array([bool(value) for value in values], np.bool_)
        return np.array([np.nan if value is None else value for value in values], np.float64)
    if name in ("seq", "step"):
        return np.array(values, np.int64)
    stacked = _stacked(values) if name in ("state", "actions") or field.path else None
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
