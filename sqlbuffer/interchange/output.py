"""Files and folders that appear when they are whole, and the manifest that says what they hold."""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlbuffer.copying import merge_options
from sqlbuffer.display import shown_size
from sqlbuffer.errors import ExportError, FileImportError, SQLBufferError
from sqlbuffer.steps import StoreResult

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class WorkPlace:
    """A file or a folder next to another one, locked while its process lives.

    Making it removes the work places of the same output whose process was killed.

    Args:
        target: Path that it is renamed to.
        make: Function that makes it: `Path.touch` or `Path.mkdir`.

    Attributes:
        path: Path of the work place.

    Raises:
        ExportError: The work place cannot be made.
    """

    def __init__(self, target: Path, make: Callable[[Path], None]) -> None:
        self._lock: int | None = None
        self.path: Path
        _remove_ended(target)
        while self._lock is None:
            self.path = target.parent / f".{target.name}.partial-{uuid4().hex[:8]}"
            with _named(target):
                make(self.path)
            # Another export to the same path may have removed it before it was locked.
            with suppress(FileNotFoundError):
                self._lock = _locked(self.path)

    def close(self) -> None:
        """Remove the file or folder, and unlock it."""
        if self.path.is_dir():
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def make_parents(target: Path) -> None:
    """Make the folders that an output is in.

    Raises:
        ExportError: They cannot be made.
    """
    with _named(target):
        target.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _named(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{target} cannot be made: {error.strerror}; name another path"
        ) from error


def _locked(path: Path) -> int:
    """Return an open descriptor; the lock ends with its process."""
    number = os.open(path, os.O_RDONLY)
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if not path.exists():
        os.close(number)
        raise FileNotFoundError(path)
    return number


def put_in_place(work: Path, target: Path) -> None:
    """Give a folder its name, and remove the folder that had this name.

    If this is interrupted, the name belongs to one of the two. If the process is killed in between,
    `recover` gives the old one its name back.
    """
    old = target.parent / f".{target.name}.old-{uuid4().hex[:8]}"
    lock = None
    try:
        if target.exists():
            lock = _locked(target)
            target.rename(old)
        work.rename(target)
    finally:
        _settle(old, target)
        if lock is not None:
            os.close(lock)


def recover(target: Path) -> None:
    """Put a folder back that a process moved away before it was killed, or remove it."""
    for path in _left_by_others(target, "old"):
        _settle(path, target)


