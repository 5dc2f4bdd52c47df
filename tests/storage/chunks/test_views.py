"""The views show steps of chunks as they show rows."""

import json

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.support.sql import connected

FIELDS = {
    "obs": ("float32", (3,)),
    "level": {"dtype": "int64", "column": True},
    "loss": {"dtype": "float64", "column": True},
    "small": {"dtype": "float32", "column": True},
    "map": {"dtype": "U8", "column": True},
}
N_STEPS = 700
SETTINGS = {"max_capacity": 2_000, "priorities": True, "track_samples": True}
ORDERED_BY = {
    "v_experiences": "seq",
    "v_tasks": "task_id",
    "v_agents": "agent_id",
    "v_groups": "task_id, group_id",
    "v_episodes": "episode_id",
    "v_priorities": "seq",
    "v_quarantine": "seq",
    "v_labels": "seq, version",
    "v_samples": "position",
    "v_buffers": "buffer",
}
# Names, times of the clock, ids that are made of them, and what was drawn.
OWN = {
    "buffer", "buffer_id", "id", "first_seq", "executed_at", "execute_time", "inserted_at",
    "first_at", "last_at", "started_at", "ended_at", "labelled_at", "quarantined_at", "sampled_at",
    "oldest_at", "newest_at", "last_insert_at", "created_at", "batch_id", "seed", "sampler",
}  # fmt: skip
JSON = {"state", "extra", "fields", "special_numbers"}


def columns_of(n):
    """Return the steps of the n-th write."""
    random = np.random.default_rng(n)
    columns = {
        "obs": random.random((N_STEPS, 3), np.float32),
        "level": np.arange(N_STEPS),
        "loss": random.random(N_STEPS),
        "small": random.random(N_STEPS, np.float32),
        "map": np.array([f'm"{k % 7}' for k in range(N_STEPS)]),
        "reward": random.random(N_STEPS),
        "terminated": np.arange(N_STEPS) % 50 == 0,
        "truncated": np.zeros(N_STEPS, bool),
    }
    if n == 1:
        columns["extra"] = [{"n": k, "x": 0.1 * k} for k in range(N_STEPS)]
        columns["state"] = [[k, "text", 1.5] for k in range(N_STEPS)]
    if n == 2:
        del columns["reward"]
    if n == 3:
        columns["reward"][5:7] = np.nan, -0.0
        columns["loss"][300:305] = np.nan, -0.0, np.inf, -np.inf, 1e17
        columns["step"] = np.arange(N_STEPS) * 3
    return columns


def columns_for(buffer, n):
    """Return the steps of the n-th write, with the fields that the buffer has."""
    return {k: v for k, v in columns_of(n).items() if buffer.fields or k not in FIELDS}


def fill(buffer):
    """Store, annotate, quarantine, delete and sample steps."""
    for n in range(4):
        if n % 2:
            columns = columns_for(buffer, n)
            columns.pop("step", None)
            buffer.store_episode(columns, task_id=f"t{n}", agent_id="a", episode_id=f"e{n}")
        else:
            buffer.extend(
                columns_for(buffer, n), task_id=f"t{n}", agent_id=f"a{n}", model_version=n
            )
    buffer.extend(columns_for(buffer, 3), task_id="t1", agent_id="b")
    buffer.annotate(range(1700, 1800), reward=2.0, extra={"late": 1})
    buffer.annotate(range(1750, 1800), v_t=3.0)
    buffer.quarantine([1500, 1501, 2700], reason="odd")
    some = QueryBuilder().in_("exp_meta.step", [150, 151, 699]).build()
    buffer.delete(some)
    buffer.update_priorities([1700, 2500], [3.0, 4.0])
    buffer.sample_arrays(5)


def check_fields(step):
    """Assert that a step has the values of the declared fields that conditions can use."""
    n, place = divmod(step["seq"] - 1, N_STEPS)
    columns = columns_of(min(n, 3))
    given = {name: columns[name][place].item() for name in FIELDS if name != "obs"}
    found = step["fields"]
    if isinstance(found["loss"], dict):
        found["loss"] = float(found["loss"]["$float"])
    assert repr(sorted(found.items())) == repr(sorted(given.items()))


def shown(url, view, name):
    """Return what a view shows of a buffer, without what differs from buffer to buffer."""
    statement = f"SELECT * FROM {view} WHERE buffer = '{name}' ORDER BY {ORDERED_BY[view]}"
    with connected(url) as connection:
        found = connection.execute(text(statement)).mappings().all()
    return [
        {key: read(key, value) for key, value in row.items() if key not in OWN} for row in found
    ]


def read(column, value):
    """Return a value, and JSON that SQLite has as text."""
    return json.loads(value) if column in JSON and isinstance(value, str) else value


@pytest.fixture
def both_layouts(schema_url):
    """Fill a buffer of each layout with the same steps, in rows without the typed fields."""
    for name, fields in (("rows", None), ("chunks", FIELDS)):
        with ReplayBuffer(schema_url, name=name, fields=fields, **SETTINGS) as buffer:
            fill(buffer)
    return schema_url


@pytest.mark.thorough
def test_views_show_both_layouts_alike(both_layouts):
    for view in ORDERED_BY:
        rows, chunks = (shown(both_layouts, view, name) for name in ("rows", "chunks"))
        if view == "v_samples":  # which were drawn differs
            rows, chunks = ([row["position"] for row in found] for found in (rows, chunks))
        assert len(rows) == len(chunks) > 0, view
        for row, step in zip(rows, chunks, strict=True):
            if view == "v_experiences":
                check_fields(step)
                step["fields"] = row["fields"]
            if view in ("v_tasks", "v_agents", "v_groups"):
                row = pytest.approx(row)  # sums are added up in another order
            if view == "v_episodes":
                row |= {
                    name: pytest.approx(row[name]) for name in ("episode_return", "episode_reward")
                }
            assert step == row, view
