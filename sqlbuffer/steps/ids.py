"""UUID version 7 (RFC 9562, section 5.7): time-ordered, so that unique indexes grow at one end."""

import os
import time

_VERSION_AND_VARIANT = (7 << 76) | (2 << 62)
_RANDOM_MASK = ~((0xF << 76) | (3 << 62)) & ((1 << 80) - 1)


def uuid7() -> str:
    """Return a new UUIDv7 as 36 characters; ordered by the millisecond, random within it."""
    random_bits = int.from_bytes(os.urandom(10), "big") & _RANDOM_MASK
    number = (time.time_ns() // 1_000_000) << 80 | _VERSION_AND_VARIANT | random_bits
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
