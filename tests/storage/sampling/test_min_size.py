"""Settings under which a buffer would never be sampled are refused."""

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.errors import BufferConfigError

# Lets 30 rows in before any is sampled.
LIMITER = RateLimiter(1, min_size=10, error_buffer=20)


def test_a_capacity_below_min_size_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match=r"max_capacity=9 never holds the 10 rows"):
        ReplayBuffer(buffer_url, max_capacity=9, min_size=10)
    with ReplayBuffer(buffer_url, max_capacity=10, min_size=10) as buffer:
        with pytest.raises(BufferConfigError, match=r"max_capacity=9 never holds"):
            buffer.resize(9)
        for step in range(10):
            buffer.add(step=step)
        assert len(buffer.sample(10)) == 10
        buffer.resize(None)
        assert buffer.max_capacity is None


def test_a_limiter_that_stops_inserts_below_min_size_is_refused(buffer_url):
    with pytest.raises(BufferConfigError, match=r"lets 30 rows in .*from 31 on.*min_size=31"):
        ReplayBuffer(buffer_url, min_size=31, rate_limiter=LIMITER)
    with ReplayBuffer(buffer_url, min_size=30, rate_limiter=LIMITER, wait_s=0) as buffer:
        for step in range(30):
            buffer.add(step=step)
        assert len(buffer.sample(10)) == 10


def test_a_limiter_that_is_set_later_counts_the_rows_there_are(buffer_url):
    with ReplayBuffer(buffer_url, min_size=31) as buffer:
        with pytest.raises(BufferConfigError, match=r"holds 0 and is sampled from 31 on"):
            buffer.set_rate_limiter(LIMITER)
        assert buffer.flow().policy is None
        buffer.add(step=0)
        buffer.set_rate_limiter(LIMITER)
        assert buffer.flow().policy == LIMITER
