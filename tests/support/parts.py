"""`--fast`, for use while editing: SQLite only, no test that starts a process, no slow test.

Of a test with many cases on a database, the first two run.
"""

import multiprocessing.process
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

_OF_POSTGRESQL = {"postgres_server", "postgres_url", "both_urls", "icu_server", "jit_database_url"}
_LEFT_OUT = {*_OF_POSTGRESQL, "large_url"}  # which takes 20 s to fill
_OF_A_DATABASE = {"make_database_url", "url_of", "filled_once"}
_MOST_CASES = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=__doc__)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("fast"):
        return
    cases: Counter[str] = Counter()
    kept, left_out = [], []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if _is_left_out(item) or cases[test] == _MOST_CASES:
            left_out.append(item)
        else:
            kept.append(item)
            cases[test] += not _OF_A_DATABASE.isdisjoint(getattr(item, "fixturenames", ()))
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _no_server_and_no_process(pytestconfig: pytest.Config) -> Iterator[None]:
    """Skip a test where it starts what `--fast` leaves out: no list of such tests is needed."""
    if not pytestconfig.getoption("fast"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _skip)
        patch.setattr(multiprocessing.process.BaseProcess, "start", _skip)
        patch.setattr(os, "fork", _skip)
        patch.setattr("tests.support.shared.Shared.postgres_server", _skip)
        yield


def _skip(*_: Any, **__: Any) -> None:
    pytest.skip("allowed: --fast leaves out processes and PostgreSQL")


def _is_left_out(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow") or not _LEFT_OUT.isdisjoint(
        getattr(item, "fixturenames", ())
    ):
        return True
    # In parametrized fixtures the kind of database is the value, or the first of several.
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    kinds = (value[0] if isinstance(value, tuple) and value else value for value in values)
    return any(isinstance(kind, str) and kind == "postgresql" for kind in kinds)
