"""Steps as rows of a population are read."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches import Batch
from sqlbuffer.packing import Layout
from sqlbuffer.specs import Fields
from sqlbuffer.step_table import StepTable
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.columns import decode_columns, reward_array
from sqlbuffer.storage.rows.reading import (
    ARRAYS,
    EXTRA,
    IS_BARRED,
    LENGTH,
    PLACE,
    REWARD,
    SEQ,
    TERMINATED,
    TRUNCATED,
    Reading,
    T,
)
from sqlbuffer.storage.sampling.population import Population

if TYPE_CHECKING:
    from sqlbuffer.samplers import Sampler

N_OWN = len(statements.COLUMNS)
_OWN_ROWS = Reading(statements.COLUMNS)

Row = tuple[Any, ...]


class StepReader:
    """Makes batches of rows as they are; see `Reader`.

    Args:
        fields: The typed fields.
        names: Which of them; all by default.
        compression: How the bytes of arrays are compressed.
    """

    columns = _OWN_ROWS

    def __init__(
        self,
        fields: Fields,
        names: Sequence[str] | None = None,
        compression: str | None = None,
    ) -> None:
        self._layout, self._names = Layout(fields.specs, compression), names

    def draw(self, population: Population, sampler: "Sampler", n: int) -> Batch:
        """Return n rows, or fewer where the sampler finds fewer."""
        return self._batch(population.rows(sampler.choose(population, n)) if n else [])

    def read(self, population: Population, keys: Sequence[int] | NDArray[np.int64]) -> Batch:
        """Return the rows of the keys that match."""
        return self._batch(population.rows(np.asarray(keys, np.int64).tolist()))

    def keys(self, population: Population) -> None:
        """Return None: any number of the window may be a row."""

    def _batch(self, rows: Sequence[Row]) -> Batch:
        return decode_columns(self._layout, rows, self._names)


def steps_of(population: Population, rows: Sequence[Row]) -> StepTable:
    """Return the steps of rows and those that were read along with them."""
    near = population.steps
    if not population.limits.of_steps:
        return table_of([*rows, *near])
    # A row that is barred itself is not read.
    barred = [False] * len(rows) + [row[IS_BARRED] is not None for row in near]
    return table_of([*rows, *near], barred)


def table_of(rows: Sequence[Row], barred: Sequence[bool] | None = None) -> StepTable:
    """Return the steps of rows that were read with their places."""
    columns: Any = list(zip(*rows, strict=True)) if rows else [()] * (T + 1)
    return StepTable(
        columns[PLACE],
        columns[T],
        reward_array(columns[REWARD], columns[EXTRA]),
        np.array(columns[TERMINATED], bool),
        np.array(columns[TRUNCATED], bool),
        columns[ARRAYS],
        columns[SEQ],
        barred,
    )


def places_of(rows: Sequence[Row]) -> tuple[NDArray[np.int64], ...]:
    """Return of each row the number of its episode, its step there, and the episode's steps: -1
    while it is open. Rows of no episode have a negative number.
    """
    places = np.array([row[PLACE] for row in rows], np.int64)
    ts = np.array([row[T] for row in rows], np.int64)
    lengths = np.array([-1 if row[LENGTH] is None else row[LENGTH] for row in rows], np.int64)
    return places, ts, np.where(places < 0, -1, lengths)


def gather(
    table: StepTable, layout: Layout, index: NDArray[np.int64], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return fields of the steps at the indexes, each decoded once; zeros at -1.

    Returns:
        Arrays of shape (*index.shape, *shape); with the lengths of those that vary.
    """
    wanted, inverse = np.unique(index, return_inverse=True)
    there = wanted[wanted >= 0]
    blobs = [table.blobs[i] for i in there.tolist()]
    found = layout.unpack(blobs, names, seqs=table.seq[there].tolist() if blobs else ())
    n_missing = len(wanted) - len(blobs)
    places = inverse.reshape(index.shape)
    if not n_missing:
        return {name: array[places] for name, array in found.items()}
    padded = {
        name: np.concatenate([np.zeros((1, *array.shape[1:]), array.dtype), array])
        for name, array in found.items()
    }
    return {name: array[places] for name, array in padded.items()}


def as_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return rewards as batches have them; those too large are infinite."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def step_arrays(
    table: StepTable, index: NDArray[np.int64], names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Return `reward`, `terminated` and `truncated` of steps, zeros and False at -1."""
    found: dict[str, NDArray[Any]] = {}
    for name in names:
        if name == "reward":
            found[name] = as_float32(np.where(index >= 0, table.rewards(index), 0.0))
        else:
            found[name] = table.flags(getattr(table, name), index)
    return found
