"""Blocks of priorities: what is kept of them is true of their rows."""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.rows import make_row
from tests.support.sql import buffer_id, run


def make_buffer(url, *, size=4, name="default", **settings):
    """Return a buffer whose blocks have a few numbers."""
    ReplayBuffer(url, name=name, create=True, priorities=True, **settings).close()
    run(url, f"UPDATE buffers SET block_size = {size}")
    return ReplayBuffer(url, name=name)


def store(buffer, n_rows, first=0):
    return buffer.store_batch([make_row(step=first + i) for i in range(n_rows)])


def set_priorities(url, priorities, name="default"):
    number = buffer_id(url, name)
    for seq, priority in priorities.items():
        run(
            url,
            "INSERT INTO priorities (buffer_id, seq, priority) VALUES (:id, :seq, :p)",
            id=number, seq=seq, p=priority,
        )  # fmt: skip


def blocks(url):
    """Return {block: (rows, sum of weights, largest, least priority, whether each is loose)}."""
    found = run(
        url,
        "SELECT block, n_rows, weight_sum, max_priority, min_priority, max_is_loose, min_is_loose "
        "FROM priority_blocks ORDER BY block",
    )
    return {block: (*numbers, bool(a), bool(b)) for block, *numbers, a, b in found}


def test_a_block_is_sealed_with_its_rows_and_their_weights(buffer_url):
    with make_buffer(buffer_url, alpha=0.5) as buffer:
        store(buffer, 11)
        set_priorities(buffer_url, {1: 4.0, 2: 0.0, 3: 9.0, 4: 0.25})
        assert buffer._store.seal([0, 1]) == 2
        assert blocks(buffer_url) == {
            0: (3, 5.0, 9.0, 4.0, False, False),
            1: (4, 3.5, 1.0, 0.25, False, False),
        }


def test_only_settled_blocks_of_the_window_are_sealed(buffer_url):
    with make_buffer(buffer_url, max_capacity=10) as buffer:
        store(buffer, 13)  # the window begins behind 3
        assert buffer._store.seal([-1, 0, 1, 2, 3, 4, 2**40]) == 2
        assert set(blocks(buffer_url)) == {1, 2}
        store(buffer, 3, 13)
        assert buffer._store.seal([1, 2, 3]) == 2
        assert set(blocks(buffer_url)) == {1, 2, 3}


def test_what_left_the_window_leaves_the_narrow_tables(buffer_url):
    with make_buffer(buffer_url, max_capacity=10) as buffer:
        store(buffer, 10)
        set_priorities(buffer_url, dict.fromkeys(range(1, 11), 2.0))
        buffer._store.seal([0, 1])
        store(buffer, 7, 10)  # 8 and later are there
        assert buffer._store.seal([]) == 0
        assert set(blocks(buffer_url)) == set()
        assert run(buffer_url, "SELECT seq FROM priorities ORDER BY seq") == [(8,), (9,), (10,)]
        assert run(buffer_url, "SELECT clean_seq FROM buffers") == [(7,)]


def test_the_smallest_and_largest_priorities_can_be_added_up(buffer_url):
    for alpha in (0.0, 0.6, 1.0):
        with make_buffer(buffer_url, name=f"alpha {alpha}", alpha=alpha) as buffer:
            store(buffer, 3)
            set_priorities(buffer_url, {1: 5e-324, 2: 1e100, 3: 0.0}, f"alpha {alpha}")
            assert buffer._store.seal([0]) == 1
            expected = np.power(5e-324, alpha) + 1e100**alpha
            ((found, largest, least),) = run(
                buffer_url,
                "SELECT weight_sum, max_priority, min_priority FROM priority_blocks "
                "WHERE buffer_id = :id",
                id=buffer_id(buffer_url, f"alpha {alpha}"),
            )
            assert found == pytest.approx(expected, rel=1e-12)
            assert (largest, least) == (1e100, 5e-324)


def test_a_buffer_without_priorities_has_no_blocks(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        store(buffer, 300)
        assert buffer._store.seal([0]) == 0
    assert blocks(buffer_url) == {}
