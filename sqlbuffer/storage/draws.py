"""Draw from a buffer with a sampler: batches, rows or whole tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.forms import Form, put_rewards
from sqlbuffer.errors import ArgumentError, BufferConfigError, FieldError, StorageError
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import Batch, batch_with, common_structure
from sqlbuffer.storage.buffers.open_buffer import OwnWrites, retry_on_disconnect
from sqlbuffer.storage.buffers.window import SampledWindow, settled_seq
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.priorities.keeping import PriorityKeeping
from sqlbuffer.storage.reading import RowQueries
from sqlbuffer.storage.retention.expiry import Expiry
from sqlbuffer.storage.rows.layouts import Row
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.statements import RowSelection
from sqlbuffer.storage.sample_log import LogEntry
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.sampling.candidates import Candidates, RowStrategy, TaskStrategy
from sqlbuffer.storage.sampling.form_reader import FormReader
from sqlbuffer.storage.sampling.slice_table import SliceReading
from sqlbuffer.storage.use_counts import (
    ClaimKind,
    DrawnItems,
    SamplingSession,
    SamplingSessions,
    claim_items,
    give_back,
)

BATCH_ID = "batch_id"
PROBABILITIES = "probabilities"

T = TypeVar("T")
Columns = RowSelection | SliceReading | None


class SampledRows(NamedTuple):
    """Rows as they are stored, and the arrays that the sampler returns with them."""

    rows: list[Row]
    columns: Mapping[str, NDArray[Any] | None]


class BatchDraws:
    """Draws batches from a buffer.

    Args:
        source: Opens the rows of the buffer for samplers.
        queries: Reads the rows of tasks.
        own_writes: Steps of this process that wait to be stored.
        priorities: Keeps the priorities.
        sessions: Waits for the rate limiter, and counts and logs the drawn rows.
        expiry: Removes rows that may never be sampled again.
    """

    def __init__(
        self,
        source: CandidateSource,
        queries: RowQueries,
        own_writes: OwnWrites,
        priorities: PriorityKeeping,
        sessions: SamplingSessions,
        expiry: Expiry,
    ) -> None:
        self.buffer, self._sessions = source.buffer, sessions
        self._source, self._queries, self._priorities = source, queries, priorities
        self.own_writes = own_writes
        self._expiry = expiry

    @retry_on_disconnect
    def draw(self, node: Node, choose: Callable[[Candidates], T], columns: Columns = None) -> T:
        """Return the choice among the rows that match and may be sampled, without counting uses.

        Raises:
            BufferConfigError: The buffer is closed.
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        self.buffer.check_open()
        self.own_writes.catch_up()
        with self._source.candidates(node, columns, sampled=True) as candidates:
            drawn = choose(candidates)
        self._find_eligible_low(candidates)
        self._expiry.run_if_due()
        return drawn

    def _find_eligible_low(self, candidates: Candidates) -> None:
        """Find the first row that may be sampled, if a draw found only few such rows."""
        restrictions, buffer = self._source.restrictions, self.buffer
        if not restrictions.eligible_low.is_due(candidates):
            return
        # The draw is done; errors of this step do not matter.
        with suppress(StorageError), translated(buffer.url):
            epoch = server_epoch(buffer.engine)
            settled = settled_seq(buffer.engine, buffer.watermark)
            with snapshot(buffer.engine, self._source.window_query) as connection:
                for row in answer(connection):
                    restrictions.look(connection, SampledWindow(*row), settled, epoch)

    @contextmanager
    def session(self, sampler: RowStrategy | TaskStrategy, n: int) -> Iterator[SamplingSession]:
        """Sample n items: wait for the rate limiter, and count the returned items.

        Raises:
            BufferConfigError: Rows of this buffer are only claimed with leases, or it is closed.
            FlowControlError: The rate limiter did not allow the batch in time.
        """
        self.buffer.check_open()
        info = self.buffer.info
        if info.config.leases.enabled and info.config.sampling.max_use is not None:
            raise BufferConfigError(
                f"buffer {info.name!r} gives its rows by lease() only, which counts uses "
                f"(leases=True with max_use={info.config.sampling.max_use}); use "
                f"buffer.lease(n), or a buffer without max_use"
            )
        # A full buffer that is smaller than the batch will never have more.
        most = info.config.retention.max_capacity or n
        self.own_writes.store_before_draw(
            min(n, most), lambda: self._queries.count_stored(EVERYTHING)
        )
        if getattr(sampler, "reads_priorities", False):
            self._priorities.summarize_due(self._source)
        with self._sessions.open(n) as session:
            yield session

    def _counted(
        self,
        session: SamplingSession,
        sampler: RowStrategy | TaskStrategy,
        n: int,
        node: Node,
        columns: Columns,
        choose: Callable[..., T],
        kind: ClaimKind[T],
        least: int,
    ) -> T:
        """Return the chosen items, their uses counted and logged; fewer than `least` do not count.

        `choose` is called with the candidates, the number of missing items `n`, and `is_first`.
        """
        if n == 0 or not self._sessions.uses.is_on:
            return self.draw(node, partial(choose, n=n, is_first=True), columns)

        def found(n: int, is_first: bool) -> DrawnItems[T]:
            def chosen(candidates: Candidates) -> DrawnItems[T]:
                content = choose(candidates, n, is_first)
                units, probabilities = kind.units(content), kind.probabilities(content)
                return DrawnItems(
                    content, units, candidates.clock, candidates.window_low, probabilities
                )

            return self.draw(node, chosen, columns)

        content, session.batch_id = claim_items(
            self._sessions.uses,
            found,
            n,
            kind,
            log_entry_of(sampler),
            least=least,
            adds_up=bool(getattr(sampler, "replace", False)),
        )
        return content

    def reader_of(self, form: Form) -> FormReader:
        """Return the reader of batches of a form."""
        return FormReader(form, self.buffer.layout, self.buffer.observation_layout)

    def sample_batch(
        self,
        node: Node,
        form: Form,
        sampler: RowStrategy,
        n: int,
        begin: Callable[[], None] | None = None,
    ) -> Batch:
        """Return n items of a form, made of the rows that a sampler draws.

        If fewer can be drawn, fewer are returned, and their uses are not counted.

        Args:
            node: Condition that rows must match.
            form: Form of the batch.
            sampler: Sampler that draws the keys.
            n: Number of items.
            begin: Function called before each attempt: after a lost connection the batch is drawn
                again.
        """

        batch = self._sample_batch(node, form, sampler, n, begin)
        if batch.n_rows < n and form.needs_ends:
            # The end of an episode may wait to be stored.
            self.own_writes.store()
            batch = self._sample_batch(node, form, sampler, n, begin)
        if batch.n_rows >= n:
            try:
                put_rewards(form, batch)
            except BaseException:
                self.return_batch(batch)
                raise
        return batch

    def _sample_batch(
        self,
        node: Node,
        form: Form,
        sampler: RowStrategy,
        n: int,
        begin: Callable[[], None] | None,
    ) -> Batch:
        reader = self.reader_of(form)

        def choose(candidates: Candidates, n: int, is_first: bool) -> Batch:
            if n == 0:
                return _with_columns(reader.read(candidates, []), sampler, candidates)
            if begin is not None and is_first:
                begin()
            return _with_columns(reader.draw(candidates, sampler, n), sampler, candidates)

        with self.session(sampler, n) as session:
            batch = self._counted(session, sampler, n, node, reader.columns, choose, BATCHES, n)
            batch = _numbered(batch, session.batch_id)
            columns = sampler.finished(batch, self._priorities.alpha)
            if columns:
                batch = batch_with(batch, {**batch, **columns})
            # A batch that is too small is not returned.
            session.n_rows = batch.n_rows if batch.n_rows >= n else 0
        return batch

    def sample_rows(
        self,
        node: Node,
        sampler: RowStrategy,
        n: int,
        least: int = 0,
        payloads: Payloads | None = None,
    ) -> tuple[SampledRows, int | None]:
        """Return up to n rows that a sampler draws, and their number in the sample log.

        Uses of fewer than `least` rows are not counted.
        """

        def choose(candidates: Candidates, n: int, is_first: bool) -> SampledRows:
            rows = candidates.rows(sampler.choose(candidates, n)) if n else []
            if rows and sampler.reads_encoded:
                raise ArgumentError(
                    f"{type(sampler).__name__} has reads_encoded, so its rows are not read whole: "
                    "return no seq from choose(), or set reads_encoded = False"
                )
            return SampledRows(rows, sampler.columns(candidates, [row[0] for row in rows]))

        reading = (payloads or self._source.whole_rows).reading
        with self.session(sampler, n) as session:
            rows = self._counted(session, sampler, n, node, reading, choose, ROWS, least)
            finished = sampler.finished(rows.columns, self._priorities.alpha)
            rows = rows._replace(columns={**rows.columns, **finished})
            session.n_rows = len(rows.rows)
        return rows, session.batch_id

    def sample_tasks(
        self,
        node: Node,
        sampler: TaskStrategy,
        n: int,
        least: int = 0,
        payloads: Payloads | None = None,
    ) -> tuple[list[list[Row]], int | None]:
        """Return up to n tasks that a sampler draws, each with all its rows, and their log number.

        Uses of fewer than `least` tasks are not counted.
        """

        most = n

        def choose(candidates: Candidates, n: int, is_first: bool) -> list[list[Row]]:
            # Each draw starts again: the sampler cannot leave out the tasks that it drew before.
            chosen, limits = sampler.choose_tasks(candidates, most), candidates.limits.of_steps
            rows_by_task = self._queries.tasks_in(candidates.connection, chosen, payloads, limits)
            return [rows for rows in rows_by_task.values() if rows]

        with self.session(sampler, n) as session:
            tasks = self._counted(session, sampler, n, node, None, choose, TASKS, least)
            session.n_rows = sum(map(len, tasks))
        return tasks, session.batch_id

    def logged_batch(self, batch: Batch, clock: int | None, sampler: str) -> Batch:
        """Return a batch that no sampler drew, with its number in the sample log if it is logged.

        Args:
            batch: The batch.
            clock: The buffer's clock when the batch was read.
            sampler: Name in the log in place of a sampler.
        """
        seqs = batch.info["seq"].tolist()
        return _numbered(batch, self._sessions.uses.log.add_read(seqs, clock, LogEntry(sampler)))

    def return_batch(self, batch: Batch) -> None:
        """Undo the counts and the log entry of a batch that is not returned."""
        if not batch.n_rows:
            return
        give_back(self._sessions.uses, BATCHES.units(batch))
        batch_id = int(batch.info[BATCH_ID][0]) if BATCH_ID in batch.info else None
        self._sessions.undo(batch.n_rows, batch_id)


