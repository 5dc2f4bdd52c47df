"""Numbers of Python and numpy are numbers wherever they are taken."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from sqlbuffer import RateLimiter, RatioWindow, ReplayBuffer
from sqlbuffer.checks import integer_of, real_of
from sqlbuffer.errors import BufferConfigError

KINDS = [int, np.int8, np.uint16, np.int64]
NO_NUMBERS = [True, np.True_, "1", None, 1 + 0j, Decimal(1), [1], np.array([1])]


@pytest.mark.parametrize("kind", KINDS)
def test_integers_are_pythons(kind: Any) -> None:
    assert (integer_of(kind(3)), type(integer_of(kind(3)))) == (3, int)
    assert (real_of(kind(3)), type(real_of(kind(3)))) == (3.0, float)


@pytest.mark.parametrize("kind", [float, np.float16, np.float32, np.float64])
def test_reals_are_pythons_and_no_integers(kind: Any) -> None:
    assert (real_of(kind(0.5)), type(real_of(kind(0.5)))) == (0.5, float)
    assert integer_of(kind(3)) is None


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_truth_values_and_others_are_none(value: Any) -> None:
    assert (integer_of(value), real_of(value)) == (None, None)


def test_an_integer_beyond_all_floats_is_no_real() -> None:
    assert real_of(10**400) is None


def test_a_buffer_takes_numpys_numbers(buffer_url: str) -> None:
    two, half = np.int64(2), np.float32(0.5)
    settings: dict[str, Any] = {
        "max_capacity": np.uint8(100),
        "max_use": np.int32(3),
        "min_size": two,
        "max_staleness": two,
        "max_row_bytes": np.int64(1_000_000),
        "keep_samples_s": np.float32(60),
        "open_timeout_s": np.int64(60),
        "leases": True,
    }
    with ReplayBuffer(buffer_url, **settings, flush_s=half, retry_s=half, wait_s=half) as buffer:
        buffer.extend({"reward": np.ones(4)})
        with buffer.lease(two, timeout_s=half, lease_s=np.float32(30)) as batch:
            batch.renew(np.float64(60))
        options = {"group_by": "task_id", "min_group_size": two, "group_timeout_s": half}
        with buffer.lease(np.int16(1), timeout_s=np.int64(1), **options) as batch:
            assert len(batch) == 4
        buffer.resize(np.int64(50))
        assert (buffer.max_capacity, type(buffer.max_capacity)) == (50, int)
    settings |= {"max_capacity": 50}
    ReplayBuffer(buffer_url, **settings).close()  # the same as stored


def test_limiters_take_numpys_numbers(buffer_url: str) -> None:
    limiter = RateLimiter(np.float32(2), min_size=np.int64(5), error_buffer=np.int32(100))
    assert limiter == RateLimiter(2.0, min_size=5, error_buffer=100.0)
    assert RatioWindow(np.float32(2)) == RatioWindow(2.0)
    with ReplayBuffer(buffer_url, rate_limiter=limiter) as buffer:
        assert buffer.flow().policy == limiter


@pytest.mark.parametrize("name", ["max_capacity", "max_use", "min_size", "flush_s", "wait_s"])
def test_truth_values_are_refused(buffer_url: str, name: str) -> None:
    for value in (True, np.True_):
        with pytest.raises(BufferConfigError, match=name):
            ReplayBuffer(buffer_url, **{name: value})
