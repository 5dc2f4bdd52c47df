"""Draw from a buffer with a sampler: batches, rows or whole tasks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.errors import FieldError
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.steps.batches import Batch
from sqlbuffer.storage.rows.batch_parts import one_of, part_of, stacked
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.readers.base import BatchReader
from sqlbuffer.storage.sampling.strategy import RowStrategy, TaskStrategy
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.use_counts.counted_buffer import needs_writes
from sqlbuffer.storage.use_counts.counting import (
    ClaimKind,
    Found,
    claimed,
    give_back,
)
from sqlbuffer.storage.use_counts.sample_log import LogEntry, forget, log_read_batch

BATCH_ID = "batch_id"
PROBABILITIES = "probabilities"


class SampledRows(NamedTuple):
    """Rows as they are stored, the arrays that the sampler gives along with them, and the number
    that they are noted under.
    """

    rows: list[Row]
    columns: Mapping[str, NDArray[Any] | None]
    batch_id: int | None = None


def sample_batch(
    store: BufferStore,
    node: Node,
    reader: BatchReader,
    sampler: RowStrategy,
    n: int,
    begin: Callable[[], None] | None = None,
) -> Batch:
    """Return n things that a reader makes of what a sampler draws; fewer, whose uses are not
    counted, where too few can be drawn.

    Args:
        store: The buffer.
        node: Which rows.
        reader: What the batch is made of.
        sampler: Draws their keys.
        n: How many.
        begin: Called before each attempt: a lost connection has it drawn again.
    """

    def draw(candidates: Candidates, n: int, is_first: bool = True) -> Batch:
        if n == 0:
            return _with_columns(reader.read(candidates, []), sampler, candidates)
        if begin is not None and is_first:
            begin()
        return _with_columns(reader.draw(candidates, sampler, n), sampler, candidates)

    def found(n: int, is_first: bool) -> Found[Batch]:
        return store.draw(
            node, lambda found: _found(found, draw(found, n, is_first)), reader.columns
        )

    store.check_sampled()
    if sampler.reads_priorities:
        store.summarize_due()
    with store.pacer.sampling(n) as drawn:
        if n == 0 or not needs_writes(store):
            batch = store.draw(node, lambda candidates: draw(candidates, n), reader.columns)
        else:
            batch, number = claimed(
                store, found, n, BATCHES, _log_entry_of(sampler), least=n, adds_up=_adds_up(sampler)
            )
            batch = _numbered(batch, number)
        batch = _finished(batch, sampler, store)
        # A batch that is too small is not handed out.
        drawn(batch.n_rows if batch.n_rows >= n else 0)
    return batch


def _with_columns(batch: Batch, sampler: RowStrategy, candidates: Candidates) -> Batch:
    columns = sampler.columns(candidates, batch.info["seq"].tolist())
    for name in columns:
        if name in batch:
            raise FieldError(
                f"field {name!r} has the name of an array that {type(sampler).__name__} gives: "
                f"leave it out with fields=[...], or declare it by another name"
            )
    return Batch({**batch, **columns}, batch.info) if columns else batch


def _finished(batch: Batch, sampler: RowStrategy, store: BufferStore) -> Batch:
    columns = sampler.finished(batch, store.alpha)
    return Batch({**batch, **columns}, batch.info) if columns else batch


def sample_rows(
    store: BufferStore,
    node: Node,
    sampler: RowStrategy,
    n: int,
    least: int = 0,
    payloads: Payloads | None = None,
) -> SampledRows:
    """Return up to n rows that a sampler draws; fewer than `least` are not counted as used."""

    reading = (payloads or store.whole_rows).reading

    def draw(candidates: Candidates, n: int) -> SampledRows:
        rows = candidates.rows(sampler.choose(candidates, n)) if n else []
        return SampledRows(rows, sampler.columns(candidates, [row[0] for row in rows]))

    def found(n: int, _is_first: bool) -> Found[SampledRows]:
        return store.draw(
            node, lambda candidates: _found_rows(candidates, draw(candidates, n)), reading
        )

    store.check_sampled()
    if sampler.reads_priorities:
        store.summarize_due()
    with store.pacer.sampling(n) as drawn:
        if n == 0 or not needs_writes(store):
            rows = store.draw(node, lambda candidates: draw(candidates, n), reading)
        else:
            note, adds_up = _log_entry_of(sampler), _adds_up(sampler)
            rows, number = claimed(store, found, n, ROWS, note, least=least, adds_up=adds_up)
            rows = rows._replace(batch_id=number)
        finished = sampler.finished(rows.columns, store.alpha)
        rows = rows._replace(columns={**rows.columns, **finished})
        drawn(len(rows.rows))
    return rows


def sample_tasks(
    store: BufferStore,
    node: Node,
    sampler: TaskStrategy,
    n: int,
    least: int = 0,
    payloads: Payloads | None = None,
) -> tuple[list[list[Row]], int | None]:
    """Return up to n tasks that a sampler draws, each with all its rows, and the number that they
    are noted under; fewer than `least` are not counted as used.
    """

    def choose(candidates: Candidates) -> Sequence[str]:
        return sampler.choose_tasks(candidates, n)

    def found(_n: int, _is_first: bool) -> Found[list[list[Row]]]:
        drawn = store.draw_tasks(node, choose, payloads)
        units = [[row[0] for row in rows] for rows in drawn.tasks]
        return Found(drawn.tasks, units, drawn.clock, drawn.window_low)

    store.check_sampled()
    number = None
    with store.pacer.sampling(n) as drawn:
        if not needs_writes(store):
            tasks = store.draw_tasks(node, choose, payloads).tasks
        else:
            tasks, number = claimed(store, found, n, TASKS, _log_entry_of(sampler), least=least)
        drawn(sum(map(len, tasks)))
    return tasks, number


def logged_batch(store: BufferStore, batch: Batch, clock: int | None, what: str) -> Batch:
    """Return a batch that no sampler drew with the number that it is noted under, if it is.

    Args:
        store: The buffer.
        batch: The batch.
        clock: The buffer's clock when it was read.
        what: What is noted for a sampler.
    """
    number = log_read_batch(store, batch.info["seq"].tolist(), clock, LogEntry(what))
    return _numbered(batch, number)


def return_batch(store: BufferStore, batch: Batch) -> None:
    """Undo what was counted and noted of a batch that is not handed out."""
    if not batch.n_rows:
        return
    give_back(store, _units(batch))
    store.pacer.give_back(batch.n_rows)
    if BATCH_ID in batch.info:
        forget(store, int(batch.info[BATCH_ID][0]))


def _found(candidates: Candidates, batch: Batch) -> Found[Batch]:
    probabilities = batch.get(PROBABILITIES)
    return Found(
        batch,
        _units(batch),
        candidates.clock,
        candidates.window_low,
        None if probabilities is None else probabilities.tolist(),
    )


def _found_rows(candidates: Candidates, drawn: SampledRows) -> Found[SampledRows]:
    probabilities = drawn.columns.get(PROBABILITIES)
    return Found(
        drawn,
        [(row[0],) for row in drawn.rows],
        candidates.clock,
        candidates.window_low,
        None if probabilities is None else probabilities.tolist(),
    )


def _units(batch: Batch) -> list[tuple[int]]:
    return [(seq,) for seq in batch.info["seq"].tolist()]


def _numbered(batch: Batch, number: int | None) -> Batch:
    if number is None:
        return batch
    return Batch(batch, {**batch.info, BATCH_ID: np.full(batch.n_rows, number, np.int64)})


def _adds_up(sampler: RowStrategy) -> bool:
    return bool(getattr(sampler, "replace", False))


def _log_entry_of(sampler: RowStrategy | TaskStrategy) -> LogEntry:
    seeds = (getattr(value, "seed", None) for value in (sampler, *vars(sampler).values()))
    seed = next((seed for seed in seeds if isinstance(seed, (int, np.integer))), None)
    return LogEntry(type(sampler).__name__, None if seed is None else str(int(seed)))


def _take_rows(drawn: SampledRows, index: Sequence[int]) -> SampledRows:
    places = np.asarray(index, np.int64)
    columns = {
        name: None if array is None else array[places] for name, array in drawn.columns.items()
    }
    return SampledRows([drawn.rows[i] for i in index], columns)


def _join_rows(parts: Sequence[SampledRows]) -> SampledRows:
    columns = {name: stacked([part.columns[name] for part in parts]) for name in parts[0].columns}
    return SampledRows([row for part in parts for row in part.rows], columns)


BATCHES = ClaimKind(part_of, one_of)
ROWS = ClaimKind(_take_rows, _join_rows)
TASKS: ClaimKind[list[list[Row]]] = ClaimKind(
    lambda tasks, index: [tasks[i] for i in index],
    lambda parts: [t for part in parts for t in part],
)
