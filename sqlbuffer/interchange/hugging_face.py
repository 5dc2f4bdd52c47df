"""Data sets of Hugging Face's libraries of the steps and rollouts of a buffer."""

import json
import os
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import (
    checked_choice,
    checked_flag,
    checked_integer,
    checked_number,
    checked_path,
)
from sqlbuffer.codec.decoder import decode
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.display import shown_size
from sqlbuffer.errors import ArgumentError, MissingExtraError, install
from sqlbuffer.interchange.output import OutputFolder, counted, rollouts_card
from sqlbuffer.interchange.parquet.arrow import load_pyarrow
from sqlbuffer.interchange.parquet.exporting import COMPRESSIONS
from sqlbuffer.interchange.streams import (
    PAYLOAD_COLUMNS,
    BufferStream,
    HeldStream,
    StreamPiece,
    example_columns,
)
from sqlbuffer.llm.conversations import (
    MESSAGE_KEYS,
    Conversation,
    ConversationAssembler,
    EpisodeKey,
    EpisodeOutcome,
    PreferencePairs,
    RolloutStep,
    key_of,
    messages_row,
    prompt_completion_row,
)
from sqlbuffer.steps import ColumnBatch
from sqlbuffer.storage.scratch_lists import ScratchLists

RolloutForm = Literal["conversations", "messages", "prompt_completion", "preference"]
ROLLOUT_FORMS: tuple[RolloutForm, ...] = get_args(RolloutForm)
_COLUMNS = tuple(name for name in RolloutStep._fields if name not in PAYLOAD_COLUMNS)


