"""Very many processes that open a new SQLite file in the same moment."""

from sqlbuffer import ReplayBuffer
from tests.support.processes import run_at_once
from tests.support.stepped_rows import make_row

PROCESSES = 60


def open_and_store(url: str, number: int) -> int:
    with ReplayBuffer(url) as buffer:
        return buffer.store(make_row(number)).inserted


def test_sixty_processes_open_a_new_file_at_once(tmp_path):
    url = f"sqlite:///{tmp_path / 'new.db'}"
    calls = [(open_and_store, url, number) for number in range(PROCESSES)]
    assert run_at_once(calls) == [1] * PROCESSES
    with ReplayBuffer(url) as buffer:
        assert len(buffer) == PROCESSES
