"""Large databases, each made once for its module."""

import shutil
from contextlib import ExitStack
from functools import cache

import pytest
from sqlalchemy import make_url

from tests.conftest import KINDS, close_pool
from tests.support.sql import is_sqlite, run, run_outside_transaction


@pytest.fixture(scope="module")
def large_databases(request, tmp_path_factory):
    """Return a function of a kind that returns a database that the module's `fill_large` has
    filled, and a copy of it.
    """

    def made(kind):
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("large") / "large.db"
            shutil.copyfile(request.getfixturevalue("sqlite_template"), path)
            return f"sqlite:///{path}"
        template = request.getfixturevalue("postgres_template")
        url = request.getfixturevalue("postgres_server").create_database(template=template)
        for table in ("experiences", "queue_items", "chunks", "fragment_workers"):
            run(url, f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        return url

    def copied(url):
        if is_sqlite(url):
            path = tmp_path_factory.mktemp("copy") / "large.db"
            shutil.copyfile(make_url(url).database, path)
            return f"sqlite:///{path}"
        return request.getfixturevalue("postgres_server").create_database(template=url)

    @cache
    def filled(kind):
        url = made(kind)
        request.module.fill_large(url)
        close_pool(url)
        urls = url, copied(url)
        for each in urls:
            if kind == "postgresql":
                stack.callback(request.getfixturevalue("postgres_server").drop_database, each)
                # What parallel workers read is not told to the session that they work for.
                database = make_url(each).database
                run(each, f"ALTER DATABASE {database} SET max_parallel_workers_per_gather = 0")
            stack.callback(close_pool, each)
        return urls

    with ExitStack() as stack:
        yield filled


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=["no statistics", "analyzed"])
def large_url(request, kind, large_databases):
    """Return a large database, without statistics or with."""
    plain, copy = large_databases(kind)
    if request.param == "no statistics":
        return plain
    run_outside_transaction(copy, "ANALYZE")
    return copy
