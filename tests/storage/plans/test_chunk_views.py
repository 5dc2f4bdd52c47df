"""The documented filters of `v_experiences` read the chunks of what they find, not all (I9)."""

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.storage.plans.watch import wait_for_cleaner, watched

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


def fill_large(url):
    """Fill a buffer with 1,000 episodes in chunks, and another one with as many tasks."""
    fields = {"obs": ("float32", (4,))}
    with ReplayBuffer(url, name="other", fields=fields, max_capacity=N_STEPS) as buffer:
        tasks = [f"t{n // PER_TASK}" for n in range(N_STEPS)]
        buffer.extend({"obs": np.ones((N_STEPS, 4), np.float32), "task_id": tasks}, agent_id="a")
        wait_for_cleaner(buffer)
    with ReplayBuffer(url, name="steps", fields=fields, max_capacity=N_STEPS) as buffer:
        columns = {"obs": np.ones((PER_TASK, 4), np.float32), "reward": np.ones(PER_TASK)}
        for n in range(N_STEPS // PER_TASK):
            buffer.store_episode(columns, task_id=f"t{n}", agent_id="a", episode_id=f"e{n}")
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
