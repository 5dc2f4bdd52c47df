"""Export a buffer to Parquet."""

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import checked_buffer
from sqlbuffer.checks import checked_choice, checked_flag, checked_path
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.interchange.output import ExportReport, OutputFolder, steps_card
from sqlbuffer.interchange.parquet.arrow import (
    FORMAT_VERSION,
    StepSchema,
    concatenated,
    episode_schema,
    episode_tables,
    load_pyarrow,
    step_table,
)
from sqlbuffer.interchange.streams import BufferStream, chosen_columns
from sqlbuffer.steps import ColumnBatch
from sqlbuffer.storage.scratch_lists import ScratchLists

if TYPE_CHECKING:
    from sqlbuffer.buffer import ReplayBuffer

# The steps of each episode are put together within blocks of this many bytes in memory.
GROUP_BYTES = 8 * 2**20


class RowGroups:
    """Makes row groups of batches that are given in the order of `seq`.

    A row group has steps of one range of numbers. In it, the steps of each episode follow each
    other, in the order of the first of each. It ends where no episode continues, unless one is
    larger than a row group, or episodes overlap all the time.
    """

    def __init__(self) -> None:
        self._tables: list[Any] = []
        self._codes: list[NDArray[np.int64]] = []
        self._n_bytes = 0
        self._known: dict[tuple[str, str], int] = {}
        self._next = 0

    def add(self, batch: ColumnBatch, table: Any) -> Any | None:
        """Add a batch; return a row group, or None where it is not large enough yet."""
        self._tables.append(table)
        self._codes.append(self._codes_of(batch))
        self._n_bytes += table.nbytes
        return self._cut(is_last=False) if self._n_bytes >= GROUP_BYTES else None

    def rest(self) -> Any | None:
        """Return the last row group; None if nothing is left."""
        return self._cut(is_last=True) if self._tables else None

    def _codes_of(self, batch: ColumnBatch) -> NDArray[np.int64]:
        """Return a number for each step that is the same for steps of an episode, and ascends with
        the first steps of episodes.
        """
        shared = batch.shared
        of_run = np.empty(len(shared["task_id"]), np.int64)
        for run, key in enumerate(zip(shared["episode_id"], shared["task_id"], strict=True)):
            code = None if key[0] is None else self._known.get(key)
            if code is None:
                code, self._next = self._next, self._next + 1
                if key[0] is not None:
                    self._known[key] = code
            of_run[run] = code
        return of_run[batch.run_of]

    def _cut(self, *, is_last: bool) -> Any:
        table, codes = concatenated(self._tables), np.concatenate(self._codes)
        n = len(codes)
        stop = n if is_last else _end_of_episodes(codes)
        group_codes = codes[:stop]
        group = table.slice(0, stop)
        if (np.diff(group_codes) < 0).any():
            group = group.take(np.argsort(group_codes, kind="stable"))
        self._tables, self._codes, self._n_bytes = [], [], 0
        if stop < n:
            # A slice would keep all of the table in memory.
            rest = table.take(np.arange(stop, n))
            self._tables, self._codes = [rest], [codes[stop:]]
            self._n_bytes = rest.nbytes
        kept = set(codes[stop:].tolist())
        self._known = {key: code for key, code in self._known.items() if code in kept}
        return group


def _end_of_episodes(codes: NDArray[np.int64]) -> int:
    """Return a number of steps to take that cuts no episode, or all if that is less than half of
    them.

    The episode of the last step may continue, so it waits.
    """
    n = len(codes)
    distinct, index = np.unique(codes, return_inverse=True)
    last = np.empty(len(distinct), np.int64)
    last[index] = np.arange(n)
    ends = np.flatnonzero(np.maximum.accumulate(last[index]) == np.arange(n))
    before = ends[ends < n - 1]
    return int(before[-1]) + 1 if len(before) and before[-1] + 1 >= n // 2 else n


COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
FILE_BYTES = 128 * 10**6
# Most items of lists in a row group. Parquet takes 8 bytes for an item while it writes it, also for
# a pixel.
GROUP_ITEMS = 4 * 2**20


