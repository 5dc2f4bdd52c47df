"""How `.ci/run` installs the programs that some tests need, with stand-ins for its commands."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = (
    "bash",
    "cat",
    "chmod",
    "dirname",
    "grep",
    "mktemp",
    "rm",
    "tail",
    "tee",
    "timeout",
    "touch",
)
APT_GET = """#!/usr/bin/env bash
echo "$*" >> "$TRIED"
[ "$1" = update ] && [ "$LISTS" != none ] && touch "$TRIED.lists" && exit
[ -e "$TRIED.lists" ] || exit 100
program="$(dirname "$0")/${!#}"
echo > "$program"
chmod +x "$program"
"""


@pytest.fixture
def ci(tmp_path):
    """Return what runs the script on a machine, and returns its status and what it installed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    scripts = {
        "apt-get": APT_GET,
        "id": "#!/usr/bin/env bash\necho 0\n",
        "make": "#!/usr/bin/env bash\necho 1 passed in 0.1s\n",
    }

    def run(**variables):
        for name, text in scripts.items():
            path = tmp_path / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        for name in TOOLS:
            (tmp_path / "bin" / name).symlink_to(shutil.which(name))
        tried = tmp_path / "tried"
        own = {"PATH": str(tmp_path / "bin"), "TRIED": str(tried), "LISTS": ""}
        own |= {"TMPDIR": str(tmp_path), "HOME": os.environ.get("HOME", "/")}
        bash = shutil.which("bash")
        done = subprocess.run(
            [bash, tmp_path / ".ci" / "run"], env=own | variables, capture_output=True, timeout=60
        )
        calls = tried.read_text().splitlines() if tried.exists() else []
        return done.returncode, [call.split()[0] + " " + call.split()[-1] for call in calls]

    return run


def test_programs_are_installed_also_where_there_are_no_package_lists_yet(ci):
    status, calls = ci(CI="true")
    assert status == 0
    assert calls == [
        "install pgbouncer", "update --quiet", "install pgbouncer", "install chromium",
    ]  # fmt: skip


def test_a_program_that_cannot_be_installed_fails(ci):
    status, calls = ci(CI="true", LISTS="none")
    assert status != 0
    assert calls == ["install pgbouncer", "update --quiet"]


def test_nothing_is_installed_on_a_machine_of_a_person(ci):
    assert ci(LISTS="none") == (0, [])
