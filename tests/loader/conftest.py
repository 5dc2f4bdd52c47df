from contextlib import contextmanager

import pytest
from sqlalchemy import event

from sqlbuffer import ReplayBuffer
from tests.loader.rows import FIELDS


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


@pytest.fixture
def statements_of():
    """Yield the selects that a buffer runs inside the block."""

    @contextmanager
    def seen_of(buffer):
        seen = []

        def note(_connection, _cursor, statement, *_):
            if "SELECT" in statement:
                seen.append(statement)

        event.listen(buffer._store.engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            event.remove(buffer._store.engine, "before_cursor_execute", note)

    return seen_of
