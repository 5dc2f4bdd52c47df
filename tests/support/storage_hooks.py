"""What every test needs of the storage's internals.

Tests outside `tests/storage` use public names only. This module is the exception: no public call
makes a schema without a buffer, closes the pool of a URL, or stops what comes by chance.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.migrations import migrate as migrations


def migrate(url: str) -> None:
    """Make the schema in an empty database."""
    migrations.upgrade(url)
    close_pool(url)


def close_pool(url: str) -> None:
    """Close what the library keeps open for a URL: files and connections would add up."""
    engine_for(resolve_url(url)).dispose()


@contextmanager
def housekeeping_on_request() -> Iterator[None]:
    """Run no housekeeping that a test did not ask for.

    A pass would remove used-up rows between two lines of a slow test. A look at dead rows comes by
    chance, among the statements that a test counts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlbuffer.storage.retention.expiry.EXPIRE_EVERY_S", 3_600.0)
        patch.setattr("sqlbuffer.storage.database.vacuum.chance", lambda: 0.0)
        yield
