import pytest

# The fixtures of the layers that call these parts of the storage.
from tests.compat.ding.conftest import placed
from tests.compat.memmap.conftest import make as make_slots  # noqa: F401
from tests.compat.memmap.conftest import reopen as reopen_slots  # noqa: F401
from tests.conftest import KINDS


@pytest.fixture(params=KINDS)
def place(request, make_database_url):
    return placed(request.param, make_database_url)
