"""Commands that show a database as HTML: `ui` serves pages, `report` writes a file."""

import errno
import gc
import ipaddress
import logging
import os
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from sqlbuffer.cli.errors import UsageError
from sqlbuffer.cli.options import Url, database, example
from sqlbuffer.errors import MissingExtraError, install

UI_EXAMPLES = example(
    "sqlbuffer ui sqlite:///replay.db",
    "sqlbuffer ui postgresql://me@db.internal/replay --no-open --port 0",
)
PORT = 8765
_BACKLOG = 100
# Open answers, such as live figures, have this long to end after Ctrl-C.
_END_S = 1


def ui(
    url: Url = None,
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port; 0 takes a free one.")
    ] = PORT,
    host: Annotated[
        str,
        typer.Option(help="The address to listen at. 0.0.0.0 admits other machines."),
    ] = "127.0.0.1",
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address, and open no browser.")
    ] = False,
) -> None:
    """Show the contents of a database in the browser.

    The page only reads, also while training writes. Its address, with a secret token, is printed on
    standard output. Ctrl-C ends it.
    """
    from sqlbuffer.storage.migrations import status

    named, token = database(url), secrets.token_urlsafe(24)
    status.check(named)
    serve = _server_of(named, host, token)
    with _bound(host, port) as listening:
        address = _address(host, listening.getsockname()[1])
        if not _is_loopback(host):
            typer.echo(_warning(address), err=True)
        typer.echo(f"{address}/?token={token}")
        if not no_open:
            _open(f"{address}/?token={token}")
        serve(listening)


def _server_of(url: str | None, host: str, token: str) -> Any:
    """Return a function that serves the page; raise before a port is bound if it cannot."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError(
            f"the page in the browser needs Starlette, uvicorn and Jinja2; run {install('ui')}"
        ) from None
    from sqlbuffer.web import app

    application = app(url, token=token, hosts=_names_of(host))

    def serve(listening: socket.socket) -> None:
        config = uvicorn.Config(
            application,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_END_S,
        )
        server = uvicorn.Server(config)

        def end(*_: Any) -> None:
            # A connection that is cut off now needs no log line.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            application.state.site.live.close()
            server.should_exit = True

        # Its own handler would raise the signal again, in the middle of the loop's end.
        server.handle_exit = end
        # A page of many rows would have the collector go through all modules: half of its time.
        gc.collect()
        gc.freeze()
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:  # before it has its handler
            raise typer.Exit from None

    return serve


def _names_of(host: str) -> set[str]:
    """Return the names by which a browser may reach a server."""
    if _is_loopback(host):
        return {"localhost", host}
    return {"localhost", host, socket.gethostname(), socket.getfqdn()}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; the kernel holds connections until the server answers."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError(
            f"there is no address {host!r} on this machine; give --host 127.0.0.1, or 0.0.0.0 for "
            "all of them"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(_refusal(host, port, error)) from None
    return listening


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {host} is taken, perhaps by another `sqlbuffer ui`; give another one "
            "with --port, or --port 0 for one that is free"
        )
    if error.errno == errno.EACCES:
        return f"port {port} is not for this user; give --port a number from 1024 on"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {host!r}; give --host 127.0.0.1"
    return f"{host} port {port}: {error.strerror}; give another one with --host or --port"


def _address(host: str, port: int) -> str:
    shown = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def _warning(address: str) -> str:
    return (
        f"sqlbuffer: every machine that reaches {address} can ask for the page, and who has the "
        "token reads the whole database. Nothing is encrypted, the token neither: on a network "
        "that others use, leave out --host and forward the port: ssh -L "
        f"{PORT}:127.0.0.1:{PORT} THIS_MACHINE"
    )


def _open(address: str) -> None:
    """Open a browser with its own windows, if there is one."""
    import webbrowser

    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return
    # One of text would take over the terminal.
    if type(browser) is not webbrowser.GenericBrowser:
        threading.Thread(target=browser.open, args=(address,), daemon=True).start()


REPORT_EXAMPLES = example(
    "sqlbuffer report replay.db -o report.html",
    "sqlbuffer report postgresql://me@db.internal/replay -o report.html --buffer rollouts",
)


def report(
    url: Url = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The file; - is standard output.")
    ] = "report.html",
    buffer: Annotated[
        str | None,
        typer.Option(
            "--buffer",
            "-b",
            metavar="NAME",
            help="The buffer; without it all buffers.",
            show_default=False,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
) -> None:
    """Write the pages of `sqlbuffer ui` into one HTML file.

    It has the curves and distributions of buffers, the best and worst episodes, and the groups. It
    needs no server and no network, and runs nothing that users have stored.
    """
    from sqlbuffer.storage.migrations import status
    from sqlbuffer.web import require_extra

    require_extra()
    from sqlbuffer.web.report import report as html_report

    named = database(url)
    path = Path(output)
    if output != "-" and path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; --overwrite replaces it")
    status.check(named)
    html = html_report(named, buffer)
    if output == "-":
        sys.stdout.buffer.write(html)
        return
    _write(path, html)
    typer.echo(f"{path}: {len(html):,} bytes", err=True)


def _write(path: Path, html: bytes) -> None:
    """Write a whole file; an interruption leaves no partial file."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(html)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
