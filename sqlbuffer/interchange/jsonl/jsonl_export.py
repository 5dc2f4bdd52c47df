"""Export a buffer as JSON lines."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sqlbuffer.buffer import checked_buffer
from sqlbuffer.checks import checked_flag, checked_path
from sqlbuffer.copying.buffer_copy import OnProgress, checked_progress
from sqlbuffer.errors import ExportError
from sqlbuffer.interchange.buffer_stream import BufferStream, chosen_columns
from sqlbuffer.interchange.export_report import ExportReport
from sqlbuffer.interchange.jsonl.json_steps import json_lines
from sqlbuffer.interchange.output_folder import is_full
from sqlbuffer.interchange.work_place import WorkPlace, make_parents

if TYPE_CHECKING:
    from sqlbuffer.buffer import ReplayBuffer


def export_jsonl(
    buffer: "ReplayBuffer",
    path: "str | os.PathLike[str]",
    condition: Any = None,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> ExportReport:
    """Write the steps of a buffer as JSON, one step in each line, in the order of `seq`.

    The keys are those that commands print with `--ndjson`. Values that a step does not have are
    left out. NaN, infinities and other values that JSON does not have are tagged (`{"$float":
    "nan"}`), so `insert_jsonl` stores equal steps. The file appears when it is complete.

    Args:
        buffer: The buffer.
        path: The file to make; `-` is standard output.
        condition: Condition that steps must match; all by default.
        columns: Built-in columns and typed fields to write; all by default.
        overwrite: Replace an existing file.
        on_progress: See `export_parquet`.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A column is unknown.
        StorageBusyError: A transaction that writes to the buffer does not end.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> buffer.add(task_id="t", step=3, state={"x": 1}, reward=0.5).inserted
        1
        >>> export_jsonl(buffer, "-", columns=["task_id", "step", "reward", "state"]).n_steps
        {"task_id":"t","step":3,"reward_t":0.5,"state":{"x":1}}
        1
    """
    began_at = time.monotonic()
    target = checked_path(path, "path", "the path of a file to make, or - for standard output")
    overwrite = checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    specs = checked_buffer(buffer).fields
    built_in, fields = chosen_columns(tuple(specs), columns)
    chosen = {name: specs[name] for name in fields}
    n_steps = n_bytes = 0
    unopened = BufferStream(buffer, condition, fields=fields)
    with unopened as stream, _output(target, overwrite) as file:
        for batch, end in stream.batches():
            for line in json_lines(batch, chosen, built_in):
                file.write(line)
                n_bytes += len(line)
            n_steps += len(batch)
            if on_progress is not None:
                on_progress(n_steps, end, range(stream.low, stream.high))
    return ExportReport(
        f"{buffer.name!r} in {buffer.url}", str(path), stream.low, stream.high, n_steps, None, 1,
        n_bytes, time.monotonic() - began_at,
    )  # fmt: skip


@contextmanager
def _output(target: Path, overwrite: bool) -> Iterator[Any]:
    """Open a file of another name, which gets its own at the end; or standard output."""
    if str(target) == "-":
        yield _Stdout()
        sys.stdout.flush()
        return
    if os.path.isdir(target):
        raise ExportError(f"{target} is a folder, and JSON lines are a file; name another path")
    if os.path.lexists(target) and not overwrite:
        raise ExportError(
            f"there is a file {target} already; name another one, or replace it with "
            f"overwrite=True (--overwrite)"
        )
    make_parents(target)
    place = WorkPlace(target, Path.touch)
    work = place.path
    try:
        with work.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        work.replace(target)
    except OSError as error:
        if is_full(error):
            raise ExportError(
                f"the disk of {target} is full ({error}); free space, or name a file on another "
                f"disk, and export again"
            ) from error
        raise
    finally:
        place.close()


class _Stdout:
    """Standard output, which tests and notebooks replace by a stream of text."""

    def write(self, raw: bytes) -> None:
        """Write bytes."""
        out: IO[bytes] | None = getattr(sys.stdout, "buffer", None)
        if out is None:
            sys.stdout.write(raw.decode())
        else:
            out.write(raw)
