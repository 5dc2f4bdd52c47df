"""Reads of a process see the steps that it has given to the buffer, stored or not."""

import threading
from contextlib import closing

import numpy as np
import pytest

from sqlbuffer import RandomTaskSample, RateLimiter, ReplayBuffer
from sqlbuffer.errors import EpisodeExistsError
from tests.support.sql import scalar

NEVER_S = 3_600.0
FIELDS = {"obs": "float32"}


@pytest.fixture(params=[None, FIELDS], ids=["rows", "chunks"])
def make(buffer_url, request):
    opened = []

    def open_(**settings):
        settings = {"fields": request.param, "flush_s": NEVER_S, **settings}
        opened.append(ReplayBuffer(buffer_url, **settings))
        return opened[-1]

    yield open_
    for buffer in opened:
        buffer.close()


def append(episode, n, buffer):
    for _ in range(n):
        episode.append(reward=1.0, **({"obs": 0.5} if buffer.fields else {}))


def fill(buffer, n):
    buffer.extend(
        {"reward": np.ones(n), **({"obs": np.ones(n)} if buffer.fields else {})}, casting="unsafe"
    )


READS = {
    "len": len,
    "size": lambda buffer: buffer.size(),
    "iteration": lambda buffer: len(list(buffer)),
    "get_all": lambda buffer: len(list(buffer.get_all())),
    "get_paginated": lambda buffer: len(buffer.get_paginated(1, 10)),
    "get_by_task_id": lambda buffer: len(buffer.get_by_task_id("t")),
    "get_batch_by_task_ids": lambda buffer: len(buffer.get_batch_by_task_ids(["t"])["t"]),
    "sample": lambda buffer: len(buffer.sample(3)),
    "sample_arrays": lambda buffer: len(set(buffer.sample_arrays(99).info["seq"].tolist())),
    "sample_tasks": lambda buffer: len(buffer.sample_tasks(1, sampler=RandomTaskSample())[0]),
    "loader": lambda buffer: len(set(next(iter(buffer.loader("step", 3))).info["seq"].tolist())),
}


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("read", READS)
def test_a_read_sees_steps_that_wait(make, read):
    buffer = make()
    episode = buffer.episode(task_id="t")
    append(episode, 3, buffer)
    assert READS[read](buffer) == 3
    episode.end()


def test_draws_leave_out_the_last_few_steps(make):
    buffer, other = make(), make()
    fill(buffer, 640)
    episode = buffer.episode()
    append(episode, 10, buffer)
    buffer.sample_arrays(64)
    assert len(other) == 640
    append(episode, 1, buffer)
    buffer.sample_arrays(64)
    assert len(other) == 651
    # As many as a batch has are stored at once, while the buffer is small.
    append(episode, 10, buffer)
    buffer.sample(652)
    assert len(other) == 661
    episode.end()


def test_a_full_buffer_that_is_smaller_than_a_batch_is_no_reason_to_store(make):
    buffer, other = make(max_capacity=640), make()
    fill(buffer, 640)
    with buffer.episode() as episode:
        append(episode, 10, buffer)
        buffer.sample_arrays(1_000)
        assert [row.exp_meta.step for row in other][-1] == 639
        append(episode, 1, buffer)
        buffer.sample_arrays(1_000)
        assert [row.exp_meta.step for row in other][-1] == 10


def test_nothing_is_stored_twice_by_readers_and_writers_at_once(make):
    buffer = make(flush_s=0.001)
    done = threading.Event()

    def read():
        while not done.is_set():
            len(buffer)
            buffer.sample_arrays(4)

    fill(buffer, 4)
    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with buffer.episode() as episode:
        append(episode, 300, buffer)
    done.set()
    for reader in readers:
        reader.join()
    assert len(buffer) == 304


@pytest.mark.each_value
@pytest.mark.thorough
def test_a_rate_limiter_holds_a_writer_back_and_no_reader(make, buffer_url):
    limiter = RateLimiter(1.0, min_size=4, error_buffer=8.0)
    buffer = make(rate_limiter=limiter, wait_s=0.2)
    episode = buffer.episode()
    append(episode, 40, buffer)
    n = len(buffer)
    assert 0 < n < 40
    assert len(list(buffer)) == n
    for _ in range(200):
        buffer.sample_arrays(1)
        if len(buffer) == 40:
            break
    assert scalar(buffer_url, "SELECT count(*) FROM v_experiences") == 40
    episode.end()


def test_steps_that_cannot_be_stored_fail_no_reader(buffer_url):
    buffer, other = (ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S) for _ in range(2))
    with closing(buffer), closing(other), buffer.episode(episode_id="e") as episode:
        append(episode, 2, buffer)
        other.extend({"reward": [5.0], "obs": [7.0]}, episode_id="e", task_id="e")
        assert [row.exp_data.reward_t for row in buffer] == [5.0, 1.0]
        with pytest.raises(EpisodeExistsError, match="another writer has the same episode"):
            append(episode, 1, buffer)


@pytest.mark.thorough
def test_a_loop_of_steps_and_draws_writes_chunks_of_many_steps(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S) as buffer:
        fill(buffer, 4_096)
        before = scalar(buffer_url, "SELECT count(*) FROM chunks")
        with buffer.episode() as episode:
            for _ in range(512):
                append(episode, 1, buffer)
                buffer.sample_arrays(64)
        n_chunks = scalar(buffer_url, "SELECT count(*) FROM chunks") - before
        assert 512 / n_chunks >= 32
