from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
# Of the libraries themselves.
FOREIGN: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(FOLDER):
            for each in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{each}"))
