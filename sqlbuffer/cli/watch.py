"""`sqlbuffer watch`: show live what goes in and out of the buffers of a database."""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import BufferName, Url, chosen_buffer, database, example
from sqlbuffer.cli.output import about, console, shown, table

if TYPE_CHECKING:
    from sqlbuffer import ReplayBuffer
    from sqlbuffer.stats import Distribution, Stats

WATCH_EXAMPLES = example(
    "sqlbuffer watch sqlite:///replay.db",
    "sqlbuffer watch postgresql://me@db.internal/replay --every 5",
    "sqlbuffer watch replay.db --once --json",
)
LEAST_S, MOST_S = 0.1, 3_600.0


def watch(
    url: Url = None,
    buffer: BufferName = None,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", help="Seconds between two looks.")
    ] = 1.0,
    window: Annotated[
        float,
        typer.Option("--window", metavar="SECONDS", help="Seconds over which rates are measured."),
    ] = 60.0,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Count the rows of each buffer exactly."),
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a buffer and line.")
    ] = False,
) -> None:
    """Show the inserts and draws of each buffer, live.

    Ctrl-C ends it. A terminal shows one table that is updated. In a file or a pipe, each look
    prints a line for each buffer. `in/s` and `out/s` are means over the last minute, or --window;
    `out/in` is since the buffer was made; staleness, priority and uses are medians. `≈` is an
    estimate.
    """
    for name, value in (("--every", every), ("--window", window)):
        if not LEAST_S <= value <= MOST_S:
            raise UsageError(f"{name} is from {LEAST_S:g} to {MOST_S:,g} seconds, got {value:g}")
    watcher = _Watcher(database(url), buffer, window, exact=exact)
    try:
        if json:
            _repeat(lambda: _print_json(watcher.look()), every, once)
        else:
            _show(watcher, _columns(window), every, once)
    except KeyboardInterrupt:
        raise typer.Exit from None
    finally:
        watcher.close()


class _Watcher:
    """The buffers of a database, looked at together; or opened as they appear, to count their
    rows.
    """

    def __init__(self, url: str | None, name: str | None, window_s: float, *, exact: bool) -> None:
        from sqlbuffer.storage.migrations import status

        status.check(url)
        self._url, self._window_s, self._exact = url, window_s, exact
        self._name = None if name is None else chosen_buffer(url, name)
        self._opened: dict[str, ReplayBuffer] = {}

    def look(self) -> "list[Stats]":
        """Return the figures of each buffer, by name."""
        from sqlbuffer.storage.inspect import listings

        if self._exact:
            return self._counted()
        figures = listings.figures(self._url, self._name, self._window_s)
        if not figures and self._name is not None:
            chosen_buffer(self._url, self._name)  # which says that it was dropped
        return figures

    def _counted(self) -> "list[Stats]":
        from sqlbuffer import ReplayBuffer
        from sqlbuffer.errors import BufferNotFoundError

        names = ReplayBuffer.list(self._url, retry_s=0) if self._name is None else [self._name]
        figures = []
        for name in names:
            try:
                if name not in self._opened:
                    self._opened[name] = ReplayBuffer(self._url, name=name, create=False)
                figures.append(self._opened[name].stats(self._window_s))
            except BufferNotFoundError:
                # It was dropped; a buffer of that name may come back.
                self._opened.pop(name, None)
                if self._name is not None:
                    raise
        return figures

    def close(self) -> None:
        """Close the connections."""
        for buffer in self._opened.values():
            buffer.close()


def _repeat(work: Any, every: float, once: bool) -> None:
    while True:
        began = time.monotonic()
        work()
        if once:
            return
        time.sleep(max(0.0, began + every - time.monotonic()))


def _columns(window_s: float) -> tuple[str, ...]:
    """Return the names of the columns; those of rates say over which time they are."""
    over = f"({window_s:g}s)"
    return (
        "buffer", "rows", "fill", f"in/s {over}", f"out/s {over}", "out/in", "waiting",
        "staleness", "priority", "uses",
    )  # fmt: skip


def _show(watcher: _Watcher, columns: tuple[str, ...], every: float, once: bool) -> None:

    out = console()
    if not out.is_terminal:
        _repeat(lambda: _print_lines(columns, watcher.look()), every, once)
        return
    # In two lines: one would be wider than most terminals.
    columns = tuple(name.replace(" ", "\n") for name in columns)
    if once:
        out.print(table(columns, map(_cells, watcher.look())))
        return
    from rich.live import Live

    with Live(console=out, auto_refresh=False, transient=False) as live:

        def draw() -> None:
            live.update(table(columns, map(_cells, watcher.look())), refresh=True)

        _repeat(draw, every, once)


def _cells(stats: "Stats") -> list[Any]:
    waiting = [
        f"{n} to {role}"
        for n, role in ((stats.inserts_waiting, "insert"), (stats.samples_waiting, "sample"))
        if n
    ]
    fill = None if stats.fill is None else f"{stats.fill:.0%}"
    return [
        stats.buffer,
        *((stats.rows, fill) if stats.exact else map(about, (stats.rows, fill))),
        _rate(stats.insert_rate),
        about(_rate(stats.sample_rate)) if stats.sample_rate else 0.0,
        stats.samples_per_insert,
        ", ".join(waiting) or None,
        _median(stats.staleness),
        _median(stats.priorities),
        _median(stats.uses),
    ]


def _rate(rate: float | None) -> float | None:
    return rate if rate is None or rate < 10 else float(round(rate))


def _median(distribution: "Distribution | None") -> float | None:
    return None if distribution is None else distribution.median


def _print_lines(columns: tuple[str, ...], figures: "list[Stats]") -> None:

    time_text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for stats in figures:
        name, *cells = map(shown, _cells(stats))
        pairs = (f"{column} {cell}" for column, cell in zip(columns[1:], cells, strict=True))
        sys.stdout.write(f"{time_text} {name}: {', '.join(pairs)}\n")
    sys.stdout.flush()


def _print_json(figures: "list[Stats]") -> None:
    from sqlbuffer.display import dumps

    for stats in figures:
        sys.stdout.write(f"{dumps(as_json(stats))}\n")
    sys.stdout.flush()


def as_json(stats: "Stats") -> dict[str, Any]:
    """Return figures as JSON has them: distributions without their single values."""
    figures = dict(vars(stats))
    for name in ("uses", "priorities", "staleness"):
        distribution = figures[name]
        figures[name] = distribution and {
            key: v for key, v in vars(distribution).items() if key != "values"
        }
    figures["waiting"] = [vars(call) for call in stats.waiting]
    return {**figures, "fill": stats.fill, "samples_per_insert": stats.samples_per_insert}
