"""What a call costs beside the plainest SQL for the same, on both databases.

Compare the rows of one run with each other, never with another machine's.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import text

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.storage.engine import engine_for, resolve_url
from tests.support.postgres import PostgresServer

ROWS = 100_000
BATCH = 1_000
Benchmark = Callable[..., Any]

_numbers = itertools.count()


def make_batch(n: int = BATCH) -> list[DataRow]:
    return [
        DataRow(
            ExpMeta(f"task-{i // 50}", "bench", f"agent-{i % 100}", i, float(i)),
            Experience({"i": i, "obs": [0.1, 0.2, 0.3, 0.4]}, [i % 4], reward_t=i * 0.5),
        )
        for i in itertools.islice(_numbers, n)
    ]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('bench')}/replay.db"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database()
    yield url
    server.drop_database(url)


@pytest.fixture(scope="module")
def full_buffer(url: str) -> Iterator[ReplayBuffer]:
    """A buffer of 100,000 rows that has evicted some."""
    with ReplayBuffer(url, max_capacity=ROWS, create=True) as buffer:
        for _ in range(ROWS // BATCH + 5):
            buffer.store_batch(make_batch())
        assert len(buffer) == ROWS
        yield buffer


def test_store_batch_of_1000_at_capacity(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    benchmark.pedantic(full_buffer.store_batch, setup=lambda: ((make_batch(),), {}), rounds=20)


def test_store_batch_of_1000_unlimited(
    benchmark: Benchmark, url: str, full_buffer: ReplayBuffer
) -> None:
    with ReplayBuffer(url, name="unlimited") as buffer:
        benchmark.pedantic(buffer.store_batch, setup=lambda: ((make_batch(),), {}), rounds=20)


def test_store_one(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    benchmark.pedantic(
        full_buffer.store, setup=lambda: ((make_batch(1)[0],), {}), rounds=200, warmup_rounds=5
    )


def test_sample_256(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    assert len(benchmark(full_buffer.sample, 256)) == 256


def test_baseline_order_by_random_limit_256(
    benchmark: Benchmark, url: str, full_buffer: ReplayBuffer
) -> None:
    statement = text("SELECT * FROM experiences WHERE buffer_id = 1 ORDER BY random() LIMIT 256")

    def draw() -> Any:
        with engine_for(resolve_url(url)).connect() as connection:
            return connection.execute(statement).all()

    assert len(benchmark(draw)) == 256


def test_sample_256_of_one_percent(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    condition = QueryBuilder().eq("exp_meta.agent_id", "agent-7").build()
    assert len(benchmark(full_buffer.sample, 256, condition=condition)) == 256


def test_sample_256_by_a_json_value(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    condition = QueryBuilder().gt("exp_data.state.obs[3]", 0.3).build()
    assert len(benchmark(full_buffer.sample, 256, condition=condition)) == 256


def test_sample_16_tasks_of_50_rows(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    assert len(benchmark(full_buffer.sample_tasks, 16)) == 16


def test_one_task(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    task_id = full_buffer.sample(1)[0].exp_meta.task_id
    assert benchmark(full_buffer.get_by_task_id, task_id)


def test_len(benchmark: Benchmark, full_buffer: ReplayBuffer) -> None:
    assert benchmark(len, full_buffer) == ROWS
