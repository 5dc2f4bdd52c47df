"""Rows are drawn with the probabilities that their priorities give them, on both databases."""

import logging

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, QueryBuilder, RandomSampler, ReplayBuffer, mix
from sqlbuffer.errors import BufferConfigError, FieldError, InsufficientDataError
from tests.support.draws import chosen_batches
from tests.support.priorities import (
    assert_shares,
    filled,
    loosen,
    set_priorities,
    skewed,
    summarize_all,
)
from tests.support.sql import connected, delete_steps_by_hand, run, scalar
from tests.support.storage_hooks import keep_blocks

ALPHA = 0.6
ODD = QueryBuilder().lt("exp_meta.step", 150).build()
STATES = ("unsummarized", "summarized", "loose", "mixed")


def weights_of(priorities, alpha=ALPHA):
    return {
        seq: float(p) ** alpha if p > 0 else 0.0
        for seq, p in (
            priorities.items() if isinstance(priorities, dict) else enumerate(priorities, 1)
        )
    }


def put(buffer, url, state):
    """Bring the blocks of a buffer into a state."""
    keep_blocks(buffer)  # draws find them as they are
    if state != "unsummarized":
        assert summarize_all(buffer)
    if state == "loose":
        loosen(url, 3.0)
    if state == "mixed":
        loosen(url, 2.0, every=3)
        run(url, "DELETE FROM priority_blocks WHERE block % 4 = 1")


def drawn(buffer, sampler, n_batches, batch_size, condition=None):
    batches = chosen_batches(buffer, sampler, n_batches, batch_size, condition)
    return [seq for batch in batches for seq in batch]


@pytest.mark.parametrize("state", STATES)
def test_rows_have_their_probabilities(buffer_url, state):
    priorities = skewed(400)
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, state)
        sampler = PrioritizedSampler(seed=3)
        assert_shares(drawn(buffer, sampler, 20, 150), weights_of(priorities))
        batch = buffer.sample_arrays(64, sampler=sampler)
        weights = weights_of(priorities)
        total = sum(weights.values())
        np.testing.assert_allclose(
            batch.probabilities, [weights[seq] / total for seq in batch.seq.tolist()], rtol=1e-9
        )
        np.testing.assert_array_equal(batch.priorities, priorities[batch.seq - 1])
        np.testing.assert_array_equal(batch.x, batch.seq)


@pytest.mark.thorough
def test_a_seed_repeats_on_both_databases_whatever_is_known_of_blocks(both_urls):
    priorities = skewed(300, 1)
    found = set()
    for kind, url in both_urls.items():
        with filled(url, priorities) as buffer:
            for state in STATES:
                put(buffer, url, state)
                batches = []
                for replace in (True, False):
                    sampler = PrioritizedSampler(seed=5, replace=replace)
                    batches += [buffer.sample_arrays(20, sampler=sampler).seq for _ in range(3)]
                strata = PrioritizedSampler(seed=5, stratified=True)
                batches.append(buffer.sample_arrays(20, sampler=strata).seq)
                found.add(tuple(np.concatenate(batches).tolist()))
                assert len(found) == 1, (kind, state)


def test_a_sequence_of_batches_repeats_and_its_batches_differ(buffer_url):
    with filled(buffer_url, skewed(100)) as buffer:
        first, second = (PrioritizedSampler(seed=9) for _ in range(2))
        a = [buffer.sample_arrays(8, sampler=first).seq.tolist() for _ in range(4)]
        b = [buffer.sample_arrays(8, sampler=second).seq.tolist() for _ in range(4)]
        assert a == b
        assert len({tuple(batch) for batch in a}) > 1
        unseeded = {
            tuple(buffer.sample_arrays(16, sampler=PrioritizedSampler()).seq.tolist())
            for _ in range(6)
        }
        assert len(unseeded) > 1


