"""Access to the page: the token, the cookie, and checks against pages of other sites."""

import hmac
import ipaddress
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

TOKEN = "token"
# In the address of a page that shows a statement and does not run it.
UNRUN = "unrun"
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_METHODS = ("GET", "HEAD")
# Requests of the page itself, or of an address that the user typed. A browser that sends no such
# header is checked by its cookie.
_OWN_SITES = ("same-origin", "none", None)
# A name or an address with its port. Parsers of URLs also take a user, and text behind a bracket.
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+(?:%[\w.~-]+)?)\]|(?P<name>[\w.-]+))(?::\d*)?")
# Nothing there is secret, and the page that refuses needs its style.
_PUBLIC = "/static/"

Refuse = Callable[[Request, int, str, str], Response]


class Access:
    """Admits requests that may read the page, and adds the headers that protect it.

    Args:
        app: Application that answers them.
        refuse: Function that makes the answer to other requests, from the request, a status, a
            reason and a remedy.
        token: Secret of the page; None if another program checks the login.
        hosts: Names that the header `Host` may have; empty: any. Numeric addresses are always
            admitted: an attacker can make a name point here, but not an address.
    """

    def __init__(
        self, app: Any, *, refuse: Refuse, token: str | None, hosts: Collection[str]
    ) -> None:
        self._app, self._refuse, self._token = app, refuse, token
        self._hosts = {name.lower().strip("[]") for name in hosts}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope)
        answer = self._answer_of(request) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer_of(self, request: Request) -> Response | None:
        """Return the refusal of a request, or the answer that sets the cookie; None to go on."""
        if request.method not in _METHODS:
            response = self._refuse(request, 405, "This page is read-only.", "Open it with GET.")
            response.headers["Allow"] = ", ".join(_METHODS)
            return response
        host = request.headers.get("host", "")
        if self._hosts and not self._is_known(host):
            return self._refuse(
                request,
                421,
                f"This page is not served under the name {host!r}.",
                "Open the address that `sqlbuffer ui` printed. To serve the page under another "
                "name, mount sqlbuffer.web.app(url) behind a login of yours.",
            )
        if not _is_own(request, host):
            return self._refuse(
                request,
                403,
                "A page of another site requested this.",
                "Open the address in a new tab.",
            )
        return self._check_token(request)

    def _is_known(self, host: str) -> bool:
        name = name_of(host)
        return name in self._hosts or _is_address(name)

    def _check_token(self, request: Request) -> Response | None:
        if self._token is None or path_of(request).startswith(_PUBLIC):
            return None
        # A name for each port: cookies do not distinguish ports.
        name = f"sqlbuffer_{request.url.port or 80}"
        token = request.query_params.get(TOKEN)
        if token is not None and self._is_token(token):
            response = RedirectResponse(_without_token(request), 303)
            response.set_cookie(
                name,
                self._token,
                path=request.scope.get("root_path") or "/",
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
            return response
        if self._is_token(request.cookies.get(name, "")):
            return None
        return self._refuse(
            request,
            403,
            "This browser has not been let in yet, or you followed a link from another site.",
            "Open the address with the token that `sqlbuffer ui` printed. If you have done that "
            "before, follow the link below.",
        )

    def _is_token(self, token: str) -> bool:
        return self._token is not None and hmac.compare_digest(
            token.encode("utf-8", "replace"), self._token.encode()
        )


def name_of(host: str) -> str:
    """Return the name in a header `Host`: without its port and brackets; "" if it has no name."""
    match = _HOST.fullmatch(host)
    return "" if match is None else (match["address"] or match["name"]).lower()


def path_of(request: Request) -> str:
    """Return the path of a request below the place that the application is mounted at."""
    path, root = request.scope["path"], request.scope.get("root_path", "")
    return str(path.removeprefix(root) if root and path.startswith(f"{root}/") else path)


def is_from_here(request: Request) -> bool:
    """Return True unless a page of another site made the browser send the request."""
    return request.headers.get("sec-fetch-site") in _OWN_SITES


def _is_own(request: Request, host: str) -> bool:
    origin = request.headers.get("origin")
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return False
    # A link to the page from elsewhere is fine: a new tab shows it.
    is_link = request.headers.get("sec-fetch-mode") == "navigate" and (
        request.headers.get("sec-fetch-dest") == "document"
    )
    return is_link or is_from_here(request)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_token(request: Request) -> str:
    # As a path: a browser that was sent to `//host` would leave.
    path = "/" + request.url.path.lstrip("/")
    query = request.url.remove_query_params(TOKEN).query
    return f"{path}?{query}" if query else path
