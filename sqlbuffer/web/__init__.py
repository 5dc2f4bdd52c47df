"""A page in the browser that shows the contents of a database. It only reads."""

from collections.abc import Collection
from typing import Any

from sqlbuffer.checks import checked_names, checked_text
from sqlbuffer.errors import ArgumentError, MissingExtraError, install
from sqlbuffer.storage.database.urls import Database

__all__ = ["app"]


def app(url: Database = None, *, token: str | None = None, hosts: Collection[str] = ()) -> Any:
    """Return the page as an ASGI application, to serve it yourself.

    It reads the database with at most four connections, and changes nothing. Requests other than
    GET and HEAD are refused, and so are requests from pages of other sites.

    Without a token the application has no login: mount it behind your own. It may be mounted under
    a path.

    Args:
        url: The database; by default the URL in `SQLBUFFER_URL`.
        token: A secret of your choice. A browser must open the page once with `?token=` and this
            value; then a cookie keeps it.
        hosts: Host names of the page, without ports; requests with another `Host` header are
            refused. Empty: any name.

    Returns:
        The ASGI application.

    Raises:
        ArgumentError: The token is not text, or the hosts are not a list of names.
        MissingExtraError: Starlette or Jinja2 is not installed.
        StorageUnreachableError: There is no such SQLite file.
        URLError: The URL is not of SQLite or PostgreSQL, or the database is in memory.

    Example:
        >>> import tempfile
        >>> from sqlbuffer import ReplayBuffer
        >>> from starlette.applications import Starlette
        >>> from starlette.routing import Mount
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     url = f"sqlite:///{folder}/replay.db"
        ...     ReplayBuffer(url).close()
        ...     yours = Starlette(routes=[Mount("/replay", app(url))])
    """
    if token is not None:
        checked_text(token, "token", "text, a secret of your choice")
    hosts = checked_names(hosts, "hosts", "['replay.example.org']", error=ArgumentError)
    require_extra()
    from sqlbuffer.web.application import make_app

    return make_app(url, token=token, hosts=hosts)


def require_extra() -> None:
    """Raise MissingExtraError unless the packages for the page are installed."""
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            f"the page in the browser needs Starlette, uvicorn and Jinja2; run {install('ui')}"
        ) from None
