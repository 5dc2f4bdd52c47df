"""Draw batches, and open loaders."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlbuffer.arguments import checked_batch_size, checked_sampler, checked_task_sampler
from sqlbuffer.batches.forms import Form
from sqlbuffer.checks import checked_callable, checked_count, checked_flag, refused
from sqlbuffer.front.converters import Converter
from sqlbuffer.front.reading import RowDecoding
from sqlbuffer.loading.plans import check_sufficient, shortage
from sqlbuffer.query.tree import Node
from sqlbuffer.samplers import RandomSampler, RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.steps import Batch, DataRow, RowList
from sqlbuffer.storage.store import BufferStore

T = TypeVar("T")
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
        if n:
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
        if n == 0 and not sampler.reads_priorities:
            return RowList()
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
    ) -> RowList[list[DataRow]]:
        sampler = RandomTaskSample() if sampler is None else checked_task_sampler(sampler)
        n, strict = checked_count(n, name), checked_flag(strict, "strict")
        payloads, decoder = self._decoding.of(fields)
        if n == 0:
            return RowList()
        drawn, number = self._store.drawing.draws.sample_tasks(
            node, sampler, n, n if strict else 0, payloads
        )
        check_sufficient(
            len(drawn), n, strict, lambda: shortage(self._store.drawing, node, sampler)
        )
        return RowList((decoder.rows(rows) for rows in drawn if rows), batch_id=number)

    def peek(self, sampler: Sampler | TaskSampler | None, n: int, node: Node) -> list[Any]:
        """Draw without limits, and count nothing."""
        n, decoder = checked_count(n, "n"), self._decoding.whole
        sampler = RandomSampler() if sampler is None else sampler
        if not isinstance(sampler, TaskSampler):
            sampler = checked_sampler(sampler)
        reading = self._store.reading

        def chosen() -> list[Any]:
            with reading.source.candidates(node) as candidates:
                if isinstance(sampler, TaskSampler):
                    return list(sampler.choose_tasks(candidates, n))
                return candidates.rows(sampler.choose(candidates, n))

        rows = reading.with_retries(chosen) if n else []
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
