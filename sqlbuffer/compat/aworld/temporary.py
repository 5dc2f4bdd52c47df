"""Temporary databases, removed with their owner or at the end of the process."""

import shutil
import tempfile
from multiprocessing.util import Finalize
from typing import Any

# Below zero: after the child processes were joined, which may still write.
_AT_THE_END = -100


def new_directory() -> str:
    """Make a directory for one database."""
    return tempfile.mkdtemp(prefix="sqlbuffer-")


def url_in(directory: str) -> str:
    """Return the URL of the database in a directory."""
    return f"sqlite:///{directory}/replay.db"


def remove_with(owner: Any, directory: str) -> None:
    """Remove the directory when the owner is collected or this process ends; no child removes it.

    Args:
        owner: None waits for the end of the process.
        directory: Of `new_directory`.
    """
    Finalize(owner, shutil.rmtree, args=(directory, True), exitpriority=_AT_THE_END)