@dataclass
class RolloutRows:
    """Rows of rollouts. Each iteration reads the steps that the buffer has at that time.

    Args:
        buffer: The buffer.
        form: Form of a row. `conversations`: an episode, with `messages`, `reward`, `status`,
            `stop_reason` and its ids. `messages`, `prompt_completion` and `preference` are TRL's
            data sets of the same names. A preference pair is the best and the worst ended episode
            of a task.
        condition: Condition that steps must match.
        min_margin: Difference that the rewards of a preference pair must exceed.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.

    Attributes:
        n_skipped: Number of episodes or pairs that the last iteration skipped: those without
            messages or without an answer, and pairs whose prompts differ or whose answers are
            equal.
        n_steps: Number of steps that the last iteration has read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.

    Example:
        >>> buffer = ReplayBuffer("sqlite://")
        >>> with buffer.episode("sums") as episode:
        ...     _ = episode.append(messages=["2 + 2?"], actions=["4"], reward=1.0, terminated=True)
        >>> [row["completion"] for row in RolloutRows(buffer, "prompt_completion")]
        [[{'role': 'assistant', 'content': '4'}]]
        >>> sum(1 for row in RolloutRows(buffer, "messages").each())
        1
    """

    buffer: ReplayBuffer
    form: RolloutForm = "conversations"
    condition: Condition = None
    min_margin: float = 0.0
    on_progress: OnProgress | None = None
    n_skipped: int = field(init=False, default=0)
    n_steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        checked_buffer(self.buffer)
        checked_choice(self.form, "form", ROLLOUT_FORMS)
        checked_number(self.min_margin, "min_margin", 0)
        self.on_progress = checked_progress(self.on_progress)
        self.buffer._conditions.node(self.condition)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; see `each`."""
        return self.each()

    def each(self) -> Generator[dict[str, Any], None, None]:
        """Yield the rows; the steps are held until the generator ends or is closed.

        Raises:
            CopyError: The buffer is one of `sqlbuffer.compat`, or steps left before they were read.
            FieldError: A step holds something that is not a message, or a medium such as an image,
                which would become text; the message names the episode.
        """
        self.n_skipped = self.n_steps = 0
        with BufferStream(self.buffer, self.condition, fields=()) as stream:
            for piece in stream.pieces(1):
                yield from self.of(piece)

    def of(self, piece: StreamPiece) -> Iterator[dict[str, Any]]:
        """Yield the rows of the steps of a stream.

        Args:
            piece: The whole stream.

        Raises:
            FieldError: A step holds something that is not a message, or a medium such as an image,
                which would become text; the message names the episode.

        :meta private:
        """
        with _Ends(piece) as ends:
            if self.form == "preference":
                yield from self._pairs(piece, ends)
                return
            for conversation in self._conversations(piece, ends):
                row = _row(self.form, conversation)
                if row is None:
                    self.n_skipped += 1
                else:
                    yield row

    def _conversations(
        self, piece: StreamPiece, ends: "_Ends", *, has_messages: bool = True
    ) -> Iterator[Conversation]:
        """Yield the conversations of a stream, each after its last step was read."""
        piece_range = piece.range
        with ConversationAssembler(ends.of) as assembler:
            for batch in piece:
                self.n_steps += len(batch)
                if self.on_progress is not None:
                    self.on_progress(
                        self.n_steps, int(batch.seq[-1]), range(piece_range.low, piece_range.high)
                    )
                yield from assembler.add(rollout_steps(batch, has_payloads=has_messages))
            yield from assembler.rest()

    def _pairs(self, piece: StreamPiece, ends: "_Ends") -> Iterator[dict[str, Any]]:
        """Yield preference pairs: the first reading has the rewards, the second makes the rows."""
        conversations = self._conversations(piece, ends, has_messages=False)

        def rollouts() -> Iterator[tuple[int, str, float]]:
            for number, conversation in enumerate(conversations):
                if conversation.reward is not None and conversation.status == "complete":
                    yield number, conversation.task_id, conversation.reward

        with PreferencePairs(rollouts(), self.min_margin) as pairs:
            self.n_steps = 0
            yield from pairs.rows(self._conversations(piece, ends))
            self.n_skipped = pairs.n_skipped


class _Ends:
    """How the episodes of a stream have ended, in a temporary file."""

    def __init__(self, piece: StreamPiece) -> None:
        self._ends = ScratchLists(1)
        names = ("task_id", "agent_id", "key", "reward", "last_seq", "status")
        for page in piece.episodes():
            for task, agent, episode, *end in zip(*(page.values[n] for n in names), strict=True):
                if end[:2] != [None, None]:
                    self._ends.append(key_of(task, agent, episode), (json.dumps(end),))

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def of(self, key: EpisodeKey) -> EpisodeOutcome | None:
        """Return how an episode has ended; None if it is open."""
        stored_end = None if key[2] is None else self._ends.last(key)
        return None if stored_end is None else EpisodeOutcome(*json.loads(stored_end[0]))


def rollout_steps(batch: ColumnBatch, *, has_payloads: bool = True) -> Iterator[RolloutStep]:
    """Yield steps with their keys, JSON values, rewards and flags; without typed fields.

    Args:
        batch: The steps.
        has_payloads: Whether their JSON values are wanted.
    """
    columns = [optional_values(batch, name) for name in _COLUMNS]
    if has_payloads:
        columns += [batch.column(name) for name in PAYLOAD_COLUMNS]
    return (RolloutStep(*values) for values in zip(*columns, strict=True))


def optional_values(batch: ColumnBatch, name: str) -> list[Any]:
    """Return the values of a column, None for missing ones."""
    values = batch.column(name)
    if isinstance(values, list):
        return values
    listed: list[Any] = values.tolist()
    if name in batch.is_null:
        missing = batch.is_null[name].tolist()
        return [None if gone else value for value, gone in zip(listed, missing, strict=True)]
    return listed


def _row(form: RolloutForm, conversation: Conversation) -> dict[str, Any] | None:
    if form == "prompt_completion":
        return prompt_completion_row(conversation)
    if not conversation.messages:
        return None
    return messages_row(conversation) if form == "messages" else dict(vars(conversation))


def to_hf(
    buffer: ReplayBuffer,
    rows: Literal["steps"] | RolloutForm = "steps",
    *,
    condition: Condition = None,
    columns: Sequence[str] | None = None,
    n_shards: int = 1,
    min_margin: float = 0.0,
) -> Any:
    """Return a `datasets.IterableDataset` of the steps that a buffer holds now, without a copy.

    The steps are held until the data set, and those made of it by `map` and so on, are deleted or
    the program ends: no step is evicted before it is read, and a repeated iteration reads the same
    steps. Writers can continue during this time. If the program is killed, the hold ends two
    minutes later. Workers of a `DataLoader` open the buffer by its URL, and do not end the hold.

    Args:
        buffer: The buffer.
        rows: Kind of example: `steps`, or a form of `RolloutRows`.
        condition: Condition that steps must match.
        columns: Typed fields and built-in columns to read, for `steps`. By default all fields, the
            keys, the reward, the flags and the JSON values.
        n_shards: Largest number of ranges of `seq` that workers read at the same time, for `steps`.
        min_margin: See `RolloutRows`.

    Raises:
        ArgumentError: An argument is invalid, or there is more than one shard of rollouts.
        ConditionError: The condition is malformed.
        CopyError: The buffer is one of `sqlbuffer.compat`. In an iteration: steps have left,
            because the role may not hold them or the program that made the data set has ended.
        FieldError: A column is unknown. In an iteration over rollouts: as in `RolloutRows`.
        MissingExtraError: `datasets` is not installed.
        TypeError: The database is in memory, so no other process can open it.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "replay.db")
        >>> buffer = ReplayBuffer(path, fields={"x": "float32"})
        >>> buffer.extend({"x": [0.5, 1.5]}, task_id="t").inserted
        2
        >>> [float(example["x"]) for example in to_hf(buffer)]
        [0.5, 1.5]
    """
    checked_buffer(buffer)
    checked_choice(rows, "rows", ("steps", *ROLLOUT_FORMS))
    checked_integer(n_shards, "n_shards", 1)
    if rows != "steps" and (n_shards != 1 or columns is not None):
        raise ArgumentError("n_shards and columns are for rows='steps': an episode is in one shard")
    try:
        from datasets import IterableDataset
    except ImportError:
        raise MissingExtraError(f"to_hf() needs datasets; run {install('hf')}") from None
    if rows == "steps":
        built_in, fields = example_columns(buffer.fields, columns)
        held = HeldStream(buffer, condition, fields)
        kwargs = {"held": held, "columns": (*built_in, *fields), "shards": held.pieces(n_shards)}
        return IterableDataset.from_generator(_steps, gen_kwargs=kwargs)
    own_rows = RolloutRows(buffer, rows, condition, min_margin)
    held = HeldStream(buffer, condition, ())
    kwargs = {"held": held, "rows": own_rows, "shards": held.pieces(1)}
    return IterableDataset.from_generator(_rollouts, gen_kwargs=kwargs)


# A data set keeps the arguments of its generator, and so the hold.
def _rollouts(
    held: HeldStream, rows: RolloutRows, shards: list[StreamPiece]
) -> Iterator[dict[str, Any]]:
    for piece in shards:
        yield from rows.of(piece)


def _steps(
    held: HeldStream, columns: tuple[str, ...], shards: list[StreamPiece]
) -> Iterator[dict[str, Any]]:
    for piece in shards:
        for batch in piece:
            values = [example_values(batch, name) for name in columns]
            for row in zip(*values, strict=True):
                yield dict(zip(columns, row, strict=True))


def example_values(batch: ColumnBatch, name: str) -> Sequence[Any]:
    """Return the value of each step of a batch: fields as arrays, JSON as the stored values."""
    if name in batch.fields:
        arrays = batch.fields[name]
        return [arrays[i] for i in range(len(batch))]
    if name not in PAYLOAD_COLUMNS:
        return optional_values(batch, name)
    pairs = zip(batch.column(name), batch.column("arrays"), strict=True)
    return [decode(text, raw) for text, raw in pairs]


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
    with closing(rows.each()) as iterator:
        page, n_characters = [], 0
        for row in iterator:
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