def _with_columns(batch: Batch, sampler: RowStrategy, candidates: Candidates) -> Batch:
    columns = sampler.columns(candidates, batch.info["seq"].tolist())
    for name in columns:
        if name in batch:
            raise FieldError(
                f"field {name!r} has the name of an array that {type(sampler).__name__} gives: "
                f"leave it out with fields=[...], or declare it by another name"
            )
    return batch_with(batch, {**batch, **columns}) if columns else batch


def _numbered(batch: Batch, number: int | None) -> Batch:
    if number is None:
        return batch
    info = {**batch.info, BATCH_ID: np.full(batch.n_rows, number, np.int64)}
    return batch_with(batch, batch, info)


def log_entry_of(sampler: RowStrategy | TaskStrategy) -> LogEntry:
    """Return the sample log's entry for the sampler of a batch."""
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


def _probabilities(columns: Mapping[str, NDArray[Any] | None]) -> Sequence[float] | None:
    probabilities = columns.get(PROBABILITIES)
    return None if probabilities is None else probabilities.tolist()


def rows_at(batch: Batch, index: Sequence[int]) -> Batch:
    """Return the rows of a batch at some places."""
    if len(index) == batch.n_rows and list(index) == list(range(batch.n_rows)):
        return batch
    places = np.asarray(index, np.int64)
    return batch_with(batch, _arrays_at(batch, places), _arrays_at(batch.info, places))