def test_rows_that_left_are_not_drawn_and_do_not_count(buffer_url):
    priorities = np.abs(np.random.default_rng(2).standard_normal(300))
    with filled(buffer_url, priorities, max_capacity=100) as buffer:
        put(buffer, buffer_url, "summarized")
        left = {seq: p for seq, p in weights_of(priorities).items() if seq > 200}
        sampler = PrioritizedSampler(seed=1)
        assert_shares(drawn(buffer, sampler, 20, 100), left)
        batch = buffer.sample_arrays(32, sampler=sampler)
        np.testing.assert_allclose(
            batch.probabilities, [left[seq] / sum(left.values()) for seq in batch.seq.tolist()]
        )


def test_rows_that_left_a_block_since_it_was_added_up_do_not_count(buffer_url):
    priorities = {seq: 2.0 + seq % 7 for seq in range(101, 201)}
    with filled(buffer_url, np.ones(200), max_capacity=100) as buffer:
        set_priorities(buffer_url, priorities)
        put(buffer, buffer_url, "summarized")
        buffer.extend({"x": range(55)}, priority=0.5)  # the window cuts the block of 144 to 159
        expected = {seq: p for seq, p in priorities.items() if seq > 155}
        expected |= dict.fromkeys(range(201, 256), 0.5)
        weights = weights_of(expected)
        batch = buffer.sample_arrays(64, sampler=PrioritizedSampler(seed=1))
        total = sum(weights.values())
        np.testing.assert_allclose(
            batch.probabilities, [weights[seq] / total for seq in batch.seq.tolist()]
        )
        assert_shares(drawn(buffer, PrioritizedSampler(seed=1), 20, 100), weights)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("evict_by", ["task", "episode"])
def test_tasks_and_episodes_that_left_are_not_drawn(buffer_url, evict_by):
    limits = {"max_episodes": 10} if evict_by == "episode" else {"max_capacity": 100}
    with filled(buffer_url, [], evict_by=evict_by, **limits) as buffer:
        for number in range(25):
            columns = {"x": np.full(10, number), "priority": 1.0 + np.arange(10.0)}
            buffer.store_episode(columns, task_id=f"t{number}")
            if number in (15, 20):
                assert summarize_all(buffer)
        weights = {seq: (1.0 + (seq - 1) % 10) ** ALPHA for seq in range(151, 251)}
        assert_shares(drawn(buffer, PrioritizedSampler(seed=1), 20, 100), weights)


def test_a_file_that_may_only_be_read_is_drawn_from(make_database_url):
    url = make_database_url("sqlite", schema=True)
    priorities = np.abs(np.random.default_rng(2).standard_normal(400))
    filled(url, priorities).close()
    path = url.removeprefix("sqlite:///")
    with ReplayBuffer(f"sqlite:///file:{path}?mode=ro&uri=true", create=False) as buffer:
        sampler = PrioritizedSampler(seed=1)
        drawn_seqs = [
            seq
            for _ in range(12)
            for seq in buffer.sample_arrays(200, sampler=sampler).seq.tolist()
        ]
        assert_shares(drawn_seqs, weights_of(priorities))
    assert scalar(url, "SELECT count(*) FROM priority_blocks") == 0


def test_deleted_rows_are_not_drawn(buffer_url):
    priorities = np.abs(np.random.default_rng(2).standard_normal(200)) + 0.1
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, "unsummarized")
        buffer.delete(QueryBuilder().lt("exp_meta.step", 90).build())
        left = {seq: p for seq, p in weights_of(priorities).items() if seq > 90}
        assert_shares(drawn(buffer, PrioritizedSampler(seed=1), 20, 100), left)


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize("how", ["by the library", "plainly"])
@pytest.mark.parametrize("is_updated", [True, False])
def test_numbers_without_a_row_are_not_drawn_from_blocks_that_are_added_up(
    buffer_url, how, is_updated
):
    with filled(buffer_url, np.ones(640) if is_updated else (), block_size=64) as buffer:
        if not is_updated:
            buffer.extend({"x": np.arange(1, 641)})
        if how == "plainly":
            delete_steps_by_hand(buffer_url, "seq % 3 > 0")
        else:
            buffer.delete(QueryBuilder().not_in("exp_meta.step", list(range(2, 640, 3))).build())
        assert summarize_all(buffer)
        seqs = drawn(buffer, PrioritizedSampler(seed=5), 150, 12)
        assert_shares(seqs, dict.fromkeys(range(3, 641, 3), 1.0))


