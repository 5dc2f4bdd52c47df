"""Several writers and readers of one buffer."""

import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from sqlbuffer.compat.memmap import MemmapError, ReplayBuffer
from tests.support.processes import wait_until
from tests.support.sql import scalar

N_ROWS = "SELECT count(*) FROM step_numbers"


def test_two_writers_take_slots_of_their_own(make, reopen):
    first, second = make(max_episodes=4), reopen()
    first.store(r=1.0)
    second.store(r=2.0)
    assert (first.episode_index, second.episode_index) == (0, 1)
    second.advance_episode()
    second.store_episode(r=[3.0, 3.0])
    assert second.episode_lens.tolist() == [0, 1, 2, 0]
    first.advance_episode()
    assert first.episode_lens.tolist() == [1, 1, 2, 0]
    assert (first.num_episodes, first.episode_index) == (3, 3)
    assert first.data["r"][:3, 0].tolist() == [1, 2, 3]


def test_a_ring_goes_round_past_a_slot_that_is_held(make, reopen):
    first, second = make(circular=True), reopen()
    first.store(r=7.0)
    for i in range(5):
        second.store_episode(r=[float(i)])
    assert second.data["r"][:, 0].tolist() == [-1, 4, 3]
    first.store(r=8.0)
    first.advance_episode()
    assert first.data["r"][:, :2].tolist() == [[7, 8], [4, -1], [3, -1]]
    second.store_episode(r=[9.0])
    assert second.episode_lens.tolist() == [2, 1, 1]
    assert second.data["r"][:, 0].tolist() == [7, 4, 9]
    second.store_episode(r=[10.0])
    assert second.data["r"][:, 0].tolist() == [10, 4, 9]


@pytest.mark.thorough
def test_a_ring_whose_slots_are_all_held_says_so(make, reopen):
    writers = [make(circular=True), reopen(), reopen()]
    for writer in writers:
        writer.store(r=1.0)
    with pytest.raises(MemmapError, match="other writers have open episodes in all of its 3 slots"):
        reopen().store(r=1.0)
    for writer in writers:
        writer.advance_episode()
    assert writers[0].episode_lens.tolist() == [1, 1, 1]


@pytest.mark.thorough
def test_many_writers_lose_nothing(make, reopen):
    writers = [make(max_episodes=24), *(reopen() for _ in range(2))]

    def write(number: int) -> None:
        for i in range(8):
            with writers[number].one_episode(task=100 * number + i):
                for t in range(i % 4 + 1):
                    writers[number].store(r=100 * number + i, a=t)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    buffer = writers[0]
    tasks = buffer.meta_data["task"].tolist()
    assert sorted(tasks) == [100 * n + i for n in range(3) for i in range(8)]
    assert buffer.num_episodes == 24
    for slot, (task, length) in enumerate(zip(tasks, buffer.episode_lens.tolist(), strict=True)):
        assert length == task % 100 % 4 + 1
        assert buffer.data["r"][slot, :length].tolist() == [task] * length
        assert buffer.data["a"][slot, :length].tolist() == list(range(length))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_reader_sees_whole_episodes_while_they_are_overwritten(make, reopen):
    buffer, reader = make(circular=True), reopen(read_only=True)
    done = threading.Event()
    slots, ts = np.divmod(np.arange(12), 4)

    def write() -> None:
        for i in range(40):
            buffer.store_episode(r=np.full(4, i), a=np.full(4, i))
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    n = 0
    while not done.is_set() or not n:
        cells = reader._cells(["r", "a"], slots, ts)
        for slot in range(3):
            rewards = cells["r"][slots == slot]
            assert len(set(rewards.tolist())) == 1  # one episode's, or none's
            assert cells["a"][slots == slot][0] == max(rewards[0], 0)
        n += 1
    thread.join()


@pytest.mark.thorough
def test_steps_are_stored_within_a_second_or_when_asked(make, buffer_url):
    buffer = make()
    buffer.store(r=1.0)
    wait_until(lambda: scalar(buffer_url, N_ROWS) == 1, "the step is stored")
    patient = make(name="patient", flush_every_store_step=0)
    patient.store(r=1.0)
    patient.store(r=1.0)
    assert scalar(buffer_url, N_ROWS) == 1
    patient.flush()
    assert scalar(buffer_url, N_ROWS) == 3


