"""How long the questions of `docs/reference/views.md` take in a large buffer of either layout, with
and without statistics. Most read summaries or an index, and the last ones every step.
"""

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from tests.benchmarks.bench import Bench, random_numbers
from tests.benchmarks.measure import ratio_of
from tests.benchmarks.report import Figure, shown_time
from tests.support.markdown import blocks
from tests.support.sql import (
    buffer_id,
    connected,
    is_sqlite,
    plain_engine,
    run,
    run_outside_transaction,
)

PAGE = "docs/reference/views.md"
# The examples of the page from this view on read every step.
FIRST_SLOW = "How many steps did each agent take"
QUICK_S, SLOW_S = 1.0, 10.0
STEPS_OF_EPISODE = 10
EPISODES_OF_GROUP, EPISODES_OF_TASK = 8, 64
N_VERSIONS, N_AGENTS, N_HOURS = 20, 8, 48
LOAD_EPISODES = 2_000
BATCH = 256
FIELDS = {"obs": ("float32", (4,))}
LAYOUTS: dict[str, dict[str, Any]] = {"rows": {}, "typed steps": {"fields": FIELDS}}
LABELLED_EACH = 100
REPEATS = 3


def measure(bench: Bench) -> Iterator[Figure]:
    """Yield the figures of one database."""
    for layout, settings in LAYOUTS.items():
        with bench.database() as url:
            bench.say(f"filling a buffer with {bench.scale.rows:,} {layout}, and as many draws")
            fill(url, bench.scale.rows, **settings)
            forget_statistics(url)
            times = times_of_all(bench, url, "no statistics")
            run_outside_transaction(url, "ANALYZE")
            times |= times_of_all(bench, url, "fresh statistics")
        of = f"{layout}, {bench.scale.rows:,} rows"
        for what, limit_s, slow in (
            (f"SQL that reads summaries: the slowest question over 1 s, {of}", QUICK_S, False),
            (f"SQL that reads every step: the slowest question over 10 s, {of}", SLOW_S, True),
        ):
            yield _slowest(bench, what, limit_s, {k: v for k, v in times.items() if k[2] == slow})


