"""`read_buffer` in a cluster of Ray."""

import doctest
import json
from typing import Any

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, FieldError
from sqlbuffer.integrations import ray
from sqlbuffer.integrations.ray import read_buffer

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("cluster"),
    pytest.mark.slow,
]


def typed(url: str, n: int, **settings: Any) -> ReplayBuffer:
    fields = {"obs": ("float32", (3,)), "action": "int64", "tokens": ("int64", (-1,))}
    buffer = ReplayBuffer(url, "typed", create=True, fields=fields, **settings)
    buffer.extend(steps(n), task_id="t")
    return buffer


def steps(n: int) -> dict[str, Any]:
    return {
        "obs": np.arange(3 * n, dtype=np.float32).reshape(n, 3),
        "action": np.arange(n),
        "tokens": [np.arange(i % 4) for i in range(n)],
        "reward": np.arange(n) / 4,
    }


def test_tasks_read_each_step_once(database_url: str) -> None:
    with typed(database_url, 5000) as buffer:
        expected = buffer.sample_arrays(1).obs.dtype
        seqs = sorted(row.seq or 0 for row in buffer)
    dataset = read_buffer(database_url, "typed", override_num_blocks=4)
    batches = list(dataset.iter_batches(batch_size=None, batch_format="numpy"))
    assert len(batches) >= 4
    seen = np.concatenate([batch["seq"] for batch in batches])
    assert np.sort(seen).tolist() == seqs
    order = np.argsort(seen)
    obs = np.concatenate([batch["obs"] for batch in batches])[order]
    assert obs.dtype == expected
    np.testing.assert_array_equal(obs, steps(5000)["obs"])
    tokens = [list(each) for batch in batches for each in batch["tokens"]]
    assert [tokens[i] for i in order[:8]] == [list(each) for each in steps(8)["tokens"]]


def test_rows_of_json_are_texts(database_url: str) -> None:
    with ReplayBuffer(database_url, create=True) as buffer:
        buffer.add(task_id="a", state={"text": "Grüße 你好"}, actions=["x"], reward=0.0)
        buffer.add(task_id="b", terminated=True)
    first, second = sorted(read_buffer(database_url).take_all(), key=lambda row: row["seq"])
    assert json.loads(first["state"]) == {"text": "Grüße 你好"}
    assert (first["reward"], first["terminated"]) == (0.0, None)
    assert (second["state"], second["reward"], second["terminated"]) == (None, None, True)


def test_columns_and_a_condition_choose(sqlite_url: str) -> None:
    typed(sqlite_url, 100).close()
    few = QueryBuilder().lt("exp_data.reward_t", 1.0).build()
    dataset = read_buffer(sqlite_url, "typed", condition=few, columns=["action", "seq"])
    assert sorted(row["action"] for row in dataset.take_all()) == [0, 1, 2, 3]
    assert set(dataset.schema().names) == {"action", "seq"}
    with pytest.raises(FieldError, match="did you mean obs"):
        read_buffer(sqlite_url, "typed", columns=["obss"])


def test_what_is_evicted_in_the_meantime_is_read_and_what_is_stored_is_not(
    database_url: str,
) -> None:
    with typed(database_url, 2000, max_capacity=2000) as buffer:
        dataset = read_buffer(database_url, "typed", columns=["seq"], override_num_blocks=4)
        before = sorted(row.seq or 0 for row in buffer)
        for _ in range(3):
            buffer.extend(steps(1000), task_id="later")
        for _ in range(2):  # once more: the same steps
            assert sorted(row["seq"] for row in dataset.take_all()) == before
        assert min(row.seq or 0 for row in buffer) > max(before)


def test_the_hold_ends_with_the_data_set(database_url: str) -> None:
    with typed(database_url, 500, max_capacity=500) as buffer:
        dataset = read_buffer(database_url, "typed", columns=["seq"])
        assert dataset.count() == 500
        assert n_holds(buffer) == 1
        del dataset
        assert n_holds(buffer) == 0


def n_holds(buffer: ReplayBuffer) -> int:
    import gc

    from sqlalchemy import create_engine, text

    gc.collect()
    url = buffer.url.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url)
    with engine.connect() as connection:
        found = connection.execute(text("SELECT count(*) FROM holds")).scalar_one()
    engine.dispose()
    return int(found)


def test_an_empty_buffer_is_an_empty_data_set(sqlite_url: str) -> None:
    ReplayBuffer(sqlite_url, "typed", fields={"obs": "float32"}).close()
    assert read_buffer(sqlite_url, "typed").take_all() == []


def test_mistakes_are_named(sqlite_url: str) -> None:
    typed(sqlite_url, 1).close()
    with pytest.raises(BufferNotFoundError, match="nothing"):
        read_buffer(sqlite_url, "nothing")
    with pytest.raises(ValueError, match="in memory belongs to this process"):
        read_buffer("sqlite://")


def test_examples_in_docstrings_run() -> None:
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(ray, optionflags=options).failed == 0
