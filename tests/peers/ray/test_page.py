"""The page about Ray, run in a cluster."""

from typing import Any

import pytest

from tests.docs.conftest import read

__all__ = ["read"]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.mark.usefixtures("cluster")
def test_the_page_runs_as_it_is_written(read: Any) -> None:
    page = read("docs/how-to/read-with-ray.md")
    assert page.names["steps"].count() == 1000
