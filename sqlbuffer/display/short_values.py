"""Any value in one short line."""

import reprlib
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from sqlbuffer.display.jsonable import LONGEST_INT_BITS

SHOWN_ITEMS = 8
SHOWN_CHARACTERS = 100


def described_array(array: Any, shown: Callable[[Any], str]) -> str:
    """Return an array in one line: short vectors in full, larger arrays by dtype, shape and what
    their numbers are like.

    Args:
        array: The array.
        shown: Returns a number, a text or another item in short.
    """
    array = np.asarray(array)
    first = islice(array.flat, SHOWN_ITEMS)
    items = [shown(item.item() if hasattr(item, "item") else item) for item in first]
    if array.ndim == 0:
        return items[0]
    kind = f"{array.dtype}{tuple(array.shape)}"
    if array.ndim == 1 and array.size <= SHOWN_ITEMS:
        return f"{kind} [{' '.join(items)}]"
    if array.dtype.kind not in "biuf" or not array.size:
        dots = ["..."] if array.size > SHOWN_ITEMS else []
        return f"{kind} [{' '.join([*items, *dots])}]"
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return f"{kind} no finite number"
    least, mean, most = (shown(float(f(finite))) for f in (np.min, np.mean, np.max))
    odd = f" {array.size - finite.size:,} not finite" if finite.size < array.size else ""
    return f"{kind} min {least} mean {mean} max {most}{odd}"


class _ShortRepr(reprlib.Repr):
    """Calls `repr_<name of the type>` for a value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = SHOWN_ITEMS
        self.maxstring = self.maxother = 80

    # Cut before they are written.
    repr_bytes = repr_bytearray = reprlib.Repr.repr_str

    def repr_int(self, value: int, level: int) -> str:
        if value.bit_length() > LONGEST_INT_BITS:
            return f"an integer of {value.bit_length():,} bits"
        return super().repr_int(value, level)

    def repr_ndarray(self, array: Any, level: int) -> str:
        return described_array(array, lambda item: _number(item, self))

    def repr_Tensor(self, tensor: Any, level: int) -> str:
        return f"tensor of {tensor.dtype}{tuple(tensor.shape)}"

    def repr_instance(self, value: Any, level: int) -> str:
        if isinstance(value, np.generic):
            return _number(value.item(), self)
        return super().repr_instance(value, level)

    def repr_dict(self, values: Mapping[Any, Any], level: int) -> str:
        """Return a dict in its own order."""
        if values and level <= 0:
            return "{...}"
        pairs = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(values.items(), self.maxdict)
        ]
        more = ["..."] if len(values) > self.maxdict else []
        return "{" + ", ".join([*pairs, *more]) + "}"


def _number(value: Any, shortener: reprlib.Repr) -> str:
    return f"{value:.4g}" if isinstance(value, float) else shortener.repr(value)


short = _ShortRepr().repr


def shown(value: Any, most: int = SHOWN_CHARACTERS) -> str:
    """Return any value as the text that an error message quotes: one line, cut where it is long.

    Args:
        value: The value.
        most: Number of characters.

    Example:
        >>> shown("a" * 10, most=6)
        "'aaaaa..."
    """
    try:
        text = " ".join(map(str.strip, short(value).splitlines()))
    except Exception:  # a value whose class, or that of a part of it, has no text
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[:most]}..."
