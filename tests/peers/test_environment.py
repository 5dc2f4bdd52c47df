from importlib.metadata import version
from pathlib import Path

import pytest

LINES = Path(__file__).with_name("requirements.txt").read_text().splitlines()
PINNED = [line.split("==") for line in LINES if not line.startswith("#")]


@pytest.mark.parametrize(("name", "pinned"), PINNED)
def test_each_library_has_the_pinned_version(name: str, pinned: str) -> None:
    assert version(name.split("[")[0]) == pinned
