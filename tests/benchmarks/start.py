"""How long a fresh process takes to its first buffer, and for a command, beside importing the
libraries that both need.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench
from tests.benchmarks.measure import Timed, in_turns
from tests.benchmarks.report import Figure, shown_time

LIBRARIES = "import numpy, sqlalchemy, pydantic"
OPENED, LISTED = "`ReplayBuffer('sqlite://')`", "`sqlbuffer ls`"
FIRST_LINE = "from sqlbuffer import ReplayBuffer; ReplayBuffer('sqlite://')"
# 0.55 s where the libraries take 0.31 s.
MOST = 1.77


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of SQLite; with PostgreSQL it depends on the network."""
    if bench.kind != "sqlite":
        return
    bench.say("starting processes")
    with bench.database() as url:
        ReplayBuffer(url, create=True).close()
        commands = {
            "libraries": ("-c", LIBRARIES),
            OPENED: ("-c", FIRST_LINE),
            LISTED: ("-m", "sqlbuffer", "ls", url),
        }
        calls = {name: Timed(partial(_run, command)) for name, command in commands.items()}
        timings = in_turns(calls, bench.scale.times(12), warmup=1)
    spent = {name: shown_time(timings.median(name)) for name in commands}
    for what in (OPENED, LISTED):
        yield Figure(
            f"{what} in a fresh process vs importing numpy, SQLAlchemy and pydantic",
            bench.label,
            f"{spent[what]}, libraries {spent['libraries']}",
            timings.ratio(what, "libraries"),
            MOST,
            at_most=True,
        )


def _run(command: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
