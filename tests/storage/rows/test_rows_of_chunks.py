"""Steps of chunks as rows: their values, pages of bounded size, and statements over them."""

import tracemalloc

import numpy as np
import pytest
from sqlalchemy import select

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer, Sampler

FIELDS = {"obs": ("float32", (2,)), "length": ("int16", (-1,))}


@pytest.fixture
def buffer(schema_url):
    with ReplayBuffer(schema_url, "b", create=True, fields=FIELDS) as buffer:
        yield buffer


def step(n, **more):
    data = {"reward_t": None, "adv_t": None, "v_t": None, **more}
    own = {"id": f"id {n}"} if n % 2 else {}
    return DataRow(
        exp_meta=ExpMeta(task_id=f"t{n % 3}", agent_id="a", step=10 * n, execute_time=float(n)),
        exp_data=Experience(**data),
        fields={"obs": np.full(2, n, np.float32), "length": np.arange(n % 5, dtype=np.int16)},
        **own,
    )


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_conditions_on_reals_find_the_same_steps_by_every_way(schema_url, dtype):
    declared = {"obs": "float32", "r": {"dtype": dtype, "column": True}}
    with ReplayBuffer(schema_url, "b", create=True, fields=declared) as buffer:
        values = (np.arange(1, 301) / 3).astype(dtype)
        buffer.extend({"obs": np.arange(300), "r": values}, task_id="t")
        for place in (0, 31, 32, 299):
            value = float(values[place])
            for condition, n in (
                (QueryBuilder().eq("r", value), 1),
                (QueryBuilder().lte("r", value), place + 1),
                (QueryBuilder().gt("r", value), 299 - place),
            ):
                assert buffer.size(condition) == n
                assert sum(1 for _ in buffer.get_all(condition)) == n
                if n:
                    assert len(buffer.sample(400, condition=condition)) == n
                    drawn = buffer.sample_arrays(300, condition=condition)
                    assert len(set(drawn.info["seq"].tolist())) <= n
                    with buffer.mirror(condition=condition) as mirror:
                        assert {*mirror.sample_arrays(400).info["seq"].tolist()} <= {
                            row.seq for row in buffer.get_all(condition)
                        }


def odd_steps():
    reals = [None, float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1.5]
    trees = [None, {}, [], "", 0, False, {"a": [None, "ü", np.arange(3)]}, b"\0\xff", {"$a": 1}]
    for n in range(80):
        yield step(
            n,
            reward_t=reals[n % 7],
            adv_t=reals[n % 5],
            v_t=reals[n % 3],
            state=trees[n % 9],
            actions=[trees[n % 8]] if n % 4 else None,
            messages=[{"role": "user", "text": "ü" * n}] if n % 5 == 0 else None,
            extra={"n": n, "vector": np.full(n % 3, n)} if n % 2 else None,
            terminated=[None, True, False][n % 3],
            truncated=[None, False, True, None][n % 4],
        )


def shown(rows):
    """Return rows as text: NaN equals itself, and -0.0 differs from 0.0."""
    return [repr((row.exp_meta, row.exp_data, row.fields)) for row in rows]


@pytest.mark.thorough
def test_every_way_to_read_returns_what_was_stored(buffer):
    stored = list(odd_steps())
    for start in range(0, len(stored), 7):
        buffer.store_batch(stored[start : start + 7])
    expected = shown(sorted(stored, key=lambda row: row.exp_meta.step))

    def in_order(rows):
        return shown(sorted(rows, key=lambda row: row.exp_meta.step))

    assert in_order(buffer.get_all()) == expected
    of_tasks = [buffer.get_by_task_id(f"t{n}") for n in range(3)]
    assert in_order(row for rows in of_tasks for row in rows) == expected
    pages = [buffer.get_paginated(n, page_size=33) for n in (1, 2, 3)]
    assert in_order(row for page in pages for row in page) == expected
    drawn = {row.seq: row for row in buffer.sample(500)}
    texts = dict(zip(in_order(buffer), expected, strict=True))
    assert all(texts[text] == text for text in in_order(drawn.values()))
    assert {row.id for row in buffer} == {row.id for row in stored}


def test_the_statement_of_a_condition_is_shown(buffer):
    buffer.store_batch([step(1)])
    condition = QueryBuilder().gt("reward_t", 0.0).build()
    assert "FROM chunk_steps" in buffer.sql(condition)
    assert buffer.explain(condition)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("size", [2**21, -1])
def test_a_page_of_large_steps_is_bounded(schema_url, size):
    with ReplayBuffer(schema_url, "b", create=True, fields={"obs": ("uint8", (size,))}) as buffer:
        for _ in range(8):
            frames = np.zeros((10, 2**21), np.uint8)
            buffer.extend({"obs": frames, "task_id": "t", "agent_id": "a"})
        tracemalloc.start()
        try:
            assert sum(row.fields["obs"].nbytes for row in buffer.get_all()) == 80 * 2**21
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 100 * 2**20  # of 160 MiB


def test_a_sampler_compares_the_numbers_of_a_subquery(buffer):
    class NotFirst(Sampler):
        def choose(self, candidates, batch_size):
            steps = candidates.select().subquery()
            return select(steps.c.seq).where(steps.c.seq > 1).limit(batch_size)

    buffer.store_batch([step(n) for n in range(4)])
    assert {row.seq for row in buffer.sample(3, sampler=NotFirst())} == {2, 3, 4}


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["gt", "gte", "lt", "lte", "eq"])
@pytest.mark.parametrize("bound", [-(2**63), -1, 0, 2, 2**63 - 1])
def test_numbers_are_compared_with_any_integer(buffer, name, bound):
    buffer.store_batch([step(n) for n in range(4)])
    condition = getattr(QueryBuilder(), name)("seq", bound).build()
    holds = {
        "gt": lambda n: n > bound, "gte": lambda n: n >= bound, "lt": lambda n: n < bound,
        "lte": lambda n: n <= bound, "eq": lambda n: n == bound,
    }[name]  # fmt: skip
    numbers = sorted(row.seq for row in buffer.get_all(condition))
    assert numbers == [n for n in (1, 2, 3, 4) if holds(n)]


def test_a_text_that_looks_like_a_tag_is_stored(buffer):
    buffer.add(task_id="t", agent_id="a", obs=[0, 0], length=[], messages=["$reals"])
    assert [row.exp_data.messages for row in buffer] == [["$reals"]]


def test_infinite_advantages_are_in_batches(buffer):
    buffer.store_batch([step(0, adv_t=float("inf")), step(1, adv_t=-1.0)])
    batch = buffer.sample_arrays(16, fields=["adv_t"])
    assert set(batch["adv_t"].tolist()) == {float("inf"), -1.0}


def test_numbers_that_no_step_can_have_are_left_out(buffer):
    buffer.store_batch([step(n) for n in range(4)])
    wanted = [-(2**63), -1, 0, 2, 2**63 - 1]
    assert buffer.quarantine(wanted) == 1
    assert buffer.release(wanted) == 1
    assert buffer.annotate([-(2**63), 2], reward=1.0) == 1
