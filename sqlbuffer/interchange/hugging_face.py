"""Data sets of Hugging Face's libraries of the steps and rollouts of a buffer."""

import base64
import io
import json
import math
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
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
    checked_names,
    checked_number,
    checked_path,
)
from sqlbuffer.codec.decoder import decode
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.display import shown, shown_size
from sqlbuffer.errors import ArgumentError, FieldError, MissingExtraError, install
from sqlbuffer.fields import near_name
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
    Message,
    PreferencePairs,
    RolloutStep,
    has_images,
    joined_messages,
    key_of,
    messages_row,
    prompt_completion_row,
)
from sqlbuffer.steps import ColumnBatch
from sqlbuffer.storage.scratch_lists import ScratchLists

RolloutForm = Literal["conversations", "messages", "prompt_completion", "preference"]
ROLLOUT_FORMS: tuple[RolloutForm, ...] = get_args(RolloutForm)
_COLUMNS = tuple(name for name in RolloutStep._fields if name not in PAYLOAD_COLUMNS)
# Facts of an episode that a column may have, with their types in Arrow.
EPISODE_COLUMNS = {
    **dict.fromkeys(("task_id", "agent_id", "episode_id", "group_id", "session_id"), "string"),
    "parent_id": "string",
    **dict.fromkeys(("status", "stop_reason"), "string"),
    **dict.fromkeys(("model_version", "n_steps"), "int64"),
    "reward": "double",
}
# JSON of which a column may have a part, and dots in the path to it.
_ROOTS = ("meta", "extra")
_CONVERSATION_COLUMNS = (
    "task_id", "agent_id", "episode_id", "reward", "status", "stop_reason", "n_steps",
    "model_version", "session_id",
)  # fmt: skip
_MESSAGES = ("messages", "prompt", "completion", "chosen", "rejected")
Columns = Sequence[str] | Mapping[str, str] | None


class LateImageError(FieldError):
    """An image came after rows without a column for it.

    :meta private:
    """


def checked_sources(columns: Columns) -> dict[str, str]:
    """Return the further columns of rollouts with what they have.

    Args:
        columns: Names of `EPISODE_COLUMNS`, and paths such as `meta.difficulty` or `extra.score`;
            or a dict with such values, whose keys name the columns.

    Raises:
        ArgumentError: They are not names.
        FieldError: There is nothing of a name.
    """
    if columns is None:
        return {}
    if isinstance(columns, Mapping):
        sources = {str(name): source for name, source in columns.items()}
    else:
        names = checked_names(columns, "columns", "['reward', 'meta.level']", error=ArgumentError)
        sources = {name: name for name in names}
    for source in sources.values():
        root = source.split(".")[0] if isinstance(source, str) else None
        if source not in EPISODE_COLUMNS and root not in _ROOTS:
            nearest = near_name(str(source), tuple(EPISODE_COLUMNS))
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FieldError(
                f"columns: a rollout has no {shown(source)}{hint}; choose from "
                f"{', '.join(EPISODE_COLUMNS)}, or name a key of the episode's meta (meta.key) or "
                f"of the last step's extra (extra.key)"
            )
    return sources


