"""Import Parquet: restore a buffer that was exported, or append steps."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_dict, checked_path, refused
from sqlbuffer.config.buffer_config import BufferConfig
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import BufferNotFoundError, CopyError, SchemaMissingError
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
from sqlbuffer.interchange.import_report import ImportCounts, ImportReport
from sqlbuffer.interchange.manifest import named_damage
from sqlbuffer.interchange.parquet.appended_steps import append_files, check_files, new_fields
from sqlbuffer.interchange.parquet.episode_tables import stored_episodes
from sqlbuffer.interchange.parquet.parquet_files import ParquetFiles
from sqlbuffer.interchange.parquet.restored_steps import own_schema, restored_steps
from sqlbuffer.storage.copies.copied_parts import CopiedRange, SourceIdentity, SourceState
from sqlbuffer.storage.copies.import_target import ImportTarget, check_may_restore
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

    Files are appended as new steps if another program wrote them, if the path is a single file, if
    the export has some columns only, or if the buffer has steps. A missing buffer is made. A step
    without an id gets an id from its place in the file, so a second import stores no step twice.

    The files of an export are compared with its manifest, and files to append are read once to
    check all rows. If one is damaged, missing or does not fit, nothing is made or stored.

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
        FieldError: A field cannot hold a value.
        FileImportError: There are no files, a file is damaged or missing, a column does not fit, or
            typed steps are of an episode of the buffer that has ended; the message names it.
        MissingExtraError: pyarrow is not installed.
        StorageReadOnlyError: The buffer is another unfinished copy, or the role may not restore a
            buffer: only the owner of the tables may.
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
    source = checked_path(path, "path", "the path of a Parquet file, or of a folder of them")
    columns = {} if columns is None else checked_dict(columns, "columns", "{'observation': 'obs'}")
    fields = None if fields is None else checked_dict(fields, "fields", "{'obs': 'float32'}")
    on_progress = checked_progress(on_progress)
    for column, meaning in columns.items():
        if meaning is not None and not isinstance(meaning, str):
            raise refused(meaning, f"columns[{column!r:.100}]", "the name of a field, or None")
    files = ParquetFiles(source)
    is_restorable = files.is_export and not columns and not fields
    if name is None:
        name = files.metadata["buffer"] if is_restorable and files.metadata else "default"
    buffer = found_buffer(url, name)
    settings: dict[str, Any] = {}
    if buffer is None and is_restorable:
        with suppress(BufferNotFoundError, SchemaMissingError):
            check_may_restore(url)
        settings["config"] = files.config
    elif buffer is None:
        settings["fields"] = (new_fields(files, columns) if fields is None else fields) or None
        with ReplayBuffer("sqlite://", name, **settings) as trial:
            check_files(files, trial, columns)
    counts = ImportCounts()
    with import_target(buffer, url, name, settings, counts) as opened:
        if is_restorable:
            _restore(files, opened, counts, on_progress)
        if not counts.is_restored:
            if buffer is not None:
                check_files(files, buffer, columns)
            append_files(files, opened, columns, counts, on_progress)
        return ImportReport(
            str(path), f"{opened.name!r} in {opened.url}", counts.n_steps, counts.n_stored,
            counts.n_duplicates, counts.n_conflicts, counts.is_restored,
            time.monotonic() - began_at,
        )  # fmt: skip


def _restore(
    files: ParquetFiles,
    buffer: ReplayBuffer,
    counts: ImportCounts,
    on_progress: OnProgress | None,
) -> None:
    """Restore a buffer, or continue that, unless it has other steps or settings."""
    noted, config, store = files.metadata, files.config, buffer._store
    assert noted is not None
    ours, theirs = config.settings(), buffer.config.settings()
    if store.info.layout is not None or any(ours[name] != theirs[name] for name in _SAME):
        return
    target = ImportTarget(store)
    with named_damage(files.paths[0]):
        identity = SourceIdentity(str(files.path), noted["buffer"], 0, noted["export_id"], None)
        copied = CopiedRange(noted["low_seq"], noted["high_seq"], noted["low_seq"])
        state = SourceState(copied, noted["state"], noted["session"], noted["sessions"], None)
    try:
        progress = target.progress(identity)
        if progress is None:
            target.begin(identity, state, _episodes(files, store, config))
            progress = target.progress(identity)
    except CopyError:  # it has steps, or is another copy
        return
    assert progress is not None
    counts.is_restored, counts.n_steps = True, files.n_rows
    counts.n_duplicates = progress.n_steps
    if progress.is_finished:
        return
    schema, cursor = own_schema(noted, config), progress.range.cursor
    for path, table in files.row_groups(cursor):
        with named_damage(path):
            steps = restored_steps(table, schema, store.layout, cursor, config)
        target.write(steps)
        cursor = steps.end
        counts.n_stored += steps.n_steps
        if on_progress is not None:
            n_done = counts.n_duplicates + counts.n_stored
            on_progress(n_done, n_done, range(files.n_rows))
    target.finish()


def _episodes(
    files: ParquetFiles, store: BufferStore, config: BufferConfig
) -> Iterator[dict[str, list[Any]]]:
    if files.episodes is None:
        return iter(())
    has_counts = config.retention.evict_by == "episode"
    return stored_episodes(files.episodes, store.observation_layout, has_counts=has_counts)
