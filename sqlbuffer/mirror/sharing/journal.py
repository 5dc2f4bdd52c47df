"""A journal of names and episodes, one entry after the other."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

_HEAD = struct.Struct("<qqqqqqdd")
_ALIGN = 8


class Entry(NamedTuple):
    """An entry of a journal.

    Attributes:
        kind: Kind of the entry.
        number: Number of the described thing.
        id: A number, such as a key in the database.
        value: Another one.
        name: A text, or None.
        data: Bytes, or None.
        numbers: Two numbers.
    """

    kind: int
    number: int
    id: int
    value: int
    name: str | None
    data: bytes | None
    numbers: tuple[float, float] = (0.0, 0.0)


def packed(entry: Entry) -> bytes:
    """Return the bytes of an entry.

    Example:
        >>> entry = Entry(1, 7, 0, -1, "walk", None)
        >>> list(unpacked(memoryview(packed(entry)))) == [entry]
        True
    """
    name = None if entry.name is None else entry.name.encode("utf-8", "surrogatepass")
    parts = [name, entry.data]
    sizes = [-1 if part is None else len(part) for part in parts]
    head = _HEAD.pack(entry.kind, entry.number, entry.id, entry.value, *sizes, *entry.numbers)
    own = head + b"".join([part for part in parts if part is not None])
    return own + bytes(-len(own) % _ALIGN)


def unpacked(stored: memoryview) -> Iterator[Entry]:
    """Yield the entries that bytes are made of."""
    at = 0
    while at < len(stored):
        kind, number, id_, value, n_name, n_data, *numbers = _HEAD.unpack_from(stored, at)
        start = at + _HEAD.size
        middle = start + max(n_name, 0)
        end = middle + max(n_data, 0)
        name = bytes(stored[start:middle]).decode("utf-8", "surrogatepass")
        data = bytes(stored[middle:end])
        yield Entry(
            kind, number, id_, value, None if n_name < 0 else name, None if n_data < 0 else data,
            (numbers[0], numbers[1]),
        )  # fmt: skip
        at = -(-end // _ALIGN) * _ALIGN
