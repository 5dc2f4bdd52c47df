"""Encode steps in the form in which a buffer stores them: as rows, or as chunks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.encoding.column_chunks import (
    PackedColumns,
    PackedStep,
    StepPacker,
    check_declared,
    columns_of_rows,
    pack_columns,
    pack_given,
    pack_steps,
)
from sqlbuffer.encoding.columns import GivenColumns, check_columns, encode_columns
from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart, StepEncoder
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.records import Record, encode_rows
from sqlbuffer.encoding.step_blocks import (
    GrowingBlock,
    StepBlock,
    checked_steps,
    pack_step_blocks,
)
from sqlbuffer.episode_writer import Encode
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import Casting
from sqlbuffer.steps import DataRow, NoStep
from sqlbuffer.storage.episodes import Beginnings, EpisodeKey
from sqlbuffer.storage.rows.payload_parts import check_row_sizes, prepared, row_limit
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.chunks import ChunkBatch
from sqlbuffer.storage.writing.rows import MADE_TIME, WriteBatch

# Steps in the form in which they are stored.
EncodedSteps = WriteBatch | ChunkBatch


class RowEncoding:
    """Encodes the steps of a buffer as rows.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._store, self._layout = store, store.layout
        self._limit = row_limit(store.info.config)

    def rows(
        self,
        rows: Sequence[DataRow],
        model_version: int | None,
        session: str | None,
        priority: Any,
        ignore: frozenset[str],
        *,
        makes_steps: bool,
    ) -> WriteBatch:
        """Encode rows; see `StepWriter.encoded_rows`."""
        records = encode_rows(rows, model_version, priority)
        check_declared(rows, self._layout)
        if session is not None:
            records = [
                record._replace(session_key=session) if record.session_key is None else record
                for record in records
            ]
        if any(row.exp_meta.execute_time is None for row in rows):
            ignore |= MADE_TIME
        unnumbered = frozenset(
            (record.episode_key, record.task_id)
            for record, row in zip(records, rows, strict=True)
            if record.episode_key is not None
            and (makes_steps or isinstance(row.exp_meta.step, NoStep))
        )
        return self._sized(WriteBatch(records, ignore, unnumbered=unnumbered))

    def columns(self, columns: Mapping[str, Any], casting: Casting) -> WriteBatch:
        """Encode steps given as columns."""
        records = encode_columns(columns, casting=casting)
        unnumbered = frozenset(
            (record.episode_key, record.task_id)
            for record in records
            if record.episode_key is not None and columns.get("step") is None
        )
        return self._sized(WriteBatch(records, MADE_TIME, unnumbered=unnumbered))

    def episode(
        self,
        columns: Mapping[str, Any],
        casting: Casting,
        key: str,
        ending: EpisodeEnd,
        beginnings: Beginnings,
        whole: EpisodeKey | None,
        ignore: frozenset[str],
    ) -> WriteBatch:
        """Encode a whole episode given as columns.

        Args:
            columns: Its steps.
            casting: See `ReplayBuffer.extend`.
            key: Its id.
            ending: Its end.
            beginnings: The beginning of the episode.
            whole: Id of the user's for an episode that is stored whole or not at all.
            ignore: Fields that make no conflict if they differ from the stored episode.
        """
        records = encode_columns(columns, casting=casting, episode=key)
        _check_has_steps(len(records))
        return self._sized(WriteBatch(records, MADE_TIME | ignore, [ending], beginnings, whole))

    def step_encoder(self, beginning: EpisodeStart, casting: Casting) -> Encode:
        """Return what checks and encodes the steps of an episode one by one."""
        encoder = StepEncoder(beginning, self._store.info.config.priorities.enabled)

        def encode(t: int, step: Mapping[str, Any]) -> Record:
            record = encoder.encode(t, step)
            check_row_sizes([record], self._limit, f"step {t}: ")
            return record

        return encode

    def waiting(
        self,
        steps: Sequence[Record],
        endings: Sequence[EpisodeEnd],
        beginnings: Beginnings,
    ) -> WriteBatch:
        """Return steps that were encoded one by one as a batch."""
        return self._prepared(WriteBatch(steps, MADE_TIME, endings, beginnings))

    def _sized(self, batch: WriteBatch) -> WriteBatch:
        """Check the sizes of rows, and compress them."""
        check_row_sizes(batch.records, self._limit)
        return self._prepared(batch)

    def _prepared(self, batch: WriteBatch) -> WriteBatch:
        return replace(batch, records=prepared(batch.records, self._layout))


