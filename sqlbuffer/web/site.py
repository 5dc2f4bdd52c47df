"""State that all requests share: the database, its connections and the live figures."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from sqlbuffer.storage.browsing.buffers import DatabaseOverview, overviews
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.inspect.doctor import Finding, glance

EVERY_S = 2.0
MOST_WATCHERS = 100


@dataclass(frozen=True)
class Sighting:
    """The result of one look of the poller.

    Attributes:
        found: Result of the look; None after an error.
        trouble: Error message for people; None if there was no error.
    """

    found: Any = None
    trouble: str | None = None


class LivePoller:
    """Looks every few seconds while there is a watcher, from one thread.

    Args:
        look: Function that returns the figures; watchers get its errors, and it is called again.
        every_s: Seconds between two looks.
    """

    def __init__(self, look: Callable[[], Any], every_s: float = EVERY_S) -> None:
        self._look, self._every_s = look, every_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._watchers: set[_Watcher] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def is_running(self) -> bool:
        """Whether a thread polls the database."""
        return self._thread is not None

    @property
    def n_watchers(self) -> int:
        """Number of clients that watch."""
        return len(self._watchers)

    async def sightings(self) -> AsyncIterator[Sighting]:
        """Yield the result of each look from now on, until `close`; a slow client gets the newest
        only.

        An earlier look would be older than the page that the client has.
        """
        watcher = _Watcher(asyncio.get_running_loop())
        self._add(watcher)
        try:
            while (seen := await watcher.next()) is not None:
                yield seen
        finally:
            self._remove(watcher)

    def close(self) -> None:
        """End all streams, and the thread."""
        with self._lock:
            self._is_closed = True
            for watcher in self._watchers:
                watcher.put(None)
        self._wake.set()

    def _add(self, watcher: "_Watcher") -> None:
        with self._lock:
            self._watchers.add(watcher)
            if self._is_closed:
                watcher.put(None)
                return
            if self._thread is None:
                self._wake.clear()
                self._thread = threading.Thread(
                    target=self._run, name="sqlbuffer-ui-live", daemon=True
                )
                self._thread.start()

    def _remove(self, watcher: "_Watcher") -> None:
        with self._lock:
            self._watchers.discard(watcher)
            if not self._watchers:
                self._wake.set()

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            seen = self._seen()
            with self._lock:
                for watcher in self._watchers:
                    watcher.put(seen)
            self._wake.wait(max(0.1, began + self._every_s - time.monotonic()))
            with self._lock:
                self._wake.clear()
                if self._is_closed or not self._watchers:
                    self._thread = None
                    return

    def _seen(self) -> Sighting:
        try:
            return Sighting(self._look())
        # The thread continues after any error: the next look may succeed.
        except Exception as error:
            return Sighting(trouble=str(error) or type(error).__name__)


class _Watcher:
    """A client that waits; it keeps the newest sighting only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._arrived = loop, asyncio.Event()
        self._seen: Sighting | None = None

    def put(self, seen: Sighting | None) -> None:
        """Send a sighting to a client; None ends its stream."""
        try:
            self._loop.call_soon_threadsafe(self._set, seen)
        except RuntimeError:  # its loop has ended, and its stream with it
            return

    def _set(self, seen: Sighting | None) -> None:
        self._seen = seen
        self._arrived.set()

    async def next(self) -> Sighting | None:
        """Wait for the next sighting."""
        await self._arrived.wait()
        self._arrived.clear()
        return self._seen


WARNINGS_EVERY_S = 60.0


@dataclass(frozen=True)
class SiteLook:
    """The result of one look at the database.

    Attributes:
        overview: Buffers of the database.
        warnings: Problems that a quick look finds.
    """

    overview: DatabaseOverview
    warnings: tuple[Finding, ...]


class Site:
    """The database that the pages show.

    Args:
        url: The database, resolved.
        shown_url: Its URL without the password.
        tabs: The pages of one buffer, by path and name.
    """

    def __init__(self, url: Any, shown_url: str, tabs: Sequence[tuple[str, str]] = ()) -> None:
        self.url, self.shown_url, self.tabs = url, shown_url, tabs
        self.pool = ReadPool(url)
        self.live = LivePoller(self.look)
        self._lock = threading.Lock()
        self._warnings: tuple[Finding, ...] = ()
        self._warned_at = float("-inf")

    def look(self) -> SiteLook:
        """Look at all buffers, and once a minute at the database itself."""
        with self.pool.connection() as connection:
            overview = overviews(connection)
        with self._lock:
            is_due = time.monotonic() - self._warned_at >= WARNINGS_EVERY_S
            if is_due:
                self._warned_at = time.monotonic()
        if is_due:
            with self.pool.connection() as connection:
                findings = glance(connection, self.url)
            self._warnings = tuple(finding for finding in findings if finding.status != "OK")
        return SiteLook(overview, self._warnings)

    def close(self) -> None:
        """End the live figures and close the connections."""
        self.live.close()
        self.pool.close()


def site_of(request: Request) -> Site:
    """Return what the page of a request is about."""
    site: Site = request.app.state.site
    return site
