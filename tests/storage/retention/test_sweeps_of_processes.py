"""Several processes write, sweep and die at the same time; nothing leaves too early or twice."""

import os
import signal
import time
from multiprocessing import get_context

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.retention import sweeps
from tests.support.passed_time import evicted, let_pass
from tests.support.sql import run, scalar
from tests.support.typed_buffer import TypedBuffer

N_BATCHES, ROWS = 30, 20


def write(url, kind, first):
    sweeps.SWEEP_EVERY_S = 0.0
    with kind(url) as buffer:
        for i in range(N_BATCHES):
            columns = {"number": [first + i] * ROWS} if buffer.fields else {"state": [i] * ROWS}
            buffer.extend(columns, task_id=f"t{first}")


def expire(url, kind):
    with kind(url) as buffer:
        while True:
            buffer.expire()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ReplayBuffer, TypedBuffer], ids=["rows", "chunks"])
def test_writers_and_sweeps_run_together_and_one_of_them_is_killed(buffer_url, kind):
    spawn = get_context("spawn")
    with kind(buffer_url, max_age="1h", max_bytes="1 GB") as buffer:
        sweeping = [spawn.Process(target=expire, args=(buffer_url, kind)) for _ in range(2)]
        writers = [spawn.Process(target=write, args=(buffer_url, kind, i)) for i in range(3)]
        for process in (*sweeping, *writers):
            process.start()
        writers[0].join()
        os.kill(sweeping[0].pid, signal.SIGKILL)
        for process in writers:
            process.join()
            assert process.exitcode == 0
        total = 3 * N_BATCHES * ROWS
        assert len(buffer) == total
        assert evicted(buffer_url) == {}
        let_pass(buffer_url, 3_700)
        deadline = time.monotonic() + 60
        while len(buffer) and time.monotonic() < deadline:
            time.sleep(0.1)
        sweeping[1].kill()
        for process in sweeping:
            process.join()
        buffer.expire()
        assert len(buffer) == 0
        assert evicted(buffer_url) == {"age": total}
        assert scalar(buffer_url, "SELECT count(*) FROM v_experiences") == 0
        assert run(buffer_url, "SELECT unseen_s FROM retention_states") == [(0.0,)]
