"""The page in the browser, served as `sqlbuffer ui` serves it, from a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from sqlbuffer.web import app
from tests.support.processes import wait_until

TOKEN = "the-token-of-a-test"


@contextmanager
def served(url: str, token: str | None = TOKEN) -> Iterator[str]:
    """Yield the address of the page of a database, without a slash at its end."""
    made = app(url, token=token)
    settings = uvicorn.Config(
        made, host="127.0.0.1", port=0, log_level="error", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the page")
    (port,) = {each.getsockname()[1] for one in server.servers for each in one.sockets}
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        made.state.site.live.close()  # or open streams would keep the server from ending
        server.should_exit = True
        thread.join(30)
