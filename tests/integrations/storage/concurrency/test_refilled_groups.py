"""Players that are killed while they play, whose rollouts others continue, and learners that are
killed while they hold groups: every group is used once, with whole rollouts.
"""

import os
import random
import signal
import time
from collections import Counter

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    EpisodeEndedError,
    EpisodeTakenError,
    InsufficientDataError,
    LeaseLostError,
)
from tests.integrations.storage.concurrency.test_leases import log_uses
from tests.support.leases import expire
from tests.support.processes import TIMEOUT_S, running, wait_until
from tests.support.sql import run, scalar

pytestmark = pytest.mark.combinations

N_GROUPS, SIZE, LENGTH = 12, 4, 5
N_PLAYERS, N_LEARNERS = 4, 3
LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}
ASKED = {"group_by": "group_id", "group_size": SIZE, "require_reward": True}


def play(url, seed):
    """Begin or continue rollouts at random until all have ended or are taken."""
    chance = random.Random(seed)
    todo = [(group, slot) for group in range(N_GROUPS) for slot in range(SIZE + 1)]
    with ReplayBuffer(url, flush_s=0.001) as buffer:
        while todo:
            group, slot = place = chance.choice(todo)
            try:
                writer = buffer.episode(
                    "p", episode_id=f"{group}-{slot}", group_id=f"g{group}", resume=True
                )
                while writer.t < LENGTH:
                    writer.append(**{"obs" if buffer.fields else "state": float(writer.t)})
                    time.sleep(0.002)
                    if chance.random() < 0.03:
                        break
                if writer.t < LENGTH:
                    writer.abort()
                else:
                    writer.end(reward=float(slot))
                    todo.remove(place)
            except EpisodeEndedError:
                todo.remove(place)
            except EpisodeTakenError:
                pass


def learn(url, seed, path):
    """Claim whole groups, and note those that were acknowledged."""
    chance = random.Random(seed)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ReplayBuffer(url) as buffer:
        while True:
            try:
                with buffer.lease(1, **ASKED, lease_s=0.5, timeout_s=30) as batch:
                    steps = Counter(row.exp_meta.episode_id for row in batch)
                    os.write(file, b"" if is_whole(batch, steps) else b"split\n")
                    time.sleep(chance.choice([0.0, 0.02, 0.1]))
            except (LeaseLostError, InsufficientDataError):
                continue
            os.write(file, f"{batch[0].exp_meta.group_id}\n".encode())


def is_whole(batch, steps):
    groups = {row.exp_meta.group_id for row in batch}
    return len(groups) == 1 and len(steps) == SIZE and set(steps.values()) == {LENGTH}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_refilled_groups_are_used_once_each_and_whole(schema_url, tmp_path, layout):
    ReplayBuffer(schema_url, leases=True, max_use=1, **LAYOUTS[layout]).close()
    log_uses(schema_url)
    noted, chance = tmp_path / "noted", random.Random(layout)
    learners = [(learn, schema_url, i, noted) for i in range(N_LEARNERS)]
    with running(learners) as using:
        for number in range(3):
            with running(
                [(play, schema_url, 10 * number + i) for i in range(N_PLAYERS)]
            ) as playing:
                for process in playing.processes:
                    if number < 2:
                        time.sleep(chance.uniform(0.05, 0.3))
                        os.kill(process.pid, signal.SIGKILL)
                        process.join(TIMEOUT_S)
                        continue
                    process.join(TIMEOUT_S)
            if number < 2:
                os.kill(using.processes[number].pid, signal.SIGKILL)
        wait_until(lambda: noted.exists() and b"g" in noted.read_bytes(), "a group is used")
    expire(schema_url)
    with ReplayBuffer(schema_url) as buffer:
        for _ in range(N_GROUPS):
            try:
                with buffer.lease(1, **ASKED, timeout_s=0) as batch:
                    assert is_whole(batch, Counter(row.exp_meta.episode_id for row in batch))
            except InsufficientDataError:
                break
        buffer.expire()  # what a learner had used up when it was killed
    assert "split" not in noted.read_text().split()
    counted = run(
        schema_url, "SELECT lease_id, count(*), count(DISTINCT seq) FROM counted GROUP BY 1"
    )
    assert {(n, distinct) for _, n, distinct in counted} == {(SIZE * LENGTH, SIZE * LENGTH)}
    assert len(counted) == N_GROUPS
    assert scalar(schema_url, "SELECT count(DISTINCT seq) FROM counted") == N_GROUPS * SIZE * LENGTH
    # One rollout of each group came after the others, or was not needed.
    assert scalar(schema_url, "SELECT count(*) FROM v_experiences") in range(N_GROUPS * LENGTH + 1)
