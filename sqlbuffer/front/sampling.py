"""Draw batches, convert their rows for a learner, and open loaders."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import checked_batch_size, checked_sampler, checked_task_sampler
from sqlbuffer.batches.forms import Form
from sqlbuffer.checks import checked_callable, checked_count, checked_flag, checked_names, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import ConditionError, FieldError
from sqlbuffer.front.reading import RowDecoding
from sqlbuffer.front.row_batch import TaskList
from sqlbuffer.loading.shortage import check_sufficient, shortage
from sqlbuffer.query.tree import SHORT_NAMES, Field, Node, Segment, nearest, parse_field
from sqlbuffer.samplers import RandomSampler, RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.steps import Batch, DataRow, RowList
from sqlbuffer.storage.rows.layouts import episodes_of
from sqlbuffer.storage.store import BufferStore

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
        field = parse_field(name)
        return None if field.is_of_episode else field
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


AnyConverter = Converter[Any] | Callable[[Any], Any]
BatchConverter = Converter[T] | Callable[[RowList[Any]], T]
TaskConverter = Converter[T] | Callable[[list[DataRow]], T]


class BatchSampler:
    """Draws batches from a buffer.

    Args:
        store: The buffer.
        decoding: Rebuilds rows.
    """

    def __init__(self, store: BufferStore, decoding: RowDecoding) -> None:
        self._store, self._decoding = store, decoding

    def arrays(self, form: Form, sampler: Sampler | None, batch_size: int, node: Node) -> Batch:
        """Draw a batch of arrays."""
        sampler = RandomSampler(replace=True) if sampler is None else sampler
        sampler, n = checked_sampler(sampler), checked_batch_size(batch_size, sampler)
        batch = self._store.drawing.draws.sample_batch(node, form, sampler, n)
        check_sufficient(
            batch.n_rows,
            n,
            True,
            lambda: shortage(self._store.drawing, node, sampler, form),
        )
        sampler.handed_out()
        return batch

    def sample(
        self,
        sampler: Sampler | TaskSampler | None,
        batch_size: int,
        node: Node,
        converter: AnyConverter | None,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> Any:
        """Draw rows, or whole tasks with a sampler of tasks, and convert the whole batch."""
        converter = checked_converter(converter)
        return converted(converter, self._rows(sampler, batch_size, node, strict, fields))

    def tasks(
        self,
        sampler: TaskSampler | None,
        n: int,
        node: Node,
        converter: AnyConverter | None = None,
        strict: bool = False,
        fields: Sequence[str] | None = None,
        *,
        name: str = "n",
    ) -> RowList[Any]:
        """Draw whole tasks and convert each; `name` is that of the argument `n`."""
        converter = checked_converter(converter)
        tasks = self._tasks(sampler, n, node, strict, fields, name)
        if converter is None:
            return tasks
        return RowList((converted(converter, task) for task in tasks), batch_id=tasks.batch_id)

    def _rows(
        self,
        sampler: Sampler | TaskSampler | None,
        batch_size: int,
        node: Node,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> RowList[Any]:
        sampler = RandomSampler() if sampler is None else sampler
        if isinstance(sampler, TaskSampler):
            return self._tasks(sampler, batch_size, node, strict, fields, "batch_size")
        sampler, n = checked_sampler(sampler), checked_batch_size(batch_size, sampler)
        strict = checked_flag(strict, "strict")
        payloads, decoder = self._decoding.of(fields, is_encoded=sampler.reads_encoded)
        drawn, number = self._store.drawing.draws.sample_rows(
            node, sampler, n, n if strict else 0, payloads
        )
        rows = RowList(decoder.rows(drawn.rows), drawn.columns, number)
        check_sufficient(len(rows), n, strict, lambda: shortage(self._store.drawing, node, sampler))
        if rows:
            sampler.handed_out()
        return rows

    def _tasks(
        self,
        sampler: TaskSampler | None,
        n: int,
        node: Node,
        strict: bool,
        fields: Sequence[str] | None,
        name: str,
    ) -> TaskList:
        sampler = RandomTaskSample() if sampler is None else checked_task_sampler(sampler)
        n, strict = checked_count(n, name, 1), checked_flag(strict, "strict")
        payloads, decoder = self._decoding.of(fields)
        drawn, number = self._store.drawing.draws.sample_tasks(
            node, sampler, n, n if strict else 0, payloads
        )
        check_sufficient(
            len(drawn), n, strict, lambda: shortage(self._store.drawing, node, sampler)
        )
        facts = None
        if fields is None:
            keys = episodes_of(row for rows in drawn for row in rows)
            facts = self._store.reading.rows.facts_of(keys)
        return TaskList((decoder.rows(rows) for rows in drawn if rows), facts, number)

    def peek(self, sampler: Sampler | TaskSampler | None, n: int, node: Node) -> list[Any]:
        """Draw without limits, and count nothing."""
        n, decoder = checked_count(n, "n", 1), self._decoding.whole
        sampler = RandomSampler() if sampler is None else sampler
        if not isinstance(sampler, TaskSampler):
            sampler = checked_sampler(sampler)
        reading = self._store.reading
        reading.check_open()

        def chosen() -> list[Any]:
            with reading.source.candidates(node) as candidates:
                if isinstance(sampler, TaskSampler):
                    return list(sampler.choose_tasks(candidates, n))
                return candidates.rows(sampler.choose(candidates, n))

        rows = reading.with_retries(chosen)
        if not isinstance(sampler, TaskSampler):
            return decoder.rows(rows)
        return [decoder.rows(of_task) for of_task in reading.rows.tasks(rows).values() if of_task]


def checked_converter(converter: Any) -> AnyConverter | None:
    """Return a converter, or None.

    Raises:
        ArgumentError: Something else.
    """
    if converter is None or isinstance(converter, Converter):
        return converter
    if isinstance(converter, type) and issubclass(converter, Converter):
        raise refused(converter, "converter", f"an object; make one: {converter.__name__}()")
    what = "a Converter, or a function of a batch"
    function: AnyConverter = checked_callable(converter, "converter", what)
    return function


def converted(converter: AnyConverter | None, value: Any) -> Any:
    """Return a converter's result for a batch or a task; without one, the batch itself."""
    if converter is None:
        return value
    if isinstance(converter, Converter):
        return converter.to_dataset_row(value)
    return converter(value)
