"""Store JSON lines in a buffer."""

import os
import re
import time
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from sqlbuffer.arguments import checked_buffer_name
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_path
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import FieldError, FileImportError
from sqlbuffer.fields.buffer_fields import parse_specs
from sqlbuffer.interchange.buffer_opening import found_buffer
from sqlbuffer.interchange.import_report import ImportCounts, ImportReport
from sqlbuffer.interchange.jsonl.json_steps import declared_fields, row_of_json
from sqlbuffer.interchange.jsonl.line_source import lines_of
from sqlbuffer.interchange.jsonl.parsed_lines import parsed_line
from sqlbuffer.steps.data_rows import DataRow
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, shown_url

LINES_AT_ONCE = 1_000
BYTES_AT_ONCE = 2**23
_UNSAFE = "cast it, or allow it with casting='unsafe'"
_OTHER_FIELD = (
    "write another value, or make a buffer whose field holds it (`sqlbuffer create --config`)"
)
_ROW = re.compile(r"row (\d+): ")


def insert_jsonl(
    path: "str | os.PathLike[str]" = "-",
    url: Database = None,
    name: str = "default",
    *,
    fields: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> ImportReport:
    """Store steps that are given as JSON, one step in each line, in a buffer.

    A line is an object with the arguments of `ReplayBuffer.add`: `task_id`, `agent_id`, `step`,
    `state`, `actions`, `reward`, ... and the typed fields of the buffer. `export_jsonl` and
    `--ndjson` write such lines. Up to 1,000 lines are stored in one transaction, or fewer if no
    further line arrives. A step without an id gets an id from its line in the file, so a second
    import stores no step twice. From standard input, each such step is a new one.

    Args:
        path: The file; `-` is standard input.
        url: The database; see `ReplayBuffer`.
        name: Name of the buffer. A missing buffer is made after the first line was checked.
        fields: Typed fields of a new buffer. By default these are the keys of the first line that
            are not built in, with 64 bits. Their types follow from the first lines, up to 1,000: an
            integer field becomes float if one of these lines has a float.
        on_progress: Function that is called after each batch.

    Raises:
        ArgumentError: An argument is invalid.
        FieldError: A value cannot be stored; the message names the line.
        FileImportError: A line is not a JSON object, or has an unknown key; the message names the
            line. The lines before it are stored.
        StorageUnreachableError: The database does not answer.
        URLError: The URL cannot be used.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/steps.jsonl", "w") as file:
        ...         _ = file.write('{"task_id": "t", "state": {"x": 1}, "reward": 0.5}')
        ...     insert_jsonl(f"{folder}/steps.jsonl", f"sqlite:///{folder}/replay.db").n_stored
        1
    """
    began_at = time.monotonic()
    path = checked_path(path, "path")
    checked_buffer_name(name)
    if fields is not None:
        parse_specs(fields)
    on_progress = checked_progress(on_progress)
    resolve_url(url)
    if str(path) != "-" and not os.path.isfile(path):
        raise FileImportError(f"there is no file {path}; name a file of JSON lines, or -")
    own = _Insertion(found_buffer(url, name), url, name, fields, is_pipe=str(path) == "-")
    try:
        for line in lines_of(path):
            if line is None:
                own.store()
            else:
                own.take(line)
            if own.is_due:
                own.store()
                if on_progress is not None:
                    on_progress(own.counts.n_stored, own.n_lines, range(own.n_lines))
        own.store()
        counts = own.counts
        if own.buffer is None:
            target = f"{name!r} in {shown_url(resolve_url(url))}, which is not made"
        else:
            target = f"{name!r} in {own.buffer.url}"
        return ImportReport(
            "standard input" if str(path) == "-" else str(path), target,
            counts.n_steps, counts.n_stored, counts.n_duplicates, counts.n_conflicts, False,
            time.monotonic() - began_at,
        )  # fmt: skip
    finally:
        own.close()


@dataclass
class _Waiting:
    """Steps that are stored together, and the numbers of their lines."""

    rows: list[DataRow]
    priorities: list[Any]
    lines: list[int]
    n_bytes: int = 0


@dataclass(frozen=True)
class _Line:
    number: int
    raw: bytes
    tree: Any


class _Insertion:
    """Takes lines, and stores their steps."""

    def __init__(
        self,
        buffer: ReplayBuffer | None,
        url: Database,
        name: str,
        fields: Mapping[str, Any] | None,
        *,
        is_pipe: bool,
    ) -> None:
        self.buffer, self._url, self._name, self._fields = buffer, url, name, fields
        self._first: list[_Line] = []  # they wait for the buffer that is made for them
        self._is_pipe, self.counts, self.n_lines = is_pipe, ImportCounts(), 0
        self._waiting = _Waiting([], [], [])

    def close(self) -> None:
        """Close the buffer."""
        if self.buffer is not None:
            self.buffer.close()

    @property
    def is_due(self) -> bool:
        """Whether there are many steps to store."""
        own = self._waiting
        n_lines = len(own.rows) + len(self._first)
        return n_lines >= LINES_AT_ONCE or own.n_bytes >= BYTES_AT_ONCE

    def take(self, line: bytes) -> None:
        """Take the next line; an empty one is left out."""
        self.n_lines += 1
        raw = line.removeprefix(BOM_UTF8) if self.n_lines == 1 else line
        if not raw.strip():
            return
        try:
            found = _Line(self.n_lines, raw, parsed_line(raw))
        except FileImportError as error:
            raise self._named(error, self.n_lines) from None
        if self.buffer is None:
            self._first.append(found)
            self._waiting.n_bytes += len(raw)
        else:
            self._add(found)

    def _named(self, error: FileImportError | FieldError, number: int) -> Exception:
        """Store what comes before a line; return the error of that line."""
        self.store()
        kind = FieldError if isinstance(error, FieldError) else FileImportError
        text = str(error).replace(_UNSAFE, _OTHER_FIELD)
        return kind(f"line {number:,}: {text}; {self._stored}")

    def _begin(self) -> None:
        """Make the buffer that is missing, for the lines that are there."""
        first, self._first = self._first, []
        if not first:
            return
        try:
            trees = [line.tree for line in first if isinstance(line.tree, dict)]
            fields = self._fields
            if fields is None:
                fields = declared_fields(trees) if isinstance(first[0].tree, dict) else {}
            # Nothing is made before it is known that the first step can be stored.
            with ReplayBuffer("sqlite://", self._name, fields=dict(fields) or None) as trial:
                trial.store_batch([row_of_json(first[0].tree, trial.fields)[0]])
        except (FileImportError, FieldError) as error:
            kind = FieldError if isinstance(error, FieldError) else FileImportError
            raise self._named(kind(_ROW.sub("", str(error), 1)), first[0].number) from None
        self.buffer = ReplayBuffer(self._url, self._name, fields=dict(fields) or None)
        self._waiting.n_bytes = 0
        for line in first:
            self._add(line)

    def _add(self, line: _Line) -> None:
        assert self.buffer is not None
        try:
            row, priority = row_of_json(line.tree, self.buffer.fields)
        except (FileImportError, FieldError) as error:
            raise self._named(error, line.number) from None
        own = self._waiting
        if not self._is_pipe and line.tree.get("id") is None:
            row.id = f"{blake2b(line.raw.strip(), digest_size=12).hexdigest()}-{line.number}"
        own.rows.append(row)
        own.priorities.append(priority)
        own.lines.append(line.number)
        own.n_bytes += len(line.raw)

    @property
    def _stored(self) -> str:
        return f"steps stored before it: {self.counts.n_steps:,}"

    def store(self) -> None:
        """Store the steps that wait."""
        self._begin()
        own, self._waiting = self._waiting, _Waiting([], [], [])
        if not own.rows:
            return
        assert self.buffer is not None
        try:
            self._store(own)
        except FieldError as error:
            found = _ROW.match(str(error))
            if found is None:
                raise FieldError(
                    f"lines {own.lines[0]:,} to {own.lines[-1]:,}: {error}; {self._stored}"
                ) from None
            place = int(found[1])
            # All or none of a batch is stored: what comes before the line goes in alone.
            self._store(_Waiting(own.rows[:place], own.priorities[:place], own.lines[:place]))
            raise FieldError(
                f"line {own.lines[place]:,}: {str(error)[found.end() :]}; {self._stored}"
            ) from None

    def _store(self, own: _Waiting) -> None:
        if not own.rows:
            return
        assert self.buffer is not None
        given = [priority for priority in own.priorities if priority is not None]
        if given and len(given) == len(own.rows) and self.buffer.config.priorities.enabled:
            found = self.buffer.store_batch(own.rows, priority=own.priorities)
        else:
            found = self.buffer.store_batch(own.rows)
        counts = self.counts
        counts.n_steps += len(own.rows)
        counts.n_stored += found.inserted
        counts.n_duplicates += found.duplicates
        counts.n_conflicts += found.conflicts
