"""A shared mirror whose follower is killed and whose readers are stopped serves no wrong step."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from tests.integrations.mirror.test_torture import (
    CAPACITY,
    FIELDS,
    SECONDS,
    change,
    check_steps,
    check_transitions,
    write,
)
from tests.support.mirrors import assert_same_draws
from tests.support.processes import running

pytestmark = pytest.mark.combinations


def learn(url, until):
    """Draw from a shared mirror, and check every step; return how many draws there were."""
    n_draws, n_seen = 0, 0
    with ReplayBuffer(url) as buffer, buffer.mirror(shared=True, refresh_s=0.01) as mirror:
        while time.time() < until:
            before = mirror.lag().high
            try:
                steps = mirror.sample_arrays(64)
                transitions = mirror.sample_transitions(64, n_step=3, gamma=0.5)
            except InsufficientDataError:
                continue
            n_seen = max(n_seen, mirror.lag().high)
            check_steps(steps, before - CAPACITY, n_seen)
            check_transitions(transitions)
            n_draws += 1
    return n_draws, n_seen


def disturb(processes, until):
    """Stop the processes at any moment, and let them go on."""
    rng, n = random.Random(1), 0
    while time.time() < until:
        (process,) = rng.sample(processes, 1)
        with suppress(ProcessLookupError):  # it has failed: its result says why
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(rng.random() / 20)
            os.kill(process.pid, signal.SIGCONT)
        time.sleep(rng.random() / 50)
        n += 1
    return n


@pytest.mark.timeout(900)
def test_no_draw_is_wrong_while_followers_are_killed_and_readers_are_stopped(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=CAPACITY) as buffer:
        until = time.time() + SECONDS
        calls = [(write, buffer_url, writer, until) for writer in range(2)]
        n_killed = 0
        with running([*calls, (change, buffer_url, until)]) as writers:
            with running([(learn, buffer_url, until + 1) for _ in range(2)]) as readers:
                while time.time() < until - 1:
                    # It attaches or follows; the first one that is left takes over.
                    with running([(learn, buffer_url, until + 60)] * 2) as victims:
                        disturb([*readers.processes, *victims.processes], time.time() + 0.7)
                        if not all(process.is_alive() for process in victims.processes):
                            victims.results(0)
                    n_killed += len(victims.processes)
                drawn = readers.results(120)
            writers.results(120)
        assert n_killed > 2
        assert min(n_draws for n_draws, _ in drawn) > 10
        assert max(n_seen for _, n_seen in drawn) > CAPACITY
        with buffer.mirror(shared=True) as one, buffer.mirror(shared=True) as other:
            path = one.path
            for mirror in (one, other):
                mirror.refresh()
                assert_same_draws(buffer, mirror, "step")
                assert_same_draws(buffer, mirror, "transition", n_step=3)
        assert not path.exists()
