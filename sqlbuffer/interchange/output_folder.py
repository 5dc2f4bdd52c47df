"""A folder that appears when it is whole."""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlbuffer.errors import ExportError
from sqlbuffer.interchange.dataset_card import CARD
from sqlbuffer.interchange.manifest import MANIFEST, write_manifest
from sqlbuffer.interchange.work_place import WorkPlace, make_parents, put_in_place, recover

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OWN = re.compile(
    rf"(steps-\d+|train-\d+|episodes)\.parquet|{re.escape(CARD)}|{re.escape(MANIFEST)}"
)


class OutputFolder:
    """Files are written to a folder of another name next to it, which is renamed at the end.

    Args:
        path: The folder.
        overwrite: Replace an export that is there.

    Attributes:
        work: Where to write, inside `with`.

    Raises:
        ExportError: There is something by that name, or no folder can be made; at the end, that the
            disk is full.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.path = path
        recover(self.path)
        if os.path.lexists(self.path):
            self._check_free(overwrite)
        make_parents(self.path)

    def _check_free(self, overwrite: bool) -> None:
        if not self.path.is_dir():
            raise ExportError(
                f"{self.path} is a file, and an export is a folder; name another path"
            )
        others = sorted(e.name for e in self.path.iterdir() if not _OWN.fullmatch(e.name))
        if others:
            raise ExportError(
                f"{self.path} has {others[0]!r}, which is not of an export; name another folder"
            )
        if not overwrite and any(self.path.iterdir()):
            raise ExportError(
                f"{self.path} has an export already; name another folder, or replace it with "
                f"overwrite=True (--overwrite)"
            )

    def __enter__(self) -> "OutputFolder":
        self._place = WorkPlace(self.path, Path.mkdir)
        self.work = self._place.path
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._place.close()
        if isinstance(error, OSError) and is_full(error):
            raise ExportError(
                f"the disk of {self.path} is full ({error}); free space, or name a folder on "
                f"another disk, and export again"
            ) from error

    def finish(self, card: str, counts: Mapping[str, Any]) -> tuple[int, int]:
        """Write the README and the manifest, and put the folder in its place.

        Args:
            card: The README.
            counts: See `Manifest`.

        Returns:
            The number of files, and their size in bytes.
        """
        (self.work / CARD).write_text(card, "utf-8")
        write_manifest(self.work, counts)
        sizes = [file.stat().st_size for file in self.work.iterdir()]
        for file in self.work.iterdir():
            _sync(file)
        _sync(self.work)
        put_in_place(self.work, self.path)
        _sync(self.path.parent)
        return len(sizes), sum(sizes)


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no more space."""
    return error.errno in _FULL


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
