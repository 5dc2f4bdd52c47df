"""The output of the demo: its progress, and the tables at its end."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from sqlbuffer.cli.output import shown_url, table
from sqlbuffer.demo import BUFFER
from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import parsed_url, sqlite_path

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sqlbuffer.demo import Calls, DemoPlan, Progress, Report

LINES = 4
EXAMPLE = "SELECT * FROM v_tasks LIMIT 5"


class DemoProgress:
    """Shows the progress of a run during a `with` block.

    Args:
        console: Console to print to.
        plan: Plan of the run.
    """

    def __init__(self, console: "Console", plan: "DemoPlan") -> None:
        self._console, self._total = console, plan.total_episodes
        self._lines_printed = 0
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes, {task.fields[rows]:,} rows, {task.fields[batches]:,} batches"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bars.add_task("playing", total=self._total, rows=0, batches=0)
        console.print(
            f"{plan.writers} writers play {plan.episodes} episodes of CartPole-v1 each into "
            f"{shown_url(plan.url)}, which holds {plan.capacity:,} rows.",
            markup=False,
        )

    def __enter__(self) -> "DemoProgress":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def update(self, progress: "Progress") -> None:
        """Show where the run is now."""
        self._bars.update(
            self._task, completed=progress.episodes, rows=progress.rows, batches=progress.batches
        )
        lines_due = progress.episodes * LINES // self._total
        if not self._console.is_terminal and lines_due > self._lines_printed:
            self._lines_printed = lines_due
            self._console.print(
                f"{progress.episodes} of {self._total} episodes, {progress.rows:,} rows, "
                f"{progress.batches:,} batches sampled"
            )


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
    print_commands(console, plan.url)


def print_commands(console: "Console", url: str) -> None:
    """Print commands that look into the database, as a shell takes them here."""
    shown = shown_url(url)
    console.print(f"\nThe buffer stays in {shown}. Look into it:", markup=False, soft_wrap=True)
    if parsed_url(url).password:
        console.print("The commands leave out the password: set PGPASSWORD first.", markup=False)
    for words in _commands(url):
        # A line that is broken at the width of the terminal could not be copied.
        console.print(f"  {shlex.join(words)}", markup=False, soft_wrap=True)


def _commands(url: str) -> list[list[str]]:
    command, database, resolved = _own_command(), shown_url(url), resolve_url(url)
    is_sqlite = resolved.get_backend_name() == "sqlite"
    own_shell = ["sqlite3", str(sqlite_path(resolved))] if is_sqlite else ["psql", database, "-c"]
    commands = [[command, "info", database], [command, "sql", database, EXAMPLE]]
    if shutil.which(own_shell[0]):
        commands.append([*own_shell, EXAMPLE])
    return commands


def _own_command() -> str:
    """Return the name by which a shell finds this program: a path, if no folder of PATH has it."""
    program = Path(sys.argv[0])
    if program.name != "sqlbuffer" or not program.is_file():
        program = Path(sys.executable).with_name("sqlbuffer")
    in_path = shutil.which("sqlbuffer")
    is_known = in_path is not None and program.is_file() and program.samefile(in_path)
    return "sqlbuffer" if is_known or not program.is_file() else str(program.absolute())


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
    speeds = table(columns, [inserts, *samples], "How fast")
    speeds.caption = "store_batch: all writers together, playing included"
    return speeds


def _speed(calls: "Calls", seconds: float) -> tuple[str, int, int, float | None, float, float]:
    latencies_ms = [1000 * latency_s for latency_s in calls.latencies_s] or [float("nan")]
    p50, p99 = np.percentile(latencies_ms, (50, 99)).tolist()
    rate = calls.rows / seconds if seconds else None
    return calls.name, len(calls.latencies_s), calls.rows, rate, p50, p99