@pytest.mark.thorough
@pytest.mark.parametrize("state", STATES)
def test_a_condition_leaves_the_ratios_of_probabilities(buffer_url, state):
    priorities = skewed(300)
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, state)
        matching = {seq: p for seq, p in weights_of(priorities).items() if seq <= 150}
        sampler = PrioritizedSampler(seed=1)
        assert_shares(drawn(buffer, sampler, 20, 100, ODD), matching)
        batch = buffer.sample_arrays(32, sampler=sampler, condition=ODD)
        assert batch.probabilities is None
        assert batch["probabilities"] is None
        assert "probabilities" in batch
        assert batch.n_rows == 32
        assert "probabilities: None" in repr(batch)
        own = np.array([matching[seq] for seq in batch.seq.tolist()])
        np.testing.assert_allclose(batch.weights, (own / own.min()) ** -0.4, rtol=1e-6)


def test_exact_gives_probabilities_among_the_rows_that_match(buffer_url):
    priorities = skewed(300)
    with filled(buffer_url, priorities) as buffer:
        matching = {seq: p for seq, p in weights_of(priorities).items() if seq <= 150}
        sampler = PrioritizedSampler(seed=1, exact=True)
        assert_shares(drawn(buffer, sampler, 20, 100, ODD), matching)
        batch = buffer.sample_arrays(32, sampler=sampler, condition=ODD)
        total = sum(matching.values())
        np.testing.assert_allclose(
            batch.probabilities, [matching[seq] / total for seq in batch.seq.tolist()]
        )


@pytest.mark.thorough
@pytest.mark.slow
def test_a_condition_that_few_rows_match_finds_them(buffer_url):
    priorities = np.abs(np.random.default_rng(2).standard_normal(2_000))
    few = QueryBuilder().in_("exp_meta.step", [3, 500, 1_200, 1_999]).build()
    expected = {seq: weights_of(priorities)[seq] for seq in (4, 501, 1_201, 2_000)}
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, "summarized")
        assert_shares(drawn(buffer, PrioritizedSampler(seed=1), 40, 20, few), expected)
        whole = drawn(buffer, PrioritizedSampler(seed=1, replace=False), 1, 20, few)
        assert sorted(whole) == sorted(expected)
        by_task = QueryBuilder().eq("exp_meta.task_id", "default").build()
        found = buffer.sample_arrays(300, sampler=PrioritizedSampler(seed=2), condition=by_task)
        assert found.n_rows == 300


def test_without_replacement_no_row_comes_twice(buffer_url):
    priorities = skewed(200)
    with filled(buffer_url, priorities) as buffer:
        n_positive = int((priorities > 0).sum())
        sampler = PrioritizedSampler(replace=False, seed=1)
        found = buffer.sample_arrays(n_positive, sampler=sampler)
        assert sorted(found.seq.tolist()) == (np.flatnonzero(priorities) + 1).tolist()
        with pytest.raises(InsufficientDataError):
            buffer.sample_arrays(n_positive + 1, sampler=sampler)
        assert len(buffer.sample(500, sampler=sampler)) == n_positive
        replaced = buffer.sample_arrays(500, sampler=PrioritizedSampler(seed=1))
        assert replaced.n_rows == 500


@pytest.mark.thorough
@pytest.mark.slow
def test_strata_give_a_row_each(buffer_url):
    priorities = np.abs(np.random.default_rng(3).standard_normal(640)) + 0.01
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, "mixed")
        sampler = PrioritizedSampler(stratified=True, seed=1)
        weights = weights_of(priorities)
        sums = np.cumsum(list(weights.values())) / sum(weights.values()) * 20
        seqs = []
        for _ in range(30):
            batch = buffer.sample_arrays(20, sampler=sampler)
            blocks = batch.seq // 16
            low = np.array([sums[max(b * 16 - 2, 0)] if b else 0.0 for b in blocks])
            high = np.array([sums[min(b * 16 + 14, 639)] for b in blocks])
            assert (low <= np.arange(1, 21)).all()
            assert (high >= np.arange(20)).all()
            seqs += batch.seq.tolist()
        # By the place in a block: single rows come too seldom.
        places = dict.fromkeys(range(16), 0.0)
        for seq, weight in weights.items():
            places[seq % 16] += weight
        assert_shares([seq % 16 for seq in seqs], places)


