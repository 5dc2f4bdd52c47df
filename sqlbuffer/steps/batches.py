"""Batches: the arrays that a learner gets, by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from typing_extensions import TypeVar

from sqlbuffer.display.html import html_table
from sqlbuffer.display.short_values import shown
from sqlbuffer.steps.data_rows import DataRow, shown_values
from sqlbuffer.steps.tables import as_table
from sqlbuffer.steps.tensors import as_tensor, check_device

T = TypeVar("T", default=DataRow)
Info = Mapping[str, NDArray[Any]]
# A list of rows that is printed shows as many.
SHOWN_ROWS = 5


class Batch(Mapping[str, Any]):
    """Arrays of n rows each, by name and as attributes. An unknown array is None, such as the
    probabilities of rows that were drawn by priority under a condition.

    Attributes:
        info: Origin of the rows: `seq`, `task_id`, `agent_id`, `step`, arrays of shape (n,). If it
            is given as a function, the function is called on first use.

    Example:
        >>> import numpy as np
        >>> batch = Batch({"obs": np.zeros((2, 4))}, {"seq": np.array([1, 2])})
        >>> batch.obs.shape, batch["obs"].shape, batch.info["seq"].tolist(), batch.n_rows
        ((2, 4), (2, 4), [1, 2], 2)
        >>> batch.to_pandas().columns.tolist()
        ['seq', 'obs']
        >>> batch.to_torch().obs.dtype, batch.to("cpu").info["seq"].dtype
        (torch.float64, dtype('int64'))
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any] | None], info: Info | Callable[[], Info]
    ) -> None:
        self._arrays = dict(arrays)
        # A learner that does not look at it does not pay for it.
        self._info = info if callable(info) else dict(info)

    @property
    def info(self) -> dict[str, NDArray[Any]]:
        """Origin of the rows: arrays of shape (n,) by name."""
        if callable(self._info):
            self._info = dict(self._info())
        return self._info

    def __getstate__(self) -> dict[str, Any]:
        return {"_arrays": self._arrays, "_info": self.info}

    @property
    def n_rows(self) -> int:
        """Number of rows; `len` is the number of arrays, as for any mapping."""
        for array in self._arrays.values():
            if array is not None:
                return len(array)
        return len(next(iter(self.info.values()), ()))

    def to(self, device: Any) -> "Batch":
        """Return the batch with its arrays as tensors of the same shapes and dtypes.

        Texts, objects and dtypes that torch does not have stay arrays; `info` does too.

        Args:
            device: Device of the tensors, such as `cuda`. Tensors on `cpu` share the arrays' memory
                if it is writable.

        Raises:
            MissingExtraError: torch is not installed.
            ValueError: torch does not know the device, or the machine does not have it.
        """
        check_device(device)
        return Batch({name: as_tensor(array, device) for name, array in self.items()}, self.info)

    def to_torch(self) -> "Batch":
        """Return the batch with its arrays as tensors on the CPU; see `to`.

        Raises:
            MissingExtraError: torch is not installed.
        """
        return self.to("cpu")

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with one row for each row of the batch.

        The columns of `info` come first. An array of shape (n,) is a column of its dtype. One with
        more dimensions, such as an image or a window of steps, is a column of n numpy arrays:
        `np.stack(table["obs"])` has the shape of the batch again. Values of varying length keep
        their padding, next to the column `<name>_lens`. An unknown array becomes a column of None.
        If an array and an entry of `info` have the same name, the column of `info` is named
        `info.<name>`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return as_table(self._arrays, self.info, self.n_rows)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getattr__(self, name: str) -> Any:
        arrays = self.__dict__.get("_arrays", {})
        if name not in arrays:
            raise AttributeError(f"the batch has no {shown(name)}; it has {', '.join(arrays)}")
        return arrays[name]

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._arrays]

    def __repr__(self) -> str:
        shown = (
            f"{name}: {None if a is None else f'{a.dtype}{list(a.shape)}'}"
            for name, a in self.items()
        )
        return f"Batch({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return a table of the arrays, for notebooks."""
        rows = (
            [name, "unknown", ""] if a is None else [name, str(a.dtype), str(tuple(a.shape))]
            for name, a in self.items()
        )
        return html_table(["array", "dtype", "shape"], rows)


class RowList(list[T]):
    """A list of rows, or of tasks, with the arrays of their sampler by name and as attributes. In
    annotations, `RowList` is a list of rows, and `RowList[list[DataRow]]` is a list of tasks.

    Attributes:
        batch_id: Number of the batch in the sample log (`track_samples`); None if it is not logged.
        columns: Arrays with one value for each row; an unknown array is None.

    Example:
        >>> import numpy as np
        >>> rows = RowList(["a row", "another"], {"priorities": np.array([0.5, 2.0])}, 7)
        >>> len(rows), rows.priorities.tolist(), rows.batch_id
        (2, [0.5, 2.0], 7)
    """

    def __init__(
        self,
        rows: Iterable[T] = (),
        columns: Mapping[str, NDArray[Any] | None] | None = None,
        batch_id: int | None = None,
    ) -> None:
        super().__init__(rows)
        self.batch_id = batch_id
        self.columns = dict(columns or {})

    def __getattr__(self, name: str) -> Any:
        columns = self.__dict__.get("columns", {})
        if name not in columns:
            raise AttributeError(f"the rows have no {shown(name)}; they have {', '.join(columns)}")
        return columns[name]

    def __repr__(self) -> str:
        return f"RowList([{first_shown(self, SHOWN_ROWS)}])"

    def _repr_html_(self) -> str:
        """Return a table of the first rows, for notebooks."""
        return rows_as_html(self, f"{len(self)} rows")


def first_shown(items: Sequence[Any], n: int) -> str:
    """Return the first n of rows, or of lists of rows, and how many more there are."""
    first = [
        f"[{first_shown(item, 1)}]" if isinstance(item, list) else repr(item) for item in items[:n]
    ]
    more = [f"... {len(items) - n} more"] if len(items) > n else []
    return ", ".join([*first, *more])


def rows_as_html(rows: Sequence[Any], title: str) -> str:
    """Return a table of the first of rows, or of other items."""
    first = rows[:SHOWN_ROWS]
    if not all(isinstance(row, DataRow) for row in first):
        return html_table(["", "item"], enumerate(first_shown([item], 1) for item in first), title)
    values = [shown_values(row) for row in first]
    heads = list(dict.fromkeys(name for each in values for name in each))
    return html_table(heads, ([each.get(name, "") for name in heads] for each in values), title)