def forget_statistics(url: str) -> None:
    """Delete the statistics that the library has made."""
    if is_sqlite(url):
        if run(url, "SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
            run(url, "DELETE FROM sqlite_stat1")
        return
    ours = "IN (SELECT oid FROM pg_class WHERE relnamespace = current_schema()::regnamespace)"
    run(url, f"DELETE FROM pg_statistic WHERE starelid {ours}")
    run(url, f"UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE relkind = 'r' AND oid {ours}")


def times_of_all(
    bench: Bench, url: str, statistics: str
) -> dict[tuple[str, str, bool], list[float]]:
    """Return the seconds of each question: by its words, by statistics, and whether it is slow."""
    found: dict[tuple[str, str, bool], list[float]] = {}
    engine = plain_engine(url)
    for question, statement, is_slow in questions(url):
        spent = []
        for _ in range(bench.scale.times(REPEATS)):
            with engine.connect() as connection:
                started = time.perf_counter()
                connection.exec_driver_sql(statement.replace("%", "%%")).all()
                spent.append(time.perf_counter() - started)
        bench.say(f"{shown_time(median(spent))}, {statistics}: {question}")
        found[question, statistics, is_slow] = spent
    engine.dispose()
    return found


def questions(url: str, buffer: str = "default") -> Iterator[tuple[str, str, bool]]:
    """Yield the examples of the page: the question, its SQL, and whether it reads every step."""
    is_slow = False
    for block in blocks(PAGE, "sql", "sqlite3" if is_sqlite(url) else "postgresql"):
        question, _, statement = block.removeprefix("-- ").partition("\n")
        is_slow = is_slow or question.startswith(FIRST_SLOW)
        statement = statement.strip().rstrip(";").replace("'default'", f"'{buffer}'")
        yield question, statement, is_slow


def _slowest(
    bench: Bench, what: str, limit_s: float, times: dict[tuple[str, str, bool], list[float]]
) -> Figure:
    worst = max(times, key=lambda key: median(times[key]))
    question, statistics, _ = worst
    text = f"{shown_time(median(times[worst]))}, {statistics}: {question}"
    ratio = ratio_of([spent / limit_s for spent in times[worst]])
    return Figure(what, bench.label, text, ratio, 1, at_most=True)


def fill(url: str, n_steps: int, name: str = "default", **settings: Any) -> None:
    """Fill a buffer with episodes in groups, with as many logged draws, and labels."""
    rng, n_episodes = random_numbers(), max(n_steps // STEPS_OF_EPISODE, 2 * EPISODES_OF_GROUP)
    settings = {"track_samples": True, "durability": "relaxed", **settings}
    with ReplayBuffer(url, name=name, create=True, **settings) as buffer:
        for first in range(0, n_episodes, LOAD_EPISODES):
            last = min(first + LOAD_EPISODES, n_episodes)
            arrays, keys = columns(rng, first, last, n_episodes)
            if "fields" in settings:
                arrays["obs"] = np.ones((len(arrays["reward"]), 4), np.float32)
            buffer.extend(arrays, **keys)
        n = n_episodes * STEPS_OF_EPISODE
        seqs = np.arange(1, n + 1, LABELLED_EACH)
        for reward in (1.0, 0.5, 0.0):  # as before, in the end
            buffer.annotate(seqs, reward=np.full(len(seqs), reward))
        buffer.set_clock(N_VERSIONS)
    log_draws(url, buffer_id(url, name), n, rng)


def columns(
    rng: np.random.Generator, first: int, last: int, n_episodes: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the steps of some episodes. In every fourth group all rewards are equal, and every
    second step calls a tool, in vain the fifth time.
    """
    episodes = np.arange(first, last).repeat(STEPS_OF_EPISODE)
    places = np.tile(np.arange(STEPS_OF_EPISODE), last - first)
    is_last = places == STEPS_OF_EPISODE - 1
    groups = episodes // EPISODES_OF_GROUP
    scores = np.where(groups % 4 == 0, 1.0, rng.integers(0, 10, last - first).repeat(10))
    share = episodes / n_episodes
    arrays = {
        "reward": np.where(is_last, scores, 0.0),
        "terminated": is_last,
        "messages": [conversation(n) if n % 2 else None for n in range(len(episodes))],
    }
    keys = {
        "episode_id": [f"e{n}" for n in episodes],
        "group_id": [f"g{n}" for n in groups],
        "task_id": [f"t{n // EPISODES_OF_TASK}" for n in episodes],
        "agent_id": [f"a{n % N_AGENTS}" for n in episodes],
        "model_version": (share * N_VERSIONS).astype(int),
        "step": places,
    }
    return arrays, keys


def conversation(n: int) -> list[dict[str, Any]]:
    result = "error: timeout" if n % 5 == 0 else "42 results"
    call = {"id": f"c{n}", "type": "function", "function": {"name": f"tool{n % 3}"}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{n}", "name": f"tool{n % 3}", "content": result},
    ]


def log_draws(url: str, number: int, n: int, rng: np.random.Generator) -> None:
    """Log draws of n steps, as the library logs them."""
    batches = [rng.integers(1, n + 1, BATCH).tolist() for _ in range(max(n // BATCH, 2))]
    statement = text(
        "INSERT INTO samples (buffer_id, clock, sampler, n_rows, seqs) "
        f"VALUES ({number}, :clock, 'RandomSampler', {BATCH}, "
        f"{':seqs' if is_sqlite(url) else 'CAST(:seqs AS bigint[])'})"
    )
    with connected(url) as connection:
        connection.execute(
            statement,
            [
                {
                    "clock": i * N_VERSIONS // len(batches),
                    "seqs": str(seqs).replace(" ", "") if is_sqlite(url) else seqs,
                }
                for i, seqs in enumerate(batches)
            ],
        )
