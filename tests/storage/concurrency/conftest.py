import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that other users may enter, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="sqlbuffer-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)
