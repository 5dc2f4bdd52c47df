"""Copies of fields out of records, as bytes."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class FieldCopies:
    """Copies fields out of records.

    Values of several numbers are copied as plain bytes, which takes numpy half the time.

    Args:
        record: The dtype of the records.

    Attributes:
        plain: The same dtype, with the values of several numbers as plain bytes.
    """

    def __init__(self, record: np.dtype[Any]) -> None:
        names = record.names or ()
        self._kinds = {
            name: record[name] if record[name].shape and record[name].itemsize else None
            for name in names
        }
        self.plain: np.dtype[Any] = np.dtype(
            {
                "names": names,
                "formats": [
                    record[name] if kind is None else f"V{kind.itemsize}"
                    for name, kind in self._kinds.items()
                ],
                "offsets": [offset_of(record, name) for name in names],
                "itemsize": record.itemsize,
            }
        )

    def at(self, rows: NDArray[Any], slots: Integers, name: str) -> NDArray[Any]:
        """Return one field of some of many records of dtype `plain`, of shape (n, *shape)."""
        copied, kind = rows[name][slots], self._kinds[name]
        return copied if kind is None else copied.view(kind)

    def of(self, rows: NDArray[Any], names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Return fields of records of dtype `plain`, of shape (n, *shape)."""
        kinds, arrays = self._kinds, {}
        for name in names:
            kind = kinds[name]
            arrays[name] = rows[name].copy() if kind is None else rows[name].copy().view(kind)
        return arrays


def offset_of(record: np.dtype[Any], name: str) -> int:
    """Return at which byte of a record a field begins."""
    fields: Any = record.fields
    return int(fields[name][1])
