"""A proxy before a PostgreSQL server that cuts connections where a test wants it."""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TypeVar

from sqlalchemy import make_url

T = TypeVar("T")


class Proxy:
    """Passes bytes on, and cuts a connection at its commit when told to.

    Attributes:
        url: The database, through the proxy.
        cuts: What to do at the next commits: `before` cuts before the server sees it, `after` when
            it has answered, None lets it pass. When empty everything passes.
        on_cut: Called after a cut, before the client can connect again.
        refusals: How many new connections to refuse once one was cut.
        closed: Refuse all new connections.
        sends_left: How many messages of clients pass before an outage: every connection is cut, and
            new ones are refused. None: there is none.
        bytes_left: The same for the bytes of the server's answers.
        is_brief: New connections are not refused in such an outage.
        n_cut: How many were cut at a commit.
        slow: Messages of clients with these bytes wait for half a second.
        n_slow: How many of them have passed.
    """

    def __init__(self, url: str) -> None:
        target = make_url(url)
        host, port = target.query.get("host", target.host), target.port or 5432
        self._unix = str(host).startswith("/")
        self._target = f"{host}/.s.PGSQL.{port}" if self._unix else (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = (
            target.set(host="127.0.0.1", port=self._listener.getsockname()[1])
            .difference_update_query(["host"])
            .render_as_string(hide_password=False)
        )
        self.cuts: list[str | None] = []
        self.on_cut: Callable[[], object] = lambda: None
        self.refusals = 0
        self.closed = False
        self.sends_left: int | None = None
        self.bytes_left: int | None = None
        self.is_brief = False
        self.n_cut = 0
        self.slow: bytes | None = None
        self.n_slow = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def cut_all(self) -> None:
        """Cut every connection now."""
        self._end(*self._sockets)

    def end_outage(self) -> None:
        """Pass everything from now on."""
        self.sends_left = self.bytes_left = None
        self.closed = False

    def close(self) -> None:
        self.closed = True
        self._end(self._listener, *self._sockets)
        for thread in self._threads:
            thread.join(10)
        for each in (self._listener, *self._sockets):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.closed or (self.n_cut and self.refusals):
                self.refusals = max(0, self.refusals - 1)
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX if self._unix else socket.AF_INET)
            self._sockets += [client, server]
            server.connect(self._target)
            state = {"cut": False}
            self._start(self._up, client, server, state)
            self._start(self._down, client, server, state)

    def _up(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.sends_left is not None:
                    self.sends_left -= 1
                    if self.sends_left < 0:
                        self._begin_outage()
                        return
                if b"COMMIT\0" in data and self.cuts:
                    cut = self.cuts.pop(0)
                    state["cut"] = cut is not None
                    if cut == "before":
                        break
                is_slow = self.slow is not None and self.slow in data
                time.sleep(0.5 if is_slow else 0)
                server.sendall(data)
                self.n_slow += is_slow
            else:
                self._end(client, server)
                return
        self._cut(client, server)

    def _down(self, client: socket.socket, server: socket.socket, state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if state["cut"]:
                    self._cut(client, server)
                    return
                if self.bytes_left is not None:
                    self.bytes_left -= len(data)
                    if self.bytes_left < 0:
                        client.sendall(data[: self.bytes_left])
                        self._begin_outage()
                        return
                client.sendall(data)
        if not state["cut"]:
            self._end(client, server)

    def _begin_outage(self) -> None:
        self.sends_left = self.bytes_left = None
        self.closed = not self.is_brief
        self.cut_all()

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        # The server's end first: its transaction is over when the client learns of the cut.
        self._end(server)
        self.n_cut += 1
        self.on_cut()
        self._end(client)

    @staticmethod
    def _end(*ends: socket.socket) -> None:
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def losing_each_message(proxy: Proxy, call: Callable[[], T], every: int = 1) -> Iterator[T]:
    """Yield the results of a call, made again and again: each time another message to the server
    is lost with its connection, and the last time none.
    """
    proxy.is_brief = True
    for n in count(0, every):
        proxy.sends_left = n
        yield call()
        if proxy.sends_left is not None:
            proxy.sends_left = None
            return


def assert_one_line_each(records: Iterable[logging.LogRecord]) -> None:
    """Assert that what was logged of outages has one line, without SQL and tracebacks."""
    for record in records:
        text = record.getMessage()
        assert record.name == "sqlbuffer", text
        assert "\n" not in text
        assert "SELECT" not in text
        assert record.exc_info is None


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Yield a proxy before the database."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
