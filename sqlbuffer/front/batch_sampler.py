"""Draw batches, and open loaders."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlbuffer.arguments import (
    check_batch_size,
    described,
)
from sqlbuffer.config.setting_checks import MAX_LIMIT
from sqlbuffer.front.converters import Converter
from sqlbuffer.front.decoding import RowDecoding
from sqlbuffer.loading.sufficient_data import check_sufficient, undrawn
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.samplers import RandomSampler, RandomTaskSample, Sampler, TaskSampler
from sqlbuffer.steps.batches import Batch, RowList
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.sampling.readers.base import BatchReader
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

    def arrays(
        self, reader: BatchReader, sampler: Sampler | None, batch_size: int, node: Node
    ) -> Batch:
        """Draw a batch of arrays."""
        sampler = RandomSampler(replace=True) if sampler is None else sampler
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler is a Sampler of rows, got {described(sampler)}")
        check_batch_size(batch_size, sampler)
        n = min(int(batch_size), MAX_LIMIT)
        batch = self._store.drawing.draws.sample_batch(node, reader, sampler, n)
        check_sufficient(
            batch.n_rows,
            batch_size,
            True,
            lambda: undrawn(self._store.drawing, node, sampler, reader),
        )
        if n:
            sampler.handed_out()
        return batch

    def rows(
        self,
        sampler: Sampler | TaskSampler | None,
        batch_size: int,
        node: Node,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> RowList[Any]:
        """Draw rows, or whole tasks with a sampler of tasks."""
        sampler = RandomSampler() if sampler is None else sampler
        if isinstance(sampler, TaskSampler):
            return self.tasks(sampler, batch_size, node, strict, fields)
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler is a Sampler or a TaskSampler, got {described(sampler)}")
        check_batch_size(batch_size, sampler)
        payloads, decoder = self._decoding.of(fields)
        if batch_size == 0 and not sampler.reads_priorities:
            return RowList()
        n = min(int(batch_size), MAX_LIMIT)
        drawn, number = self._store.drawing.draws.sample_rows(
            node, sampler, n, n if strict else 0, payloads
        )
        rows = RowList(decoder.rows(drawn.rows), drawn.columns, number)
        check_sufficient(
            len(rows), batch_size, strict, lambda: undrawn(self._store.drawing, node, sampler)
        )
        if rows:
            sampler.handed_out()
        return rows

    def tasks(
        self,
        sampler: TaskSampler | None,
        n: int,
        node: Node,
        strict: bool,
        fields: Sequence[str] | None,
    ) -> RowList[list[DataRow]]:
        """Draw whole tasks."""
        sampler = RandomTaskSample() if sampler is None else sampler
        if not isinstance(sampler, TaskSampler):
            raise TypeError(
                f"sample_tasks takes a TaskSampler, got {described(sampler)}; use sample() for rows"
            )
        check_batch_size(n)
        payloads, decoder = self._decoding.of(fields)
        if n == 0:
            return RowList()
        most = min(int(n), MAX_LIMIT)
        drawn, number = self._store.drawing.draws.sample_tasks(
            node, sampler, most, most if strict else 0, payloads
        )
        check_sufficient(len(drawn), n, strict, lambda: undrawn(self._store.drawing, node, sampler))
        return RowList((decoder.rows(rows) for rows in drawn if rows), batch_id=number)

    def peek(self, sampler: Sampler | TaskSampler | None, n: int, node: Node) -> list[Any]:
        """Draw without limits, and count nothing."""
        check_batch_size(n)
        sampler = RandomSampler() if sampler is None else sampler
        store, decoder, n = self._store.reading, self._decoding.whole, min(int(n), MAX_LIMIT)

        def chosen() -> list[Any]:
            with store.source.candidates(node) as candidates:
                if isinstance(sampler, TaskSampler):
                    return list(sampler.choose_tasks(candidates, n))
                return candidates.rows(sampler.choose(candidates, n))

        found = store.with_retries(chosen) if n else []
        if not isinstance(sampler, TaskSampler):
            return decoder.rows(found)
        return [decoder.rows(rows) for rows in store.rows.tasks(found).values() if rows]


def converted(converter: AnyConverter | None, value: Any) -> Any:
    """Return a converter's result for a batch or a task; without one, the batch itself."""
    if converter is None:
        return value
    if isinstance(converter, Converter):
        return converter.to_dataset_row(value)
    return converter(value)
