"""Who changes the same rows locks them in one order: nobody waits for the other, and none is ended
by the server to be tried again.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.labels.writing import Labelling
from tests.support.leases import GivenBack, store
from tests.support.processes import run_at_once, wait_until
from tests.support.sql import run, scalar

pytestmark = pytest.mark.combinations

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock'"
)


@contextmanager
def in_a_thread(work: Callable[[], Any]) -> Iterator[None]:
    """Do something beside the block, and fail where it fails."""
    errors: list[BaseException] = []

    def run_it() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run_it)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)
    assert not errors, errors


def deadlocks(url: str) -> int:
    """Return how many there were, once all of the library's connections have told."""
    pids = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name"
    wait_until(lambda: not run(url, f"{pids} LIKE 'sqlbuffer %'"), "its connections are closed")
    number: int = scalar(
        url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    return number


def acknowledge(lease: Any) -> None:
    lease.__exit__(None, None, None)


def give_back(lease: Any) -> None:
    lease.__exit__(GivenBack, GivenBack(), None)


def renew(lease: Any) -> None:
    lease.batch.renew(60)


@pytest.mark.thorough
@pytest.mark.parametrize("end", [acknowledge, give_back, renew])
def test_who_ends_a_lease_locks_its_rows_in_their_order(postgres_url: str, end: Any) -> None:
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(False)
    with ReplayBuffer(postgres_url, create=True, leases=True) as buffer:
        store(buffer, range(3))
        # The first row is the last one in the table, where it has a place of its own in each index.
        run(postgres_url, "UPDATE queue_items SET freshness = 1 WHERE seq = 1")
        lease: Any = buffer.lease(3, order="fifo")
        lease.batch = lease.__enter__()
        with psycopg.connect(url) as remover:
            remover.execute("SELECT FROM queue_items WHERE seq = 1 FOR UPDATE")
            with in_a_thread(lambda: end(lease)):
                wait_until(lambda: scalar(postgres_url, WAITING), "it waits for the first row")
                remover.execute("SELECT FROM queue_items WHERE seq > 1 FOR UPDATE NOWAIT")
                remover.rollback()


def test_ends_of_episodes_and_annotations_do_not_wait_for_each_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = Labelling.change_returns
    with ReplayBuffer(postgres_url, create=True, max_episodes=9, flush_s=1e-3) as buffer:
        episode = buffer.episode()
        episode.append(state=1, reward=1.0)
        buffer.flush()

        def change_later(*arguments: Any) -> None:
            wait_until(lambda: scalar(postgres_url, WAITING), "the writer waits")
            change(*arguments)

        monkeypatch.setattr(Labelling, "change_returns", change_later)
        with in_a_thread(lambda: buffer.annotate([1], reward=5.0)):
            held = "SELECT 1 FROM pg_locks WHERE relation = 'labels'::regclass"
            wait_until(lambda: run(postgres_url, held), "the annotation is under way")
            episode.end()
        assert scalar(postgres_url, "SELECT episode_return FROM v_episodes") == 5.0
    assert deadlocks(postgres_url) == 0


def test_no_two_calls_wait_for_each_other_under_contention(postgres_url: str) -> None:
    with ReplayBuffer(postgres_url, create=True, leases=True, max_use=3) as buffer:
        store(buffer, range(200))

        def lease() -> None:
            for _ in range(8):
                with buffer.lease(16, order="random", timeout_s=30) as batch:
                    buffer.annotate(batch.seqs[::-1], reward=1.0)

        def delete() -> None:
            for start in range(1, 97, 8):
                buffer.quarantine([start])
                buffer.delete(QueryBuilder().lte("seq", start))

        with in_a_thread(lease), in_a_thread(lease), in_a_thread(delete):
            pass
    assert deadlocks(postgres_url) == 0


def drop_all(url: str, names: list[str]) -> None:
    for name in names:
        ReplayBuffer.drop(url, name)


def test_buffers_that_are_dropped_at_the_same_time_do_not_wait_for_each_other(
    postgres_url: str,
) -> None:
    for number in range(12):
        with ReplayBuffer(postgres_url, name=f"b{number}", create=True) as buffer:
            store(buffer, range(20))
    thirds = [[f"b{number}" for number in range(12)][n::3] for n in range(3)]
    run_at_once([(drop_all, postgres_url, names) for names in thirds])
    assert deadlocks(postgres_url) == 0
    assert ReplayBuffer.list(postgres_url) == []
