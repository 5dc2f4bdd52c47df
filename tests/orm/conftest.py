from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from sqlbuffer import orm
from tests.query.conftest import buffer_of, buffers, url_of, urls

__all__ = ["buffer_of", "buffers", "url_of", "urls"]


@pytest.fixture
def session(schema_url: str) -> Iterator[Session]:
    """Yield a session on the test's database."""
    with Session(orm.engine(schema_url)) as session:
        yield session
