"""No statement of a ring drawn by priority scans the table, once its process knows the rows."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding.contents.item_codec import records_of
from sqlbuffer.storage.extensions.item_draws import NewPriority, WantedItems
from sqlbuffer.storage.extensions.prioritized_ring import PriorityRing
from tests.storage.plans.test_hot_statements import MOST_ROWS_READ, MOST_STEPS, N_ROWS, SCAN, Watch
from tests.support.sql import buffer_id, fill, run

WANTED = {"size": 64, "beta": 0.4, "least_held": 64.0}
OPERATIONS = {
    "sample": lambda ring: ring.sample(WantedItems(**WANTED, seed=1)),
    "sample, some leave": lambda ring: ring.sample(
        WantedItems(**WANTED, max_use=1, oldest_version=5, tracks=True, seed=2)
    ),
    "sample of a range": lambda ring: ring.sample(
        WantedItems(**WANTED, which=slice(-13_000, -10_100))
    ),
    "update": lambda ring: ring.update(
        {f"id{i}": NewPriority(0, 2.0, 2.0) for i in range(500, 99_000, 1_500)}
    ),
    "push": lambda ring: ring.push_items(
        records_of([{"obs": i} for i in range(64)], ("ring", "experiment"), 0), 64, "ring"
    ),
}


def fill_large(url):
    """Fill a ring of 100,000 items."""
    fill(url, N_ROWS, name="ring", priorities=True, max_capacity=N_ROWS)
    number = buffer_id(url, "ring")
    run(
        url,
        "INSERT INTO buffer_layouts (buffer_id, config, next_number) "
        f"VALUES ({number}, '{{}}', {N_ROWS})",
    )
    run(
        url,
        "INSERT INTO priorities (buffer_id, seq, priority) SELECT buffer_id, seq, 1.0 "
        f"FROM experiences WHERE buffer_id = {number} AND seq % 2 = 0",
    )
    with ReplayBuffer(url, name="ring") as buffer:
        buffer._store.priorities.summarize(range(N_ROWS // buffer._store.info.block_size))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_ring_does_not_scan_the_table(large_url, operation):
    with ReplayBuffer(large_url, name="ring") as buffer:
        ring = PriorityRing(buffer._store, "advanced", N_ROWS)
        # From here on whole blocks are counted, and old rows known.
        ring.sample(WantedItems(**WANTED, max_use=1, oldest_version=0, which=slice(0, 9)))
        with Watch(buffer._store.engine) as watch:
            found = OPERATIONS[operation](ring)
        if operation == "push":
            assert 0 < found.left.n <= 64
        elif operation != "update":
            assert len(found.rows) == 64
        scans = [plan for plan in watch.plans() if SCAN.search(plan)]
        assert not scans, "\n\n".join(scans)
        assert watch.rows_scanned == 0
        # Two ends of a range are looked for among the 4,096 numbers of a block each.
        times = 2 if operation == "sample of a range" else 1
        assert watch.rows_fetched < times * MOST_ROWS_READ
        assert watch.steps < times * MOST_STEPS
        assert watch.steps or watch.rows_fetched
