"""The values of fields as arrays that read and write the database.

numpy can write to the memory of an array in many ways that a subclass does not notice. So callers
get read-only memory. Assignments, in-place operators, `fill` and `sort` write to the database.
Everything else raises numpy's error for read-only arrays.
"""

import math
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.fields import DeclaredField, as_array, cast

Ints = NDArray[np.int64]
# Reads what cells have: their places along each leading axis -> array.
Read = Callable[..., NDArray[Any]]
# Indices that are applied one after the other.
Chain = tuple[Any, ...]


class Source(Protocol):
    """A field of all slots."""

    def pick(self, chain: Chain) -> NDArray[Any]:
        """Return a writable array of what indices pick."""

    def put(self, chain: Chain, value: NDArray[Any]) -> None:
        """Set what indices pick."""

    def cast(self, value: Any) -> NDArray[Any]:
        """Return a value in the dtype of the field."""


class WritesThrough:
    """The operations that change a numpy array, for values in the database."""

    def _set_all(self, value: Any) -> None:
        """Set all values."""
        raise NotImplementedError

    def _current(self) -> NDArray[Any]:
        """Return a writable array of the values stored now."""
        raise NotImplementedError

    def fill(self, value: Any) -> None:
        """Set all values."""
        self._set_all(value)

    def sort(self, axis: int = -1, **options: Any) -> None:
        """Sort the values in place; see `numpy.ndarray.sort`."""
        self._set_all(np.sort(self._current(), axis, **options))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # `np.add.at` writes to its first input, even if that is read-only.
        outs = inputs[:1] if method == "at" else kwargs.pop("out", ())
        # Before the inputs: this also reads an input again that is changed in place.
        targets = tuple(out._current() if isinstance(out, WritesThrough) else out for out in outs)
        args, options = as_arrays(inputs), as_arrays(kwargs)
        if method == "at":
            args = (*targets, *args[1:])
        elif targets:
            options["out"] = targets
        result = getattr(ufunc, method)(*args, **options)
        for out, target in zip(outs, targets, strict=True):
            if isinstance(out, WritesThrough):
                out._set_all(target)
        if not outs or method == "at":
            return result
        if len(outs) == 1:
            return outs[0]
        return tuple(made if out is None else out for out, made in zip(outs, result, strict=True))

    def __array_function__(self, function: Any, _types: Any, args: Any, kwargs: Any) -> Any:
        return function(*as_arrays(args), **as_arrays(kwargs))


