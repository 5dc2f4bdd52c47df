"""Large databases, each made once for its module and all workers.

A module has a function `fill_large(url)`, and its tests take `large_url`. Each of them then runs
without statistics, with them, and on PostgreSQL with statistics of another buffer alone: "a second
buffer, unknown to the statistics". For a table that a module is the first to test, add rows of the
known buffer to `KNOWN`.
"""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.schema.metadata import whole_metadata
from tests.conftest import close_pool
from tests.support.sql import buffer_id, fill, run, run_outside_transaction

KNOWN_ROWS = 20_000
_EACH = "FROM experiences WHERE buffer_id = {0}"
# What the known buffer has beside its rows. A table that is not named here has no rows when the
# statistics are made.
KNOWN = (
    f"INSERT INTO priorities (buffer_id, seq, priority) SELECT buffer_id, seq, 1.0 {_EACH}",
    "INSERT INTO priority_blocks (buffer_id, block, n_rows, weight_sum, max_priority) "
    "SELECT {0}, b, 256, 256.0, 1.0 FROM generate_series(0, 77) AS b",
    f"INSERT INTO uses (buffer_id, seq, n_uses) SELECT buffer_id, seq, 1 {_EACH}",
    f"INSERT INTO labels (buffer_id, seq, reward_t) SELECT buffer_id, seq, 1.0 {_EACH}",
    f"INSERT INTO label_history (buffer_id, version, seq) SELECT buffer_id, 1, seq {_EACH}",
    f"INSERT INTO quarantine (buffer_id, seq) SELECT buffer_id, seq {_EACH} AND seq % 4 = 0",
    "INSERT INTO tasks (buffer_id, task_id, n_rows, last_seq) "
    f"SELECT buffer_id, 't' || seq, 1, seq {_EACH}",
    "INSERT INTO payload_changes (buffer_id, seq, fields, n_changes) "
    f"SELECT buffer_id, seq, 'r', 1 {_EACH}",
    "INSERT INTO episodes (id, buffer_id, key, task_id, status, length, first_seq, last_seq) "
    "SELECT 9000000000 + seq, buffer_id, 'e' || seq, task_id, 'complete', 1, seq, seq "
    f"{_EACH}",
    "INSERT INTO work_items (buffer_id, group_id, sibling, task_id) "
    f"SELECT buffer_id, 'g' || seq, 0, 't' {_EACH}",
    "INSERT INTO documents (buffer_id, key, version, value) "
    f"SELECT buffer_id, 'k' || seq, 1, '1' {_EACH}",
)


def fill_known(url):
    """Fill the buffer `known`, and have the statistics of PostgreSQL know it alone."""
    for name, table in whole_metadata().tables.items():
        if "buffer_id" in table.c:
            run(url, f"ALTER TABLE {name} SET (autovacuum_enabled = false)")
    with fill(url, KNOWN_ROWS, name="known", rows_per_task=20, leases=True):
        number = buffer_id(url, "known")
    for statement in KNOWN:
        run(url, statement.format(number))
    run_outside_transaction(url, "ANALYZE")


def forget_statistics(url):
    """Make a database what it would be if its tables had never been analyzed."""
    of_tables = "IN (SELECT to_regclass(name) FROM unnest(CAST(:names AS text[])) AS name)"
    names = list(whole_metadata().tables)
    run(url, f"DELETE FROM pg_statistic WHERE starelid {of_tables}", names=names)
    run(url, f"UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid {of_tables}", names=names)


class LargeDatabases:
    """Databases that a module's `fill_large` has filled: made once for all workers, and copied once
    for each worker, whose tests change what they hold.
    """

    def __init__(self, request, shared, folder, stack):
        self._fixture, self._fill_large = request.getfixturevalue, request.module.fill_large
        self._shared, self._folder, self._stack = shared, folder, stack
        self._name = request.module.__name__.rpartition(".")[2]
        self._copies = {}

    def get(self, kind, statistics, use="changed"):
        """Return the URL of this worker's copy, of which there is one for each use."""
        key = kind, statistics, use
        if key not in self._copies:
            made = self._shared.once(f"{self._name}-{kind}", lambda: self._make(kind))
            url = self._copy(kind, made[statistics], self._folder / f"{statistics}, {use}.db")
            self._stack.callback(self._drop, kind, url)
            self._copies[key] = url
        return self._copies[key]

    def _make(self, kind):
        """Make a kind with each of its statistics, and return the URLs."""
        filled = self._copy(kind, None, self._path("filled"))
        if kind == "postgresql":
            fill_known(filled)
        self._fill_large(filled)
        close_pool(filled)
        analyzed = self._copy(kind, filled, self._path("analyzed"))
        run_outside_transaction(analyzed, "ANALYZE")
        if kind == "sqlite":
            return {"no statistics": filled, "analyzed": analyzed}
        plain = self._copy(kind, filled)
        forget_statistics(plain)
        return {"a second buffer": filled, "analyzed": analyzed, "no statistics": plain}

    def _path(self, name):
        return self._shared.folder / f"{self._name}-{name}.db"

    def _copy(self, kind, template, path=None):
        if kind == "sqlite":
            source = make_url(template).database if template else self._fixture("sqlite_template")
            shutil.copyfile(source, path)
            return f"sqlite:///{path}"
        server = self._fixture("postgres_server")
        url = server.create_database(template=template or self._fixture("postgres_template"))
        # What parallel workers read is not told to the session that they work for.
        name = make_url(url).database
        run(url, f"ALTER DATABASE {name} SET max_parallel_workers_per_gather = 0")
        return url

    def _drop(self, kind, url):
        close_pool(url)
        if kind == "sqlite":
            Path(make_url(url).database).unlink()
        else:
            self._fixture("postgres_server").drop_database(url)


@pytest.fixture(scope="module")
def large_databases(request, shared, tmp_path_factory):
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(vacuum, "MIN_NEW_PAGES", 10**12)  # or a writer would have them analyzed
        yield LargeDatabases(request, shared, tmp_path_factory.mktemp("large"), stack)


CASES = [
    ("sqlite", "no statistics"),
    ("sqlite", "analyzed"),
    ("postgresql", "no statistics"),
    ("postgresql", "analyzed"),
    ("postgresql", "a second buffer"),
]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def large_url(request, large_databases):
    """Return a large database, without statistics, with, or with those of another buffer."""
    return large_databases.get(*request.param)


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def unchanged_url(request, large_databases):
    """Return such a database for tests that only read, so that none depends on the ones before."""
    return large_databases.get(*request.param, "unchanged")
