"""A real browser, where the machine has one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Error, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def launched_chromium() -> Iterator[Any]:
    """Yield a browser; None where there is none."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except Error:
            yield None
            return
        yield browser
        browser.close()
