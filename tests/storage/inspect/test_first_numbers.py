"""Searching ordered ranges together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer.storage.inspect.buffer_stats import first_numbers

# Where a range begins, how many numbers are before the searched one, and how many are not.
ranges = st.lists(
    st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 5_000), st.integers(0, 5_000))
)


@given(ranges)
def test_the_first_number_of_each_range_is_found(chosen):
    low = np.array([start for start, _, _ in chosen], np.int64)
    wanted = low + np.array([n for _, n, _ in chosen], np.int64)
    high = wanted + np.array([n for _, _, n in chosen], np.int64)
    found = first_numbers(low, high, lambda places, numbers: numbers < wanted[places])
    np.testing.assert_array_equal(found, wanted)


def test_a_range_of_a_million_takes_five_questions():
    asked = []

    def is_before(places, numbers):
        asked.append(len(numbers))
        return numbers < 123_456

    (found,) = first_numbers(np.array([0]), np.array([1_000_000]), is_before)
    assert found == 123_456
    assert len(asked) == 5
