"""Blocks of priorities: what is kept of them is true of their rows."""

from functools import partial

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.support.rows import make_row
from tests.support.sql import buffer_id, plain_engine, run


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


def blocks(url, read=None):
    """Return {block: (rows, sum of weights, largest, least priority, whether these are bounds)}."""
    read = partial(run, url) if read is None else read
    found = read(
        "SELECT block, n_rows, weight_sum, max_priority, min_priority, "
        "max_is_upper_bound, min_is_lower_bound FROM priority_blocks ORDER BY block",
    )
    return {block: (*numbers, bool(a), bool(b)) for block, *numbers, a, b in found}


def test_a_block_is_summarized_with_its_rows_and_their_weights(buffer_url):
    with make_buffer(buffer_url, alpha=0.5) as buffer:
        store(buffer, 11)
        set_priorities(buffer_url, {1: 4.0, 2: 0.0, 3: 9.0, 4: 0.25})
        assert buffer._store.priorities.summarize([0, 1]) == 2
        assert blocks(buffer_url) == {
            0: (3, 5.0, 9.0, 4.0, False, False),
            1: (4, 3.5, 1.0, 0.25, False, False),
        }


def test_only_settled_blocks_of_the_window_are_summarized(buffer_url):
    with make_buffer(buffer_url, max_capacity=10) as buffer:
        store(buffer, 13)  # the window begins behind 3
        assert buffer._store.priorities.summarize([-1, 0, 1, 2, 3, 4, 2**40]) == 2
        assert set(blocks(buffer_url)) == {1, 2}
        store(buffer, 3, 13)
        assert buffer._store.priorities.summarize([1, 2, 3]) == 2
        assert set(blocks(buffer_url)) == {1, 2, 3}


def test_what_left_the_window_leaves_the_narrow_tables(buffer_url):
    with make_buffer(buffer_url, max_capacity=10) as buffer:
        store(buffer, 10)
        set_priorities(buffer_url, dict.fromkeys(range(1, 11), 2.0))
        buffer._store.priorities.summarize([0, 1])
        store(buffer, 7, 10)  # 8 and later are there
        assert buffer._store.priorities.summarize([]) == 0
        assert set(blocks(buffer_url)) == set()
        assert run(buffer_url, "SELECT seq FROM priorities ORDER BY seq") == [(8,), (9,), (10,)]
        assert run(buffer_url, "SELECT clean_seq FROM buffers") == [(7,)]


@pytest.mark.thorough
@pytest.mark.slow
def test_updates_alone_keep_the_narrow_tables_small(buffer_url):
    with make_buffer(buffer_url, max_capacity=8) as buffer:
        for i in range(64):
            store(buffer, 4, 4 * i)
            buffer.update_priorities(np.arange(4 * i + 1, 4 * i + 5), 2.0)
        assert run(buffer_url, "SELECT count(*), min(seq) FROM priorities") == [(9, 248)]


@pytest.mark.thorough
def test_the_smallest_and_largest_priorities_can_be_added_up(buffer_url):
    for alpha in (0.0, 0.6, 1.0):
        with make_buffer(buffer_url, name=f"alpha {alpha}", alpha=alpha) as buffer:
            store(buffer, 3)
            set_priorities(buffer_url, {1: 5e-324, 2: 1e100, 3: 0.0}, f"alpha {alpha}")
            assert buffer._store.priorities.summarize([0]) == 1
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
        assert buffer._store.priorities.summarize([0]) == 0
    assert blocks(buffer_url) == {}


def test_a_file_that_may_not_be_written_is_left_alone(sqlite_url):
    with make_buffer(sqlite_url) as buffer:
        store(buffer, 8)
    path = sqlite_url.removeprefix("sqlite:///")
    with ReplayBuffer(f"sqlite:///file:{path}?mode=ro&uri=true") as reader:
        assert reader._store.priorities.summarize([0, 1]) == 0
    assert blocks(sqlite_url) == {}


