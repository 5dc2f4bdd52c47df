"""`data[...]` and `meta_data[...]`: arrays that read from the database and write to it."""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.tracks import Track
from sqlbuffer.compat.memmap.values import as_array

Ints = NDArray[np.int64]
# Reads what cells have: their places along each leading axis -> array.
Read = Callable[..., NDArray[Any]]


class ArrayProxy(np.lib.mixins.NDArrayOperatorsMixin):
    """One field of all slots, like an array of numpy; each access asks the database.

    Reading by an index returns an array of its own, never a view: assign to the proxy itself
    (`data['returns'][3, :10] = values`), and not to what an earlier index returned.

    Args:
        track: The field.
        leading: The shape before that of one value: slots, or slots and steps.
        read: Returns the values of cells, given an index array for each leading axis.
        write: Sets them.

    Example:
        >>> import tempfile
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer(tempfile.mkdtemp(), 3, 5, fields={"reward": "float"})
        >>> buffer.store_episode(reward=[1.0, 2.0])
        >>> buffer.data["reward"][0, 1:3] = 7.0
        >>> buffer.data["reward"][0]
        array([1., 7., 7., 0., 0.], dtype=float32)
    """

    def __init__(
        self,
        track: Track,
        leading: tuple[int, ...],
        read: Read,
        write: Callable[..., None],
        flush: Callable[[], None],
    ) -> None:
        self._track, self._leading = track, leading
        self._read, self._write, self.flush = read, write, flush
        self.shape = (*leading, *track.shape)
        self.dtype = track.dtype
        self.ndim = len(self.shape)
        self.size = int(np.prod(self.shape, dtype=np.int64))

    def __getitem__(self, index: Any) -> Any:
        index = _plain(index)
        if self._is_leading(index):
            places = self._places(index, ())
            found = self._read(*places)
            return found[()] if found.ndim == 0 else found
        # One place for each item of a value: cells are read once, and items picked from them.
        *places, items = self._places(index, self._track.shape)
        shape = items.shape
        cells, back = self._cells([place.ravel() for place in places])
        values = self._read(*cells).reshape(len(cells[0]), -1)
        return values[back, items.ravel()].reshape(shape)[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        index = _plain(index)
        value = _cast(self._track, value)
        if self._is_leading(index):
            places = self._places(index, ())
            shape = places[0].shape
            target = np.empty((*shape, *self._track.shape), self.dtype)
            target[...] = value
            flat = target.reshape(-1, *self._track.shape)
            self._write(flat, *(place.ravel() for place in places))
            return
        *places, items = self._places(index, self._track.shape)
        target = np.empty(items.shape, self.dtype)
        target[...] = value
        cells, back = self._cells([place.ravel() for place in places])
        values = np.array(self._read(*cells)).reshape(len(cells[0]), -1)
        values[back, items.ravel()] = target.ravel()
        self._write(values.reshape(-1, *self._track.shape), *cells)

    def _is_leading(self, index: Any) -> bool:
        """Tell whether an index is about slots and steps alone, and not about parts of values."""
        parts = index if isinstance(index, tuple) else (index,)
        if not self._track.shape:
            return True
        used = 0
        for part in parts:
            if part is None or part is Ellipsis:
                return False
            used += part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1
        return used <= len(self._leading)

    def _places(self, index: Any, items: tuple[int, ...]) -> list[Ints]:
        """Return what an index picks: of each leading axis the place, and of values the item.

        The grids that numpy picks from have strides of zero, and take no memory.
        """
        shape = (*self._leading, *items)
        grids = []
        for axis, n in enumerate(self._leading):
            column = np.arange(n).reshape(*(-1 if i == axis else 1 for i in range(len(shape))))
            grids.append(np.broadcast_to(column, shape)[index])
        if items or not self._track.shape:
            n_items = int(np.prod(items, dtype=np.int64))
            numbers = np.arange(n_items).reshape(*(1 for _ in self._leading), *items)
            if items:
                grids.append(np.broadcast_to(numbers, shape)[index])
        return [np.asarray(grid) for grid in grids]

    def _cells(self, places: list[Ints]) -> tuple[list[Ints], Ints]:
        """Return the distinct cells of items, and which each item is of."""
        keys = places[0] if len(places) == 1 else places[0] * self._leading[1] + places[1]
        found, back = np.unique(keys, return_inverse=True)
        if len(places) == 1:
            return [found], back.reshape(-1)
        return list(np.divmod(found, self._leading[1])), back.reshape(-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("values of a database are copied: copy=False cannot be kept")
        found = np.asarray(self[:])
        return found if dtype is None else found.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if any(isinstance(out, ArrayProxy) for out in kwargs.get("out", ())):
            return self._in_place(ufunc, method, inputs, kwargs)
        given = [np.asarray(each) if isinstance(each, ArrayProxy) else each for each in inputs]
        return getattr(ufunc, method)(*given, **kwargs)

    def _in_place(self, ufunc: Any, method: str, inputs: Any, kwargs: dict[str, Any]) -> Any:
        """Compute, and write the result to the database: `data['reward'] *= 2`."""
        (out,) = kwargs.pop("out")
        given = [np.asarray(each) if isinstance(each, ArrayProxy) else each for each in inputs]
        out[:] = getattr(ufunc, method)(*given, **kwargs)
        return out

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        return function(*map(_as_arrays, args), **{k: _as_arrays(v) for k, v in kwargs.items()})

    def __getattr__(self, name: str) -> Any:
        """Return what an array of numpy has: `sum`, `tolist`, `astype`, `T`, ..."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"an array proxy has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def copy(self) -> NDArray[Any]:
        """Return all values as an array of its own."""
        return np.asarray(self)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))

    def __contains__(self, value: Any) -> bool:
        return value in np.asarray(self)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __index__(self) -> int:
        return operator.index(np.asarray(self))

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __str__(self) -> str:
        return str(np.asarray(self))


class Proxies(Mapping[str, ArrayProxy]):
    """The proxies of all fields by name, made as they are asked for.

    Args:
        names: The fields.
        make: Makes one.
    """

    def __init__(self, names: Collection[str], make: Callable[[str], ArrayProxy]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> ArrayProxy:
        if name not in self._names:
            raise KeyError(f"no field {name!r}; the fields are {', '.join(self._names) or 'none'}")
        return self._make(name)

    def __setitem__(self, name: str, value: Any) -> None:
        """Take back what `data[name] += 1` computed, which is written already; nothing else."""
        if not isinstance(value, ArrayProxy) or name not in self._names:
            raise TypeError(f"assign to a part of the field: data[{name!r}][:] = ...")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _plain(index: Any) -> Any:
    """Return an index as numpy takes it: tensors, lists and proxies as arrays."""
    if isinstance(index, tuple):
        return tuple(map(_plain, index))
    if index is None or index is Ellipsis or isinstance(index, (slice, int, np.integer)):
        return index
    if isinstance(index, ArrayProxy):
        return np.asarray(index)
    if isinstance(index, list) and not index:
        return np.empty(0, np.int64)
    if hasattr(index, "__index__") and getattr(index, "shape", ()) == ():
        return operator.index(index)
    array = as_array("index", index)
    if array.dtype.kind not in "biu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return array


def _cast(track: Track, value: Any) -> NDArray[Any]:
    value = np.asarray(value) if isinstance(value, ArrayProxy) else as_array(track.name, value)
    with np.errstate(invalid="ignore", over="ignore"):
        return value.astype(track.dtype)  # type: ignore[no-any-return]


def _as_arrays(value: Any) -> Any:
    if isinstance(value, ArrayProxy):
        return np.asarray(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_as_arrays, value))
    return value
