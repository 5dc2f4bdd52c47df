"""What a database does for the statements of an operation: the witnesses of tests of plans."""

import re
import threading
from contextlib import ExitStack

from sqlalchemy import event

from tests.support.storage_hooks import (
    cleaner_of,
    counting_in_pipelines,
    each_checked_out,
    engine_behind,
    engine_of,
)

TABLES = (
    "experiences", "priorities", "labels", "label_history", "episodes",
    "chunks", "chunk_data", "chunk_places", "step_ids", "deleted_steps", "replaced_steps",
)  # fmt: skip
STATEMENTS = "experiences|chunk|steps|v_windows|priorit|label"


def rows_read(connection, tables=TABLES):
    """Return how many rows scans and indexes have given in this session of late."""
    (row,) = connection.connection.driver_connection.execute(_rows_read_query(tables))
    return row


def _rows_read_query(tables):
    names = ", ".join(f"'{name}'" for name in tables)
    return (
        "SELECT sum(seq_tup_read)::bigint, sum(coalesce(idx_tup_fetch, 0))::bigint "
        f"FROM pg_stat_xact_user_tables WHERE relname IN ({names})"
    )


def rows_handled(connection, statement):
    """Run a statement on PostgreSQL; return how many rows the nodes of its plan have handled."""
    explain = "EXPLAIN (ANALYZE, TIMING OFF, COSTS OFF, FORMAT JSON) "
    (plan,) = connection.exec_driver_sql(explain + statement).scalar_one()
    nodes, handled = [plan["Plan"]], 0
    while nodes:
        node = nodes.pop()
        nodes += node.get("Plans", ())
        of_loop = node["Actual Rows"] + sum(
            n for name, n in node.items() if name.startswith("Rows Removed by ")
        )
        handled += of_loop * node["Actual Loops"]
    return handled


def wait_for_cleaner(buffer):
    """Wait for the thread that looks after dead rows: a database in use cannot be copied."""
    cleaner = cleaner_of(engine_behind(buffer))
    if cleaner is not None:
        cleaner.join()


class Watch:
    """Notes the statements that an engine sends, and what the database does for them.

    Args:
        engine: The engine.
        tables: Those in which rows read are counted, on PostgreSQL.
        noted: A pattern of statements whose plans are looked at; None to count the work alone.
    """

    def __init__(self, engine, tables=TABLES, noted=STATEMENTS):
        self.engine, self.statements = engine, []
        self._tables, self._noted = tables, noted
        self.rows_scanned = self.rows_fetched = self.steps = 0
        self._listeners = [("before_cursor_execute", self._note)]
        if engine.dialect.name == "sqlite":
            self._listeners.append(("checkout", self._look_at))
        else:
            self._listeners += [
                ("begin", self._start_counting),
                ("commit", self._count_rows),
                ("rollback", self._count_rows),
            ]

    def __enter__(self):
        for name, listener in self._listeners:
            event.listen(self.engine, name, listener)
        self._others = ExitStack()
        self._others.enter_context(each_checked_out(self.engine))
        counting = counting_in_pipelines(_rows_read_query(self._tables), self._count_more)
        self._others.enter_context(counting)
        return self

    def __exit__(self, *_):
        # An event is not to fire in a thread while its listeners change.
        cleaner = cleaner_of(self.engine)
        if cleaner is not None:
            cleaner.join()
        self._others.close()
        for name, listener in self._listeners:
            event.remove(self.engine, name, listener)
        self.engine.dispose()

    def _note(self, _connection, _cursor, statement, parameters, _context, executemany):
        if self._noted and not executemany and re.search(self._noted, statement):
            self.statements.append((statement, parameters))

    def _is_cleaner(self):
        """Return whether this thread looks after dead rows, and counts those of full blocks."""
        return threading.current_thread() is cleaner_of(self.engine)

    def _start_counting(self, connection):
        if self._is_cleaner():
            return
        # What earlier transactions of the session read may not have been reported yet.
        self._before = rows_read(connection, self._tables)

    def _count_rows(self, connection):
        if self._is_cleaner():
            return
        scanned, fetched = rows_read(connection, self._tables)
        self.rows_scanned += scanned - self._before[0]
        self.rows_fetched += fetched - self._before[1]

    def _count_more(self, before, after):
        """Count the rows that a transaction has read that was sent as a whole."""
        self.rows_scanned += int(after[0]) - int(before[0])
        self.rows_fetched += int(after[1]) - int(before[1])

    def _look_at(self, connection, _record, _proxy):
        """Note statements with their values in them, those that pass SQLAlchemy by as well."""
        connection.set_progress_handler(self._step, 100)
        if self._noted:
            connection.set_trace_callback(self._note_text)

    def _note_text(self, statement):
        if re.search(self._noted, statement):
            self.statements.append((statement, ()))

    def _step(self):
        self.steps += 100
        return 0

    def plans(self):
        """Return the plan of each statement noted that is a select, as text."""
        prefix = "EXPLAIN QUERY PLAN " if self.engine.dialect.name == "sqlite" else "EXPLAIN "
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL max_parallel_workers_per_gather = 2")
            return [
                "\n".join(
                    str(row[-1])
                    for row in connection.exec_driver_sql(prefix + statement, parameters)
                )
                for statement, parameters in self.statements
                if re.match(r"\s*(SELECT|WITH)\b", statement)
            ]


def assert_compares_little(url, statement, n_steps):
    """Assert that the work of a statement grows with the steps, not with pairs of them."""
    with watched(url) as watch, watch.engine.connect() as connection:
        if watch.engine.dialect.name == "postgresql":
            assert rows_handled(connection, statement) < 8 * n_steps
        else:
            connection.exec_driver_sql(statement).all()
        connection.rollback()
    assert watch.steps < 200 * n_steps


def watched(url, **options):
    """Return the witness of what the library sends to a database."""
    return Watch(engine_of(url), **options)
