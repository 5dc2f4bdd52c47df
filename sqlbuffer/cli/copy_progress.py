"""Show the progress of copies: bars on a terminal, nothing elsewhere."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rich.console import Console


class CopyProgressBar:
    """Shows the progress of copies for as long as the `with` block lasts.

    Args:
        console: Where to.
    """

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[steps]:,} steps, {task.fields[rate]:,.0f}/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "CopyProgressBar":
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()

    def of(self, name: str) -> Callable[[int, int, range], None]:
        """Return what shows the progress of one buffer."""
        task = self._bars.add_task(name, total=None, steps=0, rate=0.0)

        def show(n_steps: int, seq: int, seqs: range) -> None:
            own = next(each for each in self._bars.tasks if each.id == task)
            # The first report has no earlier one to compare with.
            rate = own.speed or n_steps / max(own.elapsed or 0.0, 1e-9)
            self._bars.update(
                task, total=len(seqs), completed=seq - seqs.start, steps=n_steps, rate=rate
            )

        return show

    def print(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
