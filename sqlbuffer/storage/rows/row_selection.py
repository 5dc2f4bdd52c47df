"""Columns that are read of a key: its own row, and in the same statement the steps near it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    case,
    cast,
    column,
    literal,
    null,
    select,
    table,
    union_all,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.batch_steps import batch_steps_at
from sqlbuffer.storage.chunks.nearby_chunk_steps import chunk_steps_near
from sqlbuffer.storage.chunks.sliced_steps import SLICE_COLUMNS, sliced_steps_at
from sqlbuffer.storage.chunks.step_relations import steps_at
from sqlbuffer.storage.chunks.step_statements import IS_OVER_CHUNKS, over, over_chunks
from sqlbuffer.storage.eligibility.eligible_rows import (
    NO_KIND,
    NO_LIMITS,
    Eligibility,
    EligibilityKind,
    hold_by_parameters,
    is_ineligible_step,
)
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.labels import late_values
from sqlbuffer.storage.labels.label_joins import labelled_steps
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.nearby_steps import limited_steps_near, steps_near
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import seqs_of
from sqlbuffer.storage.schema.number_keys import has_number
from sqlbuffer.storage.schema.planner import unindexed

BUFFER_ID, SEQS, LOW = "buffer_id", "seqs", "low"

# Its name differs from the one with which conditions look up episodes.
ends = episodes.alias("ends")
_own = experiences.c
_has_place = _own.episode_id.is_not(None) & _own.t.is_not(None)

# Columns that are read of a step: `statements.COLUMNS`, and its place. A step without an episode is
# alone in an episode with a number that no episode has.
SEQ, _, _, _, REWARD, TERMINATED, TRUNCATED, EXTRA, ARRAYS = range(len(statements.COLUMNS))
PLACE, T, KEY, LENGTH, FINAL, STATUS, RETURN = range(ARRAYS + 1, ARRAYS + 8)
# The column after those of a selection: the part of the statement that a row is from.
OWN, NEAR, PICK = range(3)
# Rows of `sliced` lack the columns from REWARD to ARRAYS.
SLICED_PLACE = REWARD
# A neighbour has in this column if the limits exclude it, or null.
IS_INELIGIBLE = 3


_PICKS = table("picks", column("key", BigInteger()))


def place_columns(final: ColumnElement[Any] | None = None) -> tuple[Any, ...]:
    """Return the columns for the place of a step, and for the end of its episode.

    Args:
        final: Condition for reading the final observation; by default it is never read.
    """
    ended = case((ends.c.status != "open", ends.c.length))
    # While the episode is open, the column holds the sum of changes by annotations.
    return_ = case((ends.c.status != "open", ends.c["return"]))
    return (
        case((_has_place, _own.episode_id), else_=-_own.seq).label("place"),
        case((_has_place, _own.t), else_=0).label("t"),
        ends.c.key.label("episode"),
        ended.label("length"),
        (null() if final is None else case((final, ends.c.final_arrays))).label("final_arrays"),
        ends.c.status.label("status"),
        return_.label("return"),
    )


def is_near_end(n_steps: int) -> ColumnElement[bool]:
    """Return the condition that the episode ends within n steps."""
    return _own.t + n_steps >= ends.c.length


@dataclass(frozen=True)
class Neighbours:
    """Steps to read together with a key.

    Attributes:
        first: Offset of the first step from the key; negative for steps before it.
        last: Offset of the last step from the key.
        arrays: Function that returns the condition for reading a step's arrays, given a table with
            its columns and the key's `anchor_t` and `length`; None to read them always.
    """

    first: int
    last: int
    arrays: Callable[[Any], ColumnElement[bool]] | None = None


@dataclass(frozen=True)
class RowSelection:
    """Columns and neighbours that are read of each candidate.

    Attributes:
        columns: The columns of its own row, `seq` first.
        has_places: The columns are `statements.COLUMNS` and `place_columns`, and one more for the
            part of the statement that a row is from.
        near: Steps to read together with a key; needs `has_places`.
        is_key: Further condition for a row to be a key.
        is_readable: Condition on `ends` for a row to be read, which is checked after reading.
        complete: Function that adds the bytes in other tables to the chosen rows.
        has_blocks: The columns begin with `statements.COLUMNS`, whose arrays are typed fields.
    """

    columns: Sequence[Any]
    has_places: bool = False
    near: Neighbours | None = None
    is_key: ColumnElement[bool] | None = None
    is_readable: ColumnElement[bool] | None = None
    complete: Callable[[Connection, Sequence[Any]], Sequence[Any]] | None = None
    has_blocks: bool = False

    def statement(
        self,
        node: Node,
        limits: Eligibility = NO_LIMITS,
        *,
        has_labels: bool = False,
        has_chunks: bool = False,
    ) -> Any:
        """Return the select of the parameters `seqs`, for a buffer above `low`.

        The limits' own parameters must be given too.

        Args:
            node: The condition.
            limits: Limits that rows must meet.
            has_labels: Read values that were given late.
            has_chunks: Read steps of chunks. Wanted arrays are then the block of bytes that has
                them, and one more column at the end has the place in the block.
        """
        return self._built(node, limits.kind, has_labels, has_chunks)

    @cached_property
    def _built(self) -> Callable[[Node, EligibilityKind, bool, bool], Any]:
        return remembered(self._build)

    def _build(self, node: Node, kind: EligibilityKind, has_labels: bool, has_chunks: bool) -> Any:
        seqs = bindparam(SEQS, type_=SeqList())
        parts = self._parts(node, seqs, kind, has_labels, has_chunks)
        return parts[0] if len(parts) == 1 else union_all(*parts)

    @cached_property
    def alone(self) -> "RowSelection":
        """The same selection without the steps near to a key."""
        return replace(self, near=None)

    @cached_property
    def sliced(self) -> Any:
        """The select of the parameters `seqs`, without conditions, with slices of their chunks.

        The slices have the steps near to the keys, and the values of the keys' own steps: the
        columns from `REWARD` to `ARRAYS` are left out. `SLICE_COLUMNS` follow the column of the
        part.
        """
        return self._sliced(bindparam(SEQS, type_=SeqList()))

    def _sliced(self, seqs: Any) -> Any:
        near = self.near or Neighbours(0, 0)
        steps = sliced_steps_at(_buffer_id(), seqs, min(near.first, 0), max(near.last, 0))
        (own,) = self.alone._parts(EVERYTHING, seqs, NO_KIND, False, False)
        columns = list(own.selected_columns)
        slice_columns = (steps.c[name] for name in SLICE_COLUMNS)
        read = (*columns[:SLICED_PLACE], *columns[PLACE:], *slice_columns)
        return over(own.with_only_columns(*read), steps)

    def is_plain(self, node: Node, limits: Eligibility, has_labels: bool) -> bool:
        """Return True if `batch_statement` can read the steps: single ones, without conditions."""
        is_batch = self.has_blocks and not self.has_places
        return is_batch and node == EVERYTHING and not limits and not has_labels

    def picked(
        self,
        node: Node,
        picks: Any,
        limits: Eligibility = NO_LIMITS,
        *,
        has_labels: bool = False,
        has_chunks: bool = False,
    ) -> Any:
        """Return the select of keys that are picked in the same statement.

        Args:
            node: The condition.
            limits: Limits that rows must meet.
            picks: Select of (key, rank, n). Its rows are returned too, with the rank as the number
                of the episode and n as the step.
            has_labels: Read values that were given late.
            has_chunks: See `statement`.
        """
        parts = self._parts_of_picks(node, limits.kind, has_labels, has_chunks)
        return _with_picks(picks, parts, PLACE, len(self.columns), has_chunks)

    def picked_slices(self, picks: Any) -> Any:
        """Return the select of `picked`, with the columns of `sliced`."""
        parts = [self._sliced(_picked_seqs())]
        return _with_picks(picks, parts, SLICED_PLACE, self.sliced_part, True)

    @property
    def sliced_part(self) -> int:
        """Index of the column of the part in rows of `sliced`."""
        return len(self.columns) - (PLACE - SLICED_PLACE)

    @cached_property
    def _parts_of_picks(self) -> Callable[[Node, EligibilityKind, bool, bool], Any]:
        seqs = _picked_seqs()

        def parts(node: Node, kind: EligibilityKind, has_labels: bool, has_chunks: bool) -> Any:
            return self._parts(node, seqs, kind, has_labels, has_chunks)

        return remembered(parts)

    def _parts(
        self, node: Node, seqs: Any, kind: EligibilityKind, has_labels: bool, has_chunks: bool
    ) -> list[Any]:
        wanted = compile_condition(node) & has_number(_own.seq, _buffer_id(), seqs)
        for held in hold_by_parameters(kind, _buffer_id(), seqs):
            wanted = wanted & held
        if self.is_key is not None:
            wanted = wanted & self.is_key
        columns = late_values.with_late(self.columns) if has_labels else self.columns
        rows: Any = experiences
        if self.has_places:
            columns = (*columns, literal(OWN).label("part"))
            rows = experiences.outerjoin(ends, ends.c.id == _own.episode_id)
        if has_labels:
            rows = late_values.joined(rows)
        own: Any = select(*columns).select_from(rows).where(wanted)
        if self.is_readable is not None:
            own = own.where(self.is_readable)
        if has_chunks:
            own = self._over_chunks(own, seqs)
        if self.near is None:
            return [own]
        return [
            own,
            _near(self.near, wanted, seqs, len(self.columns), kind, has_labels, has_chunks),
        ]

    def _over_chunks(self, own: Any, seqs: Any) -> Any:
        """Return the select of rows over the steps of chunks with these numbers."""
        steps = steps_at(_buffer_id(), seqs)
        if not self.has_blocks:
            return over(own, steps)
        columns = [steps.c.block if i == ARRAYS else c for i, c in enumerate(own.selected_columns)]
        return over(own.with_only_columns(*columns, steps.c.block_place), steps)


@remembered
def batch_statement() -> Any:
    """Return the select of the parameters `seqs` from the bytes of chunks; see `as_rows`."""
    return select(batch_steps_at(_buffer_id(), bindparam(SEQS, type_=SeqList())))


def _near(
    near: Neighbours,
    wanted: ColumnElement[bool],
    seqs: Any,
    n_columns: int,
    kind: EligibilityKind,
    has_labels: bool,
    has_chunks: bool,
) -> Any:
    kind = kind.of_steps
    length: Any = null()
    if near.arrays is not None:
        length = select(episodes.c.length).where(episodes.c.id == _own.episode_id).scalar_subquery()
    anchors: Any = select(_own.episode_id, _own.t, length.label("length")).where(wanted)
    if has_chunks:
        anchors = over(anchors, steps_at(_buffer_id(), seqs))
        near_steps: Any = chunk_steps_near
    else:
        near_steps = steps_near if kind == NO_KIND else limited_steps_near
    names = ("anchor_t", "length", *near_steps.COLUMNS)
    steps: Any = near_steps(
        _buffer_id(), anchors.correlate(None).scalar_subquery(), near.first, near.last
    )
    if has_labels:
        steps = labelled_steps(_buffer_id(), steps)
    found = steps.table_valued(*(column(name, _type(name)) for name in names)).c
    arrays = found.arrays if near.arrays is None else case((near.arrays(found), found.arrays))
    ineligible: Any = null()
    if kind != NO_KIND:
        is_ineligible = is_ineligible_step(kind, _buffer_id(), found)
        ineligible = case((is_ineligible, literal(1, BigInteger())))
    places = [found.block_place] if has_chunks else []
    return select(
        found.seq, null(), null(), ineligible, found.reward_t, found.terminated, found.truncated,
        cast(found.extra, Text), arrays, found.episode_id, found.t, *[null()] * (n_columns - T - 1),
        literal(NEAR), *places,
    ).where(unindexed(found.seq) > bindparam(LOW, type_=_own.seq.type))  # fmt: skip


def _with_picks(picks: Any, parts: Sequence[Any], place: int, part: int, has_chunks: bool) -> Any:
    """Return the rows of some parts and the picks; see `RowSelection.picked`.

    Args:
        picks: Select of (key, rank, n).
        parts: The selects of the rows.
        place: Index of their column of the place.
        part: Index of their column of the part.
        has_chunks: See `RowSelection.statement`.
    """
    found = (over_chunks(picks) if has_chunks else picks).cte("picks")
    columns: list[Any] = [null()] * len(parts[0].selected_columns)
    columns[SEQ], columns[place : place + 2] = found.c.key, (found.c.rank, found.c.n)
    columns[part] = literal(PICK)
    whole = union_all(*parts, select(*columns))
    return whole.execution_options(**{IS_OVER_CHUNKS: True}) if has_chunks else whole


def _picked_seqs() -> Any:
    # By its name, and not the CTE itself: then the parts are made only once.
    return seqs_of(select(_PICKS.c.key).correlate(None).scalar_subquery())


def _buffer_id() -> Any:
    return bindparam(BUFFER_ID, type_=Integer())


def _type(name: str) -> Any:
    return _own[name].type if name in _own else Integer()
