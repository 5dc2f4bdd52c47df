"""Find Parquet files, and read them a row group at a time."""

import json
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.config import BufferConfig
from sqlbuffer.errors import FileImportError
from sqlbuffer.interchange.output import MANIFEST, named_damage, verified_manifest
from sqlbuffer.interchange.parquet.arrow import (
    FORMAT_VERSION,
    METADATA_KEY,
    load_pyarrow,
    times,
    whole,
)

# Files are read in parts of that many rows and items of lists: an item of 8 bits takes
# 64 while it is read.
ROWS_AT_ONCE, ITEMS_AT_ONCE = 20_000, 2**20
# What an export notes in its files.
_NOTED = (
    "buffer", "built_in", "condition", "config", "export_id", "high_seq", "is_whole", "low_seq",
    "session", "sessions", "state", "uuid",
)  # fmt: skip


class ParquetFiles:
    """The Parquet files of a folder, or a single one.

    The files of an export are compared with its manifest: each is read once for this.

    Args:
        path: The folder or the file.

    Attributes:
        paths: The files with steps, in order.
        schema: Their Arrow schema.
        metadata: Metadata that `export_parquet` wrote; None if another program wrote the files.
        n_rows: Number of steps.

    Raises:
        FileImportError: There are no files, their schemas differ, a file is not Parquet, or an
            export is not complete.
    """

    def __init__(self, path: Path) -> None:
        load_pyarrow()
        self.path = path
        with named_damage(self.path):
            self._manifest = verified_manifest(self.path) if self.path.is_dir() else None
            self.paths = self._data_files()
        schemas, counts = zip(*map(self._schema_and_rows, self.paths), strict=True)
        self.schema, self.n_rows = schemas[0], sum(counts)
        for file, schema in zip(self.paths, schemas, strict=True):
            if not schema.equals(self.schema):
                raise FileImportError(
                    f"{file} has other columns than {self.paths[0]}; import files with the same "
                    f"columns together, and others apart"
                )
        with named_damage(self.paths[0]):
            self.metadata = _metadata_of(self.schema)
        self._check_complete()

    @property
    def is_export(self) -> bool:
        """Whether a buffer can be restored from the files: a folder with all columns."""
        return self.metadata is not None and self.metadata["is_whole"] and self.path.is_dir()

    @property
    def config(self) -> BufferConfig:
        """Settings of the buffer that was exported."""
        assert self.metadata is not None
        with named_damage(self.paths[0]):
            return BufferConfig.model_validate(self.metadata["config"])

    def _check_complete(self) -> None:
        noted = {} if self.metadata is None else self.metadata
        if self._manifest is None:
            if noted and self.path.is_dir():
                raise FileImportError(
                    f"{self.path} has no {MANIFEST}, which an export writes last: it was copied in "
                    f"part, or files were moved; copy the whole folder again, or import its files "
                    f"one by one to append their steps"
                )
            return
        counts = {"export_id": noted.get("export_id"), "steps" if noted else "rows": self.n_rows}
        if self.episodes is not None:
            counts["episodes"] = self._schema_and_rows(self.episodes)[1]
        self._manifest.check(counts)

    def _data_files(self) -> list[Path]:
        if not self.path.exists():
            raise FileImportError(f"there is no {self.path}; name a folder of Parquet files")
        if self.path.is_file():
            return [self.path]
        files = sorted(self.path.glob("*.parquet"))
        if self._manifest is not None:
            for file in files:
                if file.name not in self._manifest.files:
                    raise FileImportError(
                        f"{file} is not of the export in {self.path}: {MANIFEST} does not name "
                        f"it; import it alone"
                    )
        steps = [file for file in files if file.name.startswith("steps-")]
        paths = steps or [file for file in files if file.name != "episodes.parquet"]
        if not paths:
            raise FileImportError(f"{self.path} has no files *.parquet; name another folder")
        return paths

    @property
    def episodes(self) -> Path | None:
        """The file with episodes; None if there is none."""
        file = self.path / "episodes.parquet"
        return file if file.exists() else None

    def _schema_and_rows(self, path: Path) -> tuple[Any, int]:
        with named_damage(path), self._opened(path) as file:
            return file.schema_arrow, file.metadata.num_rows

    def _opened(self, path: Path) -> Any:
        import pyarrow.parquet as pq

        with named_damage(path):
            # Nothing is read ahead: that would hold a row group twice.
            return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)

    @property
    def _rows_at_once(self) -> int:
        n_items = sum(_items_of(field.type) for field in self.schema)
        return max(1, min(ROWS_AT_ONCE, ITEMS_AT_ONCE // n_items))

    def row_groups(self, above: int) -> Iterator[tuple[Path, Any]]:
        """Yield row groups that have a number above one: the file, and a table.

        Args:
            above: Numbers up to this one are not wanted.
        """
        pa, place = load_pyarrow(), self.schema.get_field_index("seq")
        for path in self.paths:
            with named_damage(path), self._opened(path) as file:
                for i in range(file.metadata.num_row_groups):
                    if _greatest(file.metadata.row_group(i), place) > above:
                        parts = file.iter_batches(
                            self._rows_at_once, row_groups=[i], use_threads=False
                        )
                        yield path, pa.Table.from_batches(list(parts), self.schema)

    def columns(self, names: Sequence[str]) -> Iterator[list[list[Any]]]:
        """Yield some columns of all files, a part at a time."""
        for path in self.paths:
            with named_damage(path), self._opened(path) as file:
                for batch in file.iter_batches(ROWS_AT_ONCE, columns=list(names)):
                    yield [batch.column(name).to_pylist() for name in names]

    def batches(self) -> Iterator[tuple[Path, int, Any]]:
        """Yield parts of all files: the file, the place of the first row in it, and a table."""
        pa = load_pyarrow()
        for path in self.paths:
            first = 0
            with named_damage(path), self._opened(path) as file:
                for batch in file.iter_batches(self._rows_at_once, use_threads=False):
                    yield path, first, pa.Table.from_batches([batch])
                    first += len(batch)

    def mark(self, path: Path) -> str:
        """Return what tells a file from others: the hash of its last part, which has sizes and
        places of all columns.
        """
        with named_damage(path), path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - 8))
            n = int.from_bytes(file.read(4), "little")
            file.seek(max(0, size - n - 8))
            return sha256(file.read()).hexdigest()[:16]


