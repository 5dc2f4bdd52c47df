"""Flat arrays, read in pieces: from a dict, an `.npz` or HDF5 file, or chunks of a generator."""

import math
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.checks import checked_path, refused
from sqlbuffer.display import shown
from sqlbuffer.errors import FieldError, FileImportError, MissingExtraError, install
from sqlbuffer.interchange.output import named_damage

Arrays = dict[str, NDArray[Any]]

PIECE_BYTES = 16 * 2**20
WHAT = "a dict of arrays, the path of an .npz or HDF5 file, or an iterable of such dicts"
_ZIP, _HDF5 = b"PK", b"\x89HDF\r\n\x1a\n"
# Facts about a data set, and not about steps.
_ABOUT = "metadata/"


@dataclass(frozen=True)
class FlatColumn:
    """One of the arrays, which is read in pieces.

    Attributes:
        shape: Its shape; the first length is the number of rows.
        dtype: Its dtype.
        pieces: Yields the rows in order, as many at a time as it is told.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    pieces: Callable[[int], Iterator[NDArray[Any]]]

    @property
    def row_bytes(self) -> int:
        """Size of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


Columns = dict[str, FlatColumn]


@dataclass(frozen=True)
class Lane:
    """Steps of one agent, in the order of time.

    Attributes:
        columns: Yields its arrays, once, or one chunk of them after another.
        agent_id: The agent; None for the default.
        after: The observation after the last step, by field, if it is not among the arrays.
    """

    columns: Callable[[], Iterator[Columns]]
    agent_id: str | None = None
    after: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class FlatSource:
    """Flat arrays to import.

    Attributes:
        name: Name for messages.
        lanes: The agents.
        may_repeat: True if the arrays can be read twice.
    """

    name: str
    lanes: Sequence[Lane]
    may_repeat: bool = True


def opened_source(arrays: Any, stack: ExitStack) -> FlatSource:
    """Return the arrays that a user gave; files are open until the stack is closed.

    Raises:
        ArgumentError: They are something else.
        FileImportError: There is no such file, or it is damaged.
        MissingExtraError: The file is HDF5, and h5py is not installed.
    """
    if isinstance(arrays, (str, os.PathLike)):
        return _file(checked_path(arrays, "arrays", WHAT), stack)
    if isinstance(arrays, Mapping):
        columns = dict_columns(arrays)
        return FlatSource("the dict of arrays", [Lane(lambda: iter([columns]))])
    if not isinstance(arrays, Iterable) or isinstance(arrays, (type, bytes, bytearray, np.ndarray)):
        raise refused(arrays, "arrays", WHAT)
    # A list can be read twice, and a generator only once.
    is_list = isinstance(arrays, Sequence)
    return FlatSource("the iterable of arrays", [Lane(lambda: _chunks(arrays))], is_list)


def _chunks(chunks: Iterable[Any]) -> Iterator[Columns]:
    for number, chunk in enumerate(chunks):
        if not isinstance(chunk, Mapping):
            raise refused(chunk, f"chunk {number} of arrays", "a dict of arrays")
        yield dict_columns(chunk)


def _file(path: Path, stack: ExitStack) -> FlatSource:
    if not path.is_file():
        raise FileImportError(f"there is no file {path}; name an .npz or HDF5 file of arrays")
    with named_damage(path), path.open("rb") as file:
        head = file.read(len(_HDF5))
    if head.startswith(_ZIP):
        open_file: Callable[[Path, ExitStack], Columns] = _npz_columns
    elif head == _HDF5:
        open_file = _hdf5_columns
    else:
        raise FileImportError(
            f"{path} is neither an .npz nor an HDF5 file; write the arrays with numpy.savez, and "
            f"never with pickle"
        )
    with named_damage(path):
        columns = open_file(path, stack)
    named = {
        name: FlatColumn(column.shape, column.dtype, _named(path, column))
        for name, column in columns.items()
    }
    return FlatSource(str(path), [Lane(lambda: iter([named]))])


def _named(path: Path, column: FlatColumn) -> Callable[[int], Iterator[NDArray[Any]]]:
    """Return what yields the pieces of a column; an error names the file."""

    def pieces(n_rows: int) -> Iterator[NDArray[Any]]:
        with named_damage(path):
            yield from column.pieces(n_rows)

    return pieces