def test_strata_under_a_condition_are_of_the_rows_that_match(buffer_url):
    with filled(buffer_url, np.ones(300)) as buffer:
        sampler = PrioritizedSampler(stratified=True, seed=1)
        batch = buffer.sample_arrays(30, sampler=sampler, condition=ODD)
        assert ((batch.seq - 1) // 5).tolist() == list(range(30))
        assert batch.probabilities is None


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_another_alpha_reads_all_rows_and_says_so_once(buffer_url, caplog, alpha):
    priorities = np.append(np.abs(np.random.default_rng(3).standard_normal(100)) + 0.01, [0.0, 2.0])
    filled(buffer_url, priorities).close()
    with ReplayBuffer(buffer_url, alpha=alpha) as buffer, caplog.at_level(logging.WARNING):
        sampler = PrioritizedSampler(seed=1)
        weights = weights_of(priorities, alpha)
        assert_shares(drawn(buffer, sampler, 10, 200), weights)
        batch = buffer.sample_arrays(16, sampler=sampler)
        total = sum(weights.values())
        np.testing.assert_allclose(
            batch.probabilities, [weights[seq] / total for seq in batch.seq.tolist()]
        )
        strata = buffer.sample_arrays(16, sampler=PrioritizedSampler(stratified=True, seed=1))
        assert strata.n_rows == 16
    warnings = [r.getMessage() for r in caplog.records if r.name == "sqlbuffer"]
    assert len(warnings) == 1
    assert "alpha=0.6" in warnings[0]


def test_the_alpha_of_the_buffer_is_used(buffer_url):
    priorities = np.abs(np.random.default_rng(3).standard_normal(60)) + 0.01
    with filled(buffer_url, priorities, alpha=0.9) as buffer:
        put(buffer, buffer_url, "mixed")
        found = drawn(buffer, PrioritizedSampler(seed=1), 10, 200)
        assert_shares(found, weights_of(priorities, 0.9))


@pytest.mark.thorough
@pytest.mark.parametrize("state", STATES)
def test_weights_are_divided_by_the_largest_of_the_batch_or_of_the_buffer(buffer_url, state):
    priorities = skewed(200)
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, state)
        weights = weights_of(priorities)
        total, n_rows = sum(weights.values()), 200
        all_weights = {s: (n_rows * w / total) ** -0.7 for s, w in weights.items() if w}
        for normalize in ("batch", "buffer"):
            sampler = PrioritizedSampler(beta=0.7, normalize=normalize, seed=4)
            batch = buffer.sample_arrays(16, sampler=sampler)
            own = np.array([all_weights[seq] for seq in batch.seq.tolist()])
            largest = own.max() if normalize == "batch" else max(all_weights.values())
            np.testing.assert_allclose(batch.weights, own / largest, rtol=1e-5)
            assert batch.weights.dtype == np.float32


def test_the_least_priority_of_many_loose_blocks_is_found(buffer_url):
    priorities = np.random.default_rng(3).uniform(1.0, 2.0, 40 * 16)
    priorities[500] = 0.25
    with filled(buffer_url, priorities) as buffer:
        put(buffer, buffer_url, "summarized")
        run(
            buffer_url, "UPDATE priority_blocks SET min_priority = 0.001, min_is_lower_bound = true"
        )
        sampler = PrioritizedSampler(beta=1.0, normalize="buffer", seed=1)
        batch = buffer.sample_arrays(8, sampler=sampler)
        expected = (0.25 / batch.priorities) ** ALPHA
        np.testing.assert_allclose(batch.weights, expected, rtol=1e-6)


