"""The page in the browser next to a running demo."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import typer

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
