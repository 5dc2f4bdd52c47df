"""Steps that wait in a process: at most `max_pending`, which it loses when it is killed."""

import multiprocessing
import os
import signal
from contextlib import suppress

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.config import MAX_PENDING
from sqlbuffer.errors import FlowControlError, InsufficientDataError
from tests.support.processes import FRESH, wait_until

LAYOUTS = {"rows": {}, "typed": {"fields": {"obs": "float32"}}}


def append_on(url, layout, path, options):
    """Append steps, and write down how many appends have returned."""
    with ReplayBuffer(url, **layout, **options) as buffer, open(path, "a") as returned:
        episode = buffer.episode("t", episode_id="e")
        while True:
            episode.append(**{"obs" if layout else "state": float(episode.t)})
            print(episode.t, file=returned, flush=True)


@pytest.mark.parametrize("options", [{}, {"max_pending": 7}], ids=["default", "seven"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.each_value
def test_a_killed_process_loses_at_most_what_may_be_pending(schema_url, tmp_path, layout, options):
    path, most = tmp_path / "returned.txt", options.get("max_pending", MAX_PENDING)
    arguments = (schema_url, LAYOUTS[layout], path, {"flush_s": 3_600, **options})
    process = multiprocessing.get_context(FRESH).Process(target=append_on, args=arguments)
    process.start()
    wait_until(lambda: path.exists() and path.read_text().count("\n") > 3 * most, "it appends")
    os.kill(process.pid, signal.SIGKILL)
    process.join(30)
    n_returned = int(path.read_text().rpartition("\n")[0].split()[-1])
    with ReplayBuffer(schema_url, **LAYOUTS[layout]) as buffer:
        steps = [row.exp_meta.step for row in buffer]
        assert steps == list(range(len(steps)))
        assert n_returned - most <= len(steps) <= n_returned + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_thread_that_acts_and_learns_in_turn_does_not_starve(sqlite_url, layout):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=4, error_buffer=8.0)
    refusals = []
    with ReplayBuffer(
        sqlite_url, rate_limiter=limiter, wait_s=0, max_pending=6, **LAYOUTS[layout]
    ) as buffer:
        episode = buffer.episode("t")
        while episode.t < 60:
            try:
                episode.append(**{"obs" if layout == "typed" else "state": 0.0})
            except FlowControlError as error:
                refusals.append(str(error))
            with suppress(FlowControlError, InsufficientDataError):
                buffer.sample(1)
        assert len(buffer) > 40
    assert len(refusals) < 60
    assert all("this one was not added" in refusal for refusal in refusals)