def _settle(old: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def _remove_ended(target: Path) -> None:
    """Remove the files that killed exports to a path have left."""
    for path in _left_by_others(target, "partial"):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _left_by_others(target: Path, kind: str) -> list[Path]:
    """Return the places of one kind whose process has ended."""
    pattern = re.compile(re.escape(f".{target.name}.{kind}-") + "[0-9a-f]{8}")
    with suppress(OSError):
        return [p for p in target.parent.iterdir() if pattern.fullmatch(p.name) and is_ended(p)]
    return []


def is_ended(path: Path) -> bool:
    """Return whether no process has a lock on it; False where locks are unknown."""
    if fcntl is None:
        return False
    try:
        number = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(number)
    return True


CARD = "README.md"
_STEPS = """\
---
configs:
- config_name: steps
  data_files: steps-*.parquet
  default: true
- config_name: episodes
  data_files: episodes.parquet
---
# Steps of {buffer}

`steps-*.parquet` has a row for each step, `episodes.parquet` one for each episode. `state`,
`actions`, `messages` and `extra` are JSON texts. Typed fields of steps:

{fields}

    datasets.load_dataset("{path}")              # the steps
    datasets.load_dataset("{path}", "episodes")
    sqlbuffer import {path} URL                  # back into a buffer
"""
_ROLLOUTS = """\
---
configs:
- config_name: default
  data_files: train-*.parquet
---
# Rollouts of {buffer}: {form}

    datasets.load_dataset("{path}")
"""


def steps_card(buffer: str, path: str, fields: Mapping[str, object]) -> str:
    """Return the README of exported steps.

    Args:
        buffer: Name of the buffer.
        path: Name of the folder.
        fields: The typed fields.

    Example:
        >>> print(steps_card("cartpole", "out", {"obs": "float32(4,)"}).splitlines()[8])
        # Steps of "cartpole"
    """
    listed = "\n".join(f"- `{name}`: {spec}" for name, spec in fields.items()) or "- none"
    return _STEPS.format(buffer=json.dumps(buffer), path=path, fields=listed)


def rollouts_card(buffer: str, path: str, form: str) -> str:
    """Return the README of exported rollouts.

    Example:
        >>> print(rollouts_card("chats", "out", "messages").splitlines()[5])
        # Rollouts of "chats": messages
    """
    return _ROLLOUTS.format(buffer=json.dumps(buffer), path=path, form=form)


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


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OWN = re.compile(
    rf"(steps-\d+|train-\d+|episodes)\.parquet|trajectory-\d+\.json|{re.escape(CARD)}|{re.escape(MANIFEST)}"
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


def disk_full(target: Path, error: OSError) -> ExportError:
    """Return the error for a file that its disk has no room for."""
    return ExportError(
        f"the disk of {target} is full ({error}); free space, or name a file on another disk, and "
        f"export again"
    )


def is_full(error: OSError) -> bool:
    """Return whether an error says that there is no more space."""
    return error.errno in _FULL


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    The steps are those that the buffer held when the export began. Labels, priorities, uses and
    reasons of quarantine are those at the time at which each batch of steps was read.

    Attributes:
        source: Name and database of the buffer, without a password.
        path: The folder or file that was written.
        low_seq: Lower end, excluded: the export has steps with `low_seq < seq <= high_seq`.
        high_seq: Upper end of these numbers, included.
        n_steps: Number of steps.
        n_episodes: Number of episodes; None if the format has no episodes.
        n_files: Number of files.
        n_bytes: Size of the files.
        seconds: Duration of the export.

    Example:
        >>> report = ExportReport("'b' in replay.db", "out", 0, 10, 10, 1, 2, 5_000, 0.5)
        >>> print(str(report).split(": ")[1])
        10 steps, 1 episode, 2 files of 5 kB, in 0.5 s (20 steps/s)
    """

    source: str
    path: str
    low_seq: int
    high_seq: int
    n_steps: int
    n_episodes: int | None
    n_files: int
    n_bytes: int
    seconds: float

    def __str__(self) -> str:
        parts = [counted(self.n_steps, "step")]
        if self.n_episodes is not None:
            parts.append(counted(self.n_episodes, "episode"))
        parts.append(f"{counted(self.n_files, 'file')} of {shown_size(self.n_bytes)}")
        rate = f"{self.n_steps / max(self.seconds, 1e-9):,.0f} steps/s"
        return (
            f"exported {self.source} to {self.path}: {', '.join(parts)}, in {self.seconds:.1f} s "
            f"({rate})"
        )


def counted(n: int, what: str) -> str:
    """Return a number with its noun: "1 step", "1,000 steps"."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


@dataclass(frozen=True)
class ImportIds:
    """What happens to the ids of imported steps.

    Attributes:
        prefix: Text before the ids of steps and episodes.
        on_conflict: `error` or `skip`, for ids of other steps in the buffer.
    """

    prefix: str = ""
    on_conflict: str = "error"

    @classmethod
    def checked(cls, prefix: Any, on_conflict: Any) -> "ImportIds":
        """Return them.

        Raises:
            ArgumentError: An argument is invalid.
        """
        options = merge_options(prefix, on_conflict, False)
        return cls(options.prefix, options.on_conflict)


@dataclass
class ImportCounts:
    """Counts of an import so far; attributes as in `ImportReport`."""

    n_steps: int = 0
    n_stored: int = 0
    n_duplicates: int = 0
    n_conflicts: int = 0
    is_restored: bool = False
    is_merged: bool = False
    n_without_id: int = 0
    n_open: int = 0

    def add(self, n_steps: int, stored: StoreResult, ids: ImportIds, where: str) -> None:
        """Count steps that were read and stored.

        Args:
            n_steps: Number of steps that were read.
            stored: What became of them.
            ids: What happens to ids that exist.
            where: Place of the steps in their source.

        Raises:
            FileImportError: The buffer holds other steps with some of their ids, and they are not
                to be skipped.
        """
        self.n_steps += n_steps
        self.n_stored += stored.inserted
        self.n_duplicates += stored.duplicates
        self.n_conflicts += stored.conflicts
        if stored.conflicts and ids.on_conflict == "error":
            named = ", ".join(map(repr, stored.conflicting_ids[:5]))
            raise FileImportError(
                f"{where}: the buffer has other steps with "
                f"{counted(len(stored.conflicting_ids) or stored.conflicts, 'id')} of "
                f"these: {named}; give prefix='run1/' (--prefix) to put a text before the ids, or "
                f"on_conflict='skip' (--on-conflict skip) to leave such steps out; "
                f"{counted(self.n_stored, 'step')} of the others are stored"
            )

    def report(self, source: str, target: str, seconds: float) -> "ImportReport":
        """Return the result of the import."""
        return ImportReport(source, target, seconds=seconds, **vars(self))


@dataclass(frozen=True)
class ImportReport:
    """Result of an import.

    Attributes:
        source: Name of the imported files.
        target: Name and database of the buffer, without a password.
        n_steps: Number of steps in the files.
        n_stored: Number of steps that this call stored.
        n_duplicates: Number of steps that the buffer held already.
        n_conflicts: Number of steps that were not stored because the buffer holds other steps with
            their ids.
        is_restored: True if the buffer got the numbers, times and episodes of the exported one;
            False if the steps were merged or appended.
        seconds: Duration of the import.
        is_merged: True if whole episodes of an export were merged into a buffer that has steps.
        n_without_id: Number of stored steps that came without an id from standard input: repeating
            the import stores them again.
        n_open: Number of episodes that were left out, because they have not ended.

    Example:
        >>> report = ImportReport("out", "'b' in replay.db", 10, 8, 2, 0, False, 0.5)
        >>> print(str(report).split(": ")[1])
        8 of 10 steps, 2 were there already, in 0.5 s (16 steps/s)
    """

    source: str
    target: str
    n_steps: int
    n_stored: int
    n_duplicates: int
    n_conflicts: int
    is_restored: bool
    seconds: float
    is_merged: bool = False
    n_without_id: int = 0
    n_open: int = 0

    def __str__(self) -> str:
        if not self.n_steps:
            return f"{self.source} has no steps: none is stored in {self.target}"
        verb = "restored" if self.is_restored else "merged" if self.is_merged else "appended"
        counts = f"{self.n_stored:,} of {counted(self.n_steps, 'step')}"
        if self.n_duplicates:
            counts += f", {self.n_duplicates:,} were there already"
        if self.n_conflicts:
            counts += f", {self.n_conflicts:,} have ids of other steps and were not stored"
        if self.n_open:
            counts += f", {counted(self.n_open, 'episode')} without an end left out"
        rate = f"{self.n_stored / max(self.seconds, 1e-9):,.0f} steps/s"
        again = ""
        if self.n_without_id:
            again = (
                f"; {counted(self.n_without_id, 'line')} had no id, and the same lines would be "
                f"stored again: do not repeat this import, or give each line an id"
            )
        return (
            f"{verb} {self.source} to {self.target}: {counts}, in {self.seconds:.1f} s "
            f"({rate}){again}"
        )