def dict_columns(arrays: Mapping[Any, Any]) -> Columns:
    """Return the arrays of a dict by their path: those of a dict in it are `observations/image`.

    Raises:
        FieldError: A value is not an array.
    """
    return {
        name: _column(name, value)
        for name, value in _flat("", arrays)
        if not name.startswith(_ABOUT)
    }


def _flat(prefix: str, arrays: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arrays.items():
        if not isinstance(name, str) or not name:
            raise FieldError(f"arrays: the name of an array is text, got {shown(name)}")
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}/", value)
        elif value is not None:
            yield f"{prefix}{name}", value


def _column(name: str, value: Any) -> FlatColumn:
    is_lazy = isinstance(getattr(value, "dtype", None), np.dtype) and hasattr(value, "shape")
    try:  # h5py's arrays and the like are read in pieces; tensors and lists become arrays
        array = value if is_lazy else np.asarray(value)
    except Exception as error:
        raise FieldError(
            f"array {name!r} cannot be made an array of numpy ({error!s:.200}); detach a tensor "
            f"and move it to the CPU, or give rows of one shape"
        ) from None
    if isinstance(array, np.ma.MaskedArray):
        raise FieldError(f"array {name!r}: a masked array would lose its mask; fill it")

    def pieces(n_rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, len(array), n_rows):
            yield np.asarray(array[start : start + n_rows])

    return FlatColumn(tuple(array.shape), np.dtype(array.dtype), pieces)


def _hdf5_columns(path: Path, stack: ExitStack) -> Columns:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(
            f"import_arrays() needs h5py for {path}; run {install('hdf5')}"
        ) from None
    file = stack.enter_context(h5py.File(path, "r"))
    datasets: dict[str, Any] = {}
    file.visititems(
        lambda name, item: datasets.update({name: item} if isinstance(item, h5py.Dataset) else {})
    )
    if "num_episodes" in datasets:
        raise FileImportError(
            f"{path} is a ReplayBuffer of d3rlpy, with an array for each episode; load it with "
            f"d3rlpy, and give import_arrays() a generator of a dict of arrays for each of its "
            f"episodes"
        )
    return dict_columns(datasets)


def _npz_columns(path: Path, stack: ExitStack) -> Columns:
    archive = stack.enter_context(zipfile.ZipFile(path))
    columns = {}
    for entry in archive.infolist():
        name = entry.filename.removesuffix(".npy")
        if name != entry.filename and not name.startswith(_ABOUT):
            columns[name] = _member(archive, entry, name)
    return columns


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: str) -> FlatColumn:
    """Return an array of an .npz file. It is unpacked while it is read, and never unpickled."""
    with archive.open(entry) as file:
        shape, is_fortran, dtype = _header(file)

    def pieces(n_rows: int) -> Iterator[NDArray[Any]]:
        with archive.open(entry) as file:
            _header(file)
            if is_fortran and len(shape) > 1:  # the whole array: its rows are not in order
                raw = file.read()
                whole = np.frombuffer(raw, dtype).reshape(shape, order="F")
                for start in range(0, shape[0], n_rows):
                    yield np.ascontiguousarray(whole[start : start + n_rows])
                return
            n_left = shape[0]
            row_bytes = math.prod(shape[1:]) * dtype.itemsize
            while n_left:
                n = min(n_rows, n_left)
                raw = file.read(n * row_bytes)
                if len(raw) != n * row_bytes:
                    raise ValueError(f"{name!r} has fewer than {shape[0]:,} rows")
                yield np.frombuffer(raw, dtype).reshape(n, *shape[1:])
                n_left -= n
            file.read(1)  # at the end its checksum is compared

    return FlatColumn(shape, dtype, pieces)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def pieces_of(columns: Columns, names: Sequence[str]) -> Iterator[Arrays]:
    """Yield the rows of several columns of one length, in pieces of some megabytes."""
    row_bytes = sum(columns[name].row_bytes for name in names)
    n_rows = max(1, PIECE_BYTES // max(row_bytes, 1))
    readers = [columns[name].pieces(n_rows) for name in names]
    for pieces in zip(*readers, strict=True):
        yield dict(zip(names, pieces, strict=True))