@dataclass
class RolloutRows:
    """Rows of rollouts. Each iteration reads the steps that the buffer has at that time.

    Args:
        buffer: The buffer.
        form: Form of a row. `conversations`: an episode, with `messages`, `reward`, `status`,
            `stop_reason` and its ids. `messages`, `prompt_completion` and `preference` are TRL's
            data sets of the same names. A preference pair is the best and the worst ended episode
            of a task. All have `tools`: `tools` of the episode's meta as JSON text.
        condition: Condition that steps must match.
        min_margin: Difference that the rewards of a preference pair must exceed.
        columns: Further columns: names of facts (`reward`, `group_id`, `model_version`, ..), and
            paths into the episode's meta (`meta.key`) or the last step's extra (`extra.key`). A
            dict gives them other names: `{"level": "meta.level"}`. Of a pair, both episodes have
            them, as `chosen_..` and `rejected_..`.
        images: Whether rows have a column `images`, with the files as bytes, and the content of all
            messages is a list of parts, as in TRL's vision data sets. None: if there is an image in
            the first steps.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.

    Attributes:
        skipped: Number of episodes, or tasks without a pair, that the last iteration skipped, by
            reason.
        n_steps: Number of steps that the last iteration has read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        FieldError: There is no column of a name.

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
    columns: Columns = None
    images: bool | None = None
    skipped: Counter[str] = field(init=False, default_factory=Counter)
    n_steps: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        checked_buffer(self.buffer)
        checked_choice(self.form, "form", ROLLOUT_FORMS)
        checked_number(self.min_margin, "min_margin", 0)
        self.on_progress = checked_progress(self.on_progress)
        self.buffer._conditions.node(self.condition)
        self.sources = checked_sources(self.columns)
        for name, source in self.sources.items():
            is_own = name in _CONVERSATION_COLUMNS and self.form == "conversations"
            is_own = is_own or (name == "reward" and self.form == "preference")
            if name in ("tools", "images", *_MESSAGES) or (is_own and name != source):
                raise FieldError(f"columns: rows of {self.form} have a column {name!r} already")
        if self.images is not None:
            self.images = checked_flag(self.images, "images")

    @property
    def n_skipped(self) -> int:
        """Number of episodes, or tasks without a pair, that the last iteration skipped."""
        return self.skipped.total()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows; see `each`."""
        return self.each()

    def each(self) -> Generator[dict[str, Any], None, None]:
        """Yield the rows; the steps are held until the generator ends or is closed.

        Raises:
            CopyError: The buffer is one of `sqlbuffer.compat`, or steps left before they were read.
            FieldError: A step holds something that is not a message, or a medium such as a sound,
                which would become text, or the first image comes late; the message names the
                episode.
        """
        with BufferStream(self.buffer, self.condition, fields=()) as stream:
            for piece in stream.pieces(1):
                yield from self.of(piece)

    def of(self, piece: StreamPiece) -> Iterator[dict[str, Any]]:
        """Yield the rows of the steps of a stream.

        Args:
            piece: The whole stream.

        Raises:
            FieldError: A step holds something that is not a message, or a medium such as a sound,
                which would become text, or the first image comes late; the message names the
                episode.

        :meta private:
        """
        self.skipped, self.n_steps = Counter(), 0
        has_images = _begins_with_images(piece) if self.images is None else self.images
        with _Ends(piece) as ends:
            rows = self._pairs if self.form == "preference" else self._episodes
            for row, conversations in rows(piece, ends):
                for one in conversations:
                    if one.has_images and not has_images:
                        raise self._late(one)
                yield _with_images(row) if has_images else row

    def _episodes(
        self, piece: StreamPiece, ends: "_Ends"
    ) -> Iterator[tuple[dict[str, Any], list[Conversation]]]:
        for conversation in self._conversations(piece, ends):
            row = _row(self.form, conversation)
            if isinstance(row, str):
                self.skipped[row] += 1
            else:
                yield {**row, **self._values(conversation)}, [conversation]

    def _values(self, conversation: Conversation, prefix: str = "") -> dict[str, Any]:
        return {
            prefix + name: conversation.values[source]
            if source in conversation.values
            else getattr(conversation, source)
            for name, source in self.sources.items()
        }

    def _late(self, conversation: Conversation) -> LateImageError:
        why = "is refused by images=False" if self.images is False else "comes after rows of text"
        return LateImageError(
            f"task {conversation.task_id!r}, episode {conversation.episode_id!r}: an image in a "
            f"message {why}; give images=True for a column of images in all rows"
        )

    def _conversations(
        self, piece: StreamPiece, ends: "_Ends", *, has_messages: bool = True
    ) -> Iterator[Conversation]:
        """Yield the conversations of a stream, each after its last step was read."""
        piece_range = piece.range
        paths = [source for source in self.sources.values() if source not in EPISODE_COLUMNS]
        with ConversationAssembler(ends.of, paths) as assembler:
            for batch in piece:
                self.n_steps += len(batch)
                if self.on_progress is not None:
                    self.on_progress(
                        self.n_steps, int(batch.seq[-1]), range(piece_range.low, piece_range.high)
                    )
                yield from assembler.add(rollout_steps(batch, has_payloads=has_messages))
            yield from assembler.rest()

    def _pairs(
        self, piece: StreamPiece, ends: "_Ends"
    ) -> Iterator[tuple[dict[str, Any], list[Conversation]]]:
        """Yield preference pairs: the first reading has the rewards, the second makes the rows."""
        conversations = self._conversations(piece, ends, has_messages=False)

        def rollouts() -> Iterator[tuple[int, str, float]]:
            for number, conversation in enumerate(conversations):
                reward = conversation.reward if conversation.status == "complete" else None
                yield number, conversation.task_id, math.nan if reward is None else reward

        with PreferencePairs(rollouts(), self.min_margin) as pairs:
            self.n_steps = 0
            for row, chosen, rejected in pairs.rows(self._conversations(piece, ends)):
                values = self._values(chosen, "chosen_") | self._values(rejected, "rejected_")
                yield {**row, **values}, [chosen, rejected]
            self.skipped = pairs.skipped


