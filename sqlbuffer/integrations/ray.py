"""Read a buffer with Ray Data; see `docs/how-to/read-with-ray.md`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import MissingExtraError, install
from sqlbuffer.fields import FieldSpec
from sqlbuffer.interchange.parquet.arrow import StepSchema, step_table
from sqlbuffer.interchange.streams import HeldStream, StreamPiece, example_columns
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import Database, is_memory

try:
    from ray.data import Dataset, read_datasource
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask
    from ray.data.extensions import ArrowTensorArray
except ImportError:
    raise MissingExtraError(
        f"sqlbuffer.integrations.ray needs Ray Data; run {install('ray')}"
    ) from None

__all__ = ["read_buffer"]

# Estimated size of a step's built-in columns.
KEY_BYTES = 100


def read_buffer(
    url: Database = None,
    name: str = "default",
    *,
    condition: Condition = None,
    columns: Sequence[str] | None = None,
    **read_args: Any,
) -> Dataset:
    """Return a Ray data set of the steps that a buffer holds now, each step once.

    Tasks read ranges of `seq` in parallel. The steps are held until the data set is deleted or the
    program ends: no step is evicted before it is read, and a repeated iteration reads the same
    steps. Writers can continue during this time.

    Fields of a fixed shape are tensors, fields of varying length are lists; `state`, `actions`,
    `messages` and `extra` are JSON texts.

    Args:
        url: The database, which all nodes must reach: PostgreSQL, or a SQLite file if there is one
            node.
        name: The buffer.
        condition: Condition that steps must match.
        columns: Typed fields and built-in columns to read. By default all fields, the keys, the
            reward, the flags and the JSON texts.
        **read_args: More arguments of `ray.data.read_datasource`, such as `override_num_blocks` and
            `concurrency`.

    Raises:
        BufferNotFoundError: There is no such buffer.
        CopyError: The buffer is one of `sqlbuffer.compat`. In a task: steps have left, because the
            role may not hold them or the program that made the data set has ended.
        FieldError: The column is unknown.
        ValueError: A database in memory, which tasks cannot open.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "replay.db")
        >>> with ReplayBuffer(path, fields={"x": "float32"}) as buffer:
        ...     buffer.extend({"x": [0.5, 1.5]}, task_id="t").inserted
        2
        >>> sorted(row["x"] for row in read_buffer(path).take_all())
        [0.5, 1.5]
    """
    if is_memory(resolve_url(url)):
        raise ValueError(
            "a database in memory belongs to this process, and Ray's tasks run in others; give it "
            "a file: sqlite:///replay.db"
        )
    source = BufferDatasource(ReplayBuffer(url, name, create=False), condition, columns)
    return read_datasource(source, **read_args)


class BufferDatasource(Datasource):  # type: ignore[misc]
    """Reads the steps that a buffer holds when this is made.

    Args:
        buffer: The buffer, which is closed at the end.
        condition: Condition that steps must match.
        columns: See `read_buffer`.
    """

    def __init__(
        self, buffer: ReplayBuffer, condition: Condition, columns: Sequence[str] | None
    ) -> None:
        super().__init__()
        specs = buffer.fields
        built_in, fields = example_columns(specs, columns)
        self._schema = StepSchema.of(built_in, {name: specs[name] for name in fields})
        self._name = buffer.name
        self._held = HeldStream(buffer, condition, fields, buffer.close)

    def get_name(self) -> str:
        """Return what Ray calls the read tasks."""
        return f"ReadBuffer({self._name})"

    def estimate_inmemory_data_size(self) -> int:
        """Return about how many bytes the steps have in memory."""
        return self._held.n_numbers * step_bytes(self._schema.specs)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[Any]:
        """Return a task for each range of steps.

        Args:
            parallelism: Largest number of tasks.
            per_task_row_limit: Largest number of rows of a task.
            data_context: Ray's context; not used.
        """
        size = step_bytes(self._schema.specs)
        tasks = []
        for piece in self._held.pieces(max(parallelism, 1)):
            read = PieceReader(piece, self._schema)
            n_bytes = (piece.range.high - piece.range.low) * size
            metadata = BlockMetadata(
                num_rows=None, size_bytes=n_bytes, exec_stats=None, input_files=None
            )
            tasks.append(ReadTask(read, metadata, per_task_row_limit=per_task_row_limit))
        return tasks


def step_bytes(specs: Mapping[str, FieldSpec]) -> int:
    """Return about how many bytes a step has; fields of varying length count as one item."""
    items = {name: abs(math.prod(spec.shape)) for name, spec in specs.items()}
    return KEY_BYTES + sum(spec.dtype.itemsize * items[name] for name, spec in specs.items())


class PieceReader:
    """Reads a range of steps, in a task.

    Args:
        piece: The range.
        schema: The columns.
    """

    def __init__(self, piece: StreamPiece, schema: StepSchema) -> None:
        self._piece, self._schema = piece, schema

    def __call__(self) -> Iterator[Any]:
        """Yield Arrow tables."""
        arrow = self._schema.arrow()
        for batch in self._piece:
            table = step_table(batch, self._schema, arrow)
            for name, spec in self._schema.specs.items():
                if spec.shape and not spec.is_variable and spec.dtype.kind in "biuf":
                    place = table.column_names.index(name)
                    tensors = ArrowTensorArray.from_numpy(batch.fields[name])
                    table = table.set_column(place, name, tensors)
            yield table