def _arrays_at(arrays: Any, places: NDArray[np.int64]) -> dict[str, Any]:
    return {name: None if array is None else array[places] for name, array in arrays.items()}


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches, one after the other."""
    first = batches[0]
    return Batch(
        {name: stacked([batch[name] for batch in batches]) for name in first},
        {name: stacked([batch.info[name] for batch in batches]) for name in first.info},
        common_structure(batches),
    )


def stacked(arrays: Sequence[Any]) -> Any:
    """Return arrays joined along the first axis; None if one is None.

    Arrays that are shorter in other dimensions are padded with zeros.
    """
    if any(array is None for array in arrays):
        return None
    shape = tuple(max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True))
    padded = [
        array
        if array.shape[1:] == shape
        else np.pad(
            array,
            [(0, 0), *((0, n - size) for n, size in zip(shape, array.shape[1:], strict=True))],
        )
        for array in arrays
    ]
    return np.concatenate(padded)


BATCHES: ClaimKind[Batch] = ClaimKind(
    units=lambda batch: [(seq,) for seq in batch.info["seq"].tolist()],
    take=rows_at,
    join=joined,
    probabilities=_probabilities,
)
ROWS = ClaimKind(
    units=lambda drawn: [(row[0],) for row in drawn.rows],
    take=_take_rows,
    join=_join_rows,
    probabilities=lambda drawn: _probabilities(drawn.columns),
)
TASKS: ClaimKind[list[list[Row]]] = ClaimKind(
    units=lambda tasks: [[row[0] for row in rows] for rows in tasks],
    take=lambda tasks, index: [tasks[i] for i in index],
    join=lambda parts: [t for part in parts for t in part],
    probabilities=lambda _tasks: None,
)
