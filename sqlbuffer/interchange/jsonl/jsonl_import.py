"""Store JSON lines in a buffer."""

import os
import re
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from itertools import chain, islice
from typing import Any, NamedTuple

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_dict, checked_path
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import EpisodeExistsError, FieldError, FileImportError
from sqlbuffer.front.step_encodings import Batch
from sqlbuffer.interchange.buffer_opening import found_buffer, import_target
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
_ROW = re.compile(r"^row (\d+): ")


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

    All lines of a file are checked before the first is stored. Lines of standard input are stored
    as they come; the first ones are checked before a missing buffer is made.

    Args:
        path: The file; `-` is standard input.
        url: The database; see `ReplayBuffer`.
        name: Name of the buffer; a missing one is made.
        fields: Typed fields of a new buffer. By default these are the keys of the first line that
            are not built in, with 64 bits. Their types and shapes follow from the first lines, up
            to 1,000: a field becomes float if one of these lines has a float, and its length varies
            if it differs between them.
        on_progress: Function that is called after each batch.

    Raises:
        ArgumentError: An argument is invalid.
        FieldError: A value cannot be stored; the message names the line, and says how many steps
            are stored: none of a file, and those before it of standard input.
        FileImportError: There is no such file, a line is not a JSON object or has an unknown key,
            or typed steps are of an episode of the buffer that has ended; the message as above.
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
    checked_path(path, "path", "the path of a file of JSON lines, or - for standard input")
    on_progress = checked_progress(on_progress)
    fields = None if fields is None else checked_dict(fields, "fields", "{'obs': 'float32'}")
    is_pipe = str(path) == "-"
    if not is_pipe and not os.path.isfile(path):
        raise FileImportError(f"there is no file {path}; name a file of JSON lines, or -")
    counts, buffer = ImportCounts(), found_buffer(url, name)
    batches: Iterable[list[_Line]] = _batches(path)
    if not is_pipe:
        settings = _checked(batches, buffer, name, fields, counts)
        batches = _batches(path)
    elif buffer is None:
        first = list(islice(batches, 1))
        settings = _checked(first, None, name, fields, counts)
        batches = chain(first, batches)
    else:
        settings = {}
    if settings is None:
        target = f"{name!r} in {shown_url(resolve_url(url))}, which is not made"
    else:
        with import_target(buffer, url, name, settings, counts, may_keep=is_pipe) as opened:
            target = f"{name!r} in {opened.url}"
            insertion = _Insertion(opened, counts, is_pipe=is_pipe)
            for lines in batches:
                insertion.store(lines)
                if on_progress is not None:
                    n_lines = lines[-1].number
                    on_progress(counts.n_stored, n_lines, range(n_lines))
    return ImportReport(
        "standard input" if is_pipe else str(path), target, counts.n_steps, counts.n_stored,
        counts.n_duplicates, counts.n_conflicts, False, time.monotonic() - began_at,
    )  # fmt: skip


class _Line(NamedTuple):
    number: int
    raw: bytes


def _batches(path: "str | os.PathLike[str]") -> Iterator[list[_Line]]:
    """Yield lines that are stored together; an empty line is left out."""
    lines: list[_Line] = []
    n_bytes = number = 0
    for raw in lines_of(path):
        if raw is not None:
            number += 1
            raw = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            if raw.strip():
                lines.append(_Line(number, raw))
                n_bytes += len(raw)
        if lines and (raw is None or len(lines) >= LINES_AT_ONCE or n_bytes >= BYTES_AT_ONCE):
            yield lines
            lines, n_bytes = [], 0
    if lines:
        yield lines


def _named(
    error: FileImportError | FieldError, number: int, counts: ImportCounts
) -> FileImportError | FieldError:
    """Return the error of a line with its number."""
    kind = FieldError if isinstance(error, FieldError) else FileImportError
    text = _ROW.sub("", str(error), 1).replace(_UNSAFE, _OTHER_FIELD)
    return kind(f"line {number:,}: {text}; steps stored before it: {counts.n_steps:,}")


def _of_lines(lines: Sequence[_Line], error: Exception, counts: ImportCounts) -> str:
    """Return the message of an error that is not of a single line."""
    return (
        f"lines {lines[0].number:,} to {lines[-1].number:,}: {error}; steps stored before them: "
        f"{counts.n_steps:,}"
    )


