"""`--part`, which says how much of the tests to run.

`test` is `make test`: no test that is marked `thorough`, and of a test with several parameters
enough cases for each value of each of them. `rest` is what `test` leaves out. `minute` is for use
while editing: SQLite only, no process, no slow test, two cases of each test.

Some cases would repeat what others show:

- Of a test that is marked `each_value`, whose parameters have nothing to do with each other, and of
  one with more than `MOST_COMBINATIONS` cases there are only those of each value.
- A thorough test runs on one of the databases by turns. Others run each of its lines on both.
- Of a test with `MANY_COMBINATIONS` cases or more, as two layouts on two databases, `test` and
  `rest` have those of each value, by turns. Without `--part`, as at night, all of them run.

A test that is marked `combinations` has more of them, on both databases.
"""

import multiprocessing.process
import os
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import pytest

_OF_POSTGRESQL = {"postgres_server", "postgres_url", "both_urls", "icu_server", "jit_database_url"}
_LEFT_OUT = {*_OF_POSTGRESQL, "large_url"}  # which takes 20 s to fill
_OF_A_DATABASE = {"make_database_url", "url_of", "filled_once"}
_DATABASES = {"sqlite", "postgresql"}
_MOST_CASES = 2
MOST_COMBINATIONS = 6
MANY_COMBINATIONS = 4


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=["minute", "test", "rest"], help=__doc__)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("part")
    kept: list[pytest.Item] = []
    for _, group in groupby(items, key=_function_of):
        cases = list(group)
        has_combinations = cases[0].get_closest_marker("combinations") is not None
        is_large = len(cases) > MOST_COMBINATIONS and not has_combinations
        if is_large or cases[0].get_closest_marker("each_value"):
            cases = cases_of_each_value(cases)
        if _is_thorough(cases[0]) and not has_combinations:
            cases = _on_one_database(cases)
        if part is not None and len(cases) >= MANY_COMBINATIONS and not has_combinations:
            cases = cases_of_each_value(cases, first=zlib.crc32(cases[0].name.encode()))
        if part == "minute":
            cases = _of_a_minute(cases)
        elif part is not None:
            of_test = cases_of_each_value([c for c in cases if not _is_thorough(c)])
            cases = [case for case in cases if (case in of_test) == (part == "test")]
        kept += cases
    wanted = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in wanted])
    items[:] = kept


def cases_of_each_value(cases: Sequence[pytest.Item], first: int = 0) -> list[pytest.Item]:
    """Choose few cases of a test such that each value of each parameter occurs in one of them.

    Args:
        cases: All cases of the test.
        first: Number of the case to begin with; it may be larger than there are cases.
    """
    values = {case: _values_of(case) for case in cases}
    chosen = [cases[first % len(cases)]] if cases else []
    pending = set().union(*values.values()).difference(*map(values.get, chosen))
    while pending:
        best = max(cases, key=lambda case: len(values[case] & pending))
        chosen.append(best)
        pending -= values[best]
    return chosen


def _on_one_database(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Choose one of two cases that only differ in the kind of database."""
    chosen: list[pytest.Item] = []
    for names, group in groupby(sorted(cases, key=_name_without_database), _name_without_database):
        same = list(group)
        if len(same) == 2:
            same = [same[zlib.crc32(names.encode()) % 2]]
        chosen += same
    return chosen


def _name_without_database(case: pytest.Item) -> str:
    """Return the id of a case, in which its only kind of database is not named."""
    function, _, values = case.nodeid.partition("[")
    names = values.rstrip("]").split("-")
    if sum(name in _DATABASES for name in names) == 1:
        names = ["" if name in _DATABASES else name for name in names]
    return f"{function}[{'-'.join(names)}]"


def _values_of(case: pytest.Item) -> set[tuple[object, ...]]:
    """Return a case's value of each parameter; those that one `parametrize` names are one value."""
    parameters = getattr(case, "callspec", None)
    if parameters is None:
        return set()
    keys = {name: _key(value) for name, value in parameters.params.items()}
    values: set[tuple[object, ...]] = set()
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = names.replace(" ", "").split(",") if isinstance(names, str) else names
        together = tuple(name for name in names if name in keys)
        values.add((together, *(keys.pop(name) for name in together)))
    return values | set(keys.items())


def _key(value: object) -> object:
    # Equal values of other types, as 1 and True, are different cases; so are NaN and 0.0 and -0.0.
    if isinstance(value, float):
        return float, repr(value)
    return (type(value), value) if isinstance(value, str | int | None) else id(value)


def _function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _is_thorough(case: pytest.Item) -> bool:
    return "integrations" in case.path.parts or case.get_closest_marker("thorough") is not None


def _of_a_minute(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    kept = [case for case in cases if not _is_left_out(case)]
    of_a_database = any(
        not _OF_A_DATABASE.isdisjoint(getattr(case, "fixturenames", ())) for case in kept
    )
    return kept[:_MOST_CASES] if of_a_database else kept


@pytest.fixture(scope="session", autouse=True)
def _no_server_and_no_process(pytestconfig: pytest.Config) -> Iterator[None]:
    """Skip a test where it starts what a minute leaves out: no list of such tests is needed."""
    if pytestconfig.getoption("part") != "minute":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", _skip)
        patch.setattr(multiprocessing.process.BaseProcess, "start", _skip)
        patch.setattr(os, "fork", _skip)
        patch.setattr("tests.support.shared.Shared.postgres_server", _skip)
        yield


def _skip(*_: Any, **__: Any) -> None:
    pytest.skip("allowed: a minute has no time for processes and PostgreSQL")


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
