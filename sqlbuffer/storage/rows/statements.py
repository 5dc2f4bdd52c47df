"""Selects over one buffer, the same for both databases, and the columns that they read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    literal,
    null,
    select,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.codec.plain_values import INT64_MAX, INT64_MIN
from sqlbuffer.encoding.records import Record
from sqlbuffer.query.tree import EVERYTHING, Group, Leaf, Node
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.tables import experiences, sessions
from sqlbuffer.storage.buffers.window import windows
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility import (
    NO_LIMITS,
    Eligibility,
    EligibilityKind,
    hold_by_parameters,
)
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.messages import whole_column
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout, layout_of, steps_of
from sqlbuffer.storage.schema.expressions import KeyList, SeqList, is_one_of, one_of_keys, unindexed
from sqlbuffer.storage.schema.number_keys import has_number

P = ParamSpec("P")
T = TypeVar("T")

# A checked condition, or numbers of rows.
Rows = Node | Sequence[int]


def remembered(make: Callable[P, T]) -> Callable[P, T]:
    """Return a function that calls `make`, and keeps its last 64 results.

    It keeps no statement of a condition, in its arguments or in their `node`: a condition on 1
    equals one on True, and would get its statement.
    """
    kept: Any = lru_cache(maxsize=64)(make)

    def statement(*args: P.args, **kwargs: P.kwargs) -> T:
        nodes = [getattr(value, name, value) for value in args for name in ("node", "every")]
        has_condition = any(isinstance(n, (Group, Leaf)) and n != EVERYTHING for n in nodes)
        result: T = (make if has_condition else kept)(*args, **kwargs)
        return result

    return statement


_FEW = ("id", "seq", "task_id")
_JSON_COLUMNS = {*PAYLOADS, "fields"}
_OF_EPISODES = {"episode_key": "key", "group_key": "group_id", "parent_key": "parent_id"}


def _column(name: str, steps: Any) -> ColumnElement[Any]:
    step = steps.c
    if name in _OF_EPISODES:
        fact = episodes.c[_OF_EPISODES[name]]
        return select(fact).where(episodes.c.id == step.episode_id).scalar_subquery()
    if name == "session_key":
        return select(sessions.c.key).where(sessions.c.id == step.session_id).scalar_subquery()
    if name not in step:  # bytes of steps in chunks
        return null()
    if name == "messages":
        return cast(whole_column(steps), Text)
    stored: ColumnElement[Any] = step[name]
    # As text, with any JSON loader of the driver.
    return cast(stored, Text) if name in _JSON_COLUMNS else stored


def row_columns(steps: Any) -> tuple[ColumnElement[Any], ...]:
    """Return `seq` and the columns of a `Record`, of a table of steps."""
    return steps.c.seq, *(_column(name, steps).label(name) for name in Record._fields)


ROW_COLUMNS = row_columns(experiences)


def seq_for(node: Node, steps: Any) -> ColumnElement[int]:
    """Return `seq` for bounds: unindexed if the condition names ids, numbers or tasks.

    Without statistics neither planner knows how few rows a task has, and both would rather walk the
    primary key.
    """
    seq: ColumnElement[int] = steps.c.seq
    return unindexed(seq) if names_few_rows(node) else seq


def in_order(node: Node, steps: Any, *, newest: bool = False) -> list[ColumnElement[Any]]:
    """Return what steps are ordered by for the order of their numbers; see `seq_for`.

    Chunks are read in their order, instead of sorting all steps.
    """
    seq = seq_for(node, steps)
    is_of_chunks = seq is steps.c.seq and "first_seq" in steps.c
    columns = [steps.c.first_seq, seq] if is_of_chunks else [seq]
    return [column.desc() for column in columns] if newest else columns


def names_few_rows(node: Node) -> bool:
    """Return True if a condition is limited to given ids, numbers or tasks."""
    if isinstance(node, Group):
        return node.kind == "all" and any(map(names_few_rows, node.parts))
    return node.op in ("eq", "in") and not node.negated and node.field.column in _FEW


def named(node: Node) -> tuple[str, list[Any]] | None:
    """Return `id` or `seq` and its values, if a condition only names rows by them."""
    if not isinstance(node, Leaf) or node.negated or node.op not in ("eq", "in"):
        return None
    column = node.field.column
    kind = {"id": str, "seq": int}.get(column)
    values = [node.value] if node.op == "eq" else list(node.value)
    if kind is None or not all(type(value) is kind for value in values):
        return None
    fits = column == "id" or all(INT64_MIN <= value <= INT64_MAX for value in values)
    return (column, values) if fits else None


# Statements over rows that are named are made once: to make one takes longer than to run it.
# Numbers say which buffer: with another condition on it, SQLite would read the whole buffer.
_NAMED = {
    "id": (experiences.c.buffer_id == bindparam("of_buffer", type_=Integer()))
    & is_one_of(experiences.c.id, bindparam("named", type_=KeyList())),
    "seq": has_number(
        experiences.c.seq,
        bindparam("of_buffer", type_=Integer()),
        bindparam("named", type_=SeqList()),
    ),
}


def of_named(name: str, *columns: Any) -> Select[Any]:
    """Return the select of rows that are named by `id` or by `seq`, with the parameters
    `of_buffer`, `named`, `low` and `high`; rows above one number and up to the other are found.
    """
    seq = unindexed(experiences.c.seq)
    above = seq > bindparam("low", type_=BigInteger())
    up_to = seq <= bindparam("high", type_=BigInteger())
    rows = select(*columns).select_from(experiences)
    return rows.where(_NAMED[name], above, up_to)


def count_named(name: str) -> Select[Any]:
    """Return the select of how many rows of the window are named by `id` or by `seq`, with the
    parameters `of_buffer` and `named`; no row if there is no such buffer.
    """
    of_buffer = windows.c.buffer_id == bindparam("of_buffer", type_=Integer())
    above = unindexed(experiences.c.seq) > windows.c.low_seq
    n_rows = select(func.count()).select_from(experiences).where(_NAMED[name], above)
    return select(n_rows.correlate(windows).scalar_subquery()).select_from(windows).where(of_buffer)


def matching(buffer_id: int, node: Node, steps: Any) -> ColumnElement[bool]:
    """Return the expression for matching steps of a buffer, in the window or not."""
    return and_(steps.c.buffer_id == buffer_id, compile_condition(node, steps))


def in_window(buffer_id: int, low: int, node: Node, steps: Any) -> ColumnElement[bool]:
    """Return the expression for steps of a buffer above `low` that match."""
    return and_(matching(buffer_id, node, steps), seq_for(node, steps) > low)


def matching_steps(info: BufferInfo, low: int, rows: Rows) -> tuple[Any, ColumnElement[bool]]:
    """Return a table of steps, and the condition for rows of a buffer above `low`."""
    if isinstance(rows, (Leaf, Group)):
        steps = steps_of(info)
        return steps, in_window(info.id, low, resolve_labels(rows, True), steps)
    seqs = bindparam(None, rows, SeqList(), unique=True)
    steps, is_one = layout_of(info).at(literal(info.id, Integer()), seqs)
    # PostgreSQL would read all rows above an indexed bound, and search for each in the list.
    return steps, is_one & (unindexed(steps.c.seq) > low)


def of_tasks(buffer_id: int, low: int, task_ids: Sequence[str], steps: Any) -> ColumnElement[bool]:
    """Return the expression for steps of a buffer above `low` that belong to one of the tasks."""
    return and_(
        steps.c.buffer_id == buffer_id,
        one_of_keys(steps.c.task_id, task_ids),
        unindexed(steps.c.seq) > low,
    )


def runs(where: ColumnElement[bool], steps: Any) -> Select[Any]:
    """Select the first and last key of each run of consecutive keys, in order."""
    seq = steps.c.seq
    before_run = (seq - func.row_number().over(order_by=seq)).label("before_run")
    run = select(seq, before_run).where(where).subquery("found").c
    first = func.min(run.seq)
    return select(first, func.max(run.seq)).group_by(run.before_run).order_by(first)


def first_rows_of_tasks(
    buffer_id: int, low: int, node: Node, rows: Any, among: ColumnElement[bool], steps: Any
) -> Select[Any]:
    """Select (seq, task_id) of the given rows that are the first matching row of their task.

    Args:
        buffer_id: The buffer.
        low: Lower end of the window.
        node: The condition.
        rows: Table of the given rows.
        among: Condition for a row of that table.
        steps: Table of all steps.
    """
    earlier: Any = steps.alias("earlier")
    is_first = ~(
        select(1)
        .where(
            matching(buffer_id, node, earlier),
            earlier.c.task_id == rows.c.task_id,
            unindexed(earlier.c.seq) > low,
            unindexed(earlier.c.seq) < rows.c.seq,
        )
        # Without the offset PostgreSQL would make an anti-join over all rows of the buffer.
        .offset(0)
        .exists()
    )
    return select(rows.c.seq, rows.c.task_id).where(among, is_first)


def has_no_row(
    buffer_id: int, low: int, task_id: Any, rows: Any, which: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition that a task has no such row above `low`.

    Args:
        buffer_id: The buffer.
        low: Lower end of the window.
        task_id: The column with the task.
        rows: An alias of the table of steps.
        which: Condition on the alias.
    """
    row = rows.c
    match = select(1).where(
        row.buffer_id == buffer_id, row.task_id == task_id, unindexed(row.seq) > low, which
    )
    return ~match.offset(0).exists()