class View(WritesThrough, np.ndarray[Any, Any]):  # type: ignore[misc]  # its `sort` writes
    """The values that a basic index picked when it was read; assigning to it writes.

    Arrays that numpy derives from it, such as `view.T`, are read-only.
    """

    _own: NDArray[Any] | None = None
    _source: Callable[[], Source] | None = None
    _chain: Chain = ()

    @classmethod
    def of(cls, values: NDArray[Any], source: Callable[[], Source], chain: Chain) -> "View":
        """Return the view of an array that was read.

        Args:
            values: The values, writable; no other code keeps them.
            source: Returns where they were read, or raises an error if that is gone.
            chain: The indices that picked them.
        """
        view = values.view(cls)
        view.flags.writeable = False
        view._own, view._source, view._chain = values, source, chain
        return view

    def __getitem__(self, index: Any) -> Any:
        if self._own is None or self._source is None:
            return super().__getitem__(index)
        index = plain_index(index)
        picked = self._own[index]
        if not isinstance(picked, np.ndarray) or not is_basic(index):
            return picked
        return View.of(picked, self._source, (*self._chain, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._own is None or self._source is None:
            if not self.flags.writeable:
                raise MemmapError(
                    "this array was made of values of buffer.data[...] and is read-only: assign to "
                    "buffer.data[...] itself, or change a copy()"
                )
            super().__setitem__(index, value)
            return
        source = self._source()
        index, value = plain_index(index), source.cast(value)
        is_all = index is Ellipsis or (isinstance(index, slice) and index == slice(None))
        source.put(self._chain if is_all else (*self._chain, index), value)
        self._own[index] = value

    def _set_all(self, value: Any) -> None:
        self[...] = value

    def _current(self) -> NDArray[Any]:
        if self._own is None or self._source is None:
            return np.array(self)
        self._own[...] = self._source().pick(self._chain)
        return self._own.copy()

    def copy(self, order: Any = "C") -> Any:
        """Return the values as an array that can be changed; it is not stored."""
        return np.array(self, order=order)

    def __deepcopy__(self, _memo: Any) -> Any:
        return self.copy()

    def __reduce__(self) -> Any:
        return self.copy().__reduce__()

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def plain_index(index: Any) -> Any:
    """Return an index as numpy takes it: tensors, lists and proxies as arrays."""
    if isinstance(index, tuple):
        return tuple(map(plain_index, index))
    if index is None or index is Ellipsis or isinstance(index, (slice, int, np.integer)):
        return index
    if isinstance(index, WritesThrough):
        return np.asarray(index)
    if isinstance(index, list) and not index:
        return np.empty(0, np.int64)
    if hasattr(index, "__index__") and getattr(index, "shape", ()) == ():
        return operator.index(index)
    array = as_array("index", index)
    if array.dtype.kind not in "biu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    return array


def is_basic(index: Any) -> bool:
    """Return True if numpy returns a view for a plain index."""
    parts = index if isinstance(index, tuple) else (index,)
    return not any(isinstance(part, (np.ndarray, bool)) for part in parts)


def as_arrays(value: Any) -> Any:
    """Return arguments of a function with proxies and views as read-only arrays."""
    if isinstance(value, WritesThrough):
        return np.asarray(value)
    if isinstance(value, dict):
        return {name: as_arrays(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_arrays, value))
    return value


class ArrayProxy(WritesThrough, np.lib.mixins.NDArrayOperatorsMixin):
    """One field of all slots, like an array of numpy; each access reads the database.

    An index without arrays returns a `View`: an array with the current values. Assigning to it
    writes to the database, in one transaction for each assignment. So write many values in one
    assignment: `data['returns'][3, :10] = values`. An index with arrays returns a copy, as in
    numpy.

    Args:
        track: The field.
        leading: The shape before that of one value: slots, or slots and steps.
        read: Returns the values of cells, given an index array for each leading axis.
        write: Sets them.
        flush: Stores the steps that are not stored yet.
        again: Returns a new proxy for a view; it holds no reference to the buffer.

    Example:
        >>> import tempfile
        >>> from sqlbuffer.compat.memmap import ReplayBuffer
        >>> buffer = ReplayBuffer(tempfile.mkdtemp(), 3, 5, fields={"reward": "float"})
        >>> buffer.store_episode(reward=[1.0, 2.0])
        >>> buffer.data["reward"][0, 1:3] = 7.0
        >>> buffer.data["reward"][0][4] = 9.0
        >>> buffer.data["reward"][0]
        array([1., 7., 7., 0., 9.], dtype=float32)
    """

    def __init__(
        self,
        track: DeclaredField,
        leading: tuple[int, ...],
        read: Read,
        write: Callable[..., None],
        flush: Callable[[], None],
        again: Callable[[], "ArrayProxy"],
    ) -> None:
        self._track, self._leading, self._again = track, leading, again
        self._read, self._write, self.flush = read, write, flush
        self.shape = (*leading, *track.shape)
        self.dtype = track.dtype
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)

    def __getitem__(self, index: Any) -> Any:
        index = plain_index(index)
        picked = self.pick((index,))
        if picked.ndim == 0:
            return picked[()]
        return View.of(picked, self._again, (index,)) if is_basic(index) else picked

    def __setitem__(self, index: Any, value: Any) -> None:
        self.put((plain_index(index),), self.cast(value))

    def pick(self, chain: Chain) -> NDArray[Any]:
        """Return a writable array of what indices pick, one after the other."""
        if self._is_leading(chain):
            return self._read(*self._places(chain, ()))
        # One place for each item of a value: cells are read once, and items picked from them.
        *places, items = self._places(chain, self._track.shape)
        cells, back = self._cells([place.ravel() for place in places])
        return self._items(cells)[back, items.ravel()].reshape(items.shape)

    def put(self, chain: Chain, value: NDArray[Any]) -> None:
        """Set what indices pick, one after the other."""
        if self._is_leading(chain):
            places = self._places(chain, ())
            target = np.empty((*places[0].shape, *self._track.shape), self.dtype)
            target[...] = value
            flat = target.reshape(places[0].size, *self._track.shape)
            self._write(flat, *(place.ravel() for place in places))
            return
        *places, items = self._places(chain, self._track.shape)
        target = np.empty(items.shape, self.dtype)
        target[...] = value
        cells, back = self._cells([place.ravel() for place in places])
        values = self._items(cells)
        values[back, items.ravel()] = target.ravel()
        self._write(values.reshape(len(values), *self._track.shape), *cells)

    def cast(self, value: Any) -> NDArray[Any]:
        """Return a value in the dtype of the field."""
        return cast(self._track, value)

    def _items(self, cells: list[Ints]) -> NDArray[Any]:
        """Return the values of cells, each in one row."""
        n_items = math.prod(self._track.shape)
        return np.array(self._read(*cells)).reshape(len(cells[0]), n_items)

    def _is_leading(self, chain: Chain) -> bool:
        """Return True if indices pick slots and steps, and no parts of values."""
        if not self._track.shape:
            return True
        # The first index decides which axes a second index refers to.
        index, *others = chain
        if others:
            return False
        used = 0
        for part in index if isinstance(index, tuple) else (index,):
            if part is None or part is Ellipsis:
                return False
            used += part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1
        return used <= len(self._leading)

    def _places(self, chain: Chain, items: tuple[int, ...]) -> list[Ints]:
        """Return what indices pick: of each leading axis the place, and of values the item."""
        return [_picked(grid, chain) for grid in _grids(self._leading, items)]

    def _cells(self, places: list[Ints]) -> tuple[list[Ints], Ints]:
        """Return the distinct cells of items, and the place of each item's cell among them."""
        keys = places[0] if len(places) == 1 else places[0] * self._leading[1] + places[1]
        cells, back = np.unique(keys, return_inverse=True)
        if len(places) == 1:
            return [cells], back.reshape(-1)
        return list(np.divmod(cells, self._leading[1])), back.reshape(-1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("values of a database are copied: copy=False cannot be kept")
        values: NDArray[Any] = np.asarray(self[:])
        if dtype is not None:
            values = values.astype(dtype, copy=False)
        return values.copy() if copy else values

    def _set_all(self, value: Any) -> None:
        self[:] = value

    def _current(self) -> NDArray[Any]:
        return self.pick((slice(None),))

    def __getattr__(self, name: str) -> Any:
        """Return what an array of numpy has: `sum`, `tolist`, `astype`, `T`, ..."""
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"an array proxy has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def copy(self) -> NDArray[Any]:
        """Return all values as an array that can be changed; it is not stored."""
        return self._current()

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

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


class ArrayProxies(Mapping[str, ArrayProxy]):
    """The proxies of all fields by name, made when they are read.

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
        """Accept the result of `data[name] += 1`, which is written already; refuse the rest."""
        if not isinstance(value, ArrayProxy) or name not in self._names:
            raise TypeError(f"assign to a part of the field: data[{name!r}][:] = ...")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def proxy_maker(make: Callable[[str], ArrayProxy], name: str) -> Callable[[], ArrayProxy]:
    """Return a function that makes a proxy as long as its buffer exists.

    Args:
        make: A method of the buffer.
        name: The field.
    """
    method = weakref.WeakMethod(make)

    def again() -> ArrayProxy:
        maker = method()
        if maker is None:
            raise MemmapError(
                f"the buffer of this array of {name!r} was deleted, and changes cannot be stored: "
                f"keep a reference to the buffer, or change a copy()"
            )
        return maker(name)

    return again


@lru_cache(maxsize=16)
def _grids(leading: tuple[int, ...], items: tuple[int, ...]) -> list[Ints]:
    """Return the places on each leading axis, and of values the items, as numpy picks from them.

    They have strides of zero, and take little memory.
    """
    shape, grids = (*leading, *items), []
    for axis, n in enumerate(leading):
        column = np.arange(n).reshape(*(-1 if i == axis else 1 for i in range(len(shape))))
        grids.append(np.broadcast_to(column, shape))
    if items:
        numbers = np.arange(math.prod(items)).reshape(*(1 for _ in leading), *items)
        grids.append(np.broadcast_to(numbers, shape))
    return grids


def _picked(grid: Ints, chain: Chain) -> Ints:
    for index in chain:
        grid = grid[index]
    return np.asarray(grid)
