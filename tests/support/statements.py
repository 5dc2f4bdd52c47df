"""Which statements a call sends."""

import re
from contextlib import contextmanager

from sqlalchemy import event

from sqlbuffer.storage.database.transactions import BEGIN, READ


@contextmanager
def selects(buffer):
    """Note the selects that are sent, also those that go along with the beginning of a
    transaction, which the driver sends by itself.
    """
    engine, noted = buffer._store.engine, []

    def note_beginning(connection):
        begin = connection.get_execution_options().get(BEGIN, READ)
        if begin is not None and begin.query is not None:
            noted.append(begin.query)

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