def test_beta_rises_to_1_in_equal_steps(buffer_url):
    with filled(buffer_url, np.array([1.0, 16.0] * 8)) as buffer:
        sampler = PrioritizedSampler(beta=0.5, beta_anneal_steps=4, seed=1)
        betas = []
        for _ in range(6):
            betas.append(sampler.beta)
            batch = buffer.sample_arrays(32, sampler=sampler)
            low = float(batch.weights.min())
            assert low == pytest.approx(16.0 ** (-ALPHA * betas[-1]), rel=1e-5)
        assert betas == [0.5, 0.625, 0.75, 0.875, 1.0, 1.0]
        assert PrioritizedSampler(beta=0.5).beta == 0.5


@pytest.mark.parametrize(
    "options",
    [
        {"beta": -0.1}, {"beta": 1.1}, {"beta": float("nan")}, {"beta": None}, {"beta": True},
        {"beta": "0.4"}, {"beta_anneal_steps": 0}, {"beta_anneal_steps": 1.5},
        {"beta_anneal_steps": True}, {"normalize": "sum"}, {"normalize": None}, {"replace": 1},
        {"stratified": None}, {"exact": "yes"}, {"seed": -1}, {"seed": 1.5},
        {"stratified": True, "replace": False},
    ],
)  # fmt: skip
def test_options_that_cannot_be_are_refused(options):
    name = "replace" if len(options) > 1 else next(iter(options))
    with pytest.raises(ValueError, match=name):
        PrioritizedSampler(**options)


