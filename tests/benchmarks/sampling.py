"""What a batch costs: beside ORDER BY random(), as the buffer grows, filtered, and by task."""

import multiprocessing
import re
import sqlite3
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from sqlalchemy import event

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.benchmarks import caches
from tests.benchmarks.bench import Bench, file_of, filled, random_numbers
from tests.benchmarks.driver import bare
from tests.benchmarks.measure import Timed, Timings, in_turns, seconds_of
from tests.benchmarks.report import Figure, shown_time
from tests.benchmarks.rows import ROWS_PER_TASK
from tests.support.processes import wait_until
from tests.support.sql import run
from tests.support.storage_hooks import close_pool, engine_of

BATCH = 256
OTHER_BATCHES = (32, 1_024)
TASKS = 16
COLD_ROUNDS = 3
PLAN_CALLS = 5
SCAN = re.compile(r"\bSCAN (experiences|earlier)\b")


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    n, n_small = bench.scale.rows, bench.scale.small_rows
    with bench.database() as url, bench.database() as small_url:
        bench.say(f"filling a database with {n:,} rows and one with {n_small:,}")
        large = filled(url, n, max_capacity=n)
        small = filled(small_url, n_small, max_capacity=n_small)
        bench.say("sampling")
        timings = _timed(bench, large, small, url)
        yield from _figures(bench, timings, _cold(bench, url))
        yield Figure(
            f"`sample_tasks` of {TASKS} tasks of {ROWS_PER_TASK} rows",
            bench.label,
            f"{shown_time(timings.median('tasks'))}; {_plan(url)}",
        )


def _timed(bench: Bench, large: ReplayBuffer, small: ReplayBuffer, url: str) -> Timings:
    driver, numbers, n, times = bare(url), random_numbers(), bench.scale.rows, bench.scale.times
    by_agent = QueryBuilder().eq("exp_meta.agent_id", "agent-7").build()
    by_json = QueryBuilder().lt("exp_data.state.i", n // 100).build()
    half = QueryBuilder().lt("exp_data.state.i", n // 2).build()

    def any_task() -> tuple[dict[str, Any]]:
        task = numbers.integers(n // ROWS_PER_TASK)
        return (QueryBuilder().eq("exp_meta.task_id", f"task-{task}").build(),)

    def of_task(condition: dict[str, Any]) -> None:
        assert len(large.sample(BATCH, condition=condition)) == ROWS_PER_TASK

    timings = in_turns(
        {
            "order by": Timed(lambda: driver.random_rows(BATCH)),
            "large": Timed(lambda: large.sample(BATCH), repeat=times(20)),
            "small": Timed(lambda: small.sample(BATCH), repeat=times(20)),
            "one task": Timed(of_task, any_task, repeat=times(20)),
            "half": Timed(lambda: large.sample(BATCH, condition=half), repeat=times(5)),
            "1 %": Timed(lambda: large.sample(BATCH, condition=by_agent)),
            "1 % by JSON": Timed(lambda: large.sample(BATCH, condition=by_json)),
            **{
                str(size): Timed(partial(large.sample, size), repeat=times(5))
                for size in OTHER_BATCHES
            },
            "tasks": Timed(lambda: large.sample_tasks(TASKS), repeat=times(5)),
        },
        times(16),
        warmup=times(2),
    )
    driver.close()
    return timings


def _figures(bench: Bench, timings: Timings, cold: str) -> Iterator[Figure]:
    n, n_small = bench.scale.rows, bench.scale.small_rows
    spent = {name: shown_time(timings.median(name)) for name in timings.rounds}
    label = bench.label
    yield Figure(
        f"`sample({BATCH})` at {n:,} rows: times faster than `ORDER BY random()`",
        label,
        f"{spent['large']}, ORDER BY {spent['order by']}",
        timings.ratio("order by", "large"),
        20 if bench.kind == "sqlite" else 30,
    )
    yield Figure(
        f"`sample({BATCH})` at {n:,} rows vs at {n_small:,}",
        label,
        f"{spent['large']}, {spent['small']}; cold: {cold}",
        timings.ratio("large", "small"),
        2,
        at_most=True,
    )
    yield Figure(
        f"`sample({BATCH})` of one task vs unfiltered",
        label,
        f"{spent['one task']}, {spent['large']}",
        timings.ratio("one task", "large"),
        3,
        at_most=True,
    )
    yield Figure(
        f"`sample({BATCH})` with a filter that matches 1 %",
        label,
        f"a column: {spent['1 %']}; a JSON value: {spent['1 % by JSON']}; "
        f"half by a JSON value: {spent['half']}",
    )
    yield Figure(
        "`sample` by rows a batch",
        label,
        "; ".join(f"{size:,}: {spent[str(size)]}" for size in OTHER_BATCHES),
    )


def _cold(bench: Bench, url: str) -> str:
    """Say what the first batch costs in a new process when nothing of the database is in memory."""
    if bench.kind == "postgresql" and bench.restart is None:
        return "not measured"
    close_pool(url)
    context = multiprocessing.get_context("spawn")
    seconds = []
    for _ in range(bench.scale.times(COLD_ROUNDS)):
        if bench.restart is not None:
            bench.restart()
        with context.Pool(1) as pool:
            seconds.append(pool.apply(first_batch_s, (url,)))
    return shown_time(statistics.median(seconds))


def first_batch_s(url: str) -> float:
    """Return the seconds of a process's first batch; a SQLite file is put out of memory before."""
    with ReplayBuffer(url) as buffer:
        if url.startswith("sqlite"):
            caches.forget_file(file_of(url))
        return seconds_of(buffer.sample, BATCH)


def _plan(url: str) -> str:
    """Say whether `sample_tasks` scans the table."""
    scans = _scans_in_postgresql(url) if url.startswith("postgresql") else _scans_in_sqlite(url)
    return f"{scans} table scans in {PLAN_CALLS} calls"


def _draw_tasks(url: str) -> None:
    with ReplayBuffer(url) as buffer:
        for _ in range(PLAN_CALLS):
            buffer.sample_tasks(TASKS)


def _scans_in_sqlite(url: str) -> int:
    """Explain every statement sent."""
    engine, sent = engine_of(url), set[str]()

    def trace(connection: Any, *_: Any) -> None:
        connection.set_trace_callback(sent.add)

    event.listen(engine, "checkout", trace)
    _draw_tasks(url)
    event.remove(engine, "checkout", trace)
    reads = [statement for statement in sent if statement.startswith(("SELECT", "WITH"))]
    assert reads
    connection = sqlite3.connect(file_of(url))
    plans = [
        connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall() for statement in reads
    ]
    connection.close()
    return sum(bool(SCAN.search(str(plan))) for plan in plans)


def _scans_in_postgresql(url: str) -> int:
    """Ask the server how often it scanned the table and its indexes meanwhile."""
    query = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'experiences'"
    read = partial(run, url, query)
    # A session tells what it did when it ends.
    close_pool(url)
    ((scans, looked_up),) = read()
    _draw_tasks(url)
    wait_until(lambda: read()[0][1] > looked_up, "the server has counted what was read")
    return int(read()[0][0] - scans)
