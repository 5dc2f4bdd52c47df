"""What overviews and draws of tasks cost at 10 million rows and at 2,000 buffers: rows that they
read and statements that they send, which do not vary with the load of the machine.
"""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import RandomTaskSample, ReplayBuffer
from sqlbuffer.cli import app
from tests.nightly.conftest import N_BUFFERS, N_ROWS, ROWS_PER_TASK
from tests.support.statements import selects
from tests.support.watch import watched

# The first one waits for the rows to be written.
pytestmark = pytest.mark.timeout(3_600)

LOOKS = {
    "ls": ("ls", "--json"),
    "info": ("info", "--json"),
    "watch": ("watch", "--once", "--json"),
}
# Rows are counted by blocks of so many numbers.
BLOCK = 4_096
# Both ends of a window, and what is looked for by bisection.
MOST_ROWS_OF_A_BUFFER = 40
# Rows that are in no counted block: `watch` counts them in few buffers only.
UNCOUNTED_OF_MANY = {"ls": 200, "info": 200, "watch": 0}


def looked(look, url):
    """Return what a command of the command line says of each buffer."""
    command, *options = LOOKS[look]
    result = CliRunner().invoke(app, [command, url, *options], catch_exceptions=False)
    if look == "watch":
        return [json.loads(line) for line in result.stdout.splitlines()]
    return json.loads(result.stdout)


def read_of(url, work):
    """Return how many rows of `experiences` work reads; it scans none."""
    with watched(url, tables=("experiences",)) as watch:
        work()
    assert watch.rows_scanned == 0
    return watch.rows_fetched


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_ten_million_rows_reads_a_few(million_rows, look):
    found = []
    n_read = read_of(million_rows, lambda: found.extend(looked(look, million_rows)))
    assert n_read <= 2 * (MOST_ROWS_OF_A_BUFFER + 2 * BLOCK)
    assert [buffer["rows"] for buffer in found] == [N_ROWS, N_ROWS // 100]


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_many_buffers_reads_a_few_rows_of_each(many_buffers, look):
    assert read_of(many_buffers, lambda: looked(look, many_buffers)) <= (
        N_BUFFERS * (MOST_ROWS_OF_A_BUFFER + UNCOUNTED_OF_MANY[look])
    )


@pytest.mark.parametrize("look", LOOKS)
def test_an_overview_of_many_buffers_takes_few_statements(many_buffers, look):
    with ReplayBuffer(many_buffers, name="b1") as buffer, selects(buffer) as statements:
        looked(look, many_buffers)
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
    with watched(url, tables=("experiences",)) as watch:
        buffer.sample_tasks(4, sampler=sampler)
    return watch.rows_scanned + watch.rows_fetched


def test_a_seed_draws_the_same_long_tasks_again(million_rows):
    with ReplayBuffer(million_rows, name="large") as buffer:
        batches = [
            [rows[0].exp_meta.task_id for rows in buffer.sample_tasks(4, sampler=sampler)]
            for sampler in (RandomTaskSample(seed=3), RandomTaskSample(seed=3))
        ]
    assert batches[0] == batches[1]
