"""Export whole episodes as flat arrays of transitions."""

import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_choice, checked_flag, checked_path
from sqlbuffer.copying import OnProgress, checked_progress
from sqlbuffer.errors import (
    ExportError,
    FieldError,
    InsufficientDataError,
    MissingExtraError,
    install,
)
from sqlbuffer.interchange.arrays.naming import array_name
from sqlbuffer.interchange.arrays.sources import PIECE_BYTES, Arrays
from sqlbuffer.interchange.output import ExportReport, WorkPlace, disk_full, is_full, make_parents
from sqlbuffer.interchange.streams import BufferStream, WholeEpisode, WholeEpisodes, chosen_columns
from sqlbuffer.spaces import NEXT

REWARDS = "rewards"
FORMATS = ("npz", "hdf5")
_BY_SUFFIX = {".npz": "npz", ".h5": "hdf5", ".hdf5": "hdf5"}


def format_of_path(path: "str | os.PathLike[str]") -> str | None:
    """Return the format that a file's name says: `npz`, `hdf5` or None.

    Example:
        >>> format_of_path("data.npz"), format_of_path("data.h5"), format_of_path("data")
        ('npz', 'hdf5', None)
    """
    return _BY_SUFFIX.get(Path(path).suffix.lower())


class FlatRows(NamedTuple):
    """The rows of an episode.

    Attributes:
        arrays: The flat arrays by their names, next observations that are fields among them.
        following: The observations of the next steps, by the names of their arrays. That after the
            last step is that step's own observation if it is unknown.
        has_next: Whether the observation after the last step is known.
    """

    arrays: Arrays
    following: Arrays
    has_next: bool

    @property
    def whole(self) -> Arrays:
        """All arrays."""
        return {**self.arrays, **self.following}


def flat_rows(
    episode: WholeEpisode, observations: tuple[str, ...], fields: Sequence[str]
) -> FlatRows:
    """Return the rows of an episode as flat arrays."""
    arrays = {array_name(name, observations): episode.arrays[name] for name in fields}
    arrays[REWARDS] = episode.arrays["reward"]
    arrays["terminals"] = episode.arrays["terminated"]
    arrays["timeouts"] = episode.arrays["truncated"]
    if not (episode.arrays["terminated"][-1] or episode.arrays["truncated"][-1]):
        # It was ended by a call: flat arrays have no other mark for this.
        arrays["timeouts"] = np.append(arrays["timeouts"][:-1], True)
    following = {}
    for name in observations:
        if NEXT + name in fields or name not in fields:
            continue
        values = episode.arrays[name]
        last = values[-1] if episode.final is None else episode.final[name]
        after = np.concatenate([values[1:], np.asarray(last)[None]])
        following[array_name(NEXT + name, observations)] = after
    return FlatRows(arrays, following, not following or episode.final is not None)


def whole_episodes(
    buffer: ReplayBuffer,
    condition: Condition,
    columns: Sequence[str] | None,
    on_progress: OnProgress | None,
) -> tuple[BufferStream, tuple[str, ...], Callable[[BufferStream], Iterator[WholeEpisode]]]:
    """Return the stream of a buffer, its chosen fields, and what reads its episodes."""
    specs = checked_buffer(buffer).fields
    _, fields = chosen_columns(tuple(specs), columns)
    if not fields:
        raise FieldError(
            f"buffer {buffer.name!r} has no typed fields to make arrays of; export it as Parquet "
            f"or JSON lines"
        )
    for name in fields:
        if specs[name].is_variable:
            raise FieldError(
                f"field {name!r} is {specs[name]}, and flat arrays have rows of one shape; choose "
                f"the others with columns=[...] (--columns)"
            )
    _check_distinct(fields, tuple(buffer.observation_fields))
    stream = BufferStream(buffer, condition, fields=fields)
    return stream, fields, lambda opened: iter(WholeEpisodes(opened, on_progress))


def _check_distinct(fields: Sequence[str], observations: tuple[str, ...]) -> None:
    """Raise FieldError if two arrays would have one name."""
    taken = {REWARDS: "the reward", "terminals": "terminated", "timeouts": "truncated"}
    for name in observations:
        if name in fields and NEXT + name not in fields:
            taken[array_name(NEXT + name, observations)] = f"the next {name!r}"
    for field in fields:
        name = array_name(field, observations)
        if name in taken:
            raise FieldError(
                f"field {field!r} would be the array {name!r}, which is that of {taken[name]}; "
                f"choose the others with columns=[...] (--columns)"
            )
        taken[name] = f"field {field!r}"


@overload
def export_arrays(
    buffer: ReplayBuffer, path: None = None, condition: Condition = None, *,
    columns: Sequence[str] | None = None, format: str | None = None, compress: bool = False,
    overwrite: bool = False, on_progress: OnProgress | None = None,
) -> dict[str, NDArray[Any]]: ...  # fmt: skip


