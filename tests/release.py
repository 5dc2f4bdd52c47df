"""Build a release, check it and write its notes into dist/: `make release`. Nothing is uploaded."""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_IN_SOURCES = (
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "alembic.ini",
    "alembic/env.py", "deploy/compose.yaml", "docs/index.md", "sqlbuffer/py.typed",
    "tests/conftest.py",
)  # fmt: skip
_NOT_SHIPPED = re.compile(r"__pycache__|\.pyc$|(^|/)secrets/|(^|/)\.env$|\.db(-\w+)?$")


class ReleaseError(Exception):
    """What keeps a release from being made; the message says what to do."""


def main(arguments: list[str] | None = None) -> None:
    """Do every step, or end with the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--draft",
        action="store_true",
        help="take the notes from [Unreleased], where it is, and allow uncommitted changes",
    )
    draft: bool = parser.parse_args(arguments).draft
    try:
        for line in release(ROOT, draft=draft):
            print(line, flush=True)
    except ReleaseError as error:
        sys.exit(f"no release: {error}")


def release(root: Path, *, draft: bool):
    """Make a release of a checkout; yield what was done."""
    version = version_of(root)
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    is_next = draft and "## [Unreleased]" in changelog  # or the draft is of the version itself
    notes = notes_of(changelog, "Unreleased" if is_next else version)
    if not draft:
        check_tree(root, version)
    yield f"sqlbuffer {version}: the changelog has its entry"
    dist = root / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--quiet", "--outdir", dist, root)
    (wheel,), (sources,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    yield f"built {wheel.name} and {sources.name}"
    check_wheel(wheel, version)
    check_sources(sources, version)
    if find_spec("twine"):
        _run(sys.executable, "-m", "twine", "check", "--strict", wheel, sources)
    yield "checked their contents and metadata"
    use_alone(wheel, root)
    yield "installed the wheel alone in an empty environment, and used it there"
    path = dist / f"release-notes-{version}.md"
    path.write_text(text_of_notes(version, notes, [wheel, sources]), encoding="utf-8")
    yield f"wrote dist/{path.name}; nothing was uploaded"


def version_of(root: Path) -> str:
    """Return the version in pyproject.toml."""
    with open(root / "pyproject.toml", "rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def notes_of(changelog: str, version: str) -> str:
    """Return the entry of a version in the changelog.

    Raises:
        ReleaseError: It has none, none with a date, or an empty one.
    """
    date = "" if version == "Unreleased" else r" - \d{4}-\d{2}-\d{2}"
    heading = re.search(rf"^## \[{re.escape(version)}\]{date}$", changelog, re.MULTILINE)
    if heading is None:
        raise ReleaseError(
            f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD`; write one below "
            "[Unreleased], or rename that one"
        )
    entry = changelog[heading.end() :].partition("\n## ")[0].strip()
    if not entry:
        raise ReleaseError(f"the entry of {version} in CHANGELOG.md is empty; say what is new")
    return entry


def check_tree(root: Path, version: str) -> None:
    """Raise if files are not committed, or if the version has a tag on another commit."""
    changed = _run("git", "-C", root, "status", "--porcelain")
    if changed:
        raise ReleaseError(f"files are not committed; commit or stash them:\n{changed}")
    tag = f"v{version}"
    if _run("git", "-C", root, "tag", "--list", tag):
        tagged = _run("git", "-C", root, "rev-list", "--max-count=1", tag)
        if tagged != _run("git", "-C", root, "rev-parse", "HEAD"):
            raise ReleaseError(
                f"{tag} is the tag of another commit; raise the version in pyproject.toml"
            )


def check_wheel(wheel: Path, version: str) -> None:
    """Raise unless a wheel has the package, its licence and complete metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        _check_names(wheel, names)
        info = f"sqlbuffer-{version}.dist-info"
        missing = {
            name
            for name in (f"{info}/METADATA", f"{info}/licenses/LICENSE", "sqlbuffer/py.typed")
            if name not in names
        }
        if missing:
            raise ReleaseError(f"{wheel.name} has no {', '.join(sorted(missing))}")
        others = {name.split("/")[0] for name in names} - {"sqlbuffer", info}
        if others:
            raise ReleaseError(f"{wheel.name} would install {', '.join(sorted(others))} too")
        metadata = message_from_bytes(archive.read(f"{info}/METADATA"))
    check_metadata(wheel.name, metadata, version)


def check_metadata(name: str, metadata: Message, version: str) -> None:
    """Raise unless an index would show the version with a description."""
    expected = {
        "Name": "sqlbuffer",
        "Version": version,
        "Description-Content-Type": "text/markdown",
        "License-Expression": "Apache-2.0",
    }
    wrong = {key: metadata[key] for key, value in expected.items() if metadata[key] != value}
    if wrong:
        raise ReleaseError(f"the metadata of {name} has {wrong}, expected {expected}")
    for key in ("Summary", "Requires-Python", "Classifier"):
        if not metadata[key]:
            raise ReleaseError(f"the metadata of {name} has no {key}; write it in pyproject.toml")
    if len(str(metadata.get_payload())) < 500:
        raise ReleaseError(f"the metadata of {name} has no description; see README.md")


def check_sources(sources: Path, version: str) -> None:
    """Raise unless a source distribution has what builds, tests and deploys the package."""
    with tarfile.open(sources) as archive:
        names = archive.getnames()
    _check_names(sources, names)
    missing = [name for name in _IN_SOURCES if f"sqlbuffer-{version}/{name}" not in names]
    if missing:
        raise ReleaseError(f"{sources.name} has no {', '.join(missing)}; see [tool.hatch.build]")


def _check_names(archive: Path, names: list[str]) -> None:
    wrong = [name for name in names if _NOT_SHIPPED.search(name)]
    if wrong:
        raise ReleaseError(f"{archive.name} has {', '.join(wrong[:5])}, which is not to be shipped")


def use_alone(wheel: Path, root: Path) -> None:
    """Install a wheel in an empty environment and use it, outside the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv", "bin", "python")
        _run(sys.executable, "-m", "venv", Path(folder, "venv"))
        pip = [python, "-m", "pip", "--disable-pip-version-check"]
        _run(*pip, "install", "--quiet", wheel)
        _run(*pip, "check")
        _run(python, "-I", root / "tests" / "wheel_smoke.py", cwd=folder)


def text_of_notes(version: str, notes: str, files: list[Path]) -> str:
    """Return the release notes: what is new, how to install it, and the checksums."""
    sums = "\n".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files
    )
    return (
        f"# sqlbuffer {version}\n\n{notes}\n\n## Install\n\n"
        f"```text\npip install {files[0].name}\n```\n\n"
        f"Then `sqlbuffer db upgrade URL`, if docs/how-to/upgrade-without-stopping.md says so.\n\n"
        f"## SHA-256\n\n```text\n{sums}\n```\n"
    )


def _run(*command: object, cwd: str | None = None) -> str:
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        raise ReleaseError(f"`{' '.join(words)}` failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
