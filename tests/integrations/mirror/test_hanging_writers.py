"""A writer whose transaction stays open is named by those that wait for its steps."""

import numpy as np
import psycopg
import pytest
from typer.testing import CliRunner

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app
from tests.support.episodes import FIELDS
from tests.support.processes import wait_until
from tests.support.sql import scalar


@pytest.fixture
def server_url(make_database_url):
    return make_database_url("postgresql", schema=True)


def test_a_hanging_writer_is_named_and_delays_nobody(server_url, make_database_url):
    """Nor do an analyst's snapshot and a writer of another database, which are not named."""
    foreign_url = make_database_url("postgresql", schema=True)
    with (
        ReplayBuffer(server_url, "own", fields=FIELDS) as buffer,
        ReplayBuffer(server_url, "other", fields=FIELDS) as other,
        ReplayBuffer(foreign_url, "own", fields=FIELDS),
        buffer.mirror(refresh_s=3_600) as mirror,
        other.mirror(refresh_s=3_600) as elsewhere,
        psycopg.connect(server_url) as analyst,
        psycopg.connect(foreign_url) as foreign,
        psycopg.connect(server_url, application_name="rollouts") as writer,
    ):
        analyst.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        analyst.execute("SELECT count(*) FROM v_experiences")
        number = scalar(server_url, "SELECT id FROM buffers WHERE name = 'own'")
        foreign.execute("SELECT sqlbuffer_reserve_v1(1, 4)")
        writer.execute("SELECT sqlbuffer_reserve_v1(%s, 4)", (number,))
        wait_until(lambda: mirror.lag().held_back_by is not None, "the writer hangs")
        found = mirror.lag().held_back_by
        assert (found.pid, found.application) == (writer.info.backend_pid, "rollouts")
        assert found.user == writer.info.user
        assert 5 <= found.age_s < 600
        assert elsewhere.lag().held_back_by is None
        told = CliRunner().invoke(app, ["doctor", server_url], env={"COLUMNS": "300"}).output
        assert "writer of 'own'" in told
        assert f"pg_terminate_backend({found.pid})" in told
        buffer.extend({"obs": np.zeros((10, 2)), "action": np.arange(10)})
        mirror.refresh()
        assert (len(mirror), mirror.lag().steps) == (10, 0)
        writer.rollback()
        assert mirror.lag().held_back_by is None
