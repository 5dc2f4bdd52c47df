"""Chunks with steps that somebody holds."""

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.support.sql import run, scalar

FIELDS = {"obs": "float32"}
FIRSTS = "SELECT first_seq FROM chunks ORDER BY 1"


def obs(n):
    return {"obs": np.arange(float(n)), "reward": np.ones(n)}


def test_a_chunk_with_a_step_that_is_held_stays_until_it_is_released(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, leases=True, max_capacity=10) as buffer:
        buffer.extend(obs(5))
        buffer.extend(obs(5))
        with buffer.lease(2, order="fifo") as batch:
            assert batch.arrays()["obs"].tolist() == [0.0, 1.0]
            buffer.extend(obs(6))
            # One more step of the second chunk has left than it has.
            assert run(buffer_url, FIRSTS) == [(1,), (6,), (11,)]
            buffer.extend(obs(6))
            assert run(buffer_url, FIRSTS) == [(1,), (11,), (17,)]
            assert len(buffer) == 10
        assert run(buffer_url, FIRSTS) == [(11,), (17,)]
        assert scalar(buffer_url, "SELECT count(*) FROM queue_items") == 12
        assert scalar(buffer_url, "SELECT count(*) FROM chunk_data") == 2
        with buffer.lease(10, order="fifo") as batch:
            assert [row.seq for row in batch] == list(range(13, 23))


def test_a_smaller_buffer_evicts_chunks_and_keeps_what_is_held(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, leases=True, max_capacity=100) as buffer:
        for _ in range(6):
            buffer.extend(obs(5))
        with buffer.lease(1, order="fifo"):
            buffer.resize(12)
            assert run(buffer_url, FIRSTS) == [(1,), (16,), (21,), (26,)]
        assert len(buffer) == 12
        assert run(buffer_url, FIRSTS) == [(16,), (21,), (26,)]
