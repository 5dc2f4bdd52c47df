"""Write rollouts of language models to a folder that `datasets.load_dataset` opens."""

import os
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.checks import checked_choice, checked_flag, checked_path
from sqlbuffer.copying.buffer_copy import OnProgress
from sqlbuffer.interchange.dataset_card import rollouts_card
from sqlbuffer.interchange.export_report import counted
from sqlbuffer.interchange.hugging_face.rollouts import RolloutForm, RolloutRows
from sqlbuffer.interchange.output_folder import OutputFolder
from sqlbuffer.interchange.parquet.arrow_schema import load_pyarrow
from sqlbuffer.interchange.parquet.parquet_export import COMPRESSIONS
from sqlbuffer.llm.messages import MESSAGE_KEYS
from sqlbuffer.sizes import shown_size

# A row group ends with the row that reaches one of these.
ROWS_AT_ONCE, CHARACTERS_AT_ONCE = 500, 2**23
FILE_BYTES = 128 * 10**6


@dataclass(frozen=True)
class RolloutExport:
    """Result of an export of rollouts.

    Attributes:
        path: The folder.
        form: Form of a row; see `RolloutRows`.
        n_rows: Number of rows.
        n_skipped: Number of episodes or pairs without a row; see `RolloutRows`.
        n_steps: Number of steps that were read.
        n_bytes: Size of the files.
        seconds: Duration of the export.

    Example:
        >>> print(RolloutExport("out", "preference", 4, 1, 24, 5_000, 0.1))
        exported to out: 4 rows of preference and 1 skipped, from 24 steps, 5 kB, in 0.1 s
    """

    path: str
    form: str
    n_rows: int
    n_skipped: int
    n_steps: int
    n_bytes: int
    seconds: float

    def __str__(self) -> str:
        skipped = f" and {self.n_skipped:,} skipped" if self.n_skipped else ""
        return (
            f"exported to {self.path}: {counted(self.n_rows, 'row')} of {self.form}{skipped}, from "
            f"{counted(self.n_steps, 'step')}, {shown_size(self.n_bytes)}, in {self.seconds:.1f} s"
        )


def export_rollouts(
    buffer: ReplayBuffer,
    path: str | os.PathLike[str],
    form: RolloutForm = "conversations",
    *,
    condition: Condition = None,
    min_margin: float = 0.0,
    overwrite: bool = False,
    compression: str = "zstd",
    on_progress: OnProgress | None = None,
) -> RolloutExport:
    """Write rollouts to a folder that `datasets.load_dataset` opens.

    The folder has `train-00000.parquet` and so on, and a manifest with the sizes and checksums of
    the files. A message has `role`, `content` and other keys (`MESSAGE_KEYS`), which are null if
    the message does not have them.

    Args:
        buffer: The buffer.
        path: The folder to make.
        form: Form of a row; see `RolloutRows`.
        condition: Condition that steps must match.
        min_margin: See `RolloutRows`.
        overwrite: Replace an existing export.
        compression: Compression of the files; see `export_parquet`.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A step holds something that is not a message, or a medium such as an image,
            which would become text; the message names the episode.
        MissingExtraError: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> buffer = ReplayBuffer("sqlite://")
        >>> messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4"}]
        >>> buffer.add(messages=messages, task_id="sum", terminated=True).inserted
        1
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_rollouts(buffer, f"{folder}/rollouts").n_rows
        1
    """
    began_at = time.monotonic()
    target = checked_path(path, "path", "the path of a folder to make")
    compression = checked_choice(compression, "compression", COMPRESSIONS)
    overwrite = checked_flag(overwrite, "overwrite")
    load_pyarrow()
    rows = RolloutRows(buffer, form, condition, min_margin, on_progress)
    with OutputFolder(target, overwrite=overwrite) as folder:
        n_rows = _write(rows, folder.work, compression)
        card = rollouts_card(buffer.name, folder.path.name, form)
        _, n_bytes = folder.finish(card, {"rows": n_rows})
    return RolloutExport(
        str(path), form, n_rows, rows.n_skipped, rows.n_steps, n_bytes, time.monotonic() - began_at
    )


def _write(rows: RolloutRows, folder: Path, compression: str) -> int:
    import pyarrow.parquet as pq

    schema, n_rows, n_files = rollout_schema(rows.form), 0, 0
    with closing(_pages(rows)) as pages:
        page = next(pages, [])
        while page or not n_files:
            path = folder / f"train-{n_files:05d}.parquet"
            n_files += 1
            with (
                path.open("wb") as file,
                pq.ParquetWriter(
                    file, schema, compression=compression, write_page_checksum=True
                ) as writer,
            ):
                while page and file.tell() < FILE_BYTES:
                    writer.write_table(_table(page, schema))
                    n_rows += len(page)
                    page = next(pages, [])
    return n_rows


def _pages(rows: RolloutRows) -> Generator[list[dict[str, Any]], None, None]:
    with closing(rows.each()) as each:
        page, n_characters = [], 0
        for row in each:
            page.append(row)
            n_characters += _n_characters(row)
            if len(page) >= ROWS_AT_ONCE or n_characters >= CHARACTERS_AT_ONCE:
                yield page
                page, n_characters = [], 0
        if page:
            yield page


def _n_characters(value: Any) -> int:
    """Return the length of all texts in a row."""
    if isinstance(value, dict):
        return sum(map(_n_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_n_characters, value))
    return len(value) if isinstance(value, str) else 0


def _table(rows: list[dict[str, Any]], schema: Any) -> Any:
    return load_pyarrow().Table.from_pylist(rows, schema=schema)


def rollout_schema(form: RolloutForm) -> Any:
    """Return the Arrow schema of the rows of a form."""
    pa = load_pyarrow()
    text, function = pa.string(), [("name", pa.string()), ("arguments", pa.string())]
    call = pa.struct([("id", text), ("type", text), ("function", pa.struct(function))])
    message = pa.struct(
        [(key, pa.list_(call) if key == "tool_calls" else text) for key in MESSAGE_KEYS]
    )
    messages, real, whole = pa.list_(message), pa.float64(), pa.int64()
    columns = {
        "messages": {"messages": messages},
        "prompt_completion": {"prompt": messages, "completion": messages},
        "preference": {
            **dict.fromkeys(("prompt", "chosen", "rejected"), messages),
            **dict.fromkeys(("chosen_reward", "rejected_reward"), real),
        },
        "conversations": {
            **dict.fromkeys(("task_id", "agent_id", "episode_id"), text),
            "messages": messages, "reward": real, "status": text, "stop_reason": text,
            "n_steps": whole,
            "model_version": whole, "session_id": text,
        },
    }  # fmt: skip
    return pa.schema(columns[form].items())
