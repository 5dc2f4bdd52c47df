import pytest

from tests.cli.conftest import fill_buffers, run

__all__ = ["filled", "run"]


@pytest.fixture
def filled(make_database_url):
    """Return such a database as tests/cli has, on SQLite: a terminal shows both alike."""
    return fill_buffers(make_database_url("sqlite", schema=True))
