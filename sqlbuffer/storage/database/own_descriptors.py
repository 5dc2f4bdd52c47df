"""Descriptors of one process: a forked child closes its copies.

A lock on a file lasts as long as any process has the descriptor open, also a child of its holder.
"""

import os
from pathlib import Path

from sqlbuffer.storage.database.sqlite_connections import forks_held_off

_descriptors: set[int] = set()


def open_own(path: Path, flags: int, mode: int = 0o666) -> int:
    """Open a file for this process only.

    Args:
        path: The file.
        flags: Flags of `os.open`.
        mode: Permissions of a new file.

    Raises:
        OSError: See `os.open`.
    """
    # A child that is forked between the two lines would keep its copy open.
    with forks_held_off():
        descriptor = os.open(path, flags, mode)
        _descriptors.add(descriptor)
    return descriptor


def close_own(descriptor: int) -> None:
    """Close a descriptor of `open_own`."""
    with forks_held_off():
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _close_inherited() -> None:
    for descriptor in list(_descriptors):
        os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
