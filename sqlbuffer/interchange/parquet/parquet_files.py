"""Find Parquet files, and read them a row group at a time."""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlbuffer.errors import FileImportError
from sqlbuffer.interchange.parquet.arrow_schema import FORMAT_VERSION, METADATA_KEY, load_pyarrow

# Files are read in parts of that many rows and items of lists: an item of 8 bits takes
# 64 while it is read.
ROWS_AT_ONCE, ITEMS_AT_ONCE = 20_000, 2**20


class ParquetFiles:
    """The Parquet files of a folder, or a single one.

    Args:
        path: The folder or the file.

    Attributes:
        paths: The files with steps, in order.
        schema: Their Arrow schema.
        metadata: Metadata that `export_parquet` wrote; None if another program wrote the files.

    Raises:
        FileImportError: There are no files, their schemas differ, or a file is not Parquet.
    """

    def __init__(self, path: "str | os.PathLike[str]") -> None:
        load_pyarrow()
        self.path = Path(path)
        self.paths = self._found()
        schemas = [self._opened(file).schema_arrow for file in self.paths]
        self.schema = schemas[0]
        for file, schema in zip(self.paths, schemas, strict=True):
            if not schema.equals(self.schema):
                raise FileImportError(
                    f"{file} has other columns than {self.paths[0]}; import files with the same "
                    f"columns together, and others apart"
                )
        noted = (self.schema.metadata or {}).get(METADATA_KEY)
        self.metadata: dict[str, Any] | None = None if noted is None else json.loads(noted)
        if self.metadata is not None and self.metadata["format"] > FORMAT_VERSION:
            raise FileImportError(
                f"{self.path} was exported by a later release (format "
                f"{self.metadata['format']}); upgrade the package"
            )
        if self.metadata is not None and self.metadata["is_whole"] and self.path.is_dir():
            self._check_ids(schemas)

    def _check_ids(self, schemas: list[Any]) -> None:
        ids = {json.loads(schema.metadata[METADATA_KEY])["export_id"] for schema in schemas}
        if len(ids) > 1:
            raise FileImportError(f"{self.path} has files of {len(ids)} exports; import each alone")

    def _found(self) -> list[Path]:
        if not self.path.exists():
            raise FileImportError(f"there is no {self.path}; name a folder of Parquet files")
        if self.path.is_file():
            return [self.path]
        found = sorted(self.path.glob("steps-*.parquet")) or [
            file for file in sorted(self.path.glob("*.parquet")) if file.name != "episodes.parquet"
        ]
        if not found:
            raise FileImportError(f"{self.path} has no files *.parquet; name another folder")
        return found

    @property
    def episodes(self) -> Path | None:
        """The file with episodes; None if there is none."""
        file = self.path / "episodes.parquet"
        return file if self.path.is_dir() and file.exists() else None

    def _opened(self, path: Path) -> Any:
        import pyarrow.parquet as pq

        pa = load_pyarrow()
        try:
            # Nothing is read ahead: that would hold a row group twice.
            return pq.ParquetFile(path, pre_buffer=False)
        except pa.ArrowInvalid as error:
            raise FileImportError(
                f"{path} cannot be read as Parquet: {error}; copy or export it again"
            ) from None

    @property
    def _rows_at_once(self) -> int:
        n_items = sum(_items_of(field.type) for field in self.schema)
        return max(1, min(ROWS_AT_ONCE, ITEMS_AT_ONCE // n_items))

    def n_rows(self) -> int:
        """Return how many steps there are."""
        return sum(self._opened(path).metadata.num_rows for path in self.paths)

    def row_groups(self, above: int) -> Iterator[Any]:
        """Yield row groups that have a number above one, as tables.

        Args:
            above: Numbers up to this one are not wanted.
        """
        pa, place = load_pyarrow(), self.schema.get_field_index("seq")
        for path in self.paths:
            with self._opened(path) as file:
                for i in range(file.metadata.num_row_groups):
                    if _greatest(file.metadata.row_group(i), place) > above:
                        parts = file.iter_batches(
                            self._rows_at_once, row_groups=[i], use_threads=False
                        )
                        yield pa.Table.from_batches(list(parts), self.schema)

    def batches(self) -> Iterator[tuple[Path, int, Any]]:
        """Yield parts of all files: the file, the place of the first row in it, and a table."""
        pa = load_pyarrow()
        for path in self.paths:
            first = 0
            with self._opened(path) as file:
                for batch in file.iter_batches(self._rows_at_once, use_threads=False):
                    yield path, first, pa.Table.from_batches([batch])
                    first += len(batch)

    def mark(self, path: Path) -> str:
        """Return what tells a file from others: the hash of its last part, which has sizes and
        places of all columns.
        """
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - 8))
            n = int.from_bytes(file.read(4), "little")
            file.seek(max(0, size - n - 8))
            return sha256(file.read()).hexdigest()[:16]


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