def export_parquet(
    buffer: "ReplayBuffer",
    path: "str | os.PathLike[str]",
    condition: Any = None,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
    compression: str = "zstd",
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write the steps and episodes of a buffer to a folder of Parquet files.

    The folder has `steps-00000.parquet` and so on, `episodes.parquet`, a README for
    `datasets.load_dataset`, and a manifest with the sizes and checksums of the files. The steps are
    those that the buffer holds now; writers can continue. The folder appears when it is complete.

    Args:
        buffer: The buffer.
        path: The folder to make.
        condition: Condition that steps must match; all by default.
        columns: Built-in columns and typed fields to write. The default is all; `import_parquet`
            can restore the buffer only from all of them.
        overwrite: Replace an existing export.
        compression: Compression of the files: `zstd`, `snappy`, `gzip`, `lz4`, `brotli` or `none`.
        on_progress: Function that is called after each batch with the number of steps exported so
            far, the last `seq` read, and the range of `seq` to read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A column is unknown.
        MissingExtraError: pyarrow is not installed.
        StorageBusyError: A transaction that writes to the buffer does not end.

    Example:
        >>> import tempfile
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": ("float32", (2,))})
        >>> buffer.extend({"obs": [[1.0, 2.0], [3.0, 4.0]]}, task_id="t").inserted
        2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_parquet(buffer, f"{folder}/out").n_steps
        2
    """
    began_at = time.monotonic()
    target = checked_path(path, "path", "the path of a folder to make")
    compression = checked_choice(compression, "compression", COMPRESSIONS)
    overwrite = checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    config = checked_buffer(buffer).config
    load_pyarrow()
    built_in, fields = chosen_columns(tuple(config.fields.specs), columns)
    schema = StepSchema.of(built_in, {name: config.fields.specs[name] for name in fields})
    unopened = BufferStream(buffer, condition, fields=fields)
    folder = OutputFolder(target, overwrite=overwrite)
    with unopened as stream:
        metadata = {
            "format": FORMAT_VERSION,
            "export_id": str(uuid4()),
            "buffer": buffer.name,
            "uuid": stream.identity().uuid,
            "condition": stream.identity().condition,
            "is_whole": columns is None,
            "low_seq": stream.low,
            "high_seq": stream.high,
            "built_in": schema.built_in,
            "config": config.model_dump(mode="json"),
            "state": stream.state.columns,
            "session": stream.state.session,
            "sessions": stream.state.sessions,
        }
        with folder:
            export = _Export(stream, schema, metadata, folder.work, compression, on_progress)
            export.run()
            n_files, n_bytes = folder.finish(
                steps_card(buffer.name, folder.path.name, schema.specs),
                {
                    "export_id": metadata["export_id"],
                    "steps": export.n_steps,
                    "episodes": export.n_episodes,
                },
            )
    return ExportReport(
        f"{buffer.name!r} in {buffer.url}", str(path), stream.low, stream.high, export.n_steps,
        export.n_episodes, n_files, n_bytes, time.monotonic() - began_at,
    )  # fmt: skip


class _Export:
    """Writes the files of one export."""

    def __init__(
        self,
        stream: BufferStream,
        schema: StepSchema,
        metadata: dict[str, Any],
        folder: Path,
        compression: str,
        on_progress: OnProgress | None,
    ) -> None:
        self._stream, self._schema, self._metadata = stream, schema, metadata
        self._folder, self._compression, self._on_progress = folder, compression, on_progress
        # The episodes of the steps that match.
        self._seen = ScratchLists(0) if stream.is_filtered else None
        self._n_steps_files = 0
        self.n_steps = self.n_episodes = 0

    def run(self) -> None:
        """Write them all."""
        # Episodes leave with their steps at times; with a condition the steps say which are wanted.
        if self._seen is None:
            self._write_episodes()
            self._write_steps()
            return
        with self._seen:
            self._write_steps()
            self._write_episodes()

    def _write_steps(self) -> None:
        arrow = self._schema.arrow(self._metadata)
        stream, groups = self._stream, RowGroups()
        file: _StepsFile | None = None
        try:
            for batch, end in stream.batches():
                if len(batch):
                    if self._seen is not None:
                        _note_episodes(self._seen, batch)
                    group = groups.add(batch, step_table(batch, self._schema, arrow))
                    if group is not None:
                        file = self._write_group(file, arrow, group)
                    self.n_steps += len(batch)
                if self._on_progress is not None:
                    self._on_progress(self.n_steps, end, range(stream.low, stream.high))
            group = groups.rest()
            if group is not None or not self._n_steps_files:
                file = self._write_group(file, arrow, group)
        finally:
            if file is not None:
                file.close()

    def _write_group(self, file: "_StepsFile | None", arrow: Any, group: Any) -> "_StepsFile":
        if file is not None and file.size >= FILE_BYTES:
            file.close()
            file = None
        if file is None:
            path = self._folder / f"steps-{self._n_steps_files:05d}.parquet"
            self._n_steps_files += 1
            file = _StepsFile(path, arrow, self._schema, self._compression)
        if group is not None:
            file.write(group)
        return file

    def _write_episodes(self) -> None:
        observations = self._stream.observation_layout
        schema = episode_schema(observations.specs, self._metadata)
        import pyarrow.parquet as pq

        path = str(self._folder / "episodes.parquet")
        with pq.ParquetWriter(
            path, schema, compression=self._compression, write_page_checksum=True
        ) as writer:
            for page in self._stream.episodes():
                table = episode_tables(page, observations, schema, self._seen)
                self.n_episodes += len(table)
                if len(table):
                    writer.write_table(table)


def _note_episodes(seen: ScratchLists, batch: ColumnBatch) -> None:
    shared = batch.shared
    runs = set(batch.run_of.tolist())
    for key in {(shared["episode_id"][run], shared["task_id"][run]) for run in runs}:
        if key[0] is not None and key not in seen:
            seen.append(key, ())


class _StepsFile:
    """One file of steps."""

    def __init__(self, path: Path, arrow: Any, schema: StepSchema, compression: str) -> None:
        import pyarrow.parquet as pq

        self._file = path.open("wb")
        self._n_items = (
            max((abs(math.prod(s.shape)) for s in schema.specs.values()), default=1) or 1
        )
        names = {built_in: name for name, built_in in schema.built_in.items()}
        self._first_seq = names.get("first_seq")
        # Numbers of fields seldom repeat, and no reader needs their least and greatest value: these
        # encodings and statistics would take half as long again.
        self._writer = pq.ParquetWriter(
            self._file,
            arrow,
            compression=compression,
            write_page_checksum=True,
            use_dictionary=[
                name for name, built_in in schema.built_in.items() if built_in in _REPEATED
            ],
            write_statistics=[
                name
                for name in arrow.names
                if name not in schema.specs or not _is_list(arrow, name)
            ],
        )

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._file.tell()

    def write(self, group: Any) -> None:
        """Write a row group, or several if its lists are large. None ends within a chunk: an import
        stores the chunks of a row group.
        """
        begins = _chunk_begins(group, self._first_seq)
        n_rows, start = max(GROUP_ITEMS // self._n_items, 1), 0
        while start < len(group):
            # The last chunk that fits, or one that does not fit alone.
            i = int(np.searchsorted(begins, start + n_rows, side="right")) - 1
            stop = int(begins[i] if begins[i] > start else begins[i + 1])
            self._writer.write_table(group.slice(start, stop - start))
            start = stop

    def close(self) -> None:
        """End the file."""
        try:
            self._writer.close()
        finally:
            self._file.close()


def _chunk_begins(group: Any, first_seq: str | None) -> Any:
    """Return the rows of a table at which a chunk, or a step without one, begins, and its length.

    Args:
        group: The table.
        first_seq: Name of the column with the first `seq` of each step's chunk; None: not there.
    """
    n = len(group)
    if first_seq is None or group[first_seq].null_count:
        return np.arange(n + 1)
    firsts = group[first_seq].to_numpy()
    return np.concatenate([[0], np.flatnonzero(np.diff(firsts)) + 1, [n]])


def _is_list(arrow: Any, name: str) -> bool:
    types = load_pyarrow().types
    kind = arrow.field(name).type
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind))


_REPEATED = {
    "first_seq", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "group_id",
    "parent_id", "inserted_at", "model_version", "session_id", "terminated", "truncated", "uses",
    "quarantined_at", "quarantine_reason", "state", "actions", "messages", "extra",
}  # fmt: skip
