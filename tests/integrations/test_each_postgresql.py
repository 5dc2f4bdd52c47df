"""What a buffer does on each PostgreSQL of the machine, bundled or installed, with a standby."""

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.cli import app
from tests.conftest import close_pool
from tests.support.processes import wait_until
from tests.support.rows import make_row
from tests.support.servers import all_server_programs, primary_and_standby

FIELDS = {"x": "int64"}


@pytest.fixture(
    scope="module", params=all_server_programs() or [None], ids=lambda p: p and p.parent.name
)
def urls(request):
    if request.param is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with primary_and_standby(request.param) as (primary, standby):
        yield primary.url, standby.url
        close_pool(primary.url)
        close_pool(standby.url)


def values(loader):
    return sorted(x for batch in loader for x in batch.x.tolist())


@pytest.mark.parametrize("fields", [None, FIELDS], ids=["rows", "chunks"])
def test_steps_are_stored_evicted_drawn_and_deleted(urls, fields):
    name = "chunks" if fields else "rows"
    with ReplayBuffer(urls[0], name, create=True, max_capacity=300, fields=fields) as buffer:
        for start in range(0, 1_000, 100):
            if fields:
                buffer.extend({"x": range(start, start + 100)})
            else:
                buffer.store_batch([make_row(step=n) for n in range(start, start + 100)])
        assert len(buffer) == 300
        assert buffer.delete(QueryBuilder().lte("seq", 750).build()) == 50
        assert min(row.seq for row in buffer.sample(256)) > 750
        assert sum(1 for _ in buffer) == 250


def test_priorities_reach_draws_and_a_mirror(urls):
    with (
        ReplayBuffer(urls[0], "priorities", create=True, priorities=True, fields=FIELDS) as buffer,
        buffer.mirror(refresh_s=600) as mirror,
    ):
        buffer.extend({"x": range(300)})
        (batch,) = buffer.loader("step", 300, epochs=1)
        buffer.update_priorities(batch.info["seq"], np.where(batch.x == 7, 1e9, 0.0))
        mirror.refresh()
        for drawing in (buffer, mirror):
            drawn = drawing.sample_arrays(16, sampler=PrioritizedSampler())
            assert drawn.x.tolist() == [7] * 16
        buffer.extend({"x": range(300, 400)})
        assert values(mirror.loader("step", 64, epochs=1)) == [*range(400)]


def test_rows_are_leased_once(urls):
    with ReplayBuffer(urls[0], "leases", create=True, leases=True, max_use=1) as buffer:
        buffer.store_batch([make_row(step=step) for step in range(20)])
        with buffer.lease(12, timeout_s=0) as first, buffer.lease(8, timeout_s=0) as second:
            seqs = [row.seq for lease in (first, second) for row in lease]
            assert len(set(seqs)) == 20
        assert len(buffer) == 0


def test_a_standby_is_read_and_followed(urls):
    primary, standby = urls
    with (
        ReplayBuffer(primary, "read", create=True, read_url=standby, fields=FIELDS) as buffer,
        buffer.mirror(refresh_s=600) as mirror,
    ):
        for n in range(1, 4):
            buffer.extend({"x": range(100 * n - 100, 100 * n)})
            assert values(buffer.loader("step", 64, epochs=1)) == [*range(100 * n)]
            assert values(mirror.loader("step", 64, epochs=1)) == [*range(100 * n)]


def test_doctor_finds_nothing_that_fails(urls):
    ReplayBuffer(urls[0], "checked", create=True).close()
    runner = CliRunner()
    wait_until(lambda: runner.invoke(app, ["ls", urls[1]]).exit_code == 0, "a schema there too")
    for url in urls:
        checked = runner.invoke(app, ["doctor", url])
        assert checked.exit_code == 0, checked.output