@overload
def export_arrays(
    buffer: ReplayBuffer, path: "str | os.PathLike[str]", condition: Condition = None, *,
    columns: Sequence[str] | None = None, format: str | None = None, compress: bool = False,
    overwrite: bool = False, on_progress: OnProgress | None = None,
) -> ExportReport: ...  # fmt: skip


def export_arrays(
    buffer: ReplayBuffer,
    path: "str | os.PathLike[str] | None" = None,
    condition: Condition = None,
    *,
    columns: Sequence[str] | None = None,
    format: str | None = None,
    compress: bool = False,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> Any:
    """Return the whole episodes of a buffer as flat arrays, or write them to a file.

    The arrays are those of `import_arrays`, with a row for each step: `observations`, `actions`,
    `rewards`, `terminals`, `timeouts`, and a row for each other field. `next_observations` is among
    them if the observation after the last step of each episode is known. Episodes follow each other
    in the order in which they ended. An episode is left out if it is open or aborted, or has lost
    steps; steps without an episode are left out too. `rewards` has float32 if it holds each value
    exactly, and else float64.

    A file is written in pieces and appears when it is complete. It takes twice its size on the disk
    until then.

    Args:
        buffer: A buffer with typed fields of fixed shapes.
        path: The `.npz` or HDF5 file to make; None returns a dict of arrays.
        condition: Condition that all steps of an episode must match.
        columns: Typed fields to write; all by default.
        format: `npz` or `hdf5`; by default what the name of the file says.
        compress: Compress the arrays of the file.
        overwrite: Replace an existing file.
        on_progress: See `export_parquet`.

    Returns:
        The arrays, of the shape `(n, *shape)`; or the report of the file.

    Raises:
        ArgumentError: An argument is invalid.
        ConditionError: The condition is malformed.
        CopyError: Steps left the buffer before they were read.
        ExportError: The path exists already or cannot be made, or the disk is full.
        FieldError: A column is unknown, or has rows of different shapes.
        InsufficientDataError: The buffer has no whole episode.
        MissingExtraError: The file is HDF5, and h5py is not installed.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32", "action": "int64"})
        >>> columns = {"obs": [0, 1], "action": [0, 1], "terminated": [False, True]}
        >>> buffer.store_episode(columns, final={"obs": 2}).inserted
        2
        >>> arrays = export_arrays(buffer)
        >>> arrays["observations"].tolist(), arrays["next_observations"].tolist()
        ([0.0, 1.0], [1.0, 2.0])
    """
    began_at = time.monotonic()
    compress, overwrite = checked_flag(compress, "compress"), checked_flag(overwrite, "overwrite")
    on_progress = checked_progress(on_progress)
    if format is not None:
        checked_choice(format, "format", FORMATS)
    stream, fields, read = whole_episodes(buffer, condition, columns, on_progress)
    if path is None:
        with stream:
            gathered = _Gathered(None)
            for rows in _rows(buffer, stream, fields, read):
                gathered.add(rows)
            return {name: np.concatenate([*rows]) for name, _, _, rows in gathered.columns()}
    target = checked_path(path, "path", "the path of a file to make, or None for a dict")
    kind = format or format_of_path(target)
    if kind is None:
        raise ExportError(
            f"{target} has no ending that says its format; name it .npz, .h5 or .hdf5, or give "
            f"format= (--format)"
        )
    write = _write_npz if kind == "npz" else _hdf5_writer(target)
    with _work_folder(target, overwrite) as folder, stream:
        gathered = _Gathered(folder)
        for rows in _rows(buffer, stream, fields, read):
            gathered.add(rows)
        whole = folder / "whole"
        write(whole, gathered, compress)
        with whole.open("rb+") as file:
            os.fsync(file.fileno())
        n_bytes = whole.stat().st_size
        whole.replace(target)
    return ExportReport(
        f"{buffer.name!r} in {buffer.url}", str(path), stream.low, stream.high, gathered.n_rows,
        gathered.n_episodes, 1, n_bytes, time.monotonic() - began_at,
    )  # fmt: skip


def _rows(
    buffer: ReplayBuffer,
    stream: BufferStream,
    fields: Sequence[str],
    read: Callable[[BufferStream], Iterator[WholeEpisode]],
) -> Iterator[FlatRows]:
    observations, n_episodes = tuple(buffer.observation_fields), 0
    for episode in read(stream):
        n_episodes += 1
        yield flat_rows(episode, observations, fields)
    if not n_episodes:
        raise InsufficientDataError(
            f"buffer {buffer.name!r} has no whole episode that matches; flat arrays have episodes "
            f"that have ended, with all their steps"
        )


class _MemoryPieces:
    """Rows of an array, in memory."""

    def __init__(self) -> None:
        self._pieces: list[NDArray[Any]] = []

    def add(self, values: NDArray[Any]) -> None:
        """Add rows."""
        self._pieces.append(values)

    def read(self) -> Iterator[NDArray[Any]]:
        """Yield all rows."""
        yield from self._pieces


class _FilePieces:
    """Rows of an array, as raw bytes in a file that is made with the first ones."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, values: NDArray[Any]) -> None:
        """Add rows."""
        self._dtype, self._shape = values.dtype, values.shape[1:]
        with self._path.open("ab") as file:
            file.write(np.ascontiguousarray(values).data)

    def read(self) -> Iterator[NDArray[Any]]:
        """Yield all rows, and remove the file."""
        row_bytes = int(np.prod(self._shape, dtype=int)) * self._dtype.itemsize
        n_rows = max(1, PIECE_BYTES // row_bytes)
        with self._path.open("rb") as file:
            while raw := file.read(n_rows * row_bytes):
                yield np.frombuffer(raw, self._dtype).reshape(-1, *self._shape)
        self._path.unlink()


class _FlatArray(NamedTuple):
    """An array that grows.

    Attributes:
        dtype: Its dtype so far.
        shape: Shape of a row.
        pieces: Its rows.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: _MemoryPieces | _FilePieces


class _Gathered:
    """Arrays of all episodes. Which of them there are, and whether rewards have float32, is known
    at the end only.

    Args:
        folder: Folder of files for the rows; None keeps them in memory.

    Attributes:
        n_rows: Number of rows so far.
        n_episodes: Number of episodes so far.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._arrays: dict[str, _FlatArray] = {}
        self._following: set[str] = set()
        self._has_next = self._is_exact = True
        self.n_rows = self.n_episodes = 0

    def add(self, rows: FlatRows) -> None:
        """Add an episode."""
        self.n_rows += len(rows.arrays[REWARDS])
        self.n_episodes += 1
        self._is_exact = self._is_exact and _is_exact(rows.arrays[REWARDS])
        self._has_next = self._has_next and rows.has_next
        self._following.update(rows.following)
        for name, values in (rows.whole if self._has_next else rows.arrays).items():
            if name not in self._arrays:
                self._arrays[name] = _FlatArray(values.dtype, values.shape[1:], self._pieces())
            self._arrays[name].pieces.add(values)

    def _pieces(self) -> _MemoryPieces | _FilePieces:
        if self._folder is None:
            return _MemoryPieces()
        return _FilePieces(self._folder / f"column-{len(self._arrays)}")

    def columns(self) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...], Iterator[Any]]]:
        """Yield the name, dtype and shape of each array, and its rows in pieces."""
        for name, (dtype, shape, pieces) in self._arrays.items():
            if name in self._following and not self._has_next:
                continue
            if name == REWARDS and self._is_exact:
                dtype = np.dtype(np.float32)
            yield name, dtype, (self.n_rows, *shape), _cast(pieces.read(), dtype)


def _cast(pieces: Iterator[NDArray[Any]], dtype: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    for piece in pieces:
        yield piece.astype(dtype, copy=False)


def _is_exact(rewards: NDArray[Any]) -> bool:
    """Return whether float32 holds the rewards."""
    with np.errstate(over="ignore"):
        return np.array_equal(rewards, rewards.astype(np.float32), equal_nan=True)


def _write_npz(path: Path, gathered: _Gathered, compress: bool) -> None:
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, dtype, shape, pieces in gathered.columns():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header: dict[str, Any] = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": shape,
                }
                np.lib.format.write_array_header_1_0(file, header)
                for piece in pieces:
                    file.write(piece.data)


def _hdf5_writer(target: Path) -> Callable[[Path, _Gathered, bool], None]:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError(
            f"export_arrays() needs h5py for {target}; run {install('hdf5')}"
        ) from None

    def write(path: Path, gathered: _Gathered, compress: bool) -> None:
        options: Mapping[str, Any] = {"compression": "gzip"} if compress else {}
        with h5py.File(path, "w") as file:
            for name, dtype, shape, pieces in gathered.columns():
                dataset, start = file.create_dataset(name, shape, dtype, **options), 0
                for piece in pieces:
                    dataset[start : start + len(piece)] = piece
                    start += len(piece)

    return write


@contextmanager
def _work_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """Give a folder next to a file that is to be made; it is removed at the end."""
    if target.is_dir():
        raise ExportError(f"{target} is a folder, and arrays are a file; name another path")
    if os.path.lexists(target) and not overwrite:
        raise ExportError(
            f"there is a file {target} already; name another one, or replace it with "
            f"overwrite=True (--overwrite)"
        )
    make_parents(target)
    place = WorkPlace(target, Path.mkdir)
    try:
        yield place.path
    except OSError as error:
        if is_full(error):
            raise disk_full(target, error) from error
        raise
    finally:
        place.close()