class ChunkEncoding:
    """Encodes steps as chunks; with the methods of `RowEncoding`.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._store, self._layout = store, store.layout
        self._limit = row_limit(store.info.config)

    def rows(
        self,
        rows: Sequence[DataRow],
        model_version: int | None,
        session: str | None,
        priority: Any,
        ignore: frozenset[str],
        *,
        makes_steps: bool,
    ) -> ChunkBatch:
        """Encode rows; see `RowEncoding.rows`."""
        layout = self._layout.fixed
        columns = columns_of_rows(layout, rows, model_version, priority, makes_steps=makes_steps)
        stamped = _in_session(columns, session)
        packed = pack_given(layout, stamped, max_row_bytes=self._limit)
        return ChunkBatch(packed.chunks, packed.order)

    def columns(self, columns: Mapping[str, Any], casting: Casting) -> ChunkBatch:
        """Encode columns; see `RowEncoding.columns`."""
        packed = self._packed(columns, casting)
        return ChunkBatch(packed.chunks, packed.order)

    def episode(
        self,
        columns: Mapping[str, Any],
        casting: Casting,
        key: str,
        ending: EpisodeEnd,
        beginnings: Beginnings,
        whole: EpisodeKey | None,
        ignore: frozenset[str],
    ) -> ChunkBatch:
        """Encode an episode; see `RowEncoding.episode`."""
        packed = self._packed(columns, casting, key)
        _check_has_steps(len(packed.order))
        return ChunkBatch(packed.chunks, None, [ending], beginnings, whole, ignore)

    def step_encoder(self, beginning: EpisodeStart, casting: Casting) -> Encode:
        """Return the encoder; see `RowEncoding.step_encoder`."""
        has_priorities = self._store.info.config.priorities.enabled
        return StepPacker(self._layout, beginning, casting, has_priorities, self._limit).encode

    def waiting(
        self,
        steps: Sequence[PackedStep | StepBlock | GrowingBlock],
        endings: Sequence[EpisodeEnd],
        beginnings: Beginnings,
    ) -> ChunkBatch:
        """Return a batch of steps; see `RowEncoding.waiting`."""
        steps = [step.steps() if isinstance(step, GrowingBlock) else step for step in steps]
        singles = [step for step in steps if isinstance(step, PackedStep)]
        blocks = [step for step in steps if isinstance(step, StepBlock)]
        packed = pack_steps(self._layout, singles)
        if not blocks:
            return ChunkBatch(packed.chunks, packed.order, endings, beginnings)
        groups = [packed.chunks] if packed.chunks else []
        groups += pack_step_blocks(self._layout, blocks)
        chunks = groups[0] if len(groups) == 1 else ChunkColumns.of([*chain(*groups)])
        return ChunkBatch(chunks, None, endings, beginnings)

    def block(
        self, columns: Mapping[str, Any], casting: Casting, copy: bool
    ) -> tuple[GivenColumns, Layout]:
        """Return the checked columns of a block of steps, copied or not, and their layout.

        Raises:
            FieldError: As `pack_columns`.
        """
        layout = self._layout.fixed
        checked = check_columns(layout, columns, casting)
        return checked_steps(layout, checked, self._limit, copy=copy), layout

    def _packed(
        self, columns: Mapping[str, Any], casting: Casting, episode: str | None = None
    ) -> PackedColumns:
        return pack_columns(
            self._layout, columns, casting=casting, episode=episode, max_row_bytes=self._limit
        )


StepEncoding = RowEncoding | ChunkEncoding


def encoding_of(store: BufferStore) -> StepEncoding:
    """Return the encoding of the steps of a buffer."""
    return ChunkEncoding(store) if store.info.has_chunks else RowEncoding(store)


def _check_has_steps(n_steps: int) -> None:
    if not n_steps:
        raise FieldError("an episode has at least one step")


def _in_session(columns: GivenColumns, session: str | None) -> GivenColumns:
    """Return columns; steps without a session get this one."""
    sessions = columns.session_id
    if isinstance(sessions, list):
        return replace(columns, session_id=[session if one is None else one for one in sessions])
    return replace(columns, session_id=session if sessions is None else sessions)