def test_eviction_by_row_is_no_deletion(buffer_url):
    """What len() remembers of blocks of rows stays true, and is not counted anew."""
    with make_buffer(buffer_url, max_capacity=10, max_use=3) as buffer:
        store(buffer, 10)
        buffer.update_priorities([1, 2, 3], 2.0)
        buffer._store.priorities.summarize([1])
        store(buffer, 7, 10)
        assert len(buffer) == 10
        assert buffer._store.window().deletions == 0
        assert set(blocks(buffer_url)) == {1}
        buffer.delete(QueryBuilder().eq("seq", 12).build())
        assert len(buffer) == 9
        assert buffer._store.window().deletions > 0


def test_rows_that_are_deleted_leave_their_block_without_a_summary(buffer_url):
    with make_buffer(buffer_url) as buffer:
        store(buffer, 16)
        buffer._store.priorities.summarize([0, 1, 2, 3])
        buffer.delete(QueryBuilder().in_("seq", [5, 6]).build())
        assert set(blocks(buffer_url)) == {0, 2, 3}
        run(buffer_url, "DELETE FROM experiences WHERE seq = 9")
        assert 2 not in blocks(buffer_url)
        assert buffer._store.priorities.summarize([0, 1, 2]) == 3
        assert [kept[0] for kept in blocks(buffer_url).values()][:3] == [3, 2, 3]


def test_a_sum_that_rounding_has_spoilt_is_not_kept(buffer_url):
    with make_buffer(buffer_url, alpha=1.0) as buffer:
        store(buffer, 8)
        buffer.update_priorities([4], 1e100)
        buffer._store.priorities.summarize([1])
        buffer.update_priorities([4], 0.5, eps=0)
        assert blocks(buffer_url) == {}
        buffer._store.priorities.summarize([1])
        assert blocks(buffer_url) == {1: (4, 3.5, 1.0, 0.5, False, False)}


def test_values_that_a_row_left_are_bounds_until_the_block_is_summarized_again(buffer_url):
    with make_buffer(buffer_url, alpha=1.0) as buffer:
        store(buffer, 8)
        buffer.update_priorities([4, 5, 6, 7], [4.0, 3.0, 2.0, 1.0], eps=0)
        buffer._store.priorities.summarize([1])
        buffer.update_priorities([4, 7], [2.5, 2.25], eps=0)
        assert blocks(buffer_url) == {1: (4, 9.75, 4.0, 1.0, True, True)}
        buffer.update_priorities([6], [2.125], eps=0)
        assert blocks(buffer_url) == {1: (4, 9.875, 4.0, 1.0, True, True)}
        buffer.update_priorities([5, 6], [5.0, 0.0], eps=0)
        assert blocks(buffer_url) == {1: (4, 9.75, 5.0, 1.0, False, True)}
        buffer._store.priorities.summarize([1])
        assert blocks(buffer_url) == {1: (4, 9.75, 5.0, 2.25, False, False)}


LIMITS = {
    "row": {"max_capacity": 40},
    "task": {"max_capacity": 40, "evict_by": "task"},
    "episode": {"max_episodes": 8},
}
VALUES = np.array([0.0, 1e-6, 0.5, 1.0, 1.0, 3.0, 1e6, 1e100])


