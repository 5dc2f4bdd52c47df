"""Which statements a call sends."""

import re
from contextlib import contextmanager

from sqlalchemy import event

from tests.support.storage_hooks import each_checked_out, engine_behind, first_query


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
        with each_checked_out(engine):
            yield used
    finally:
        for name, listener in listeners.items():
            event.remove(engine, name, listener)


@contextmanager
def interrupted(buffer, n_steps):
    """End statements on SQLite after that many steps of its machine, as errors of a disk would."""
    engine, left = engine_behind(buffer), [n_steps]

    def is_over():
        left[0] -= 1
        return left[0] < 0

    def watch(connection, _record, _proxy):
        connection.set_progress_handler(is_over, 1)

    def stop_watching(connection, _record, _state):
        connection.set_progress_handler(None, 0)

    event.listen(engine, "checkout", watch)
    event.listen(engine, "reset", stop_watching)  # before the rollback
    try:
        with each_checked_out(engine):
            yield
    finally:
        event.remove(engine, "checkout", watch)
        event.remove(engine, "reset", stop_watching)
