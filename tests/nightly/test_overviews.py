"""What overviews and draws of tasks cost at 10 million rows and at 2,000 buffers: rows that they
read and statements that they send, which do not vary with the load of the machine.
"""

import numpy as np
import pytest

from sqlbuffer import RandomTaskSample, ReplayBuffer
from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.inspect import listings
from tests.nightly.conftest import N_BUFFERS, N_ROWS, ROWS_PER_TASK
from tests.storage.plans.watch import Watch
from tests.support.statements import selects

# The first one waits for the rows to be written.
pytestmark = pytest.mark.timeout(3_600)

LOOKS = {
    "ls": listings.buffers,
    "info": listings.buffers_in_full,
    "watch": lambda url: listings.figures(url, None, 60.0),
}
# Both ends of a window, and what is looked for by bisection.
MOST_ROWS_OF_A_BUFFER = 40


def read_of(url, work):
    """Return how many rows of `experiences` work reads; it scans none."""
    with Watch(engine_for(resolve_url(url)), tables=("experiences",)) as watch:
        work()
    assert watch.rows_scanned == 0
    return watch.rows_fetched


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_ten_million_rows_reads_a_few(million_rows, look):
    found = []
    n_read = read_of(million_rows, lambda: found.append(LOOKS[look](million_rows)))
    assert n_read <= 2 * MOST_ROWS_OF_A_BUFFER
    rows = [stats.rows for stats in found[0]] if look == "watch" else [r[1] for r in found[0].rows]
    assert rows == [N_ROWS, N_ROWS // 100]


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_many_buffers_reads_a_few_rows_of_each(many_buffers, look):
    assert read_of(many_buffers, lambda: LOOKS[look](many_buffers)) <= (
        N_BUFFERS * MOST_ROWS_OF_A_BUFFER
    )


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_many_buffers_takes_few_statements(many_buffers, look):
    with ReplayBuffer(many_buffers, name="b1") as buffer, selects(buffer) as statements:
        LOOKS[look](many_buffers)
    # The bisection of all buffers at once takes one for each doubling of 200 rows.
    assert len(statements) <= 10 + 8


def test_the_first_len_reads_the_blocks_at_both_ends(million_rows):
    with ReplayBuffer(million_rows, name="large") as buffer:
        n_read = read_of(million_rows, lambda: len(buffer))
        assert len(buffer) == N_ROWS
    assert n_read <= 2 * BLOCK


def test_sampling_long_tasks_looks_up_about_as_many_rows_as_it_returns(million_rows):
    """At most three times the rows, with those of the batch, that 100,000 rows take."""
    read = {}
    for name in ("small", "large"):
        with ReplayBuffer(million_rows, name=name) as buffer:
            samplers = [RandomTaskSample(seed=seed) for seed in range(5)]
            read[name] = [
                read_of(million_rows, lambda b=buffer, s=s: b.sample_tasks(4, sampler=s))
                if name == "large"
                else _rows_read(million_rows, buffer, s)
                for s in samplers
            ]
    assert np.median(read["large"]) <= 3 * np.median(read["small"])
    assert max(read["large"]) < 20 * 4 * ROWS_PER_TASK


def _rows_read(url, buffer, sampler):
    """Return how many rows are read where scans are few enough to be the cheapest way."""
    with Watch(engine_for(resolve_url(url)), tables=("experiences",)) as watch:
        buffer.sample_tasks(4, sampler=sampler)
    return watch.rows_scanned + watch.rows_fetched


def test_a_seed_draws_the_same_long_tasks_again(million_rows):
    with ReplayBuffer(million_rows, name="large") as buffer:
        batches = [
            [rows[0].exp_meta.task_id for rows in buffer.sample_tasks(4, sampler=sampler)]
            for sampler in (RandomTaskSample(seed=3), RandomTaskSample(seed=3))
        ]
    assert batches[0] == batches[1]