def _metadata_of(schema: Any) -> dict[str, Any] | None:
    """Return the metadata of an export; None for files of other programs."""
    noted = (schema.metadata or {}).get(METADATA_KEY)
    if noted is None:
        return None
    metadata: dict[str, Any] = json.loads(noted)
    if metadata["format"] > FORMAT_VERSION:
        raise FileImportError(
            f"the files were exported by a later release (format {metadata['format']}); upgrade "
            f"the package"
        )
    return {name: metadata[name] for name in _NOTED}


def _greatest(group: Any, place: int) -> int:
    statistics = group.column(place).statistics if group.num_rows else None
    if statistics is None or not statistics.has_min_max:
        return 2**62 if group.num_rows else -1
    return int(statistics.max)


def _items_of(kind: Any) -> int:
    """Return how many items a value of a column has, where its type says so."""
    if load_pyarrow().types.is_fixed_size_list(kind):
        return int(kind.list_size) * _items_of(kind.value_type)
    return 1


class StepRuns:
    """Steps that were stored together; missing steps between them are filled in.

    Attributes:
        source: Index of each step; for a filled one, that of the first step of its run.
        is_filled: True for a filled step.
        seq: Number of each step.
        run_of: Run of each step.
        place: Place of each step in its run.
        ranges: The first step of each run, and the one after its last.
    """

    def __init__(self, seq: NDArray[np.int64], first_seq: NDArray[np.int64]) -> None:
        starts = np.flatnonzero(np.diff(first_seq, prepend=first_seq[:1] - 1))
        ends = np.append(starts[1:], len(seq))
        self.first_seq = first_seq[starts]
        counts = seq[ends - 1] - self.first_seq + 1
        stops = np.cumsum(counts)
        begins = stops - counts
        n = int(stops[-1])
        self.run_of = np.repeat(np.arange(len(starts)), counts)
        self.place = np.arange(n) - begins[self.run_of]
        self.seq = self.first_seq[self.run_of] + self.place
        self.ranges = list(zip(begins.tolist(), stops.tolist(), strict=True))
        self.begins = begins
        self.has_gaps = n > len(seq)
        self.source, self.is_filled = np.arange(n), np.zeros(n, bool)
        if self.has_gaps:
            indexes = np.searchsorted(seq, self.seq).clip(max=len(seq) - 1)
            self.is_filled = seq[indexes] != self.seq
            self.source = np.where(self.is_filled, starts[self.run_of], indexes)
            # The first step of each run that is not filled.
            self.held = begins + (seq[starts] - self.first_seq)
        else:
            self.held = begins

    def firsts(self, column: Any) -> list[Any]:
        """Return the value of a column that the steps of a run have in common."""
        held = whole(column).take(load_pyarrow().array(self.held))
        values: list[Any] = (
            times(held) if str(held.type).startswith("timestamp") else held.to_pylist()
        )
        return values

    def continued(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return numbers that increase by one in the place of those of filled steps."""
        if not self.has_gaps:
            return values
        held = self.held[self.run_of]
        return np.where(self.is_filled, values[held] + self.place - self.place[held], values)
