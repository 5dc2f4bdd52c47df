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


@contextmanager
def tables_used(buffer, names):
    """Note which of some tables transactions read or write, in triggers and functions too."""
    engine, used = engine_behind(buffer), set()
    word = re.compile(rf"\b({'|'.join(names)})\b")

    def trace(connection, _record, _proxy):
        connection.set_trace_callback(lambda statement: used.update(word.findall(statement)))

    def stop_tracing(connection, _record):
        connection.set_trace_callback(None)

    def note_locks(connection):
        # A transaction holds a lock of each table that it touched.
        found = connection.connection.driver_connection.execute(
            "SELECT c.relname FROM pg_locks k JOIN pg_class c ON c.oid = k.relation "
            "WHERE k.pid = pg_backend_pid() AND c.relname = ANY (%s)",
            (list(names),),
        )
        used.update(name for (name,) in found)

    if engine.dialect.name == "sqlite":
        listeners = {"checkout": trace, "checkin": stop_tracing}
    else:
        listeners = {"commit": note_locks, "rollback": note_locks}
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    try:
        yield used
    finally:
        for name, listener in listeners.items():
            event.remove(engine, name, listener)
