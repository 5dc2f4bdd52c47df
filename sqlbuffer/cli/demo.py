"""`sqlbuffer demo`: fill a buffer and sample from it, to see it work."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sqlbuffer.cli.errors import INTERRUPTED
from sqlbuffer.cli.options import database, example
from sqlbuffer.cli.output import console

if TYPE_CHECKING:
    from sqlbuffer.demo import DemoPlan

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


DEMO_EXAMPLES = example(
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

    with demo_page(plan.url, no_open=no_open) as page:
        typer.echo(f"the page: {page.address}")
        _play(plan)
        typer.echo("the page stays there until Ctrl-C")
        page.wait()


def _play(plan: "DemoPlan") -> None:
    from sqlbuffer.cli.demo_display import DemoProgress, print_report
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
    from sqlbuffer.demo import BUFFER

    ReplayBuffer(plan.url, name=BUFFER, evict_by="row", create=True).close()


def _new_file() -> str:
    folder = Path(tempfile.mkdtemp(prefix="sqlbuffer-demo-"))
    return f"sqlite:///{folder / 'replay.db'}"
