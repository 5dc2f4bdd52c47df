"""Download the tests of other libraries, to run them on our adapters.

Their code may not be copied into this repository. Each test downloads the source distribution of
one version into a temporary folder, and pip checks its hash.
"""

import subprocess
import sys
import tarfile
from pathlib import Path


def unpacked_tests(requirement: str, sha256: str, into: Path) -> Path:
    """Download a source distribution with pip and unpack its folder `tests`, and nothing else.

    Args:
        requirement: Such as `name==1.0`.
        sha256: The hash of the file.
        into: An empty folder.

    Returns:
        The folder `tests`.
    """
    wanted = into / "requirements.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    name = requirement.partition("==")[0]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    download = ["--no-deps", "--no-binary", name, "--dest", str(into), "-r", str(wanted)]
    done = subprocess.run([*pip, *download], capture_output=True, text=True)
    assert done.returncode == 0, f"{requirement} cannot be downloaded:\n{done.stderr}"
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        top = archive.name.removesuffix(".tar.gz")
        members = [each for each in tar if each.isfile() and each.name.startswith(f"{top}/tests/")]
        tar.extractall(into, members, filter="data")
    return into / top / "tests"
