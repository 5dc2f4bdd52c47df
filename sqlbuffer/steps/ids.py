"""UUID version 7 (RFC 9562, section 5.7): time-ordered, so that unique indexes grow at one end."""

import os
import re
import time

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}


def uuid7() -> str:
    """Return a new UUIDv7 as 36 characters; ordered by the millisecond, random within it."""
    return uuid7s(1)[0]


def uuid7s(n: int) -> list[str]:
    """Return n new UUIDv7 of one millisecond; in a third of the time of n calls."""
    when = f"{time.time_ns() // 1_000_000:012x}"
    start, digits = f"{when[:8]}-{when[8:]}-7", os.urandom(10 * n).hex()
    return [
        f"{start}{digits[i : i + 3]}-{_VARIANT[digits[i + 3]]}{digits[i + 4 : i + 7]}-"
        f"{digits[i + 7 : i + 19]}"
        for i in range(0, 20 * n, 20)
    ]


def is_uuid(text: str) -> bool:
    """Return True for a UUID in the form in which the library writes it."""
    return _UUID.fullmatch(text) is not None
