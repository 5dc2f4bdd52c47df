"""Images in the messages of language models."""

import base64
import binascii
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DATA_URL = re.compile(r"data:image/[\w.+-]+(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
_IMAGE_TYPES = ("image", "image_url", "input_image")
# Keys of a part that may have the image, in the APIs of OpenAI, Anthropic, MCP and transformers.
_PLACES = ("image", "image_url", "source", "data", "base64", "bytes", "url", "path")
_BEGINNINGS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*")
# Type of color in a PNG file, by the number of channels.
_COLORS = {1: 0, 2: 4, 3: 2, 4: 6}


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Return the PNG file of an image.

    Args:
        pixels: uint8 of the shape (height, width) or (height, width, channels); 1 to 4 channels.

    Example:
        >>> png(np.zeros((2, 3, 3), np.uint8))[:4]
        b'\\x89PNG'
    """
    height, width = pixels.shape[:2]
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    n_channels = lines.shape[1] // width
    header = struct.pack(">IIBBBBB", width, height, 8, _COLORS[n_channels], 0, 0, 0)
    # Each line begins with its filter: none.
    data = zlib.compress(np.pad(lines, ((0, 0), (1, 0))).tobytes(), 6)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return _BEGINNINGS[0] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )


def is_image(part: Any) -> bool:
    """Return True if a part of a message's content stands for an image.

    Example:
        >>> is_image({"type": "image", "image": b""}), is_image({"type": "text", "text": "a"})
        (True, False)
    """
    if isinstance(part, Mapping):
        mime = part.get("media_type") or part.get("mime_type") or part.get("mimeType")
        is_named = isinstance(mime, str) and mime.startswith("image/")
        return part.get("type") in _IMAGE_TYPES or is_named
    if isinstance(part, str):
        return _DATA_URL.match(part) is not None
    if isinstance(part, (bytes, bytearray, memoryview)):
        return _is_file(bytes(part[:16]))
    return _is_pixels(part) and len(part.shape) == 3


def image_text(part: Any) -> str:
    """Return the file of an image as base64; an array becomes a PNG file.

    Args:
        part: A part for which `is_image` is true.

    Raises:
        ValueError: It has no data, such as one with the address of a page, or other data.

    Example:
        >>> image_text("data:image/png;base64,iVBORw0KGgo=")
        'iVBORw0KGgo='
    """
    if isinstance(part, Mapping):
        inner = next((part[key] for key in _PLACES if part.get(key) is not None), None)
        if inner is None:
            raise ValueError(f"a part of the type {part.get('type')!r} in a message has no image")
        is_base64 = isinstance(inner, str) and ("data" in part or "base64" in part)
        return _checked(inner) if is_base64 and not _DATA_URL.match(inner) else image_text(inner)
    if isinstance(part, str):
        address = _DATA_URL.match(part)
        if address is not None:
            return _checked(part[address.end() :])
        raise ValueError(
            f"an image in a message has the address {_short(part)}, and not its data; store the "
            f"bytes of the file, or 'data:image/png;base64,...'"
        )
    if isinstance(part, (bytes, bytearray, memoryview)):
        if not _is_file(bytes(part[:16])):
            raise ValueError("bytes in a message are not an image that is known, such as PNG")
        return base64.b64encode(part).decode()
    if _is_pixels(part):
        return base64.b64encode(png(np.asarray(part))).decode()
    shape = getattr(part, "shape", None)
    what = type(part).__name__ if shape is None else f"an array of the shape {tuple(shape)}"
    raise ValueError(
        f"an image in a message is uint8 of the shape (height, width, channels), or the bytes of "
        f"a file, and not {what}"
    )


def _is_file(beginning: bytes) -> bool:
    is_webp = beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP"
    return is_webp or beginning.startswith(_BEGINNINGS)


def _is_pixels(part: Any) -> bool:
    shape: Sequence[int] = getattr(part, "shape", ())
    if str(getattr(part, "dtype", "")).removeprefix("torch.") != "uint8" or 0 in shape:
        return False
    return len(shape) == 2 or (len(shape) == 3 and shape[2] in _COLORS)


def _checked(text: str) -> str:
    """Return base64 in its usual form."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"an image in a message is not base64: {_short(text)}") from None
    return base64.b64encode(data).decode()


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
