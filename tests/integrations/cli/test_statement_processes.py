"""No process of a user's statement outlives the one that started it."""

import signal
import threading
from contextlib import suppress

import httpx
import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import start
from tests.support.processes import children_of, is_running, wait_until

# SQLite searches the longer text for seconds without a look at anything else.
STUCK = "SELECT instr(hex(zeroblob(7000000)), hex(zeroblob(3500000)) || '1')"


@pytest.fixture
def url(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    return sqlite_url


def child_of(process):
    """Wait for the only process that a process has started."""
    wait_until(lambda: children_of(process.pid), "the process of the statement")
    (child,) = children_of(process.pid)
    return child


def end(process, sent):
    process.send_signal(sent)
    process.communicate(timeout=30)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_statement_ends_with_its_command(url, sent):
    process = start("sql", url, STUCK)
    child = child_of(process)
    end(process, sent)
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    wait_until(lambda: not is_running(child), "the end of the statement")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_statement_ends_with_its_page(url, sent):
    process = start("ui", url, "--no-open", "--port", "0")
    address = process.stdout.readline().strip()

    def ask():
        with suppress(httpx.HTTPError), httpx.Client(timeout=60) as client:
            client.get(address)
            client.get(f"{address.partition('?')[0]}sql.csv", params={"q": STUCK})

    thread = threading.Thread(target=ask)
    thread.start()
    child = child_of(process)
    end(process, sent)
    thread.join(60)
    wait_until(lambda: not is_running(child), "the end of the statement")
