"""Arrays of bytes as PNG images, with nothing but zlib."""

import struct
import zlib
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.web.step_arrays.step_values import image_of

# Longer sides are shown in fewer pixels.
MOST_SIDE, THUMBNAIL_SIDE = 4_096, 128
_COLOUR_TYPES = {1: 0, 3: 2, 4: 6}


def png_of(array: NDArray[Any], most_side: int = MOST_SIDE) -> bytes | None:
    """Return an image as PNG; None: the array is not an image (see `is_image`).

    Args:
        array: H x W or H x W x C, uint8.
        most_side: An image with a longer side is shown by every second pixel, every third, and so
            on.

    Example:
        >>> png_of(np.zeros((8, 8, 3), np.uint8))[:4]
        b'\\x89PNG'
    """
    image = image_of(array)
    if image is None:
        return None
    stride = ceil(max(image.shape[:2]) / most_side)
    image = image[::stride, ::stride]
    height, width = image.shape[:2]
    channels = 1 if image.ndim == 2 else image.shape[2]
    # Before each line: the filter, none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = image.reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 3)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
