"""Producers and consumers of leases that are killed at random moments: every row is used as often
as it may be, and groups are never split.
"""

import multiprocessing
import os
import random
import signal
import time

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError, LeaseLostError
from tests.support.leases import expire, row_of
from tests.support.processes import TIMEOUT_S, running, wait_until
from tests.support.sql import is_sqlite, run, scalar

pytestmark = pytest.mark.combinations

GROUP, MAX_USE = 3, 2
N_PRODUCERS, N_CONSUMERS, N_KILLS = 4, 6, 8
LEASE_S = 1.0
LOG = {
    "sqlite": "CREATE TRIGGER log_uses AFTER UPDATE OF n_uses ON queue_items "
    "WHEN NEW.n_uses <> OLD.n_uses BEGIN "
    "INSERT INTO counted VALUES (NEW.seq, NEW.n_uses, OLD.lease_id); END",
    "postgresql": "CREATE TRIGGER log_uses AFTER UPDATE OF n_uses ON queue_items FOR EACH ROW "
    "WHEN (NEW.n_uses <> OLD.n_uses) EXECUTE FUNCTION log_counted()",
}
LOG_FUNCTION = (
    "CREATE FUNCTION log_counted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO counted VALUES (NEW.seq, NEW.n_uses, OLD.lease_id); RETURN NULL; END $$"
)


def log_uses(url):
    """Note each use that is counted, with the lease that it was counted by."""
    run(url, "CREATE TABLE counted (seq bigint, n_uses integer, lease_id text)")
    if not is_sqlite(url):
        run(url, LOG_FUNCTION)
    run(url, LOG["sqlite" if is_sqlite(url) else "postgresql"])


def produce(url, name, path):
    """Store groups row by row, and note those that are whole."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ReplayBuffer(url) as buffer:
        for number in range(10_000):
            for step in range(GROUP):
                buffer.store_batch([row_of(step, task=f"{name}_{number}")])
            os.write(file, f"{name}_{number}\n".encode())
            time.sleep(0.02)


def consume(url, seed, stop):
    """Lease groups until there are no more after the producers have stopped."""
    chance = random.Random(seed)
    order = ("random", "fifo", "freshest", "stalest")[seed % 4]
    n_split = 0
    with ReplayBuffer(url) as buffer:
        while True:
            is_last = stop.is_set()
            try:
                with buffer.lease(
                    chance.choice([1, 2]) if not is_last else 1, group_by="task_id",
                    min_group_size=GROUP, order=order, lease_s=LEASE_S,
                    timeout_s=0.3 if is_last else 5.0,
                ) as batch:  # fmt: skip
                    n_split += any(len(group) != GROUP for group in batch.groups)
                    time.sleep(chance.choice([0.0, 0.01, 0.05]))
                    if chance.random() < 0.1:
                        raise ZeroDivisionError
            except (ZeroDivisionError, LeaseLostError):
                continue
            except InsufficientDataError:
                if is_last:
                    return n_split


def kill_in_turn(workers, chance, spared):
    """Kill processes that nobody waits for, at random moments."""
    victims = [process for process in workers.processes if process not in spared]
    for victim in chance.sample(victims, len(victims)):
        time.sleep(chance.uniform(0.05, 0.2))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join(TIMEOUT_S)


@pytest.mark.slow
def test_no_row_is_used_too_often_or_lost_and_no_group_is_split(schema_url, tmp_path):
    ReplayBuffer(schema_url, leases=True, max_use=MAX_USE).close()
    log_uses(schema_url)
    stop = multiprocessing.get_context("fork").Event()
    whole = tmp_path / "whole"
    chance = random.Random(schema_url[:6])
    producers = [(produce, schema_url, f"p{i}", whole) for i in range(N_PRODUCERS)]
    consumers = [(consume, schema_url, i, stop) for i in range(N_CONSUMERS)]
    with running(producers) as making, running(consumers) as using:
        wait_until(lambda: scalar(schema_url, "SELECT count(*) FROM counted"), "uses are counted")
        kill_in_turn(using, chance, using.processes[:2])
        kill_in_turn(making, chance, [])
        stop.set()
        for process in using.processes[:2]:
            process.join(TIMEOUT_S)
        assert [pipe.recv() for pipe in using._pipes[:2]] == [0, 0]
    # What killed consumers held comes back when their leases run out: nobody has to wait here.
    expire(schema_url)
    with ReplayBuffer(schema_url) as buffer:
        try:
            while True:
                with buffer.lease(1, group_by="task_id", min_group_size=GROUP, timeout_s=0) as last:
                    assert len(last) == GROUP
        except InsufficientDataError:
            pass
        left = {task for (task,) in run(schema_url, "SELECT task_id FROM experiences")}
    check(schema_url, whole.read_text().split(), left)


def check(url, whole, left):
    counted = run(url, "SELECT seq, count(*), max(n_uses) FROM counted GROUP BY seq")
    assert {(n, most) for _, n, most in counted} == {(MAX_USE, MAX_USE)}
    # All that is left are the groups that killed producers have not finished.
    assert not left & set(whole)
    assert len(left) <= N_PRODUCERS
    n_groups, n_left = len(counted) // GROUP, scalar(url, "SELECT count(*) FROM experiences")
    assert len(counted) % GROUP == 0
    assert n_groups - len(whole) in range(N_PRODUCERS + 1)  # whole, but not noted
    assert scalar(url, "SELECT n_used_up FROM buffers") == GROUP * n_groups
    assert scalar(url, "SELECT count(*) FROM queue_items") == n_left
    # Each lease counted whole groups.
    by_lease = run(url, "SELECT lease_id, count(*) FROM counted GROUP BY lease_id")
    assert {n % GROUP for _, n in by_lease} == {0}
