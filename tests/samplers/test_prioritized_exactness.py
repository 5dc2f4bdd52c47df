"""Draws by priority keep their shares while rows come late or leave by hand, or limits change."""

import pytest

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from tests.support.priorities import assert_shares, filled, summarize_all
from tests.support.sql import connected, delete_steps_by_hand, run, scalar

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