class _Ends:
    """How the episodes of a stream have ended, and their meta, in a temporary file."""

    def __init__(self, piece: StreamPiece) -> None:
        self._ends = ScratchLists(1)
        names = (
            "task_id", "agent_id", "key", "reward", "last_seq", "status", "meta", "group_id",
            "parent_id",
        )  # fmt: skip
        for page in piece.episodes():
            for task, agent, episode, *end in zip(*(page.values[n] for n in names), strict=True):
                reward, last_seq, _, *others = end
                if any(value is not None for value in (reward, last_seq, *others)):
                    self._ends.append(key_of(task, agent, episode), (json.dumps(end),))

    def __enter__(self) -> "_Ends":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def of(self, key: EpisodeKey) -> EpisodeOutcome | None:
        """Return how an episode has ended; None if it is open and has no meta."""
        stored_end = None if key[2] is None else self._ends.last(key)
        if stored_end is None:
            return None
        reward, last_seq, status, meta, *others = json.loads(stored_end[0])
        return EpisodeOutcome(reward, last_seq, status, decode(meta, None), *others)


def rollout_steps(batch: ColumnBatch | None, *, has_payloads: bool = True) -> Iterator[RolloutStep]:
    """Yield steps with their keys, JSON values, rewards and flags; without typed fields.

    Args:
        batch: The steps; None: there are none.
        has_payloads: Whether their JSON values are wanted.
    """
    if batch is None:
        return iter(())
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


def _row(form: RolloutForm, conversation: Conversation) -> dict[str, Any] | str:
    if form == "prompt_completion":
        return prompt_completion_row(conversation)
    row = messages_row(conversation)
    if form == "messages" or isinstance(row, str):
        return row
    return {name: getattr(conversation, name) for name in _CONVERSATION_COLUMNS} | row


def _with_images(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as in TRL's vision data sets."""
    images: list[dict[str, Any]] = []
    new_row = dict(row)
    for name in _MESSAGES:
        if name in row:
            new_row[name] = [_vision_message(message, images) for message in row[name]]
    return {**new_row, "images": images}


def _vision_message(message: Message, images: list[dict[str, Any]]) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]}
    parts = []
    for part in content:
        if part["type"] == "image":
            images.append({"bytes": base64.b64decode(part["base64"]), "path": None})
        parts.append({"type": "image"} if part["type"] == "image" else part)
    return {**message, "content": parts}


def _begins_with_images(piece: StreamPiece) -> bool:
    """Return True if there is an image in a message of the first steps."""
    return any(map(_has_images, rollout_steps(next(iter(piece), None))))


def _has_images(step: RolloutStep) -> bool:
    text = f"{step.messages or ''}{step.actions or ''}"
    if "image" not in text and step.arrays is None:
        return False
    data = step.row().exp_data
    try:
        messages = joined_messages([(data.messages, data.actions)])
    except ValueError:
        return False  # an error that names the episode comes with its conversation
    return any(map(has_images, messages))


