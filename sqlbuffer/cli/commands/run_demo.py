"""`sqlbuffer demo`: fill a buffer and sample from it, to see it work."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from sqlbuffer.cli.errors import INTERRUPTED
from sqlbuffer.cli.options import database, example
from sqlbuffer.cli.output import shown_url, table
from sqlbuffer.demo import BUFFER
from sqlbuffer.storage.database import readonly

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sqlbuffer.demo import DemoPlan, Report
    from sqlbuffer.demo.learner import Calls

NEWEST_TASKS = f"""SELECT task_id, agents, steps, total_reward AS return, first_at
FROM v_tasks WHERE buffer = '{BUFFER}' ORDER BY last_at DESC LIMIT 8"""
TASKS_HELD = f"SELECT count(*) FROM v_tasks WHERE buffer = '{BUFFER}'"
QUESTIONS = {
    "Does the model get better?": f"""SELECT model_version, count(DISTINCT task_id) AS episodes,
    count(*) * 1.0 / count(DISTINCT task_id) AS steps_per_episode
FROM v_experiences WHERE buffer = '{BUFFER}'
GROUP BY model_version ORDER BY model_version""",
    "Which agent earns most?": f"""SELECT agent_id, tasks, steps,
    total_reward / tasks AS mean_return
FROM v_agents WHERE buffer = '{BUFFER}' ORDER BY mean_return DESC""",
    "How do episodes end?": f"""SELECT
    CASE WHEN truncated THEN 'time limit' ELSE 'pole fell' END AS ending,
    count(*) AS episodes, avg(step + 1) AS mean_length
FROM v_experiences WHERE buffer = '{BUFFER}' AND (terminated OR truncated)
GROUP BY truncated ORDER BY episodes DESC""",
}


def print_report(console: "Console", plan: "DemoPlan", report: "Report") -> None:
    """Print what happened, what an analyst would ask, and where to look."""
    console.print(_counts(plan, report))
    console.print(_speeds(report))
    newest = readonly.query(plan.url, NEWEST_TASKS)
    console.print(table(newest.columns, newest.rows, "Return per task, the newest (v_tasks)"))
    for question, statement in QUESTIONS.items():
        answer = readonly.query(plan.url, statement)
        console.print(f"\n-- {question}\n{statement};", markup=False)
        console.print(table(answer.columns, answer.rows))
    url = shown_url(plan.url)
    console.print(f"\nThe buffer stays in {url}. Look into it:", markup=False)
    console.print(f"  sqlbuffer info '{url}'", markup=False)
    console.print(f"  {_shell(plan.url)}", markup=False)


def _counts(plan: "DemoPlan", report: "Report") -> "Table":
    ((tasks_held,),) = readonly.query(plan.url, TASKS_HELD).rows
    columns = ("rows written", "rows held", "capacity", "evicted", "tasks written", "tasks held")
    row = (
        report.written,
        report.held,
        plan.capacity,
        report.evicted,
        plan.total_episodes,
        tasks_held,
    )
    return table(columns, [row], "Result")


def _speeds(report: "Report") -> "Table":
    columns = ("call", "calls", "rows", "rows/s", "p50 ms", "p99 ms")
    inserts = _speed(report.inserts, report.playing_s)
    samples = [_speed(calls, sum(calls.latencies_s)) for calls in report.samples]
    made = table(columns, [inserts, *samples], "How fast")
    made.caption = "store_batch: all writers together, playing included"
    return made


def _speed(calls: "Calls", seconds: float) -> tuple[str, int, int, float | None, float, float]:
    latencies_ms = [1000 * latency_s for latency_s in calls.latencies_s] or [float("nan")]
    p50, p99 = np.percentile(latencies_ms, (50, 99)).tolist()
    rate = calls.rows / seconds if seconds else None
    return calls.name, len(calls.latencies_s), calls.rows, rate, p50, p99


def _shell(url: str) -> str:
    """Return the command that opens the database's own shell."""
    statement = "SELECT * FROM v_tasks LIMIT 5"
    if url.startswith("sqlite"):
        return f'sqlite3 {url.partition("///")[2]} "{statement}"'
    return f"psql '{shown_url(url)}' -c \"{statement}\""


