"""Workers that are killed and stopped while they play what is handed out to them: every group gets
exactly its number of complete rollouts, and no more are open or stored than the limit allows.
"""

import os
import random
import signal
import threading
import time
from contextlib import ExitStack

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import EpisodeRefusedError, InsufficientDataError, LeaseLostError
from tests.support.processes import TIMEOUT_S, running
from tests.support.sql import is_sqlite, run, scalar

pytestmark = pytest.mark.combinations

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
SIZE = 8
# Workers, groups, kills, and the largest number of rollouts that are open or wait for the trainer.
SCALES = {"sqlite": (6, 12, 15, 24), "postgresql": (50, 60, 60, 100)}
LEASE_S = 4.0


class Crashed(Exception):
    """The environment of a worker has failed."""


def play(url, max_ahead):
    """Play what is handed out, until there is nothing for a while."""
    random.seed()
    with ReplayBuffer(url, flush_s=0.002) as buffer:
        name = "obs" if buffer.fields else "state"
        options = {"lease_s": LEASE_S, "timeout_s": TIMEOUT_S, "max_ahead": max_ahead}
        while items := buffer.work.take(random.randint(1, 2), **options):
            for item in items:
                try:
                    item.heartbeat()
                    with item.episode() as episode:
                        for step in range(3):
                            episode.append(**{name: float(step)}, reward=1.0)
                            time.sleep(random.choice([0.0, 0.01]))
                        if random.random() < 0.05:
                            raise Crashed
                except (Crashed, EpisodeRefusedError, LeaseLostError):
                    continue


def train(url, n_groups):
    """Train on each group once; return the groups."""
    trained = []
    with ReplayBuffer(url) as buffer:
        while len(trained) < n_groups:
            asked = {"group_by": "group_id", "group_size": SIZE, "timeout_s": TIMEOUT_S}
            with buffer.lease(1, **asked) as batch:
                assert len(batch) == SIZE * 3
                trained.append(batch[0].exp_meta.group_id)
    with ReplayBuffer(url) as buffer, pytest.raises(InsufficientDataError):
        buffer.lease(1, group_by="group_id", timeout_s=0).take()
    return trained


def schedule(url, n_groups):
    """Put the tasks, several times and in pieces, as schedulers that die and start again do."""
    with ReplayBuffer(url) as buffer:
        tasks = [{"task_id": f"t{group % 7}", "group_id": f"g{group}"} for group in range(n_groups)]
        n_new = buffer.work.put(tasks[: n_groups // 2], group_size=3, max_attempts=None)
        return n_new + buffer.work.put(tasks, group_size=SIZE, max_attempts=None)


AHEAD = (
    "SELECT count(*) FROM work_items "
    "WHERE status = 'taken' OR (status = 'done' AND NOT is_consumed)"
)


def harass(workers, chance, n_kills, restart, is_over):
    """Kill workers and start others, and have some stop for longer than their leases."""
    stopped = []
    while n_kills and not is_over():
        time.sleep(chance.uniform(0.05, 0.3))
        place = chance.randrange(len(workers))
        process = workers[place].processes[0]
        if chance.random() < 0.3:
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append((time.monotonic() + LEASE_S + 1.0, process.pid))
        else:
            os.kill(process.pid, signal.SIGKILL)
            stopped = [(until, pid) for until, pid in stopped if pid != process.pid]
            workers[place] = restart()
            n_kills -= 1
        for _, pid in [one for one in stopped if one[0] < time.monotonic()]:
            os.kill(pid, signal.SIGCONT)
        stopped = [one for one in stopped if one[0] >= time.monotonic()]
    for _, pid in stopped:
        os.kill(pid, signal.SIGCONT)
    return n_kills


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_group_gets_its_rollouts_though_workers_are_killed(schema_url, layout):
    kind = "sqlite" if is_sqlite(schema_url) else "postgresql"
    n_workers, n_groups, n_kills, max_ahead = SCALES[kind]
    n_items = n_groups * SIZE
    ReplayBuffer(schema_url, leases=True, max_use=1, **LAYOUTS[layout]).close()
    chance = random.Random(f"{layout}{kind}")
    most_ahead, is_over = [], threading.Event()

    def watch():
        while not is_over.is_set():
            most_ahead.append(scalar(schema_url, AHEAD))
            is_over.wait(0.02)

    def restart():
        return stack.enter_context(running([(play, schema_url, max_ahead)]))

    watcher = threading.Thread(target=watch)
    with ExitStack() as stack:
        calls = [(schedule, schema_url, n_groups)] * 3
        scheduling = stack.enter_context(running(calls))
        assert sum(scheduling.results()) == n_items
        workers = [restart() for _ in range(n_workers)]
        training = stack.enter_context(running([(train, schema_url, n_groups)]))
        watcher.start()
        stack.callback(watcher.join)
        stack.callback(is_over.set)
        n_left = harass(workers, chance, n_kills, restart, lambda: not training.running)
        assert n_left < n_kills / 2
        (trained,) = training.results(4 * TIMEOUT_S)
    assert sorted(trained) == sorted(f"g{group}" for group in range(n_groups))
    complete = (
        "SELECT group_id, count(*) FROM v_episodes WHERE status = 'complete' GROUP BY group_id"
    )
    assert dict(run(schema_url, complete)) == {f"g{group}": SIZE for group in range(n_groups)}
    states = dict(run(schema_url, "SELECT status, count(*) FROM v_work GROUP BY status"))
    assert states == {"done": n_items}
    ended = "SELECT count(*) FROM v_episodes WHERE status <> 'complete'"
    assert scalar(schema_url, ended) > 0
    assert scalar(schema_url, "SELECT max(attempt) FROM v_work") > 1
    assert max_ahead / 2 < max(most_ahead) <= max_ahead