class Walk:
    """Random calls on a buffer, and what its priorities then are."""

    def __init__(self, url, unit, seed):
        # Not a connection for each look.
        self.engine = plain_engine(url)
        self.connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self.url, self.rng = url, np.random.default_rng(seed)
        self.buffer = make_buffer(url, fields={"x": "int64"}, **LIMITS[unit])
        self.alpha, self.unit = self.buffer._store.info.config.priorities.alpha, unit
        self.priorities, self.largest = {}, None

    def read(self, statement):
        result = self.connection.execute(text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []

    def close(self):
        self.connection.close()
        self.engine.dispose()
        self.buffer.close()

    def step(self):
        calls = [self.insert, self.update, self.summarize, self.delete, self.type_delete,
                 self.resize, self.clear]  # fmt: skip
        self.rng.choice(calls, p=[0.3, 0.35, 0.25, 0.04, 0.02, 0.03, 0.01])()
        held = self.held()
        self.priorities = {seq: p for seq, p in self.priorities.items() if seq in held}
        self.check()

    def held(self):
        return {seq for (seq,) in self.read("SELECT seq FROM v_experiences")}

    def insert(self):
        n = int(self.rng.integers(1, 12))
        given = self.rng.choice(VALUES, n) if self.rng.random() < 0.3 else None
        before = set(self.priorities)
        self.buffer.store_episode({"x": range(n)}, priority=given)
        if given is not None:
            self.largest = max(given.max(), -1 if self.largest is None else self.largest)
        usual = 1.0 if self.largest is None else self.largest
        # A lone task may have lost its own first rows.
        new = sorted(self.held() - before, reverse=True)
        own = [usual] * n if given is None else given.tolist()
        self.priorities |= dict(zip(new, own[::-1], strict=False))

    def update(self):
        low, high = min(self.priorities, default=1), max(self.priorities, default=1)
        seqs = self.rng.integers(low - 3, high + 3, 8).tolist()
        new = self.rng.choice([*VALUES, *self.rng.random(8)], 8).tolist()
        updated = self.buffer.update_priorities(seqs, new, eps=0)
        changed = {s: p for s, p in zip(seqs, new, strict=True) if s in self.priorities}
        assert (updated.updated, updated.missing) == (len(changed), len(set(seqs) - set(changed)))
        self.priorities |= changed
        if changed:
            self.largest = max(*changed.values(), -1 if self.largest is None else self.largest)

    def summarize(self):
        high = max(self.priorities, default=1) // 4
        self.buffer._store.priorities.summarize(
            self.rng.integers(max(high - 12, 0), high + 2, 6).tolist()
        )

    def delete(self):
        seqs = self.rng.choice([*self.priorities, 0], 3).tolist()
        self.buffer.delete(QueryBuilder().in_("seq", seqs).build())

    def type_delete(self):
        self.read(f"DELETE FROM experiences WHERE seq = {min(self.priorities, default=0)}")

    def resize(self):
        n = int(self.rng.integers(20, 60))
        limits = {"max_episodes": n // 6} if self.unit == "episode" else {"max_capacity": n}
        self.buffer.resize(**limits)

    def clear(self):
        self.buffer.clear()

    def check(self):
        found = dict(self.read("SELECT seq, priority FROM v_priorities"))
        assert found == pytest.approx(self.priorities, rel=0, abs=0)
        ((largest, low, clean),) = self.read(
            "SELECT b.max_priority, w.low_seq, b.clean_seq FROM buffers b "
            "JOIN v_windows w ON w.buffer_id = b.id",
        )
        assert largest == self.largest
        assert clean <= low
        for block, kept in blocks(self.url, self.read).items():
            if max(block * 4, 1) > low:
                self.check_block(block, *kept)
        stale = self.read(f"SELECT seq FROM priorities WHERE seq <= {clean} AND seq > 0")
        assert stale == []

    def check_block(
        self, block, n_rows, weight_sum, largest, least, max_is_upper_bound, min_is_lower_bound
    ):
        own = np.array([p for seq, p in self.priorities.items() if seq // 4 == block])
        positive = own[own > 0]
        assert n_rows == len(own)
        assert weight_sum == pytest.approx((positive**self.alpha).sum(), rel=1e-9)
        assert largest >= own.max(initial=0)
        assert max_is_upper_bound or largest == own.max(initial=0)
        assert all(least <= positive)
        assert min_is_lower_bound or least == (positive.min() if len(positive) else None)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("unit", LIMITS)
def test_what_is_kept_of_blocks_is_true_whatever_happens(buffer_url, unit):
    walk = Walk(buffer_url, unit, seed=5)
    n_summarized = 0
    for _ in range(80):
        walk.step()
        n_summarized += len(blocks(buffer_url, walk.read))
    assert n_summarized > 200
    walk.close()
