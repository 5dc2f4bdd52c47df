"""The application: which address shows which page, and what happens when something fails."""

from collections.abc import Collection
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from sqlbuffer.errors import BufferNotFoundError, SQLBufferError
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.sqlite import refuse_memory
from sqlbuffer.storage.database.urls import Database, shown_url
from sqlbuffer.web.access import UNRUN, Access
from sqlbuffer.web.pages import (
    buffers_page,
    episode_page,
    episodes_page,
    figures_page,
    groups_page,
    search_page,
    sql_page,
)
from sqlbuffer.web.rendering import FOLDER, here_of, link, page
from sqlbuffer.web.site import Site

# Each page has a module with its ROUTES; one about a whole buffer has a TAB: its path and name.
PAGES: tuple[Any, ...] = (
    buffers_page,
    figures_page,
    episodes_page,
    groups_page,
    search_page,
    episode_page,
    sql_page,
)


def make_app(url: Database, *, token: str | None, hosts: Collection[str]) -> Starlette:
    """Return the application; see `sqlbuffer.web.app`."""
    resolved = resolve_url(url)
    refuse_memory(resolved)
    tabs = [module.TAB for module in PAGES if hasattr(module, "TAB")]
    site = Site(resolved, shown_url(resolved), tabs)

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        yield
        site.close()

    application = Starlette(
        routes=[
            *(route for module in PAGES for route in module.ROUTES),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        middleware=[Middleware(Access, refuse=refused, token=token, hosts=hosts)],
        exception_handlers={HTTPException: _not_found, SQLBufferError: failed, 500: _defect},
        lifespan=lifespan,
    )
    application.state.site = site
    return application


def message(
    request: Request, status_code: int, title: str, reason: str, remedy: str, **context: Any
) -> Response:
    """Return a page that says what happened and what to do."""
    return page(
        request,
        "message.html",
        status_code=status_code,
        place="message",
        title=title,
        reason=reason,
        remedy=remedy,
        **{"retry": link(request, "/"), "retry_words": "All buffers", **context},
    )


def refused(request: Request, status_code: int, reason: str, remedy: str) -> Response:
    """Return the answer to a request that may not read the page."""
    # The browser takes that link for one of ours: it must not run what another site wrote.
    unrun = {UNRUN: 1} if "q" in request.query_params else {}
    again = {"retry": here_of(request, **unrun), "retry_words": "Open this page again"}
    return message(request, status_code, "Not shown", reason, remedy, is_let_in=False, **again)


def failed(request: Request, error: Exception) -> Response:
    """Return what an error of the library says, with a link to try again."""
    what, _, remedy = str(error).partition("; ")
    if isinstance(error, BufferNotFoundError):
        remedy = "It was dropped, or never made; choose one from the list."
        return message(request, 404, "There is no such buffer", what, remedy)
    again = {"retry": here_of(request), "retry_words": "Try again"}
    return message(request, 503, "The database did not answer", what, remedy, **again)


def _not_found(request: Request, error: Exception) -> Response:
    status, detail = getattr(error, "status_code", 404), str(getattr(error, "detail", ""))
    if status == 404 and detail != HTTPStatus.NOT_FOUND.phrase:
        return message(request, 404, "There is no such thing", detail, "It may have been evicted.")
    if status != 404:
        return message(request, status, "Not possible", detail, "Start from the list of buffers.")
    return message(
        request,
        404,
        "There is no such page",
        "The address may be cut off, or of another version.",
        "Start from the list of buffers.",
    )


def _defect(request: Request, error: Exception) -> Response:
    return message(
        request,
        500,
        "This page has failed",
        f"{type(error).__name__}: a defect of sqlbuffer, which `sqlbuffer ui` has written about "
        "to its terminal.",
        "The other pages still work. Please report the defect.",
    )
