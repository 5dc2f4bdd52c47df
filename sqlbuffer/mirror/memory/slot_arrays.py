"""The arrays of a mirror that have a place for each step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LINK
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields.declarations import ON_REQUEST
from sqlbuffer.mirror.memory.step_record import record_of
from sqlbuffer.mirror.memory.tails import Shapes, tail_shapes

Allocate = Callable[[Shapes], Mapping[str, NDArray[Any]]]

# Before the names of large fields.
LARGE = "large."


def slot_shapes(layout: Layout, n_slots: int, heap_bytes: int) -> Shapes:
    """Return shape and dtype of each array, by name; those of large fields begin with `LARGE`.

    Args:
        layout: How the bytes of chunks are laid out.
        n_slots: Number of steps that fit.
        heap_bytes: Room for values of varying length.
    """
    record = record_of(layout)
    large = {
        LARGE + name: ((n_slots, *spec.shape), np.dtype(spec.dtype))
        for name, spec in layout.specs.items()
        if name not in (record.names or ())
    }
    return {
        "records": ((n_slots, record.itemsize // 8), np.dtype(np.uint64)),
        "links": ((n_slots, LINK.itemsize // 8), np.dtype(np.uint64)),
        "is_drawable": ((n_slots,), np.dtype(bool)),
        "version": ((n_slots,), np.dtype(np.int64)),
        "has_version": ((n_slots,), np.dtype(bool)),
        "session": ((n_slots,), np.dtype(np.int32)),
        "is_quarantined": ((n_slots,), np.dtype(bool)),
        "is_outside": ((n_slots,), np.dtype(bool)),
        **dict.fromkeys(ON_REQUEST, ((n_slots,), np.dtype(np.float32))),
        **large,
        **(tail_shapes(n_slots, heap_bytes) if has_tails(layout) else {}),
    }


def large_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of large fields, by the name of the field."""
    return {
        name.removeprefix(LARGE): array for name, array in arrays.items() if name.startswith(LARGE)
    }


def has_tails(layout: Layout) -> bool:
    """Return whether values of varying length are kept; without their fields they are not."""
    return any(spec.is_variable for spec in layout.specs.values())


def zeroed(shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Return the arrays, filled with zeros, in the memory of this process."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
