"""Show the progress of the demo: bars on a terminal, a few lines elsewhere."""

from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from sqlbuffer.cli.output import shown_url

if TYPE_CHECKING:
    from rich.console import Console

    from sqlbuffer.demo import DemoPlan, Progress

LINES = 4


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
