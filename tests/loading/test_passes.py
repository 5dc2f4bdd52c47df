"""A pass visits each row that is there once."""

import numpy as np
import pytest

from sqlbuffer import LatestSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.torch import Dataset
from tests.loading.rows import FIELDS, actions, delete_steps, fill, flat, joined
from tests.support.processes import FRESH, running, wait_until
from tests.support.sql import run


def test_a_pass_in_order_visits_each_row_once_in_full_batches(buffer):
    fill(buffer, 10)
    loader = buffer.loader("step", 4, epochs=1, shuffle=False)
    assert actions(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    loader = buffer.loader("step", 4, epochs=2, shuffle=False, drop_last=True)
    assert actions(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_a_shuffled_pass_visits_each_row_once_in_an_order_of_its_own(buffer):
    fill(buffer, 50)
    loader = buffer.loader("step", 8, epochs=2, seed=1)
    first = flat(loader)
    assert sorted(first[:50]) == sorted(first[50:]) == list(range(50))
    assert first[:50] != first[50:]
    assert first[:50] != list(range(50))
    second = flat(loader)  # another iteration has other numbers
    assert sorted(second) == sorted(first)
    assert second != first
    assert flat(buffer.loader("step", 8, epochs=2, seed=1)) == first
    assert flat(buffer.loader("step", 8, epochs=2, seed=2)) != first


@pytest.mark.parametrize("shuffle", [True, False])
def test_holes_are_passed_over_and_batches_are_full(buffer, shuffle):
    fill(buffer, 300)
    kept = np.random.default_rng(0).permutation(300)[:120]
    delete_steps(buffer, set(range(300)) - set(kept.tolist()))
    found = actions(buffer.loader("step", 16, epochs=1, seed=3, shuffle=shuffle))
    assert [len(batch) for batch in found] == [16] * 7 + [8]
    assert sorted(joined(found)) == sorted(kept.tolist())


def test_where_most_numbers_are_holes_the_keys_are_read_once(buffer, monkeypatch):
    from sqlbuffer.loading import plans

    monkeypatch.setattr(plans, "FIRST_LOOKED_AT", 64)
    fill(buffer, 2000)
    kept = set(range(0, 2000, 100))
    delete_steps(buffer, set(range(2000)) - kept)
    found = actions(buffer.loader("step", 6, epochs=1, seed=3))
    assert [len(batch) for batch in found] == [6, 6, 6, 2]
    assert set(joined(found)) == kept


def test_a_condition_chooses_what_is_visited(buffer):
    fill(buffer, 100)
    odd = QueryBuilder().in_("exp_meta.step", list(range(1, 100, 2))).build()
    found = actions(buffer.loader("step", 8, epochs=1, seed=0, condition=odd))
    assert [len(batch) for batch in found] == [8] * 6 + [2]
    assert sorted(joined(found)) == list(range(1, 100, 2))


@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_stored_or_evicted_in_mid_pass_are_left_out(buffer_url, shuffle):
    with ReplayBuffer(buffer_url, max_capacity=40, fields=FIELDS) as buffer:
        fill(buffer, 40)
        batches = iter(buffer.loader("step", 10, epochs=1, seed=5, shuffle=shuffle))
        seen = flat([next(batches)])
        fill(buffer, 15, first=40)
        rest = flat(batches)
        assert len(set(rest)) == len(rest)
        assert set(rest) == set(range(15, 40)) - set(seen)


def test_rows_that_left_the_window_and_lie_in_the_table_are_left_out(buffer, buffer_url):
    fill(buffer, 20)
    batches = iter(buffer.loader("step", 4, epochs=1, shuffle=False))
    assert actions([next(batches)]) == [[0, 1, 2, 3]]
    dataset = Dataset(buffer, "step")
    run(buffer_url, "UPDATE buffers SET low_seq = 10")
    assert flat(batches) == list(range(10, 20))
    assert [item["action"].item() for item in dataset.__getitems__([9, 10])] == [10]


# So many that a writer does not evict them all before a slow process has read a batch.
KEPT = 1_000


def write_until(url, path):
    """Store rows until the file is there."""
    with ReplayBuffer(url) as buffer:
        number = KEPT
        while not path.exists():
            fill(buffer, 20, first=number)
            number += 20
    return number


@pytest.mark.thorough
@pytest.mark.slow
def test_each_pass_is_exact_while_another_process_writes(buffer_url, tmp_path):
    with ReplayBuffer(buffer_url, max_capacity=KEPT, fields=FIELDS) as buffer:
        fill(buffer, KEPT)
        with running([(write_until, buffer_url, tmp_path / "done")], FRESH) as writer:
            newest = KEPT - 1
            for seed in range(4):
                loader = buffer.loader("step", 16, epochs=1, seed=seed)
                seqs = []
                for batch in loader:
                    assert np.array_equal(batch.obs[:, 0], batch.action)
                    seqs += batch.info["seq"].tolist()
                    state = loader.state_dict()
                    assert set(seqs) <= set(range(state["low"] + 1, state["high"] + 1))
                assert len(set(seqs)) == len(seqs) >= 16
                wait_until(lambda: newest_of(buffer) > newest, "the writer goes on")  # noqa: B023
                newest = newest_of(buffer)
            (tmp_path / "done").touch()
            assert writer.results()[0] > KEPT
        assert sorted(flat(buffer.loader("step", 64, epochs=1))) == list(
            range(newest_of(buffer) - KEPT + 1, newest_of(buffer) + 1)
        )


def newest_of(buffer):
    return buffer.sample_arrays(1, sampler=LatestSampler()).action.item()


def test_passes_without_end_follow_one_another(buffer):
    fill(buffer, 5)
    batches = iter(buffer.loader("step", 4, shuffle=False))
    assert actions(next(batches) for _ in range(4)) == [[0, 1, 2, 3], [4]] * 2
    fill(buffer, 1, first=5)  # the next pass has it
    assert actions(next(batches) for _ in range(2)) == [[0, 1, 2, 3], [4, 5]]


def test_an_empty_buffer_has_a_pass_without_batches_and_none_without_end(buffer):
    assert list(buffer.loader("step", 4, epochs=3)) == []
    with pytest.raises(
        InsufficientDataError, match=r"no batch of 4: buffer .* is empty \(nothing has been stored"
    ):
        next(iter(buffer.loader("step", 4, shuffle=False)))
    fill(buffer, 3)
    with pytest.raises(InsufficientDataError, match="no batch of 4"):
        next(iter(buffer.loader("step", 4, shuffle=False, drop_last=True)))


def test_transitions_that_cannot_be_made_are_passed_over(buffer):
    arrays = {"obs": np.zeros((6, 2)), "action": range(6)}
    ends = {"terminated": np.zeros(6, bool), "truncated": np.arange(6) == 5}
    buffer.store_episode({**arrays, **ends}, episode_id="cut")  # its last step has no successor
    arrays["action"] = range(10, 16)
    buffer.store_episode({**arrays, **ends}, final={"obs": np.ones(2)}, episode_id="whole")
    found = actions(buffer.loader("transition", 4, n_step=2, epochs=1, seed=2))
    assert [len(batch) for batch in found] == [4, 4, 2]
    assert sorted(joined(found)) == [0, 1, 2, 3, *range(10, 16)]
