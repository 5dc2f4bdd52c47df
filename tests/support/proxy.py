"""A proxy before a PostgreSQL server that cuts connections where a test wants it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import make_url


class Proxy:
    """Passes bytes on, and cuts a connection at its commit when told to.

    Attributes:
        url: The database, through the proxy.
        cuts: What to do at the next commits: `before` cuts before the server sees it, `after` when
            it has answered, None lets it pass. When empty everything passes.
        on_cut: Called after a cut, before the client can connect again.
        refusals: How many new connections to refuse once one was cut.
        closed: Refuse all new connections.
        n_cut: How many were cut at a commit.
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
        self.n_cut = 0
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
                if b"COMMIT\0" in data and self.cuts:
                    cut = self.cuts.pop(0)
                    state["cut"] = cut is not None
                    if cut == "before":
                        break
                server.sendall(data)
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
                client.sendall(data)
        if not state["cut"]:
            self._end(client, server)

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


@contextmanager
def proxied(url: str) -> Iterator[Proxy]:
    """Yield a proxy before the database."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
