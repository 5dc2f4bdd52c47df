"""Whether exported files are whole: the manifest of a folder is written last, and says it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from sqlbuffer.errors import FileImportError, SQLBufferError
from sqlbuffer.interchange.dataset_card import CARD

MANIFEST = "sqlbuffer-manifest.json"
_FORMAT = 1
AGAIN = "export it again, or copy the whole folder again"


@dataclass(frozen=True)
class Manifest:
    """What an export has written.

    Attributes:
        folder: Its folder.
        files: Names of its files, relative to the folder.
        counts: Numbers of steps, episodes or rows, and the id of the export.
    """

    folder: Path
    files: tuple[str, ...]
    counts: Mapping[str, Any]

    def check(self, counts: Mapping[str, Any]) -> None:
        """Raise unless the files have what the export has written.

        Args:
            counts: What the files have; see `Manifest`.

        Raises:
            FileImportError: A number differs.
        """
        for name, value in counts.items():
            if self.counts.get(name) != value:
                raise FileImportError(
                    f"{self.folder}: {name} of its files is {value!r}, and {MANIFEST} says "
                    f"{self.counts.get(name)!r}; {AGAIN}"
                )


def write_manifest(folder: Path, counts: Mapping[str, Any]) -> None:
    """Write the manifest of the files that are in a folder.

    The README is not in it: people and hubs edit it.

    Args:
        folder: The folder.
        counts: See `Manifest`.
    """
    names = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*"))
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _checksum(folder / name)}
        for name in names
        if name != CARD and (folder / name).is_file()
    }
    text = json.dumps({"format": _FORMAT, **counts, "files": files}, indent=2)
    (folder / MANIFEST).write_text(text, "utf-8")


def verified_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder that has the files of its export, unchanged; None: no
    manifest is there.

    Raises:
        FileImportError: The manifest cannot be read, or a file is missing or differs.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    with named_damage(path):
        tree = json.loads(path.read_text("utf-8"))
        files = {name: (file["bytes"], file["sha256"]) for name, file in tree.pop("files").items()}
        version = tree.pop("format")
    if version != _FORMAT:
        raise FileImportError(
            f"{path} has the format {version!r}, and this release reads {_FORMAT}; upgrade the "
            f"package, or {AGAIN}"
        )
    for name, (n_bytes, checksum) in files.items():
        file = folder / name
        with named_damage(file):
            if not file.is_file():
                raise FileImportError(f"{file} is missing, and {MANIFEST} names it; {AGAIN}")
            if file.stat().st_size != n_bytes:
                raise FileImportError(
                    f"{file} has {file.stat().st_size:,} bytes, and {MANIFEST} says {n_bytes!r}; "
                    f"{AGAIN}"
                )
            if _checksum(file) != checksum:
                raise FileImportError(
                    f"{file} is damaged: its checksum is not the one in {MANIFEST}; {AGAIN}"
                )
    return Manifest(folder, tuple(files), tree)


@contextmanager
def named_damage(file: object) -> Iterator[None]:
    """Raise any error of reading or decoding a file as one that names the file.

    Raises:
        FileImportError: The file cannot be read, or is damaged.
    """
    try:
        yield
    except SQLBufferError:
        raise
    except Exception as error:
        raise FileImportError(
            f"{file} cannot be read, or is damaged ({type(error).__name__}: {error!s:.300}); "
            f"write it again, or copy it again"
        ) from error


def _checksum(file: Path) -> str:
    with file.open("rb") as opened:
        return file_digest(opened, "sha256").hexdigest()