def test_a_copy_reads_what_its_original_is_writing(schema_url, make):
    buffer = make()
    buffer.store_episode(r=[1.0])
    buffer.store(r=2.0)
    copy = pickle.loads(pickle.dumps(buffer))
    assert (copy.read_only, copy.episode_lens.tolist()) == (True, [1, 1, 0])
    assert copy.data["r"][:2, 0].tolist() == [1, 2]
    with pytest.raises(MemmapError, match="read-only"):
        copy.store(r=1.0)
    copy.close()


def test_a_closed_buffer_ends_its_open_episode(make, reopen, buffer_url):
    buffer = make()
    buffer.store_episode(r=[1.0])
    buffer.store(r=2.0)
    buffer.store(r=3.0)
    buffer.close()
    other = reopen()
    assert (len(other), other.num_episodes, other.timestep_index) == (2, 2, 0)
    assert other.data["r"][1].tolist() == [2, 3, -1, -1]
    other.store(r=4.0)
    assert other.episode_index == 2


def test_a_closed_buffer_ends_all_episodes_of_a_batch_that_have_steps(make, reopen, buffer_url):
    buffer = make()
    buffer.store_meta_batch(task=[1, 2, 3])
    buffer.store_batch(r=[1, 2])
    buffer.store_batch(r=[3])
    buffer.close()
    other = reopen()
    assert (other.num_episodes, other.episode_lens.tolist()) == (2, [2, 1, 0])
    assert other.meta_data["task"].tolist() == [1, 2, -1]
    assert scalar(buffer_url, N_ROWS) == 3


def test_a_deleted_buffer_ends_its_open_episode(schema_url, make, reopen):
    buffer = ReplayBuffer(schema_url, 3, 4, {"r": "float"})
    buffer.store(r=1.0)
    kept = buffer.data["r"][0]
    del buffer
    assert kept.tolist() == [1, 0, 0, 0]
    with pytest.raises(MemmapError, match="array of 'r' was deleted, and changes cannot be stored"):
        kept[0] = 5
    other = reopen()
    other.store_episode(r=[2.0, 3.0])
    assert other.episode_lens.tolist() == [1, 2, 0]
    assert other.data["r"][0, 0] == 1


_AGAIN = """
import sys
from sqlbuffer.compat.memmap import ReplayBuffer

def made():
    return ReplayBuffer(sys.argv[1], 3, 4, {"r": "float"})

buffer = made()
buffer.store(r=1.0)
buffer = made()
buffer.store(r=1.0)
buffer.flush()
buffer = made()
print(len(buffer))
"""


@pytest.mark.thorough
def test_an_open_episode_of_a_buffer_that_was_overwritten_is_forgotten_in_silence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _AGAIN, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


_ENDS = """
import sys
from multiprocessing import get_context
from sqlbuffer.compat.memmap import ReplayBuffer

def store(value):
    global kept
    kept = ReplayBuffer.from_folder(sys.argv[1])
    kept.store(r=value)

if __name__ == "__main__":
    child = get_context("fork").Process(target=store, args=(1.0,))
    child.start()
    child.join()
    store(2.0)
    with kept.one_episode():
        kept.store(r=3.0)
        sys.exit()
"""


@pytest.mark.thorough
def test_a_process_that_ends_ends_its_open_episode_unless_a_block_was_left(tmp_path):
    buffer = ReplayBuffer(tmp_path, 3, 4, {"r": "float"})
    subprocess.run([sys.executable, "-c", _ENDS, str(tmp_path)], check=True)
    assert buffer.episode_lens.tolist() == [1, 0, 0]
    assert buffer.data["r"][0, 0] == 1
    buffer.close()


@pytest.mark.thorough
def test_a_forked_child_writes_episodes_of_its_own(make, reopen):
    buffer = make()
    buffer.store(r=1.0)
    pid = os.fork()
    if not pid:
        try:
            buffer.store(r=5.0)
            buffer.store(r=6.0)
            buffer.advance_episode()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    buffer.store(r=2.0)
    buffer.advance_episode()
    assert buffer.episode_lens.tolist() == [2, 2, 0]
    assert buffer.data["r"][:2, :2].tolist() == [[1, 2], [5, 6]]
