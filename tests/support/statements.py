"""Which statements a call sends."""

import re
from contextlib import contextmanager

from sqlalchemy import event

from tests.support.storage_hooks import engine_behind, first_query


@contextmanager
def selects(buffer):
    """Note the selects that are sent, also those that go along with the beginning of a
    transaction, which the driver sends by itself.
    """
    engine, noted = engine_behind(buffer), []

    def note_beginning(connection):
        query = first_query(connection)
        if query is not None:
            noted.append(query)

    def note(_connection, _cursor, statement, *_):
        if re.match(r"\s*(SELECT|WITH)\b", statement):
            noted.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "begin", note_beginning)
    try:
        yield noted
    finally:
        event.remove(engine, "before_cursor_execute", note)
        event.remove(engine, "begin", note_beginning)
