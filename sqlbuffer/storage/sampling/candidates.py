"""The candidates of a sampler: the keys of the matching rows, without their payloads."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, Select, and_, bindparam, func, literal, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.checks import (
    checked_count,
    checked_flag,
    checked_instance,
    checked_integer,
    checked_items,
    refused,
)
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS, Layout
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import EncodedRow
from sqlbuffer.storage.chunks.slices import (
    NO_SLICES,
    Keys,
    Reach,
    Slice,
    SliceColumns,
    keys_of,
    missing_ranges,
    with_slices,
)
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility
from sqlbuffer.storage.marks import Marks, Wanted, read_marks
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import PLACES, ROWS, StepLayout
from sqlbuffer.storage.rows.payload_parts import have_parts, is_in_parts
from sqlbuffer.storage.rows.statements import BUFFER_ID, SEQS, IsKey, RowSelection, matching_numbers
from sqlbuffer.storage.sampling.rare_conditions import RareCondition
from sqlbuffer.storage.sampling.slice_table import (
    Range,
    SliceReading,
    SliceTable,
    read_keys,
    read_ranges,
)
from sqlbuffer.storage.schema.expressions import SeqList
from sqlbuffer.weighted_sampling import Weights


def no_priorities() -> BufferConfigError:
    """Return the error for draws by priority from a buffer without priorities."""
    return BufferConfigError(
        "the buffer has no priorities; make one with ReplayBuffer(..., priorities=True)"
    )


class RowPriorities(Protocol):
    """The priorities of the candidates; `priorities.draws.Priorities` reads them.

    Attributes:
        alpha: The weight of a row is its priority ^ alpha.
        total: Sum of the weights that rows are drawn by; None if it is unknown.
    """

    alpha: float
    total: float | None

    @property
    def has_blocks(self) -> bool:
        """True if sums of weights are stored; otherwise all weights are read."""

    @property
    def weights(self) -> Weights:
        """The weights of all rows, by blocks."""

    def note_missing_summaries(self) -> None:
        """Record the blocks that are worth adding up, without reading rows."""

    def among(self, candidates: Any) -> "RowPriorities":
        """Return the priorities of a part of the candidates."""

    def of(self, seqs: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the priorities of rows of the candidates."""

    def all(self, candidates: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return every matching number, in order, and the priorities."""

    def least(self) -> float:
        """Return the smallest positive priority of the whole buffer; infinity if there is none."""


_SEQ_OF = itemgetter(0)
_EPISODE_ID = Slice._fields.index("episode_id")
FEW_HOLES, MOST_PROBED = 8, 65_536
MAX_SEQS = 2**20  # in one call
_OF_ENCODED = itemgetter(0, *(PLACES[name] for name in EncodedRow._fields[1:]))
# Without a call of Python for each row.
_encoded_row: Callable[[Any], EncodedRow] = partial(tuple.__new__, EncodedRow)


class Candidates:
    """The rows that a sampler may choose from: live, matching, eligible, in one transaction.

    Attributes:
        low: Candidates have `low < seq`.
        high: Candidates have `seq <= high`. Some numbers between the two are not candidates: rows
            that were deleted, do not match or may not be sampled.
        window_low: Rows of the buffer have `window_low < seq`. No row up to `low` is eligible.
        connection: The SQLAlchemy connection of the transaction.
        buffer_id: Key of the buffer in the tables.
        selective: True if the condition names ids or tasks, so that an index finds the few rows.

    Example:
        >>> import numpy as np
        >>> from sqlbuffer import Candidates, ReplayBuffer, Sampler
        >>> class Newest(Sampler):
        ...     def choose(self, candidates: Candidates, batch_size: int) -> list[int]:
        ...         c, rng = candidates, np.random.default_rng()
        ...         print(c.keys(), c.oldest(1), c.page(1, 2), c.probe([2, 9]))
        ...         print(c.tasks(), c.random_tasks(1), c.first_of_tasks([1, 2]))
        ...         print(len(c.random(2)), c.pick(rng, 1, replace=True), c.select().is_select)
        ...         print(c.model_versions(3), c.between(1, 3).keys())
        ...         return c.newest(batch_size)
        >>> with ReplayBuffer("sqlite://", fields={"obs": np.float32}) as buffer:
        ...     keys = {"task_id": "t", "agent_id": "a", "model_version": 7}
        ...     _ = buffer.extend({**keys, "obs": np.arange(5.0)})
        ...     buffer.sample_arrays(2, sampler=Newest())["obs"].tolist()
        [1 2 3 4 5] [1] [2, 3] {2}
        ['t'] ['t'] {1: 't'}
        2 None True
        (array([4, 5]), array([7, 7])) [2 3]
        [4.0, 3.0]
    """

    def __init__(
        self,
        connection: Connection,
        buffer_id: int,
        low: int,
        high: int,
        node: Node,
        reading: RowSelection | SliceReading,
        limits: Eligibility = NO_LIMITS,
        eligible_low: int = 0,
        steps: StepLayout = ROWS,
    ) -> None:
        self.low, self.high, self.limits = max(low, min(eligible_low, high)), high, limits
        self.window_low = low
        self._is_part = False  # newer rows match as well
        self.has_read_keys = False  # every key
        self.clock: int | None = None  # if limits or the sample log need it
        self.has_labels = False  # rows may have annotated values
        self.may_replace = False  # a layout of compat may have replaced values of steps
        self.has_deleted = False  # steps of chunks may have been deleted
        self.newest_single: int | None = None  # first number of a chunk without an episode
        self.steps, self.table_of_steps = steps, steps.of(buffer_id)
        self.selective = statements.names_few_rows(node)
        self.connection, self.buffer_id, self.node = connection, buffer_id, node
        self.reading = reading
        # With steps near to keys, in other chunks; in the form of `Slice`.
        self._slices: list[tuple[Any, ...]] = []
        self._ranges: set[tuple[int, int, int]] = set()  # of episodes, which these slices cover
        self._marks = Marks()  # of the steps of slices
        self._marked: set[tuple[int, int, int]] = set()  # runs of these
        self._probed: set[int] = set()
        self._payloads: dict[int, tuple[Any, ...]] = {}
        self._priorities: RowPriorities | None = None
        self.rare: RareCondition | None = None  # the condition may be remembered

    @property
    def priorities(self) -> RowPriorities:
        """The priorities of the rows.

        Raises:
            BufferConfigError: The rows have no priorities.
        """
        if self._priorities is None:
            raise no_priorities()
        return self._priorities

    @priorities.setter
    def priorities(self, priorities: RowPriorities | None) -> None:
        self._priorities = priorities

    @property
    def has_condition(self) -> bool:
        """True if a condition of the user or a limit restricts the rows."""
        return self.node != EVERYTHING or bool(self.limits)

    @property
    def is_filtered(self) -> bool:
        """True if rows of the window may not match."""
        return self.has_condition or self._is_key is not None

    @property
    def picks_keys(self) -> bool:
        """True if `keys` finds few rows, without reading all."""
        return self.selective

    @property
    def picks_first(self) -> bool:
        """True if `pick` costs less than `probe`."""
        return False

    @cached_property
    def matching(self) -> ColumnElement[bool]:
        """The expression for matching rows of the buffer, in the window or not.

        It does not name the buffer: SQLite would look numbers up by an index that begins with it.
        """
        return self.matching_in(self.table_of_steps)

    def matching_in(self, steps: Any) -> ColumnElement[bool]:
        """Return the expression of `matching` for another table of steps.

        :meta private:
        """
        matching = compile_condition(self.node, steps)
        if self.limits:
            matching = matching & self.limits.hold(steps)
        return matching if self._is_key is None else matching & self._is_key(steps)

    @property
    def _is_key(self) -> IsKey | None:
        return self.reading.is_key if isinstance(self.reading, SliceReading) else None

    @property
    def span(self) -> int:
        """Number of row numbers in the window."""
        return max(self.high - self.low, 0)

    def select(self) -> Select[Any]:
        """Return a SQLAlchemy select of `seq` over the matching rows.

        A sampler can order it, limit it, and return it.
        """
        return select(self.table_of_steps.c.seq).where(self.in_window)

    @cached_property
    def _seq(self) -> ColumnElement[int]:
        return statements.seq_for(self.node, self.table_of_steps)

    def _in_order(self, *, newest: bool = False) -> list[ColumnElement[Any]]:
        return statements.in_order(self.node, self.table_of_steps, newest=newest)

    @property
    def _matching(self) -> ColumnElement[bool]:
        return and_(self.table_of_steps.c.buffer_id == self.buffer_id, self.matching)

    @property
    def in_window(self) -> ColumnElement[bool]:
        """The expression for rows that match."""
        matching = self._matching & (self._seq > self.low)
        return matching & (self._seq <= self.high) if self._is_part else matching

    @cached_property
    def step_without_episode(self) -> int | None:
        """The newest matching step of a buffer with typed fields that has no episode.

        :meta private:
        """
        if self.newest_single is None or self.newest_single <= self.window_low - MAX_CHUNK_STEPS:
            return None
        single = self.select().where(self.table_of_steps.c.episode_id.is_(None))
        newest = self._scalars(single.order_by(*self._in_order(newest=True)).limit(1))
        return newest[0] if newest else None

    def keys(self) -> NDArray[np.int64]:
        """Return every matching seq in ascending order; reads all keys."""
        self.has_read_keys = True
        remembered = self.remembered
        if remembered is not None:
            return remembered.copy()
        keys = self._read_numbers(self.in_window)
        if self.rare is not None and not self._is_part:
            self.rare.note(self, keys)
        return keys

    @property
    def remembered(self) -> NDArray[np.int64] | None:
        """What `keys` returns, if it is known without a scan; it must not be changed.

        :meta private:
        """
        numbers = None if self.rare is None else self.rare.numbers(self)
        if numbers is None or not self._is_part:
            return numbers
        first, end = np.searchsorted(numbers, (self.low, self.high), side="right").tolist()
        return numbers[first:end]

    def scan(self, low: int, high: int) -> NDArray[np.int64]:
        """Return the matching seq above a number and up to another one, in ascending order.

        :meta private:
        """
        if high <= low:
            return np.zeros(0, np.int64)
        return self._read_numbers(self._matching & (self._seq > low) & (self._seq <= high))

    def _read_numbers(self, where: ColumnElement[bool]) -> NDArray[np.int64]:
        numbers = select(self.table_of_steps.c.seq).where(where).order_by(*self._in_order())
        return np.fromiter(self.connection.execute(numbers).scalars(), np.int64)

    def probe(self, seqs: Sequence[int]) -> set[int]:
        """Return the given seq that are matching rows; their payloads are read for the batch.

        Numbers of earlier calls are not read again.

        Raises:
            ArgumentError: They are not a list of integers.
        """
        asked = dict.fromkeys(_checked_seqs(seqs))
        if not asked.keys() <= self._probed:
            low, high, probed = self.low, self.high, self._probed
            if unknown := [seq for seq in asked if low < seq <= high and seq not in probed]:
                self._probed.update(unknown)
                remembered = self.remembered
                if remembered is None:
                    self._read(unknown)
                else:
                    self._read_remembered(unknown, remembered)
        return asked.keys() & self._payloads.keys()

    def table(self, layout: Layout, numbers: NDArray[np.int64]) -> tuple[SliceTable, Any]:
        """Return the steps of keys and those around them, and the numbers that are keys.

        Args:
            layout: The typed fields.
            numbers: Numbers of steps; some may occur several times.

        :meta private:
        """
        assert isinstance(self.reading, SliceReading)
        hits = self.probe(numbers.tolist())
        if len(hits) < len(numbers):
            numbers = numbers[[seq in hits for seq in numbers.tolist()]]
        reach = self.reading.reach
        rows = map(self._payloads.__getitem__, dict.fromkeys(numbers.tolist()))
        keys = keys_of(list(rows), reach)
        near = () if reach.is_alone else self._near(keys, reach)
        slices = with_slices(keys.slices, near)
        self._marks.add(self._read_marks(slices))
        read_steps = None if reach.is_alone else self._read_steps
        table = SliceTable(
            layout, keys, slices, self.window_low, self._marks, read_steps,
            partial(self._places, layout, keys),
        )  # fmt: skip
        return table, numbers

    def _read_remembered(self, seqs: Sequence[int], remembered: NDArray[np.int64]) -> None:
        """Read those of some numbers that match; forget the remembered ones if one does not."""
        possible = np.intersect1d(np.array(seqs, np.int64), remembered).tolist()
        if possible:
            self._read(possible)
        if not self._payloads.keys() >= set(possible) and self.rare is not None:
            self.rare.forget()

    def _places(self, layout: Layout, keys: Keys, ranges: Sequence[Range]) -> SliceTable:
        """Return the steps between places of the episodes of keys, with those in reach behind."""
        reach = self.reading.reach  # type: ignore[union-attr]
        rows = self._read_ranges([(id_, t, last + reach.last) for id_, t, last in ranges], reach)
        slices = with_slices(NO_SLICES, rows)
        self._marks.add(self._read_marks(slices))
        return SliceTable(layout, keys, slices, self.window_low, self._marks, self._read_steps)

    def _near(self, keys: Keys, reach: Reach) -> list[tuple[Any, ...]]:
        """Return the slices of other chunks with steps in reach of keys."""
        ranges = [one for one in missing_ranges(keys, reach) if one not in self._ranges]
        if ranges:
            self._ranges.update(ranges)
            self._slices += self._read_ranges(ranges, reach)
        episodes = set(keys.slices.episode_id)
        return [one for one in self._slices if one[_EPISODE_ID] in episodes]

    def _read_ranges(self, ranges: Sequence[Range], reach: Reach) -> list[tuple[Any, ...]]:
        """Return the slices of ranges of episodes; note those that may not be sampled."""
        slices, versions = read_ranges(
            self.connection, self.buffer_id, ranges, reach, self._has_versions, self.steps
        )
        if versions:
            for one, version in zip(map(Slice._make, slices), versions, strict=True):
                if self.limits.of_steps.excludes(*version):
                    self._marks.excluded.append((one.seq, one.n))
        return slices

    def _read_steps(self, seqs: Sequence[int]) -> Keys:
        """Return steps alone, with their bytes."""
        reach = Reach(is_alone=True)
        rows, _ = read_keys(self.connection, self.buffer_id, seqs, reach, False, self.steps)
        return keys_of(rows, reach)

    def _read_marks(self, slices: SliceColumns) -> Marks:
        """Return the marks of the steps of those slices whose marks were not read yet."""
        assert isinstance(self.reading, SliceReading)
        reach = self.reading.reach
        wanted = Wanted(
            labels=self.has_labels,
            only_rewards=self.has_labels and not (reach.has_values or self.reading.has_numbers),
            quarantine=self.limits.quarantine,
            # Keys that were deleted are not read.
            deleted=self.has_deleted and not reach.is_alone,
            replaced=self.may_replace,
            values=reach.has_values,
        )
        if not any(wanted):
            return Marks()
        unmarked = set(slices.runs()) - self._marked
        if not unmarked:
            return Marks()
        self._marked |= unmarked
        return read_marks(
            self.connection,
            self.buffer_id,
            [(first, n) for first, n, _ in unmarked],
            wanted,
            has_chunks=self.steps.has_chunks,
            chunks={first - place for first, _, place in unmarked} if wanted.values else (),
        )

    @property
    def _has_versions(self) -> bool:
        """True if the model version and the session of a step matter."""
        return self.limits.oldest_version is not None or self.limits.session is not None

    def _read_keys(self, seqs: Sequence[int]) -> None:
        """Read the slices of keys that match and may be sampled."""
        assert isinstance(self.reading, SliceReading)
        limits = self.limits
        if self.node != EVERYTHING or limits.max_use is not None or limits.kind.of_newest:
            seqs = self.matching_among(seqs)
        reach, has_versions = self.reading.reach, self._has_versions
        rows, versions = read_keys(
            self.connection, self.buffer_id, seqs, reach, has_versions, self.steps
        )
        if has_versions:
            excludes = self.limits.of_steps.excludes
            versioned = zip(rows, versions, strict=True)
            rows = [row for row, version in versioned if not excludes(*version)]
        if self.limits.quarantine:
            marks = self._read_marks(keys_of(rows, reach).slices)
            self._marks.add(marks)
            quarantined = set(marks.quarantined)
            rows = [row for row in rows if row[0] not in quarantined]
        self._payloads.update(zip(map(_SEQ_OF, rows), rows, strict=True))

    def matching_among(self, seqs: Sequence[int]) -> list[int]:
        """Return those of some numbers that match, without reading their bytes.

        :meta private:
        """
        statement = matching_numbers(self.node, self.limits.kind, self._is_key, self.steps)
        return [seq for (seq,) in self._selected(statement, seqs)]

    def _selected(self, statement: Any, seqs: Sequence[int]) -> list[tuple[Any, ...]]:
        parameters = {BUFFER_ID: self.buffer_id, SEQS: seqs, **self.limits.parameters}
        return fetch(self.connection, statement, parameters)

    def _read(self, seqs: Sequence[int]) -> None:
        if isinstance(self.reading, SliceReading):
            self._read_keys(seqs)
            return
        if self.reading.read is None:
            rows = self._selected(self.reading.statement(self.node, self.limits), seqs)
            if self.has_labels:
                rows = self.reading.with_late(self.connection, rows)
        else:
            seqs = self.matching_among(seqs) if self.is_filtered else seqs
            rows = self.reading.read(self.connection, seqs, self.has_labels, self.has_deleted)
        self._payloads.update(zip(map(_SEQ_OF, rows), rows, strict=True))

    def model_versions(self, after: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the matching seq above a number that have a model version, and these versions.

        Raises:
            ArgumentError: The number is not an integer.
        """
        low, table = max(checked_integer(after, "after"), self.low), self.table_of_steps.c
        is_newer = self._matching & (self._seq > low) & (self._seq <= self.high)
        versions = select(table.seq, table.model_version).where(
            is_newer, table.model_version.is_not(None)
        )
        pairs = np.array(fetch(self.connection, versions), np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def between(self, low: int, high: int) -> "Candidates":
        """Return the candidates with `low < seq <= high`, with their priorities.

        Raises:
            ArgumentError: One of the two is not an integer.
        """
        part = copy.copy(self)
        part.low = max(checked_integer(low, "low"), self.low)
        part.high = max(part.low, min(checked_integer(high, "high"), self.high))
        part._is_part, part._payloads, part._probed = True, {}, set()
        if self._priorities is not None:
            part._priorities = self._priorities.among(part)
        return part

    def random(self, n: int) -> list[int]:
        """Return up to n matching seq in uniform random order; reads all keys.

        Raises:
            ArgumentError: n is not an integer from 0 on.
        """
        n = checked_count(n, "n")
        self.has_read_keys = True
        remembered = self.remembered
        if remembered is not None:
            size = min(n, len(remembered))
            chosen: list[int] = np.random.default_rng().choice(remembered, size, False).tolist()
            return chosen
        return self._scalars(self.select().order_by(func.random()).limit(n))

    def pick(self, rng: np.random.Generator, n: int, *, replace: bool) -> list[int] | None:
        """Return n matching seq, uniform over all, by a faster way; None if there is none.

        Raises:
            ArgumentError: An argument is invalid.
        """
        check_pick(rng, n, replace)
        return None

    def newest(self, n: int) -> list[int]:
        """Return up to n matching seq, newest first.

        Raises:
            ArgumentError: n is not an integer from 0 on.
        """
        n = checked_count(n, "n")
        seqs = self._of_numbers(range(self.high, max(self.low, self.high - n - FEW_HOLES), -1), n)
        return self._from_one_end(n, newest=True) if seqs is None else seqs

    def oldest(self, n: int) -> list[int]:
        """Return up to n matching seq, oldest first.

        Raises:
            ArgumentError: n is not an integer from 0 on.
        """
        n = checked_count(n, "n")
        end = min(self.high, self.low + n + FEW_HOLES)
        seqs = self._of_numbers(range(self.low + 1, end + 1), n)
        return self._from_one_end(n) if seqs is None else seqs

    def _of_numbers(self, numbers: range, n: int) -> list[int] | None:
        """Return the first n of the numbers that are rows, if there are that many.

        It needs no statement for the keys, since all rows are candidates.
        """
        if self.node != EVERYTHING or len(numbers) > MOST_PROBED:
            return None
        hits = self.probe(numbers)
        return [seq for seq in numbers if seq in hits][:n] if len(hits) >= n else None

    def page(self, offset: int, limit: int, *, newest: bool = False) -> list[int]:
        """Return up to `limit` matching seq, oldest first, after the first `offset`.

        Args:
            offset: Number of seq to leave out.
            limit: Largest number of seq to return.
            newest: Count and return them from the newest on.

        Raises:
            ArgumentError: An argument has another type, or one of the two is negative.
        """
        offset, limit = checked_count(offset, "offset"), checked_count(limit, "limit")
        return self._from_one_end(limit, offset, newest=checked_flag(newest, "newest"))

    def _from_one_end(self, n: int, offset: int = 0, *, newest: bool = False) -> list[int]:
        """Search a narrow range of numbers at one end, then wider ranges.

        Without statistics PostgreSQL expects only a few rows in the buffer, and would sort all of
        them.
        """
        remembered = self.remembered
        if remembered is not None:
            ordered = remembered[:: -1 if newest else 1]
            found: list[int] = ordered[offset : offset + n].tolist()
            return found
        order = self._in_order(newest=newest)
        width = self.span if self.selective else 2 * (n + offset) + 64
        while True:
            low = max(self.low, self.high - width) if newest else self.low
            high = self.high if newest else min(self.high, self.low + width)
            near = self._matching & (self._seq > low) & (self._seq <= high)
            keys = select(self.table_of_steps.c.seq).where(near)
            seqs = self._scalars(keys.order_by(*order).limit(n).offset(offset))
            if len(seqs) == n or width >= self.span:
                return seqs
            width *= 8

    def first_of_tasks(self, seqs: Sequence[int]) -> dict[int, str]:
        """Return {seq: task_id} of the given seq that are the first matching row of their task.

        Raises:
            ArgumentError: They are not a list of integers.
        """
        held = [seq for seq in _checked_seqs(seqs) if self.low < seq <= self.high]
        listed = bindparam(None, held, SeqList(), unique=True)
        table, is_one = self.steps.at(literal(self.buffer_id, Integer()), listed)
        among = compile_condition(self.node, table) & is_one
        if self.limits:
            among = among & self._is_whole(table.c.task_id)
        statement = statements.first_rows_of_tasks(
            self.buffer_id, self.window_low, self.node, table, among, self.table_of_steps
        )
        return dict(self.connection.execute(statement).all())

    def tasks(self) -> list[str]:
        """Return every task with a matching row, ordered by their first ones; reads all keys."""
        if self.limits:
            return self._whole_tasks()
        steps = self.table_of_steps
        tasks = statements.matching_tasks(self.in_window, steps)
        statement = tasks.order_by(func.min(steps.c.seq))
        return list(self.connection.execute(statement).scalars())

    def random_tasks(self, n: int) -> list[str]:
        """Return up to n tasks with a matching row in uniform random order; reads all keys.

        Raises:
            ArgumentError: n is not an integer from 0 on.
        """
        n = checked_count(n, "n")
        if self.limits:
            return self._whole_tasks(n)
        tasks = statements.matching_tasks(self.in_window, self.table_of_steps)
        return list(self.connection.execute(tasks.order_by(func.random()).limit(n)).scalars())

    def _whole_tasks(self, n: int | None = None) -> list[str]:
        """Return the tasks with a matching row and without a row that the limits exclude.

        Return up to n at random, or all in order.
        """
        steps = self.table_of_steps
        matching = statements.in_window(self.buffer_id, self.window_low, self.node, steps)
        first = func.min(steps.c.seq).label("first_seq")
        task = statements.matching_tasks(matching, steps).add_columns(first).subquery("found").c
        order = task.first_seq if n is None else func.random()
        statement = select(task.task_id).where(self._is_whole(task.task_id))
        return list(self.connection.execute(statement.order_by(order).limit(n)).scalars())

    def _is_whole(self, task_id: Any) -> ColumnElement[bool]:
        """Return the expression that the limits exclude no row of a task."""
        rows: Any = self.table_of_steps.alias("of_task")
        ineligible = self.limits.is_ineligible(rows)
        return statements.has_no_row(self.buffer_id, self.window_low, task_id, rows, ineligible)

    def encoded(self, seqs: Sequence[int]) -> list[EncodedRow]:
        """Return rows as they are stored, in the given order, without those that do not match.

        `decode` of `sqlbuffer.codec.decoder` reads their payloads. A sampler that reads its rows
        itself returns no seq.

        Raises:
            ArgumentError: They are not a list of integers, or the draw reads arrays and not rows.

        Example:
            >>> from sqlbuffer import ReplayBuffer, Sampler
            >>> class Stored(Sampler):
            ...     reads_encoded = True
            ...     def choose(self, candidates, batch_size):
            ...         print([row.state for row in candidates.encoded([2, 1])])
            ...         return ()
            >>> buffer = ReplayBuffer("sqlite://")
            >>> buffer.extend({"state": [{"x": 1}, {"x": 2}]}).inserted
            2
            >>> buffer.sample(2, sampler=Stored())
            ['{"x":2}', '{"x":1}']
            RowList([])
        """
        if isinstance(self.reading, SliceReading):
            raise ArgumentError("encoded() reads rows: draw with sample(), not arrays")
        rows = self.rows(_checked_seqs(seqs))
        encoded = list(map(_encoded_row, map(_OF_ENCODED, rows)))
        if have_parts(rows):
            return [
                row._replace(arrays=memoryview(row.arrays or b"")) if is_in_parts(stored) else row
                for row, stored in zip(encoded, rows, strict=True)
            ]
        return encoded

    def rows(self, seqs: Sequence[int] | Select[Any]) -> list[tuple[Any, ...]]:
        """Return the columns of the chosen rows in the given order, without rows evicted since.

        :meta private:
        """
        chosen = self.numbers(seqs)
        if not chosen:
            return []
        hits = self.probe(chosen)
        rows = [self._payloads[seq] for seq in chosen if seq in hits]
        complete = None if isinstance(self.reading, SliceReading) else self.reading.complete
        return rows if complete is None else list(complete(self.connection, rows))

    def numbers(self, chosen: Sequence[int] | Select[Any]) -> list[int]:
        """Return the choice of a sampler as a list.

        :meta private:
        """
        if isinstance(chosen, Select):
            return self._scalars(chosen)
        return chosen.tolist() if isinstance(chosen, np.ndarray) else [int(seq) for seq in chosen]

    @property
    def n_hits(self) -> int:
        """Number of looked-up numbers that are matching rows."""
        return len(self._payloads)

    @property
    def n_probed(self) -> int:
        """Number of looked-up numbers."""
        return len(self._probed)

    def _scalars(self, statement: Select[Any]) -> list[int]:
        return list(self.connection.execute(statement).scalars())


def check_pick(rng: Any, n: Any, replace: Any) -> None:
    """Raise unless these are arguments of `Candidates.pick`.

    Raises:
        ArgumentError: They are not.
    """
    what = "a generator of random numbers, such as numpy.random.default_rng()"
    checked_instance(rng, "rng", np.random.Generator, what)
    checked_count(n, "n")
    checked_flag(replace, "replace")


def _checked_seqs(seqs: Any) -> Sequence[int]:
    if isinstance(seqs, range) and not seqs[MAX_SEQS:]:
        return seqs
    if isinstance(seqs, list) and set(map(type, seqs)) <= {int}:
        return seqs
    what = "a list of integers, the numbers of rows"
    if not isinstance(seqs, (Sequence, np.ndarray)):
        raise refused(seqs, "seqs", what)
    items = checked_items(seqs, "seqs", what, MAX_SEQS)
    return [checked_integer(seq, "each of seqs") for seq in items]


# A select of one column, `seq`.
SelectOfSeqs = Select[Any]
Arrays = Mapping[str, "NDArray[Any] | None"]


class RowStrategy(Protocol):
    """Chooses experiences; see `sqlbuffer.Sampler`."""

    reads_priorities: bool
    reads_encoded: bool

    def choose(self, candidates: Candidates, batch_size: int) -> Sequence[int] | SelectOfSeqs:
        """Return the numbers of a batch, or a select of them."""

    def columns(self, candidates: Candidates, seqs: Sequence[int]) -> Arrays:
        """Return arrays for a batch that are not read from its rows."""

    def finished(self, columns: Arrays, alpha: float) -> Arrays:
        """Return the arrays that change when the batch is complete."""

    def handed_out(self) -> None:
        """Note that a batch is returned."""


class TaskStrategy(Protocol):
    """Chooses tasks; see `sqlbuffer.TaskSampler`."""

    def choose_tasks(self, candidates: Candidates, batch_size: int) -> Sequence[str]:
        """Return the ids of distinct tasks."""