def test_a_buffer_without_priorities_says_how_to_make_one(buffer_url):
    with ReplayBuffer(buffer_url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": [1, 2]})
        for call in (buffer.sample_arrays, buffer.sample):
            with pytest.raises(BufferConfigError, match="priorities=True"):
                call(2, sampler=PrioritizedSampler())


@pytest.mark.thorough
def test_an_empty_buffer_and_one_of_zeros_have_nothing_to_draw(buffer_url):
    with filled(buffer_url, []) as buffer:
        for sampler in samplers():
            assert buffer.sample(4, sampler=sampler) == []
            with pytest.raises(InsufficientDataError):
                buffer.sample_arrays(4, sampler=sampler)
        buffer.extend({"x": range(40)})
        set_priorities(buffer_url, dict.fromkeys(range(1, 41), 0.0))
        for summarized in (False, True):
            if summarized:
                assert summarize_all(buffer)
            for sampler in samplers():
                assert buffer.sample(4, sampler=sampler) == []
                with pytest.raises(InsufficientDataError):
                    buffer.sample_arrays(4, sampler=sampler)
        set_priorities(buffer_url, {17: 1e-6})
        for sampler in samplers():
            batch = buffer.sample_arrays(1, sampler=sampler)
            assert batch.seq.tolist() == [17]
            assert batch.probabilities.tolist() == [1.0]
            assert batch.weights.tolist() == [1.0]


def samplers():
    return [
        PrioritizedSampler(),
        PrioritizedSampler(replace=False, seed=1),
        PrioritizedSampler(stratified=True, normalize="buffer"),
    ]


def test_a_batch_without_rows_has_empty_arrays(buffer_url):
    with filled(buffer_url, [1.0, 2.0]) as buffer:
        sampler = PrioritizedSampler(beta_anneal_steps=2)
        rows = buffer.sample(1, sampler=sampler, condition=QueryBuilder().eq("task_id", "?"))
        assert rows == []
        assert rows.weights.shape == rows.priorities.shape == (0,)
        assert sampler.beta == 0.4  # nothing was drawn


def test_rows_carry_the_arrays_as_attributes(buffer_url):
    priorities = [1.0, 4.0, 9.0]
    with filled(buffer_url, priorities) as buffer:
        rows = buffer.sample(8, sampler=PrioritizedSampler(seed=1))
        assert rows.seq.tolist() == [row.seq for row in rows]
        assert rows.priorities.tolist() == [priorities[row.seq - 1] for row in rows]
        assert rows.weights.shape == rows.probabilities.shape == (8,)
        with pytest.raises(AttributeError, match="weights"):
            _ = rows.weight
        converted = buffer.sample(
            8, sampler=PrioritizedSampler(seed=1), converter=lambda rows: rows.weights
        )
        np.testing.assert_array_equal(converted, rows.weights)
        assert buffer.sample(2, sampler=RandomSampler(seed=1)).columns == {}


def test_chosen_fields_leave_the_arrays_in(buffer_url):
    with filled(buffer_url, [1.0, 1.0]) as buffer:
        batch = buffer.sample_arrays(2, sampler=PrioritizedSampler(), fields=[])
        assert set(batch) == {"weights", "probabilities", "priorities", "seq"}


@pytest.mark.parametrize("name", ["weights", "probabilities", "priorities", "seq"])
def test_no_field_can_have_the_name_of_an_array(sqlite_url, name):
    with pytest.raises(FieldError, match=f"'{name}'"):
        ReplayBuffer(sqlite_url, create=True, fields={name: "float32"}, priorities=True)


def test_an_array_of_a_sampler_never_hides_a_field(buffer_url):
    class Naming(RandomSampler):
        def columns(self, candidates, seqs):
            return {"x": np.zeros(len(seqs))}

    with filled(buffer_url, [1.0, 1.0]) as buffer:
        with pytest.raises(FieldError, match=r"'x'.*Naming"):
            buffer.sample_arrays(2, sampler=Naming(replace=True))
        batch = buffer.sample_arrays(2, sampler=Naming(replace=True), fields=["reward"])
        assert batch.x.tolist() == [0.0, 0.0]


def test_blocks_are_added_up_before_the_first_draw(buffer_url):
    priorities = np.abs(np.random.default_rng(3).standard_normal(20 * 16 + 4)) + 0.01
    with filled(buffer_url, priorities) as buffer:
        batch = buffer.sample_arrays(8, sampler=PrioritizedSampler(seed=1))
        assert scalar(buffer_url, "SELECT count(*) FROM priority_blocks") == 20
        assert batch.n_rows == 8
        buffer.extend({"x": range(15 * 16)})
        for expected in (20, 20):
            buffer.sample_arrays(8, sampler=PrioritizedSampler(seed=1))
            assert scalar(buffer_url, "SELECT count(*) FROM priority_blocks") == expected
        buffer.extend({"x": range(16)})
        for expected in (20, 36):
            buffer.sample(8, sampler=PrioritizedSampler(seed=1))
            assert scalar(buffer_url, "SELECT count(*) FROM priority_blocks") == expected


@pytest.mark.thorough
def test_bounds_that_waste_most_candidates_are_tightened(buffer_url):
    with filled(buffer_url, np.ones(320)) as buffer:
        assert summarize_all(buffer) == 20
        loosen(buffer_url, 1e4, every=7)
        loose = "SELECT count(*) FROM priority_blocks WHERE max_is_upper_bound"
        assert scalar(buffer_url, loose) == 3
        for expected in (0, 0):
            buffer.sample_arrays(8, sampler=PrioritizedSampler(seed=1))
            assert scalar(buffer_url, loose) == expected
        loosen(buffer_url, 1.2)
        for _ in range(2):
            buffer.sample_arrays(8, sampler=PrioritizedSampler(seed=1))
        assert scalar(buffer_url, loose) == 20  # not worth it


def test_a_mixture_has_the_arrays_of_each_source(make_database_url):
    buffers = [
        filled(make_database_url(kind, schema=True), np.full(n, p))
        for kind, n, p in (("sqlite", 10, 1.0), ("postgresql", 40, 2.0))
    ]
    mixture = mix({buffers[0]: 1, buffers[1]: 3})
    batch = mixture.sample_arrays(8, sampler=PrioritizedSampler(seed=1))
    assert batch.probabilities.tolist() == [0.1] * 2 + [0.025] * 6
    assert batch.priorities.tolist() == [1.0] * 2 + [2.0] * 6
    assert batch.weights.tolist() == [1.0] * 8
    batch = mixture.sample_arrays(8, sampler=PrioritizedSampler(seed=1), condition=ODD)
    assert batch.probabilities is None
    for buffer in buffers:
        buffer.close()


# Draws by priority keep their shares while rows come late or leave by hand, or limits change.


LATE = (
    "INSERT INTO experiences (buffer_id, task_id, agent_id, step, initial_priority, arrays) "
    "SELECT 1, 't', 'a', s, 50.0, arrays FROM generate_series(1, 5) s "
    "CROSS JOIN experiences WHERE seq = 1"
)
# As steps of one chunk, where steps are in chunks.
LATE_CHUNK = """
WITH n AS (SELECT sqlbuffer_reserve_v1(1, 5) AS first_seq), bytes AS (
    INSERT INTO chunk_data (
        buffer_id, first_seq, n_steps, task_id, agent_id, step, records, block_steps
    )
    SELECT 1, n.first_seq, 5, 't', 'a', 1, (
        SELECT string_agg(substr(d.records, g / g, octet_length(d.records) / c.n_steps), ''::bytea)
        FROM generate_series(1, 5) AS g
    ), 5
    FROM n, chunks c JOIN chunk_data d USING (buffer_id, first_seq) WHERE c.first_seq = 1
)
INSERT INTO chunks (
    buffer_id, first_seq, n_steps, id, task_id, agent_id, step, initial_priority
)
SELECT 1, n.first_seq, 5, gen_random_uuid(), 't', 'a', 1, array_fill(50.0::float8, ARRAY[5]) FROM n
"""


def check_draws(buffer, url, n=12):
    """Assert that rows are drawn by what v_priorities shows; return how many there are."""
    held = dict(run(url, "SELECT seq, priority FROM v_priorities"))
    for sampler in (PrioritizedSampler(seed=1), PrioritizedSampler(seed=2, stratified=True)):
        drawn = [seq for _ in range(n) for seq in buffer.sample_arrays(256, sampler=sampler).seq]
        assert_shares(drawn, {seq: p**0.6 for seq, p in held.items()})
    batch = buffer.sample_arrays(8, sampler=sampler)
    total = sum(p**0.6 for p in held.values())
    assert batch.probabilities == pytest.approx(batch.priorities**0.6 / total)
    return len(held)


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_that_commit_late_join_the_draw_with_their_own_priorities(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = filled(url, [1.0 + i % 7 for i in range(100)])
    assert summarize_all(buffer, 100) == 6
    has_chunks = scalar(url, "SELECT has_chunks FROM buffers")
    with connected(url) as late:
        late.exec_driver_sql(LATE_CHUNK if has_chunks else LATE)
        buffer.extend({"x": range(400)})
        assert summarize_all(buffer, 100) == 6  # none that the late rows lie in
        assert check_draws(buffer, url) == 500
    assert check_draws(buffer, url) == 505
    assert summarize_all(buffer, 100) > 25
    assert check_draws(ReplayBuffer(url), url) == 505


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_deleted_by_hand_leave_the_draw(buffer_url):
    buffer = filled(buffer_url, [1.0 + i % 7 for i in range(200)])
    assert summarize_all(buffer, 50) > 10
    assert check_draws(buffer, buffer_url, 4) == 200
    delete_steps_by_hand(buffer_url, "seq % 16 = 3 OR seq > 190")
    n_left = check_draws(buffer, buffer_url)
    assert n_left < 190
    summarize_all(buffer, 50)
    assert check_draws(buffer, buffer_url) == n_left


@pytest.mark.thorough
@pytest.mark.slow
def test_resizing_keeps_the_shares_of_what_is_left(buffer_url):
    buffer = filled(buffer_url, [1.0 + i % 7 for i in range(200)], max_capacity=200)
    summarize_all(buffer, 50)
    for capacity in (75, 300):
        buffer.resize(capacity)
        assert check_draws(buffer, buffer_url) == 75
    buffer.extend({"x": range(150)}, priority=9.0)
    assert check_draws(buffer, buffer_url) == 225
    summarize_all(buffer, 50)
    assert check_draws(ReplayBuffer(buffer_url), buffer_url) == 225
