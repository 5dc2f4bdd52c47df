"""An interrupt during a write leaves nothing half done, and nothing is stored twice."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer

FIELDS = {"obs": ("float32", (2,))}
N_STEPS, N_INTERRUPTS = 5, 30
# Where a write waits for the database, and where it comes back from it.
INTERRUPTED = {
    "do_execute", "do_executemany", "_init_metadata", "do_commit", "insert_columns", "write",
    "_execute_gen", "_maybe_prepare_gen", "_exec_command", "_commit_gen", "_start_copy_gen",
}  # fmt: skip


def calls_in(work: Callable[[], object], interrupt_at: int = -1) -> int:
    """Run `work`, interrupted at one of the calls that it makes; return how many there were."""
    n_calls = 0

    def trace(frame: Any, *_: Any) -> None:
        nonlocal n_calls
        if frame.f_code.co_name in INTERRUPTED:
            n_calls += 1
            if n_calls == interrupt_at:
                sys.settrace(None)
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return n_calls


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["episode", "columns"])
def test_a_write_that_is_interrupted_anywhere_is_stored_once(buffer_url: str, by: str) -> None:
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=1_000.0) as buffer:

        def work_of(number: int) -> Callable[[], object]:
            obs = np.full((N_STEPS, 2), number, np.float32)
            if by == "columns":
                ids = [f"{number}_{step}" for step in range(N_STEPS)]
                return lambda: buffer.extend({"obs": obs}, id=ids, task_id=[*"ababa"])
            episode = buffer.episode(episode_id=f"e{number}")
            for own in obs:
                episode.append(obs=own, reward=1.0)
            episode.finish()
            return buffer.flush

        work_of(0)()  # with statements that are compiled once
        n_calls = calls_in(work_of(1))
        for number in range(2, 2 + N_INTERRUPTS):
            work = work_of(number)
            with pytest.raises(KeyboardInterrupt):
                calls_in(work, 1 + n_calls * (number - 2) // N_INTERRUPTS)
            work()
            assert len(buffer) == N_STEPS * (number + 1)
        rows = list(buffer)
        assert len(rows) == len({row.seq for row in rows}) == len(buffer)
        assert len({(row.exp_meta.task_id, row.exp_meta.step, row.id) for row in rows}) == len(rows)