def matching_tasks(where: ColumnElement[bool], steps: Any) -> Select[Any]:
    """Select each task with a matching step, once."""
    return select(steps.c.task_id).where(where).group_by(steps.c.task_id)


# Returns the condition for a step of a table of steps to be a key of a form.
IsKey = Callable[[Any], ColumnElement[bool]]

BUFFER_ID, SEQS, LOW = "buffer_id", "seqs", "low"


@dataclass(frozen=True)
class RowSelection:
    """Columns that are read of each candidate.

    Attributes:
        columns: The columns of its row, `seq` first.
        with_late: Function that puts values that were given late into rows that were selected:
            `with_late(connection, rows)`. What `read` returns has them.
        complete: Function that adds the bytes in other tables to the chosen rows.
        read: Function that reads steps of chunks by their numbers, in place of `columns`:
            `read(connection, seqs, has_labels, has_deleted)`.
    """

    columns: Sequence[Any]
    with_late: Callable[[Connection, list[Any]], list[Any]]
    complete: Callable[[Connection, Sequence[Any]], Sequence[Any]] | None = None
    read: Callable[[Connection, Sequence[int], bool, bool], list[Any]] | None = None

    def statement(self, node: Node, limits: Eligibility = NO_LIMITS) -> Any:
        """Return the select of rows by the parameters `seqs` and `buffer_id`.

        The limits' own parameters must be given too.

        Args:
            node: The condition.
            limits: Limits that rows must meet.
        """
        return self._built(node, limits.kind)

    def by_number(
        self,
        connection: Connection,
        buffer_id: int,
        seqs: Sequence[int],
        *,
        has_labels: bool,
        has_deleted: bool,
    ) -> list[Any]:
        """Return the rows, or the steps of chunks, that have some numbers and are there.

        Args:
            connection: The transaction.
            buffer_id: The buffer.
            seqs: The numbers.
            has_labels: Read values that were given late.
            has_deleted: Steps of chunks may have been deleted.
        """
        if self.read is not None:
            return self.read(connection, seqs, has_labels, has_deleted)
        rows = fetch(connection, self.statement(EVERYTHING), {BUFFER_ID: buffer_id, SEQS: seqs})
        return self.with_late(connection, rows) if has_labels else rows

    @cached_property
    def _built(self) -> Callable[[Node, EligibilityKind], Any]:
        return remembered(self._build)

    def _build(self, node: Node, kind: EligibilityKind) -> Any:
        return select(*self.columns).where(*_among(node, kind, *ROWS.at(_BUFFER_ID, _SEQS)))


@remembered
def matching_numbers(
    node: Node, kind: EligibilityKind, is_key: IsKey | None, steps: StepLayout
) -> Any:
    """Return the select of `seq` of those steps among the parameter `seqs` that match.

    The parameters are those of `RowSelection.statement`.

    Args:
        node: The condition.
        kind: Which limits steps must meet.
        is_key: Makes a further condition.
        steps: How the steps are stored.
    """
    table, is_one = steps.at(_BUFFER_ID, _SEQS)
    wanted = _among(node, kind, table, is_one)
    if is_key is not None:
        wanted.append(is_key(table))
    return select(table.c.seq).where(*wanted)


_BUFFER_ID = bindparam(BUFFER_ID, type_=Integer())
_SEQS = bindparam(SEQS, type_=SeqList())


def _among(node: Node, kind: EligibilityKind, table: Any, is_one: Any) -> list[Any]:
    held = hold_by_parameters(kind, table, _BUFFER_ID, _SEQS)
    return [compile_condition(node, table), is_one, *held]
