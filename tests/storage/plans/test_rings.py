"""No statement of a ring drawn by priority scans the table, once its process knows the rows."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding import AdvancedReplayBuffer
from tests.storage.plans.test_hot_statements import MOST_ROWS_READ, MOST_STEPS, N_ROWS, SCAN, Watch
from tests.support.sql import buffer_id, fill, run

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

NUMBERS = range(500, 99_000, 1_500)
INFO = {
    "replay_unique_id": [f"ring_{i}" for i in NUMBERS],
    "replay_buffer_idx": list(NUMBERS),
    "priority": [2.0] * len(NUMBERS),
}
OPERATIONS = {
    "sample": lambda ring: ring.sample(64, 0),
    "sample, some leave": lambda ring: ring.sample(64, 5),
    "sample of a range": lambda ring: ring.sample(64, 0, slice(-3_000, -100)),
    "update": lambda ring: ring.update(INFO),
    "push": lambda ring: ring.push([{"obs": i} for i in range(64)], 0),
}


def fill_large(url):
    """Fill a ring of 100,000 items."""
    fill(url, N_ROWS, name="ring", priorities=True, max_capacity=N_ROWS)
    number = buffer_id(url, "ring")
    run(
        url,
        "INSERT INTO priorities (buffer_id, seq, priority) SELECT buffer_id, seq, 1.0 "
        f"FROM experiences WHERE buffer_id = {number} AND seq % 2 = 0",
    )
    with ReplayBuffer(url, name="ring") as buffer:
        newest = run(url, f"SELECT max(seq) FROM experiences WHERE buffer_id = {number}")[0][0]
        counters = {"push_count": N_ROWS, "tail": 0, "max_priority": 1.0, "beta": None}
        counters |= {"pushed": 0.0, "sampled": 0.0, "decayed_at": 0.0}
        runs = [[0, newest - N_ROWS + 1, N_ROWS]]
        state = {"size": N_ROWS, "n": N_ROWS, "runs": runs, "names": ["ring"]}
        buffer.documents.put("ring", {"kind": "advanced", **counters, **state})
        buffer._store.priorities.summarize(range(N_ROWS // buffer._store.info.block_size))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_ring_does_not_scan_the_table(large_url, operation):
    limits = {"max_use": 1, "max_staleness": 5} if operation == "sample, some leave" else {}
    config = {"replay_buffer_size": N_ROWS, "url": large_url, "name": "ring", "seed": 1, **limits}
    ring = AdvancedReplayBuffer(config, instance_name="ring")
    # From here on the sums of blocks and the versions of old rows are known.
    ring.sample(64, 0, slice(0, 9))
    engine = ring._ring.place.buffer._store.engine
    with Watch(engine) as watch:
        found = OPERATIONS[operation](ring)
    if operation.startswith("sample"):
        assert len(found) == 64
    elif operation == "push":
        assert 0 < ring._throughput.remove_data_count <= 64
    scans = [plan for plan in watch.plans() if SCAN.search(plan)]
    assert not scans, "\n\n".join(scans)
    assert watch.rows_scanned == 0
    # Of a ring from which items were removed, the keys behind the range are read.
    times = 2 if operation == "sample of a range" else 1
    assert watch.rows_fetched < times * MOST_ROWS_READ
    assert watch.steps < times * MOST_STEPS
    assert watch.steps or watch.rows_fetched
    ring.close()
