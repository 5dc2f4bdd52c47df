"""State that all requests share: the database, its connections and the live figures."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from sqlbuffer.storage.browsing.buffer_overviews import DatabaseOverview, overviews
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.inspect.doctor import Finding, glance
from sqlbuffer.web.live import LivePoller

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
                found = glance(connection, self.url)
            self._warnings = tuple(each for each in found if each.status != "OK")
        return SiteLook(overview, self._warnings)

    def close(self) -> None:
        """End the live figures and close the connections."""
        self.live.close()
        self.pool.close()


def site_of(request: Request) -> Site:
    """Return what the page of a request is about."""
    found: Site = request.app.state.site
    return found
