"""The documented filters of `v_experiences` read the chunks of what they find, not all (I9).

Queries over whole buffers read each step a few times.
"""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.web.pages.sql_page import EXAMPLES
from tests.storage.plans.test_views import DRAWS_AND_STEPS, N_BATCHES
from tests.support.watch import assert_compares_little, wait_for_cleaner, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_STEPS = 100_000
PER_TASK = 100
MOST_ROWS_READ = 1_000
MOST_STEPS = 60_000
TABLES = ("chunks", "chunk_data", "experiences", "episodes", "deleted_steps", "labels")
FILTERS = {
    "seq = 77777 AND first_seq BETWEEN 77777 - 255 AND 77777": 1,
    "seq > 99980 AND first_seq > 99980 - 256": 20,
    "seq BETWEEN 500 AND 509 AND first_seq BETWEEN 500 - 255 AND 509": 10,
    "task_id = 't700'": PER_TASK,
    "task_id = 't700' AND agent_id = 'a'": PER_TASK,
    "task_id = 't700' AND seq = 70005": 1,
    "episode_id = 'e700'": PER_TASK,
    "task_id = 't700' AND episode_id = 'e700'": PER_TASK,
}

GROUPS = next(example for example in EXAMPLES if "v_groups" in example.sql)
WHOLE = {
    "groups": GROUPS.about("steps").rstrip(";"),
    "draws": "SELECT clock, avg(clock - model_version) FROM v_samples WHERE buffer = 'steps' "
    "GROUP BY clock",
    "draws and steps": DRAWS_AND_STEPS.replace("'rows'", "'steps'"),
}


def fill_large(url):
    """Fill a buffer with 1,000 episodes in chunks, and another one with as many tasks."""
    fields = {"obs": ("float32", (4,))}
    with ReplayBuffer(url, name="other", fields=fields, max_capacity=N_STEPS) as buffer:
        tasks = [f"t{n // PER_TASK}" for n in range(N_STEPS)]
        buffer.extend({"obs": np.ones((N_STEPS, 4), np.float32), "task_id": tasks}, agent_id="a")
        wait_for_cleaner(buffer)
    settings = {"fields": fields, "max_capacity": N_STEPS, "track_samples": True}
    with ReplayBuffer(url, name="steps", **settings) as buffer:
        columns = {"obs": np.ones((PER_TASK, 4), np.float32), "reward": np.ones(PER_TASK)}
        for n in range(N_STEPS // PER_TASK):
            buffer.store_episode(columns, task_id=f"t{n}", agent_id="a", episode_id=f"e{n}")
        for _ in range(N_BATCHES):
            buffer.sample_arrays(64)
        wait_for_cleaner(buffer)


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_of_the_steps_of_chunks_uses_an_index(large_url, condition):
    query = f"SELECT step, reward FROM v_experiences WHERE buffer = 'steps' AND {condition}"
    with watched(large_url, tables=TABLES) as watch, watch.engine.connect() as connection:
        assert len(connection.exec_driver_sql(query).all()) == FILTERS[condition]
        connection.rollback()
    assert watch.rows_scanned < 300
    assert watch.rows_fetched < MOST_ROWS_READ
    assert watch.steps < MOST_STEPS


def test_an_iteration_reads_the_chunks_of_a_page_alone(large_url):
    with ReplayBuffer(large_url, name="steps") as buffer:
        len(buffer)  # which counts once in a process
        with watched(large_url, tables=TABLES) as watch:
            assert next(iter(buffer)).seq == 1
    assert watch.rows_fetched < MOST_ROWS_READ
    assert watch.steps < MOST_STEPS


@pytest.mark.parametrize("query", WHOLE)
def test_a_query_over_a_whole_buffer_compares_no_step_with_all(unchanged_url, query):
    assert_compares_little(unchanged_url, WHOLE[query], N_STEPS)
