"""Lines of a file or a pipe, as they come."""

import os
import select
import sys
from collections.abc import Iterator
from typing import IO, Any

from sqlbuffer.interchange.manifest import named_damage

_CHUNK_BYTES = 2**18
# Lines that are there are handed on when no other comes for this long.
IDLE_S = 0.5


def lines_of(path: "str | os.PathLike[str]") -> Iterator[bytes | None]:
    """Yield the lines of a file, or of standard input if it is `-`; None where none comes for a
    while.
    """
    if str(path) != "-":
        with named_damage(path), open(path, "rb") as file:
            yield from file
        return
    stream: Any = getattr(sys.stdin, "buffer", sys.stdin)
    try:
        number = stream.fileno()
    except (OSError, AttributeError, ValueError):  # it is not a file: a test has replaced it
        yield from _all_lines(stream)
        return
    yield from _waited(number)


def _all_lines(stream: IO[Any]) -> Iterator[bytes]:
    for line in stream:
        yield line if isinstance(line, bytes) else line.encode()


def _waited(number: int) -> Iterator[bytes | None]:
    parts: list[bytes] = []  # of a line that is not complete
    while True:
        if not select.select([number], [], [], IDLE_S)[0]:
            yield None
            continue
        chunk = os.read(number, _CHUNK_BYTES)
        if not chunk:
            break
        first, *others = chunk.split(b"\n")
        parts.append(first)
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            parts = [others[-1]]
    left = b"".join(parts)
    if left:
        yield left