_COMMAND = "from sqlbuffer.cli import app; app(prog_name='sqlbuffer')"
_END_S = 5.0


class DemoPage:
    """A page that is served by a separate process.

    Args:
        process: The process.
        address: Where the page is, with its token.
    """

    def __init__(self, process: "subprocess.Popen[str]", address: str) -> None:
        self._process, self.address = process, address

    def wait(self) -> None:
        """Wait until a person ends the page with Ctrl-C."""
        with suppress(KeyboardInterrupt):
            self._process.wait()


@contextmanager
def demo_page(url: str, *, no_open: bool) -> Iterator[DemoPage]:
    """Serve the page of a database for as long as the block lasts.

    Args:
        url: The database, with its schema.
        no_open: Open no browser.
    """
    words = ["ui", "--port", "0", *(["--no-open"] if no_open else [])]
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *words],
        # Not among the arguments, which everybody on the machine may read: it may have a password.
        env={**os.environ, "SQLBUFFER_URL": url},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        if not address:  # it has said why on stderr
            raise typer.Exit(process.wait())
        yield DemoPage(process, address)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.communicate()


EPILOG = example(
    "sqlbuffer demo",
    "sqlbuffer demo --ui",
    "sqlbuffer demo --url postgresql://me@db.internal/replay",
)


def demo(
    url: Annotated[
        str | None,
        typer.Option(
            help="The database; its buffer `demo` is emptied first. Without it a new SQLite file "
            "in a temporary folder.",
            show_default=False,
        ),
    ] = None,
    writers: Annotated[int, typer.Option(min=1, help="Processes that play and store.")] = 4,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes each of them plays.")] = 100,
    capacity: Annotated[
        int, typer.Option(min=1, help="Rows the buffer holds; the oldest leave first.")
    ] = 20_000,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows of a sampled batch.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="The same seed plays the same episodes.")] = 0,
    ui: Annotated[bool, typer.Option("--ui", help="Show it in the browser, until Ctrl-C.")] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="With --ui: print the address, open no browser.")
    ] = False,
) -> None:
    """Play CartPole into a buffer, and sample from it.

    Several processes play, and one samples.
    """
    from sqlbuffer.demo import DemoPlan

    plan = DemoPlan(
        database(url, may_be_new=True) or _new_file(),
        writers=writers,
        episodes=episodes,
        capacity=capacity,
        batch_size=batch_size,
        seed=seed,
    )
    if not ui:
        _play(plan)
        return
    _prepare(plan)
    from sqlbuffer.cli.commands.run_demo import demo_page

    with demo_page(plan.url, no_open=no_open) as page:
        typer.echo(f"the page: {page.address}")
        _play(plan)
        typer.echo("the page stays there until Ctrl-C")
        page.wait()


def _play(plan: "DemoPlan") -> None:
    from sqlbuffer.cli.commands.run_demo import print_report
    from sqlbuffer.cli.demo_progress import DemoProgress
    from sqlbuffer.cli.output import console
    from sqlbuffer.demo import run

    out = console()
    try:
        with DemoProgress(out, plan) as progress:
            report = run(plan, progress.update)
    except KeyboardInterrupt:
        typer.echo("sqlbuffer: interrupted; the stored steps stay in the buffer", err=True)
        raise typer.Exit(INTERRUPTED) from None
    print_report(out, plan, report)


def _prepare(plan: "DemoPlan") -> None:
    """Make the buffer: the page shows a database that is there."""
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.demo.plan import BUFFER

    ReplayBuffer(plan.url, name=BUFFER, evict_by="row", create=True).close()


def _new_file() -> str:
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-demo-"))
    return f"sqlite:///{folder / 'replay.db'}"
