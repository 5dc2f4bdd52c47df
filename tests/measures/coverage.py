"""Say which tests run which line of the package, also in the processes that they start.

`python -m tests.measures.coverage [ARGUMENTS OF PYTEST]` runs tests and keeps what they covered in
the folder `.covered`, next to what an earlier run of other tests left there. A test costs about
half as much again.
"""

import ast
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coverage
import pytest

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / ".covered"
_DATA, _TIMES = FOLDER / "data", FOLDER / "times"
# A child process reads it anew: by this name, pytest tells it which test it belongs to.
_SETTINGS = """\
[run]
source = {package}
parallel = true
data_file = {data}
context = ${{PYTEST_CURRENT_TEST-}}
"""
# Tests in another environment, and of millions of rows.
_ELSEWHERE = ("--ignore=tests/peers", "--ignore=tests/nightly")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note the lines and the seconds of a test under its name."""
    running = coverage.Coverage.current()
    if running is None:
        return (yield)
    running.switch_context(item.nodeid)
    begun, used = time.monotonic(), _processor_seconds()
    try:
        return (yield)
    finally:
        running.switch_context("")
        seconds = time.monotonic() - begun
        line = repr((item.nodeid, seconds, _processor_seconds() - used))
        with open(f"{_TIMES}.{os.getpid()}", "a") as file:
            file.write(f"{line}\n")


def _processor_seconds() -> float:
    """Return the seconds of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@dataclass(frozen=True)
class Covered:
    """What each test of the checkout covers, and how long it took.

    Attributes:
        data: The lines of each file, by test.
        seconds: Of each test.
        quick: The tests of `make test`, by name, that there are now.
        others: The tests that it leaves out.
    """

    data: coverage.CoverageData
    seconds: dict[str, float]
    quick: frozenset[str]
    others: frozenset[str]

    @classmethod
    def load(cls) -> "Covered":
        """Read the folder, and ask pytest for the tests that there are."""
        if not _DATA.exists():
            raise SystemExit("nothing says which tests cover a line: run `make covered` first")
        data = coverage.CoverageData(str(_DATA))
        data.read()
        quick = _collected("--part=test", "--ignore=tests/integrations")
        return cls(data, _seconds(), quick, _collected() - quick)

    def tests_of(self, path: str, line: int, *, quick: bool = False) -> list[str]:
        """Return the tests that run a line, one case of each before further ones, soonest first."""
        known = self.quick if quick else self.quick | self.others
        contexts = self.data.contexts_by_lineno(str(_ROOT / path)).get(line, [])
        tests = {context.rpartition(" (")[0] or context for context in contexts} | set(contexts)
        by_time = sorted(tests & known, key=lambda test: self.seconds.get(test, 1.0))
        cases: dict[str, int] = {}
        ranks = {}
        for test in by_time:
            function = test.partition("[")[0]
            ranks[test] = cases.setdefault(function, 0)
            cases[function] += 1
        return sorted(by_time, key=lambda test: (ranks[test] > 0, ranks[test]))


def _seconds() -> dict[str, float]:
    seconds: dict[str, float] = {}
    for path in FOLDER.glob(f"{_TIMES.name}.*"):
        for line in path.read_text().splitlines():
            test, wall, _ = ast.literal_eval(line)
            seconds[test] = wall
    return seconds


def _collected(*options: str) -> frozenset[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *_ELSEWHERE, *options]
    listed = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    tests = frozenset(line for line in listed.stdout.splitlines() if "::" in line)
    if not tests:
        raise SystemExit(f"pytest lists no test: {(listed.stdout + listed.stderr)[-500:]}")
    return tests


def main() -> None:
    """Run tests and add what they covered."""
    FOLDER.mkdir(exist_ok=True)
    settings = FOLDER / "coveragerc"
    settings.write_text(_SETTINGS.format(package=_ROOT / "sqlbuffer", data=_DATA))
    command = [sys.executable, "-m", "pytest", "-p", "tests.measures.coverage", *sys.argv[1:]]
    # The wheel of coverage has a .pth file that starts it in any process with this variable.
    environment = {**os.environ, "COVERAGE_PROCESS_START": str(settings)}
    run = subprocess.run(command, cwd=_ROOT, env=environment)
    whole = coverage.Coverage(config_file=str(settings))
    if _DATA.exists():
        whole.load()  # or what earlier runs left would be replaced
    whole.combine([str(FOLDER)], strict=True, keep=False)
    whole.save()
    print(json.dumps({"tests": len(_seconds()), "exit": run.returncode}))
    sys.exit(run.returncode)


if __name__ == "__main__":
    main()
