"""Batches of single steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.columns import decode_columns, reward_array
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.steps.batches import Batch
from sqlbuffer.steps.episode_steps import EpisodeSteps
from sqlbuffer.storage.chunks.chunk_slices import steps_of_slices
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.row_selection import (
    ARRAYS,
    EXTRA,
    IS_INELIGIBLE,
    LENGTH,
    PLACE,
    REWARD,
    SEQ,
    TERMINATED,
    TRUNCATED,
    RowSelection,
    T,
)
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.readers.checks import checked_step_names
from sqlbuffer.storage.sampling.strategy import RowStrategy

N_OWN = len(statements.COLUMNS)
_OWN_ROWS = RowSelection(statements.COLUMNS, has_blocks=True)

Row = tuple[Any, ...]


class StepReader:
    """Makes batches of single rows; see `Reader`.

    Args:
        fields: The typed fields.
        names: Names of the fields to read; all by default.
        compression: Compression of the bytes of arrays.
    """

    columns = _OWN_ROWS
    tested_at_once = 2**20
    needs_episodes = False

    def __init__(
        self,
        fields: Fields,
        names: Sequence[str] | None = None,
        compression: str | None = None,
    ) -> None:
        own, built_in = checked_step_names(fields, names, "steps")
        self._layout, self._names = Layout(fields.specs, compression), [*own, *built_in]

    def draw(self, candidates: Candidates, sampler: RowStrategy, n: int) -> Batch:
        """Return n rows, or fewer if the sampler finds fewer."""
        return self._batch(candidates.rows(sampler.choose(candidates, n)) if n else [])

    def read(self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return the matching rows of the keys."""
        return self._batch(candidates.rows(np.asarray(keys, np.int64).tolist()))

    def made(
        self, candidates: Candidates, keys: Sequence[int] | NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the keys, each of which is a row."""
        return np.asarray(keys, np.int64)

    def keys(self, candidates: Candidates) -> None:
        """Return None: any number of the window may be a row."""

    def _batch(self, rows: Sequence[Row]) -> Batch:
        return decode_columns(self._layout, rows, self._names)


def steps_of(candidates: Candidates, rows: Sequence[Row]) -> EpisodeSteps:
    """Return the steps of rows, and the neighbours that were read with them."""
    near = candidates.steps
    if candidates.slices and candidates.chunks is not None:
        sliced = steps_of_slices(
            candidates.chunks, candidates.slices, candidates.window_low, candidates.late_rewards
        )
        # Slices have the neighbours in episodes, but not all values of labels.
        alone = [row for row in rows if candidates.has_labels or row[PLACE] < 0]
        if not alone:
            return EpisodeSteps(
                sliced.episode,
                sliced.t,
                sliced.reward,
                sliced.terminated,
                sliced.truncated,
                sliced.blobs,
                sliced.seq,
            )
        own = table_columns(alone)
        return EpisodeSteps(
            np.concatenate([own[0], sliced.episode]),
            np.concatenate([own[1], sliced.t]),
            np.concatenate([own[2], sliced.reward]),
            np.concatenate([own[3], sliced.terminated]),
            np.concatenate([own[4], sliced.truncated]),
            _joined(candidates.chunks, own[5], sliced.blobs),
            np.concatenate([own[6], sliced.seq]),
        )
    if not candidates.limits.of_steps:
        return table_of([*rows, *near])
    # A row that is ineligible itself is not read.
    ineligible = [False] * len(rows) + [row[IS_INELIGIBLE] is not None for row in near]
    return table_of([*rows, *near], ineligible)


def _joined(layout: Layout, own: Sequence[Any], sliced: Any) -> Any:
    """Return the bytes of rows and those of slices, as records if all have one fixed size."""
    if not isinstance(sliced, np.ndarray):
        return [*own, *sliced]
    if all(blob is not None and len(blob) == layout.size_bytes for blob in own):
        return np.concatenate([np.frombuffer(b"".join(own), layout.record), sliced])
    return [*own, *(record.tobytes() for record in sliced)]


def table_of(rows: Sequence[Row], ineligible: Sequence[bool] | None = None) -> EpisodeSteps:
    """Return the steps of rows that were read with their places."""
    episode, t, reward, terminated, truncated, blobs, seq = table_columns(rows)
    return EpisodeSteps(episode, t, reward, terminated, truncated, blobs, seq, ineligible)


def table_columns(rows: Sequence[Row]) -> tuple[Any, ...]:
    """Return the arguments of `EpisodeSteps` for rows that were read with their places."""
    columns: Any = list(zip(*rows, strict=True)) if rows else [()] * (T + 1)
    return (
        np.array(columns[PLACE], np.int64),
        np.array(columns[T], np.int64),
        reward_array(columns[REWARD], columns[EXTRA]),
        np.array(columns[TERMINATED], bool),
        np.array(columns[TRUNCATED], bool),
        columns[ARRAYS],
        np.array(columns[SEQ], np.int64),
    )


def places_of(rows: Sequence[Row]) -> tuple[NDArray[np.int64], ...]:
    """Return for each row the number of its episode, its step there, and the episode's length.

    The length is -1 while the episode is open. Rows without an episode have a negative number.
    """
    places = np.array([row[PLACE] for row in rows], np.int64)
    ts = np.array([row[T] for row in rows], np.int64)
    lengths = np.array([-1 if row[LENGTH] is None else row[LENGTH] for row in rows], np.int64)
    return places, ts, np.where(places < 0, -1, lengths)


def gather(
    table: EpisodeSteps, layout: Layout, index: NDArray[np.int64], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return fields of the steps at the indexes, each decoded once; zeros at -1.

    Returns:
        Arrays of shape (*index.shape, *shape); fields of varying length also have their lengths.
    """
    if isinstance(table.blobs, np.ndarray):
        wanted_names = layout.wanted(names)
        fields = [name for name in layout.specs if name in wanted_names]
        return {name: _taken(table.blobs[name], index) for name in fields}
    wanted, inverse = np.unique(index, return_inverse=True)
    if len(wanted) == index.size and (index.size == 0 or wanted[0] >= 0):  # in their places
        blobs, seqs = [table.blobs[i] for i in index.ravel().tolist()], table.seq[index.ravel()]
        found = layout.unpack(blobs, names, seqs=seqs.tolist())
        return {n: own.reshape(*index.shape, *own.shape[1:]) for n, own in found.items()}
    there = wanted[wanted >= 0]
    blobs = [table.blobs[i] for i in there.tolist()]
    found = layout.unpack(blobs, names, seqs=table.seq[there].tolist() if blobs else ())
    n_missing = len(wanted) - len(there)
    places = inverse.reshape(index.shape)
    if not n_missing:
        return {name: array[places] for name, array in found.items()}
    padded = {
        name: np.concatenate([np.zeros((1, *array.shape[1:]), array.dtype), array])
        for name, array in found.items()
    }
    return {name: array[places] for name, array in padded.items()}


def _taken(values: NDArray[Any], index: NDArray[np.int64]) -> NDArray[Any]:
    """Return values at the indexes, zeros at -1."""
    if not len(values):
        return np.zeros((*index.shape, *values.shape[1:]), values.dtype)
    found = np.take(values, np.maximum(index, 0), axis=0)
    is_missing = index < 0
    if is_missing.any():
        found[is_missing] = np.zeros((), values.dtype)
    return found


def as_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rewards in the dtype of batches; those too large are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def step_arrays(
    table: EpisodeSteps, index: NDArray[np.int64], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return `reward`, `terminated` and `truncated` of steps, zeros and False at -1."""
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        if name == "reward":
            found[name] = as_float32(np.where(index >= 0, table.rewards(index), 0.0))
        else:
            found[name] = table.flags(getattr(table, name), index)
    return found
