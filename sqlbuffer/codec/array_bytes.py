"""Arrays as bytes: the stored form of a dtype, and the bytes of an array in pieces."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from sqlbuffer.codec.scalar_tags import tag_text

# Arrays from this size on are aligned, copied piece by piece, and views of what was read.
LARGE_BYTES = 2**16
ALIGNMENT = 64
_CHUNK_BYTES = 2**20
# Most arrays have one of these; to write a dtype down and read it again takes longer than the rest.
PLAIN_DTYPES: dict[Any, str] = {
    np.dtype(code): np.dtype(code).str
    for code in ("?", "b", "h", "i", "q", "B", "H", "I", "Q", "e", "f", "d", "F", "D")
}


def byte_chunks(array: np.ndarray[Any, Any]) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order.

    A contiguous array is one chunk. Others come in pieces, which saves a copy of the whole array.
    """
    if array.flags.c_contiguous:
        yield array.reshape(-1).view(np.uint8).data
        return
    for (piece,) in item_pieces(array):
        yield piece.view(np.uint8).data


def item_pieces(*arrays: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], ...]]:
    """Yield the items of arrays of one dtype and shape, in C order, some at a time."""
    flags: Any = [["readonly", "contig"]] * len(arrays)
    size = max(1, _CHUNK_BYTES // arrays[0].itemsize)
    found: Any = np.nditer(
        list(arrays), ["external_loop", "buffered"], flags, order="C", buffersize=size
    )
    for pieces in found:
        yield pieces if isinstance(pieces, tuple) else (pieces,)


def dtype_spec(dtype: np.dtype[Any]) -> Any:
    """Return a dtype as JSON; `dtype_from_spec` reads it."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [dtype_spec(base), list(shape)]
    if dtype.names is None or dtype.fields is None:
        return dtype.str
    fields = [dtype.fields[name] for name in dtype.names]
    titles = [field[2] if len(field) == 3 else None for field in fields]
    return {
        **({"titles": [title and tag_text(title) for title in titles]} if any(titles) else {}),
        "names": [tag_text(name) for name in dtype.names],
        "formats": [dtype_spec(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
    }