def _checked(
    batches: Iterable[list[_Line]],
    buffer: ReplayBuffer | None,
    name: str,
    fields: Mapping[str, Any] | None,
    counts: ImportCounts,
) -> dict[str, Any] | None:
    """Raise unless the steps of all lines can be stored.

    Args:
        batches: The lines.
        buffer: The buffer; None if it is to be made.
        name: Its name.
        fields: Its fields; None if they follow from the lines.
        counts: What is stored, for the error of a line.

    Returns:
        Settings of a new buffer; None if no line needs one.
    """
    settings: dict[str, Any] | None = None if buffer is None else {}
    with ExitStack() as stack:
        for lines in batches:
            if buffer is None:
                try:
                    settings = {"fields": (_fields(lines) if fields is None else fields) or None}
                    buffer = stack.enter_context(ReplayBuffer("sqlite://", name, **settings))
                except (FileImportError, FieldError) as error:
                    if fields is not None:
                        raise
                    raise _named(error, lines[0].number, counts) from None
            _Insertion(buffer, counts, is_pipe=False).check(lines)
    return settings


def _fields(lines: Sequence[_Line]) -> dict[str, Any] | None:
    """Return the fields that follow from lines; one that is wrong is refused as a step later."""
    trees: list[Any] = []
    for line in lines:
        with suppress(FileImportError):
            trees.append(parsed_line(line.raw))
    steps = [tree for tree in trees if isinstance(tree, dict)]
    return declared_fields(steps) if trees and isinstance(trees[0], dict) else None


class _Insertion:
    """Stores the steps of lines, or checks that they can be stored.

    Args:
        buffer: The buffer.
        counts: Receives what was stored.
        is_pipe: Whether a step without an id is a new one each time.
    """

    def __init__(self, buffer: ReplayBuffer, counts: ImportCounts, *, is_pipe: bool) -> None:
        self._buffer, self._counts, self._is_pipe = buffer, counts, is_pipe

    def check(self, lines: Sequence[_Line]) -> None:
        """Raise unless all can be stored.

        Raises:
            FieldError, FileImportError: See `insert_jsonl`.
        """
        _, _, refused = self._encoded(lines)
        if refused is not None:
            raise _named(*refused, self._counts)

    def store(self, lines: Sequence[_Line]) -> None:
        """Store the steps up to the first line that cannot be stored.

        Raises:
            FieldError, FileImportError: See `insert_jsonl`.
        """
        batch, n_steps, refused = self._encoded(lines)
        counts = self._counts
        try:
            stored = self._buffer._writer.store(batch)
        except EpisodeExistsError as error:
            raise FileImportError(_of_lines(lines, error, counts)) from error
        counts.n_steps += n_steps
        counts.n_stored += stored.inserted
        counts.n_duplicates += stored.duplicates
        counts.n_conflicts += stored.conflicts
        if refused is not None:
            raise _named(*refused, counts)

    def _encoded(
        self, lines: Sequence[_Line]
    ) -> tuple[Batch, int, tuple[FileImportError | FieldError, int] | None]:
        """Return steps in the form in which they are stored, their number, and the error and number
        of the line that ends them.
        """
        rows: list[DataRow] = []
        priorities: list[Any] = []
        refused: tuple[FileImportError | FieldError, int] | None = None
        for line in lines:
            try:
                tree = parsed_line(line.raw)
                row, priority = row_of_json(tree, self._buffer.fields)
            except (FileImportError, FieldError) as error:
                refused = error, line.number
                break
            if not self._is_pipe and tree.get("id") is None:
                row.id = f"{blake2b(line.raw.strip(), digest_size=12).hexdigest()}-{line.number}"
            rows.append(row)
            priorities.append(priority)
        while True:
            has_all = self._buffer.alpha is not None and None not in priorities
            try:
                batch = self._buffer._writer.encoded_rows(
                    rows, priority=priorities if has_all else None
                )
            except FieldError as error:
                named_row = _ROW.match(str(error))
                if named_row is None:
                    raise FieldError(_of_lines(lines, error, self._counts)) from None
                # The rows before it are checked again: another check may refuse one of them.
                place = int(named_row[1])
                refused = error, lines[place].number
                del rows[place:], priorities[place:]
            else:
                return batch, len(rows), refused
