"""The defects D1 to D10 of memmap-replay-buffer (spec 1.6), each mended."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer as CoreBuffer
from sqlbuffer.compat.memmap import MemmapError, ReplayBuffer
from tests.support.sql import scalar


def fill(buffer: ReplayBuffer, n: int = 3) -> None:
    for i in range(n):
        buffer.store_episode(r=[10.0 + i, 20.0 + i], task=i)


def everything(buffer: ReplayBuffer) -> tuple[object, ...]:
    return (
        buffer.num_episodes, len(buffer), buffer.episode_lens.tolist(), buffer.data["r"].tolist(),
        buffer.meta_data["task"].tolist(), buffer.timestep_index, buffer.episode_index,
    )  # fmt: skip


def test_d1_a_full_buffer_refuses_store_episode_before_anything_is_overwritten(make):
    buffer = make()
    fill(buffer)
    before = everything(buffer)
    with pytest.raises(MemmapError, match="is full"):
        buffer.store_episode(r=[1.0])
    assert everything(buffer) == before


def test_d2_a_full_buffer_refuses_store_before_anything_is_overwritten(make):
    buffer = make()
    fill(buffer)
    before = everything(buffer)
    for call in (buffer.store, lambda **d: buffer.store_batch(r=[d["r"]])):
        with pytest.raises(MemmapError, match="is full"):
            call(r=1.0)
    with pytest.raises(MemmapError, match="is full"):
        buffer.one_episode().__enter__()
    assert everything(buffer) == before


def break_off(buffer: ReplayBuffer, error: BaseException, **meta: object) -> None:
    with buffer.one_episode(**meta):
        for _ in range(4):
            buffer.store(r=5.0, s=5)
        assert buffer.episode_lens[buffer.episode_index] == 4
        raise error


@pytest.mark.thorough
def test_d3_an_episode_whose_block_raised_is_nowhere(make, reopen):
    buffer = make()
    fill(buffer, 1)
    before = everything(buffer)
    for error in (KeyError("boom"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            break_off(buffer, error, task=9)
        assert everything(buffer) == before
        assert everything(reopen()) == before


def test_d3_meta_that_does_not_fit_at_the_end_undoes_the_episode(make):
    buffer = make()

    def block() -> None:
        with buffer.one_episode() as late:
            buffer.store(r=1.0)
            late["unknown"] = 3

    with pytest.raises(MemmapError, match="invalid field name unknown"):
        block()
    assert (len(buffer), buffer.num_episodes, buffer.timestep_index) == (0, 0, 0)


def test_d4_the_next_episode_of_a_slot_begins_from_defaults(make):
    buffer = make(circular=True)
    with pytest.raises(KeyError):
        break_off(buffer, KeyError(), task=7, goal=[1, 2, 3])
    buffer.data["r"][0, 3] = 8.0
    with buffer.one_episode():
        buffer.store(s=1)
    assert buffer.data["r"][0].tolist() == [-1] * 4
    assert buffer.data["s"][0].tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert buffer.meta_data["task"][0] == -1
    assert buffer.meta_data["goal"][0].tolist() == [0, 0, 0]


def test_d4_holds_when_the_ring_wraps_around(make):
    buffer = make(circular=True)
    for i in range(4):
        buffer.store_episode(r=np.full(4 - i, i), task=i)
        buffer.data["r"][i % 3, :] += 0.5
    assert buffer.data["r"][0].tolist() == [3.5, -0.5, -0.5, -0.5]
    buffer.store_episode(r=[9.0])
    assert buffer.data["r"][1].tolist() == [9, -1, -1, -1]
    assert buffer.meta_data["task"].tolist() == [3, -1, 2]


_DIES = """
import sys, os, signal
from sqlbuffer.compat.memmap import ReplayBuffer
buffer = ReplayBuffer(sys.argv[1], 3, 4, {"r": "float"}, {"task": "int"}, overwrite=False)
buffer.store_episode(r=[1, 2, 3], task=1)
with buffer.one_episode(task=2):
    buffer.store(r=7)
    buffer.store(r=8)
    buffer.flush()
    print("open", flush=True)
    signal.pause()
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_d5_an_episode_whose_process_was_killed_is_not_gone_on_with(buffer_url):
    process = subprocess.Popen(
        [sys.executable, "-c", _DIES, buffer_url], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "open\n"
        buffer = ReplayBuffer.from_folder(buffer_url)
        assert (buffer.num_episodes, buffer.episode_lens.tolist()) == (1, [3, 0, 0])
        with buffer.one_episode(task=5):  # beside it, while it lives
            buffer.store(r=6)
        assert buffer.episode_lens.tolist() == [3, 0, 1]
        process.send_signal(signal.SIGKILL)
    assert buffer.episode_lens.tolist() == [3, 0, 1]
    buffer.store_episode(r=[4, 5], task=3)
    assert buffer.episode_lens.tolist() == [3, 2, 1]
    assert buffer.data["r"][1].tolist() == [4, 5, 0, 0]
    assert buffer.meta_data["task"].tolist() == [1, 3, 5]
    assert scalar(buffer_url, "SELECT count(*) FROM step_numbers") == 6
    buffer.close()


def test_d6_the_oldest_episode_stays_until_a_step_of_the_new_one_is_stored(make, reopen):
    buffer, reader = make(circular=True), reopen()
    fill(buffer)
    before = everything(buffer)
    with buffer.one_episode(task=5):
        assert buffer.episode_lens.tolist() == [2, 2, 2]
        assert reader.data["r"][0].tolist() == [10, 20, -1, -1]
        buffer.store(r=1.0)
        buffer.flush()
        assert reader.episode_lens.tolist() == [0, 2, 2]
        assert buffer.episode_lens.tolist() == [1, 2, 2]
    assert reader.data["r"][0].tolist() == [1, -1, -1, -1]
    assert before[0] == buffer.num_episodes


def test_d7_what_is_half_written_is_seen_by_its_writer_alone(make, reopen):
    buffer, reader = make(circular=True), reopen(read_only=True)
    fill(buffer)
    buffer.store(r=1.0)
    assert (len(buffer), buffer.episode_lens.tolist()) == (3, [1, 2, 2])
    assert (len(reader), reader.episode_lens.tolist()) == (2, [0, 2, 2])


def test_d8_changing_a_full_buffer_leaves_the_other_fields(make):
    buffer = make(circular=True)
    fill(buffer)
    buffer.update(a=np.full((3, 2), 4))
    buffer.store_meta_datapoint(0, "goal", [1, 2, 3])
    assert buffer.data["r"].tolist() == [[10 + i, 20 + i, -1, -1] for i in range(3)]
    assert buffer.meta_data["task"].tolist() == [0, 1, 2]


def test_d9_a_second_process_does_not_overwrite_what_another_one_writes(make, buffer_url):
    buffer = make()
    fill(buffer)
    other = f"{os.uname().nodename} {os.getppid()} 0123456789ab"
    with CoreBuffer(buffer_url, "memmap") as core:
        core.documents.put(f"writer/{other}", time.time())
    with pytest.raises(MemmapError, match=f"process {os.getppid()} .* writes to the buffer"):
        make(overwrite=True)
    assert len(buffer) == 3
    with CoreBuffer(buffer_url, "memmap") as core:
        assert core.documents.delete(f"writer/{other}")
    assert len(make(overwrite=True)) == 0
