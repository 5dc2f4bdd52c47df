"""A browser that notes everything that a page must not do."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import BrowserContext, Error, Page

from tests.support.chromium import launched_chromium
from tests.support.web_server import TOKEN

# Of rules for pages that are parts of larger ones.
_AXE = {"resultTypes": ["violations"]}
_CONTRAST = {**_AXE, "runOnly": ["color-contrast"]}


@contextmanager
def running_chromium() -> Iterator[Any]:
    """Yield a browser; skip the test where there is none."""
    with launched_chromium() as browser:
        if browser is None:
            pytest.skip("allowed: there is no Chromium; install it: apt-get install chromium")
        yield browser


class Visit:
    """A browser that has opened the page of a database.

    Args:
        context: A new context of a browser.
        address: Where the page is.

    Attributes:
        page: Its tab.
        trouble: What the pages did that they must not do: dialogs, errors, requests to elsewhere.
    """

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context, self.address = context, address
        self.trouble: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("dialog", self._refuse)
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        self.page.on("console", self._note_console)
        self.page.on("request", self._note_request)
        self.open(f"/?token={TOKEN}")

    def open(self, path: str) -> Page:
        """Open a page and wait until it is there."""
        self.page.goto(f"{self.address}{path}", wait_until="domcontentloaded")
        return self.page

    def links(self) -> list[str]:
        """Return the addresses on this site that the page links to, from their path on."""
        found = self.page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)")
        own = [link.removeprefix(self.address) for link in found if link.startswith(self.address)]
        return [link.partition("#")[0] for link in own]

    def cells(self, selector: str = "table") -> list[list[str]]:
        """Return the texts of the rows of a table's body, with whole ids."""
        text = "c => (c.querySelector('[data-whole]')?.title ?? c.innerText).trim()"
        script = f"all => all.map(r => [...r.children].map({text}))"
        found: list[list[str]] = self.page.eval_on_selector_all(f"{selector} tbody tr", script)
        return found

    def violations(self) -> list[str]:
        """Return what of the page a person with a disability may not be able to use."""
        return _shown(Axe().run(self.page, options=_AXE).response)

    def violations_in_both_schemes(self) -> list[str]:
        """Return the same in light colours and in dark ones, which differ by contrast alone."""
        self.page.emulate_media(color_scheme="light")
        found = self.violations()
        self.page.emulate_media(color_scheme="dark")
        found += _shown(self.page.evaluate("options => axe.run(document, options)", _CONTRAST))
        self.page.emulate_media(color_scheme="light")
        return found

    def _refuse(self, dialog: Any) -> None:
        self.trouble.append(f"dialog: {dialog.message}")
        with suppress(Error):
            dialog.dismiss()

    def _note_console(self, message: Any) -> None:
        # A page that could not be loaded is looked for by its status.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.trouble.append(f"console: {message.text}")

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((f"{self.address}/", "data:")):
            self.trouble.append(f"request to {request.url}")


def _shown(response: Any) -> list[str]:
    return [
        f"{one['id']}: {node['html']}" for one in response["violations"] for node in one["nodes"]
    ]
