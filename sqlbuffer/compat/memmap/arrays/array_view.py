"""The arrays that an index of `data[...]` returns: changes to them are written to the database.

numpy can write to the memory of an array in many ways that a subclass does not notice. So callers
get read-only memory. Assignments, in-place operators, `fill` and `sort` write to the database.
Everything else raises numpy's error for read-only arrays.
"""

import operator
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.rows.casting import as_array

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
        given, options = as_arrays(inputs), as_arrays(kwargs)
        if method == "at":
            given = (*targets, *given[1:])
        elif targets:
            options["out"] = targets
        found = getattr(ufunc, method)(*given, **options)
        for out, target in zip(outs, targets, strict=True):
            if isinstance(out, WritesThrough):
                out._set_all(target)
        if not outs or method == "at":
            return found
        if len(outs) == 1:
            return outs[0]
        return tuple(made if out is None else out for out, made in zip(outs, found, strict=True))

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
    def of(cls, own: NDArray[Any], source: Callable[[], Source], chain: Chain) -> "View":
        """Return the view of an array that was read.

        Args:
            own: The values, writable; no other code keeps them.
            source: Returns where they were read, or raises an error if that is gone.
            chain: The indices that picked them.
        """
        view = own.view(cls)
        view.flags.writeable = False
        view._own, view._source, view._chain = own, source, chain
        return view

    def __getitem__(self, index: Any) -> Any:
        if self._own is None or self._source is None:
            return super().__getitem__(index)
        index = plain_index(index)
        found = self._own[index]
        if not isinstance(found, np.ndarray) or not is_basic(index):
            return found
        return View.of(found, self._source, (*self._chain, index))

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
        return {name: as_arrays(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(as_arrays, value))
    return value
