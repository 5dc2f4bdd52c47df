"""A disk of a few megabytes, seen by one process and its children only."""

import ctypes
import os
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x00020000


def may_mount() -> bool:
    """Tell whether this user may have a file system of its own."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def mount_small_disk(folder: Path, size_bytes: int) -> None:
    """Mount an empty file system of that size in this process's own view of the machine.

    To be called in a child process: what is mounted goes with it.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    options = f"size={size_bytes},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)


def fill(path: Path, leave_bytes: int) -> None:
    """Write a file that leaves so much of its file system free."""
    disk = os.statvfs(path.parent)
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - leave_bytes)
