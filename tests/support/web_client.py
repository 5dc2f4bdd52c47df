"""A browser's requests to the page, without a server."""

import asyncio
from typing import Any

import httpx


class WebClient:
    """Sends requests to an ASGI application and keeps its cookies.

    Args:
        app: The application.
        base_url: How the page is reached.
    """

    def __init__(self, app: Any, base_url: str = "http://localhost:8765") -> None:
        self.app, self._base_url, self._cookies = app, base_url, httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Return the answer; a redirect is not followed."""
        response = asyncio.run(self._request(method, path, options))
        self._cookies.update(response.cookies)
        return response

    async def _request(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(
            transport=transport, base_url=self._base_url, cookies=self._cookies
        ) as client:
            return await client.request(method, path, **options)
