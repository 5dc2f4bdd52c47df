"""`make release` refuses what would be wrong. `.ci/run` makes a draft of one."""

import hashlib
import re
import shutil
import subprocess

import pytest

from tests import release
from tests.release import ReleaseError
from tests.support.markdown import ROOT

CHANGELOG = """# Changelog

## [Unreleased]

Soon.

## [1.2.0] - 2026-11-24

### Added

- A thing.

## [1.1.0] - 2026-01-01
"""


def git(folder, *words):
    name = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    subprocess.run(["git", "-C", folder, *name, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the checkout in which everything is committed."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("allowed: no checkout of git")
    words = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "A checkout")
    return tmp_path


def set_changelog(checkout, heading):
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("## [Unreleased]", heading, 1))


def test_the_notes_name_each_file_with_its_sum(tmp_path):
    files = [tmp_path / name for name in ("a.whl", "b.tar.gz")]
    for file in files:
        file.write_text(file.name)
    notes = release.text_of_notes("1.2.0", "Soon.", files)
    assert notes.startswith("# sqlbuffer 1.2.0\n\nSoon.\n")
    sums = dict(re.findall(r"^([0-9a-f]{64})  (\S+)$", notes, re.MULTILINE))
    assert sums == {hashlib.sha256(f.name.encode()).hexdigest(): f.name for f in files}


def test_a_version_without_an_entry_or_with_changes_is_refused(checkout):
    steps = release.release(checkout, draft=False)
    version = release.version_of(checkout)
    with pytest.raises(ReleaseError, match=rf"no heading `## \[{re.escape(version)}\]"):
        next(steps)
    assert "has its entry" in next(release.release(checkout, draft=True))
    set_changelog(checkout, f"## [{version}] - 2026-11-24")
    assert "has its entry" in next(release.release(checkout, draft=True))
    with pytest.raises(ReleaseError, match=r"not committed.*\n.*CHANGELOG"):
        next(release.release(checkout, draft=False))
    git(checkout, "commit", "--quiet", "--all", "--message", "Release")
    assert "has its entry" in next(release.release(checkout, draft=False))
    git(checkout, "tag", f"v{version}")
    assert "has its entry" in next(release.release(checkout, draft=False))
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "Later")
    with pytest.raises(ReleaseError, match="tag of another commit; raise the version"):
        next(release.release(checkout, draft=False))


def test_the_notes_are_the_entry_of_the_version():
    assert release.notes_of(CHANGELOG, "1.2.0") == "### Added\n\n- A thing."
    assert release.notes_of(CHANGELOG, "Unreleased") == "Soon."
    with pytest.raises(ReleaseError, match="is empty"):
        release.notes_of(CHANGELOG, "1.1.0")
    with pytest.raises(ReleaseError, match="has no heading"):
        release.notes_of(CHANGELOG.replace("- 2026-11-24", ""), "1.2.0")


def test_the_changelog_has_an_entry_for_the_next_release():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = release.version_of(ROOT)
    heading = "Unreleased" if "## [Unreleased]" in changelog else version
    assert release.notes_of(changelog, heading)
