"""The bytes of rows, compressed where that makes them shorter.

A compressed row is a Zstandard frame and begins with its magic number. A row that would not shrink
is kept as it is, unless it happens to begin with that number.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sqlbuffer.checks import checked_choice
from sqlbuffer.errors import BufferConfigError, FieldError, MissingExtraError

NAMES = ("zstd",)
_MAGIC = b"\x28\xb5\x2f\xfd"
_HEAD = np.frombuffer(_MAGIC, np.uint8)
_LEVEL = 3

Bytes = bytes | bytearray


def check_compression(name: str | None) -> None:
    """Raise unless it is None or a compression that can be used here.

    Raises:
        BufferConfigError: The name is unknown.
        MissingExtraError: Its package is not installed.
    """
    if known_compression(name) is not None:
        _zstandard()


def known_compression(name: str | None) -> str | None:
    """Return the name of a compression, or None.

    Raises:
        BufferConfigError: The name is unknown.
    """
    if name is None:
        return None
    more = ", or omitted"
    return checked_choice(name, "compression", NAMES, more=more, error=BufferConfigError)


def compress(rows: Sequence[Bytes | None]) -> list[Bytes | None]:
    """Return each row compressed, or as it is where it would not shrink; None stays."""
    # Each call makes its own compressor, because two threads must not use one at the same time.
    compressor = _zstandard().ZstdCompressor(level=_LEVEL, write_checksum=True)
    return [row and _shorter(row, compressor.compress(row)) for row in rows]


def compress_lookalike(row: Bytes | memoryview) -> Bytes | memoryview:
    """Return bytes that `expand` leaves as they are, or expands to these: compressed if they begin
    like a frame by chance.
    """
    return row if row[:4] != _MAGIC else compress([bytes(row)])[0] or b""


def has_frame(rows: Bytes | memoryview, n_rows: int) -> bool:
    """Return True if `expand` would take one of some rows of the same size for a frame."""
    heads = np.frombuffer(rows, np.uint8).reshape(n_rows, -1)[:, : len(_MAGIC)]
    return heads.shape[1] == len(_MAGIC) and bool((heads == _HEAD).all(axis=1).any())


def expand(rows: Sequence[Bytes | None], seqs: Sequence[Any] | None = None) -> list[Bytes | None]:
    """Return rows as they were before `compress`.

    Args:
        rows: Rows that `compress` returned.
        seqs: Their numbers, for error messages.

    Raises:
        FieldError: The bytes are damaged; the message names the row.
    """
    zstandard = _zstandard()
    decompressor = zstandard.ZstdDecompressor()
    found: list[Bytes | None] = []
    for i, row in enumerate(rows):
        if row is None or row[:4] != _MAGIC:
            found.append(row)
            continue
        try:
            expanded = decompressor.decompress(row, allow_extra_data=False)
            if not expanded:  # the package does not look at a frame that says it is empty
                raise zstandard.ZstdError("no content")
            found.append(expanded)
        except (zstandard.ZstdError, MemoryError) as error:
            raise FieldError(
                f"{shown_row(i, seqs)} has damaged arrays ({error}); delete it, or restore it from "
                f"a backup"
            ) from None
    return found


def shown_row(i: int, seqs: Sequence[Any] | None) -> str:
    """Return how an error names the row at a place."""
    return f"row {i} of these" if seqs is None else f"the row with seq {seqs[i]}"


def _shorter(row: Bytes, frame: bytes) -> Bytes:
    return frame if len(frame) < len(row) or row[:4] == _MAGIC else row


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError(
            "a buffer with compression='zstd' needs zstandard; run `pip install zstandard`"
        ) from None
    return zstandard
