"""Uses that are counted by the number of a row."""

import pytest

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.errors import FieldError
from tests.support.sql import run


def test_uses_add_up_by_row_and_each_occurrence_is_one(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.extend({"state": list(range(9))})
        assert buffer.count_uses([7, 3, 7]).tolist() == [1, 1, 2]
        assert buffer.count_uses([9, 7]).tolist() == [1, 3]
        assert buffer.count_uses([]).tolist() == buffer.use_counts([]).tolist() == []
        assert buffer.use_counts([9, 8, 7, 7]).tolist() == [1, 0, 3, 3]
        with pytest.raises(FieldError, match="expected integers"):
            buffer.count_uses(["a"])


def test_uses_count_towards_the_limit_of_draws(buffer_url):
    with ReplayBuffer(buffer_url, max_use=2) as buffer:
        buffer.extend({"state": [1, 2]})
        buffer.count_uses([1, 1])
        assert [row.seq for row in buffer.sample(5)] == [2]


def test_uses_of_rows_that_have_left_are_deleted(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=100) as buffer:
        for _ in range(3):
            seqs = buffer.extend({"state": list(range(100))}).seqs
            buffer.count_uses(seqs[:50])
        assert run(buffer_url, "SELECT count(*) FROM uses")[0][0] > 50
        keep = buffer._store.uses.housekeeping
        keep.counted_to = keep.cleaned_to = -10_000
        buffer.count_uses(seqs[:1])
        ((n_left, first),) = run(buffer_url, "SELECT count(*), min(seq) FROM uses")
        assert 0 < n_left <= 50
        assert first > 200


def test_rows_are_deleted_by_number_and_sums_of_priorities_stay(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True, max_capacity=10_000) as buffer:
        stored = buffer.extend({"state": list(range(5_000)), "reward": [1.0] * 5_000}, task_id="t")
        buffer.sample(8)
        blocks = range(1, 5_000 // buffer._store.info.block_size)
        assert buffer._store.priorities.summarize(blocks)
        kept = "SELECT block, n_rows, weight_sum FROM priority_blocks ORDER BY block"
        before = {block: (n, weight) for block, n, weight in run(buffer_url, kept)}
        gone = [1_000, 1_001, 2_500]
        assert buffer.delete([*gone, 99_999]) == 3
        assert buffer.delete(gone) == buffer.delete([]) == 0
        assert len(buffer) == 4_997
        size = buffer._store.info.block_size
        after = {block: (n, weight) for block, n, weight in run(buffer_url, kept)}
        for block in {1_000 // size, 2_500 // size}:
            n = sum(seq // size == block for seq in gone)
            if block in after:
                assert after[block][0] == before[block][0] - n
                assert after[block][1] == pytest.approx(before[block][1] - n)
        assert len(after) >= len(before) - 2
        ((length, total),) = run(buffer_url, 'SELECT length, "return" FROM rollout_stats')
        assert (length, total) == (4_997, 4_997.0)
        assert stored.inserted == 5_000


def test_draws_priorities_uses_and_deletions_are_part_of_a_transaction(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True) as buffer:
        buffer.extend({"state": list(range(64))})

        def work(tx):
            rows = tx.sample(4)
            seqs = [row.seq for row in rows]
            tx.update_priorities(seqs, 5.0)
            assert tx.count_uses(seqs).tolist() == tx.use_counts(seqs).tolist() == [1] * 4
            assert tx.delete(seqs[:2]) == 2
            return seqs

        def undone(tx):
            work(tx)
            tx.clear()
            raise KeyError

        with pytest.raises(KeyError):
            buffer.transaction(undone)
        assert (len(buffer), run(buffer_url, "SELECT count(*) FROM uses")[0][0]) == (64, 0)
        seqs = buffer.transaction(work, durability="relaxed")
        assert len(buffer) == 62
        assert buffer.use_counts(seqs[2:]).tolist() == [1, 1]
        largest = "SELECT max(priority) FROM v_priorities"
        assert run(buffer_url, largest)[0][0] == pytest.approx(5.0, abs=1e-4)


@pytest.mark.thorough
def test_a_draw_in_a_transaction_leaves_the_sums_to_be_added_up_behind_it(buffer_url):
    with ReplayBuffer(buffer_url, priorities=True, max_capacity=20_000) as buffer:
        buffer.extend({"state": list(range(20_000))})
        sampler = PrioritizedSampler(seed=1)
        for _ in range(2):
            assert len(buffer.transaction(lambda tx: tx.sample(8, sampler=sampler))) == 8
        assert run(buffer_url, "SELECT count(*) FROM priority_blocks")[0][0] > 10
