"""Reads of steps with late facts are linear: four times the steps cost about four times as much."""

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.storage.plans.watch import TABLES, watched

pytestmark = pytest.mark.thorough

FEW, MANY = 1_000, 4_000
# A quadratic read does 16 times the work, and a linear one does 4 times.
MOST_GROWTH = 8
COUNTED = (*TABLES, "quarantine", "uses")
WHOLE = QueryBuilder().gte("reward", 0.5)
OVERLAYS = {
    "labels": lambda buffer, seqs: buffer.annotate(seqs, reward=2.0, adv_t=1.0, extra={"a": 1}),
    "quarantine": lambda buffer, seqs: buffer.quarantine(seqs[: len(seqs) // 2]),
    "deletions": lambda buffer, seqs: buffer.delete(QueryBuilder().in_("seq", seqs[::2])),
    "priorities": lambda buffer, seqs: buffer.update_priorities(seqs, 2.0),
    "given ids": lambda buffer, seqs: None,
}
READS = {
    "get_all": lambda buffer: sum(1 for _ in buffer.get_all()),
    "get_all, condition": lambda buffer: sum(1 for _ in buffer.get_all(WHOLE)),
    "get_by_task_id": lambda buffer: len(buffer.get_by_task_id("t")),
    "sample_tasks": lambda buffer: sum(map(len, buffer.sample_tasks(1))),
    "size": lambda buffer: buffer.size(WHOLE),
    "delete": lambda buffer: buffer.delete(WHOLE),
}
FORMS = {"rows": None, "typed steps": {"obs": ("float32", (2,))}}


def work_of(reads, url, name, fields, overlay, n):
    """Return the number of steps or rows that the database visits for each read of n steps."""
    columns = {"task_id": "t", "agent_id": "a", "reward": np.ones(n), "step": np.arange(n)}
    if overlay == "given ids":
        columns["id"] = [f"step-{i}" for i in range(n)]
    columns |= {"obs": np.ones((n, 2))} if fields else {"state": [{"x": i} for i in range(n)]}
    work = {}
    with ReplayBuffer(url, name, fields=fields, priorities=True) as buffer:
        buffer.extend(columns)
        seqs = list(range(1, n + 1))
        OVERLAYS[overlay](buffer, seqs)
        n_left = len(buffer)
        for read, call in reads.items():
            with watched(url, tables=COUNTED, noted=None) as watch:
                n_read = call(buffer)
            # A task with a step in quarantine is not sampled.
            assert n_read == (0 if (read, overlay) == ("sample_tasks", "quarantine") else n_left)
            work[read] = watch.steps + watch.rows_fetched + watch.rows_scanned
    return work


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_reads_of_overlaid_steps_are_linear(schema_url, overlay, form):
    few = work_of(READS, schema_url, f"{FEW}", FORMS[form], overlay, FEW)
    # The database knows the first buffer, and believes that the second has no rows.
    with engine_for(resolve_url(schema_url)).connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()
    many = work_of(READS, schema_url, f"{MANY}", FORMS[form], overlay, MANY)
    growth = {read: many[read] / max(few[read], FEW) for read in READS}
    assert {read: g for read, g in growth.items() if g > MOST_GROWTH} == {}
