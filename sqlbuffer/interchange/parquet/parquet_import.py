"""Import Parquet: restore a buffer that was exported, or append steps."""

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqlbuffer.arguments import checked_buffer_name
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_dict, checked_path
from sqlbuffer.config.buffer_config import BufferConfig
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import CopyError
from sqlbuffer.fields.buffer_fields import parse_specs
from sqlbuffer.interchange.buffer_opening import found_buffer
from sqlbuffer.interchange.import_report import ImportCounts, ImportReport
from sqlbuffer.interchange.parquet.appended_steps import append_files, new_buffer
from sqlbuffer.interchange.parquet.episode_tables import stored_episodes
from sqlbuffer.interchange.parquet.parquet_files import ParquetFiles
from sqlbuffer.interchange.parquet.restored_steps import own_schema, restored_steps
from sqlbuffer.storage.copies.copied_parts import CopiedRange, SourceIdentity, SourceState
from sqlbuffer.storage.copies.import_target import ImportTarget
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.store import BufferStore

# Settings that decide what steps look like.
_SAME = ("evict_by", "fields", "observation_fields", "meta_fields", "priorities", "leases")


def import_parquet(
    path: "str | os.PathLike[str]",
    url: Database = None,
    name: str | None = None,
    *,
    columns: Mapping[str, str | None] | None = None,
    fields: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Store the steps of Parquet files in a buffer.

    Files of `export_parquet` restore the buffer with its settings, numbers, ids, times, episodes,
    sessions, priorities, uses and reasons of quarantine. The buffer must be missing or empty. Until
    the import is complete, the buffer shows the steps that it has so far and refuses writers. If
    the process is killed, repeat the call: it continues where it stopped.

    Files are appended as new steps if another program wrote them, if the export has some columns
    only, or if the buffer has steps. A missing buffer is made. A step without an id gets an id from
    its place in the file, so a second import stores no step twice.

    Args:
        path: A folder of Parquet files, or a file.
        url: The database; see `ReplayBuffer`.
        name: Name of the buffer; by default that of the exported buffer, or `default`.
        columns: Fields for columns of the files, by the columns' names: `{"observation": "obs"}`.
            None omits a column. Other columns keep their name: a built-in column, a field of the
            buffer, or a new field of a new buffer.
        fields: Typed fields of a new buffer, as for `ReplayBuffer`; by default they follow from the
            types of the columns.
        on_progress: Function that is called after each batch with the number of stored steps, the
            number of steps read, and the range of steps to read.

    Raises:
        ArgumentError: An argument is invalid.
        CopyError: The buffer holds another unfinished copy.
        FieldError: A field cannot hold a value.
        FileImportError: There are no files, or a column does not fit; the message names the column.
        MissingExtraError: pyarrow is not installed.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import tempfile
        >>> from sqlbuffer.interchange import export_parquet
        >>> buffer = ReplayBuffer("sqlite://", "b", fields={"obs": ("float32", (2,))})
        >>> buffer.extend({"obs": [[1.0, 2.0], [3.0, 4.0]]}, task_id="t").inserted
        2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_parquet(buffer, f"{folder}/out")
        ...     import_parquet(f"{folder}/out", f"sqlite:///{folder}/replay.db").n_stored
        2
    """
    began_at = time.monotonic()
    path = checked_path(path, "path")
    if name is not None:
        checked_buffer_name(name)
    if columns is not None:
        checked_dict(columns, "columns", "{'observation': 'obs'}")
    if fields is not None:
        parse_specs(fields)
    on_progress = checked_progress(on_progress)
    resolve_url(url)
    files = ParquetFiles(path)
    noted = files.metadata
    is_own = noted is not None and noted["is_whole"] and not columns and not fields
    if is_own:
        assert noted is not None
        own_name = noted["buffer"] if name is None else name
        config = BufferConfig.model_validate(noted["config"])
        buffer = found_buffer(url, own_name) or ReplayBuffer(url, own_name, config=config)
    else:
        own_name = "default" if name is None else name
        buffer = found_buffer(url, own_name) or new_buffer(
            files, url, own_name, columns or {}, fields
        )
    with buffer:
        found = _restored(files, buffer, on_progress) if is_own else None
        if found is None:
            found = append_files(files, buffer, columns or {}, on_progress)
        return ImportReport(
            str(path), f"{buffer.name!r} in {buffer.url}", found.n_steps, found.n_stored,
            found.n_duplicates, found.n_conflicts, found.is_restored, time.monotonic() - began_at,
        )  # fmt: skip


def _restored(
    files: ParquetFiles, buffer: ReplayBuffer, on_progress: OnProgress | None
) -> ImportCounts | None:
    """Restore a buffer, or continue that; None if it has other steps or settings."""
    noted = files.metadata
    assert noted is not None
    store, config = buffer._store, BufferConfig.model_validate(noted["config"])
    ours, theirs = config.settings(), buffer.config.settings()
    if store.info.layout is not None or any(ours[each] != theirs[each] for each in _SAME):
        return None
    target = ImportTarget(store)
    identity = SourceIdentity(str(files.path), noted["buffer"], 0, noted["export_id"], None)
    copied = CopiedRange(noted["low_seq"], noted["high_seq"], noted["low_seq"])
    state = SourceState(copied, noted["state"], noted["session"], noted["sessions"], None)
    try:
        progress = target.progress(identity)
        if progress is None:
            target.begin(identity, state, _episodes(files, store, config))
            progress = target.progress(identity)
    except CopyError:  # it has steps, or is another copy
        return None
    assert progress is not None
    n_steps, n_before = files.n_rows(), progress.n_steps
    if not progress.is_finished:
        schema, cursor = own_schema(noted, config), progress.range.cursor
        n_done = n_before
        for table in files.row_groups(cursor):
            steps = restored_steps(table, schema, store.layout, cursor, config)
            target.write(steps)
            cursor, n_done = steps.end, n_done + steps.n_steps
            if on_progress is not None:
                on_progress(n_done, n_done, range(n_steps))
        target.finish()
    return ImportCounts(n_steps, n_steps - n_before, n_before, 0, is_restored=True)


def _episodes(
    files: ParquetFiles, store: BufferStore, config: BufferConfig
) -> Iterator[dict[str, list[Any]]]:
    if files.episodes is None:
        return iter(())
    has_counts = config.retention.evict_by == "episode"
    return stored_episodes(files.episodes, store.observation_layout, has_counts=has_counts)