def to_hf(
    buffer: ReplayBuffer,
    rows: Literal["steps"] | RolloutForm = "steps",
    *,
    condition: Condition = None,
    columns: Columns = None,
    n_shards: int = 1,
    min_margin: float = 0.0,
    images: bool | None = None,
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
        columns: For `steps`: typed fields and built-in columns to read, by default all fields, the
            keys, the reward, the flags and the JSON values. For rollouts: further columns; see
            `RolloutRows`.
        n_shards: Largest number of ranges of `seq` that workers read at the same time, for `steps`.
        min_margin: See `RolloutRows`.
        images: See `RolloutRows`. Images are decoded by Pillow, as by datasets' feature `Image`.

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
    if rows != "steps" and n_shards != 1:
        raise ArgumentError("n_shards is for rows='steps': an episode is in one shard")
    if rows == "steps" and images is not None:
        raise ArgumentError("images is for rows of rollouts: a step has its own columns")
    try:
        from datasets import IterableDataset
    except ImportError:
        raise MissingExtraError(f"to_hf() needs datasets; run {install('hf')}") from None
    if rows == "steps":
        if isinstance(columns, Mapping):
            raise ArgumentError("a dict of columns is for rows of rollouts; give a list of names")
        built_in, fields = example_columns(buffer.fields, columns)
        held = HeldStream(buffer, condition, fields)
        kwargs = {"held": held, "columns": (*built_in, *fields), "shards": held.pieces(n_shards)}
        return IterableDataset.from_generator(_steps, gen_kwargs=kwargs)
    own_rows = RolloutRows(buffer, rows, condition, min_margin, columns=columns, images=images)
    held = HeldStream(buffer, condition, ())
    kwargs = {"held": held, "rows": own_rows, "shards": held.pieces(1)}
    return IterableDataset.from_generator(_rollouts, gen_kwargs=kwargs)


# A data set keeps the arguments of its generator, and so the hold.
def _rollouts(
    held: HeldStream, rows: RolloutRows, shards: list[StreamPiece]
) -> Iterator[dict[str, Any]]:
    for piece in shards:
        for row in rows.of(piece):
            if row.get("images"):
                row["images"] = [_decoded(image["bytes"]) for image in row["images"]]
            yield row


def _decoded(data: bytes) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError(f"images in messages need Pillow; run {install('hf')}") from None
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


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
        skipped: Number of episodes, or tasks without a pair, that have no row, by reason.
        n_steps: Number of steps that were read.
        n_bytes: Size of the files.
        seconds: Duration of the export.

    Example:
        >>> print(RolloutExport("out", "messages", 4, {"no messages": 24}, 28, 5_000, 0.1))
        exported to out: 4 rows of messages (24 skipped: no messages), from 28 steps, 5 kB, in 0.1 s
    """

    path: str
    form: str
    n_rows: int
    skipped: Mapping[str, int]
    n_steps: int
    n_bytes: int
    seconds: float

    @property
    def n_skipped(self) -> int:
        """Number of episodes, or tasks without a pair, that have no row."""
        return sum(self.skipped.values())

    def __str__(self) -> str:
        counts = "; ".join(f"{n:,} skipped: {reason}" for reason, n in self.skipped.items())
        skipped = f" ({counts})" if counts else ""
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
    columns: Columns = None,
    images: bool | None = None,
    overwrite: bool = False,
    compression: str = "zstd",
    on_progress: OnProgress | None = None,
) -> RolloutExport:
    """Write rollouts to a folder that `datasets.load_dataset` opens.

    The folder has `train-00000.parquet` and so on, and a manifest with the sizes and checksums of
    the files. A message has `role`, `content` and other keys (`MESSAGE_KEYS`), which are null if
    the message does not have them. Images are a column of datasets' feature `Image`. Values of a
    further column that are not all numbers, texts or flags are JSON text.

    Args:
        buffer: The buffer.
        path: The folder to make.
        form: Form of a row; see `RolloutRows`.
        condition: Condition that steps must match.
        min_margin: See `RolloutRows`.
        columns: See `RolloutRows`.
        images: See `RolloutRows`; None: if there is an image in any row.
        overwrite: Replace an existing export.
        compression: Compression of the files; see `export_parquet`.
        on_progress: Function that is called after each batch with the number of steps read so far,
            the last `seq` read, and the range of `seq` to read.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A step holds something that is not a message, or a medium such as a sound, which
            would become text; the message names the episode. There is no column of a name.
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
    rows = RolloutRows(buffer, form, condition, min_margin, on_progress, columns, images)
    with OutputFolder(target, overwrite=overwrite) as folder:
        n_rows = _write(rows, folder.work, compression)
        card = rollouts_card(buffer.name, folder.path.name, form)
        _, n_bytes = folder.finish(card, {"rows": n_rows})
    return RolloutExport(
        str(path),
        form,
        n_rows,
        dict(rows.skipped),
        rows.n_steps,
        n_bytes,
        time.monotonic() - began_at,
    )


def _write(rows: RolloutRows, folder: Path, compression: str) -> int:
    """Write the files; begin again where a row does not fit into the columns of those before."""
    kinds: dict[str, str] = {}
    while True:
        try:
            return _write_files(rows, folder, compression, kinds)
        except LateImageError:
            if rows.images is not None:
                raise
            rows.images = True
        except _OtherKind:
            pass
        for file in folder.glob("train-*.parquet"):
            file.unlink()


class _OtherKind(Exception):
    """A further column has values of another kind than in the files."""


def _write_files(rows: RolloutRows, folder: Path, compression: str, kinds: dict[str, str]) -> int:
    import pyarrow.parquet as pq

    n_rows, n_files = 0, 0
    with closing(_pages(rows)) as pages:
        page = _page_of_kinds(next(pages, []), kinds)
        schema = rollout_schema(rows.form, rows.sources, kinds, has_images=_are_vision(page))
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
                    writer.write_table(_table(page, schema, kinds))
                    n_rows += len(page)
                    known = dict(kinds)
                    page = _page_of_kinds(next(pages, []), kinds)
                    if kinds != known:
                        raise _OtherKind
    return n_rows


def _are_vision(page: list[dict[str, Any]]) -> bool:
    return bool(page) and "images" in page[0]


# Kinds of values in Arrow; a column with values of several kinds has JSON text.
_KINDS = {bool: "bool", int: "int64", float: "double", str: "string"}
_JSON_KIND = "json"


def _page_of_kinds(page: list[dict[str, Any]], kinds: dict[str, str]) -> list[dict[str, Any]]:
    """Note the kinds of the values whose columns are not in `_TYPES`; return the page."""
    for row in page:
        for name in row.keys() - _TYPES.keys():
            if (value := row[name]) is None:
                continue
            kind = _KINDS.get(type(value), _JSON_KIND)
            if kind == "int64" and not -(2**63) <= value < 2**63:
                kind = _JSON_KIND
            known = kinds.get(name, kind)
            if {known, kind} == {"int64", "double"}:
                kinds[name] = "double"
            else:
                kinds[name] = kind if known == kind else _JSON_KIND
    return page


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
    """Return the length of all texts and images in a row."""
    if isinstance(value, dict):
        return sum(map(_n_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_n_characters, value))
    return len(value) if isinstance(value, (str, bytes)) else 0


def _table(rows: list[dict[str, Any]], schema: Any, kinds: Mapping[str, str]) -> Any:
    texts = [name for name, kind in kinds.items() if kind == _JSON_KIND]
    for row in rows:
        for name in texts:
            if row.get(name) is not None:
                row[name] = json.dumps(row[name], ensure_ascii=False)
    return load_pyarrow().Table.from_pylist(rows, schema=schema)


# Arrow's types of the columns of all forms.
_TYPES = {
    **EPISODE_COLUMNS,
    **dict.fromkeys(_MESSAGES, "messages"),
    **dict.fromkeys(("chosen_reward", "rejected_reward"), "double"),
    "tools": "string",
    "images": "images",
}
_FORM_COLUMNS: dict[RolloutForm, tuple[str, ...]] = {
    "messages": ("messages", "tools"),
    "prompt_completion": ("prompt", "completion", "tools"),
    "preference": ("prompt", "chosen", "rejected", "chosen_reward", "rejected_reward", "tools"),
    "conversations": (
        "task_id", "agent_id", "episode_id", "messages", "reward", "status", "stop_reason",
        "n_steps", "model_version", "session_id", "tools",
    ),
}  # fmt: skip


def rollout_schema(
    form: RolloutForm,
    sources: Mapping[str, str] | None = None,
    kinds: Mapping[str, str] | None = None,
    *,
    has_images: bool = False,
) -> Any:
    """Return the Arrow schema of the rows of a form.

    Args:
        form: The form.
        sources: Further columns; see `checked_sources`.
        kinds: Kinds of the values of those that are parts of JSON.
        has_images: Whether there is a column of images.
    """
    pa = load_pyarrow()
    text, function = pa.string(), [("name", pa.string()), ("arguments", pa.string())]
    call = pa.struct([("id", text), ("type", text), ("function", pa.struct(function))])
    part = pa.struct([("type", text), ("text", text)])
    types = {"tool_calls": pa.list_(call), "content": pa.list_(part) if has_images else text}
    message = pa.struct([(key, types.get(key, text)) for key in MESSAGE_KEYS])
    image = pa.struct([("bytes", pa.binary()), ("path", text)])
    wide = {"messages": pa.list_(message), "images": pa.list_(image), _JSON_KIND: text}
    names = {name: _TYPES[name] for name in _FORM_COLUMNS[form]}
    for prefix in ("chosen_", "rejected_") if form == "preference" else ("",):
        for name, source in (sources or {}).items():
            kind = EPISODE_COLUMNS.get(source) or (kinds or {}).get(prefix + name, "string")
            names.setdefault(prefix + name, kind)
    if has_images:
        names["images"] = "images"
    schema = pa.schema([(name, wide.get(kind) or kind) for name, kind in names.items()])
    if not has_images:
        return schema
    features = {field.name: _feature(field.name, field.type) for field in schema}
    return schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def _feature(name: str, kind: Any) -> Any:
    """Return the feature of a column for `datasets`, which cannot tell images from structs."""
    if name == "images":
        return [{"_type": "Image"}]
    types = load_pyarrow().types
    if types.is_list(kind):
        return [_feature("", kind.value_type)]
    if types.is_struct(kind):
        return {field.name: _feature("", field.type) for field in kind}
    return {"dtype": {"double": "float64"}.get(str(kind), str(kind)), "_type": "Value"}
