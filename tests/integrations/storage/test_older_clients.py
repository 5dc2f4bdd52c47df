"""A package that is one revision behind an additive migration goes on working."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import SchemaTooNewError
from sqlbuffer.storage.migrations import migrate, status
from tests.support.markdown import ROOT
from tests.support.processes import running, wait_until
from tests.support.schema import schema_of
from tests.support.sql import connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_row, make_rows, steps_of

ADDITIVE = '''
"""Adds what no older package knows of."""

import sqlalchemy as sa
from alembic import op

revision = "later"
down_revision = "{down_revision}"
OBJECTS: dict = {{"sqlite": (), "postgresql": ()}}


def upgrade() -> None:
    op.add_column("experiences", sa.Column("note", sa.Text()))
    op.add_column("buffers", sa.Column("colour", sa.Text(), server_default="blue"))
    op.create_index("ix_experiences_note", "experiences", ["buffer_id", "note"])
    op.create_table("notes", sa.Column("id", sa.Integer(), primary_key=True))
    {more}
'''
UPGRADE = """
import sys
from sqlbuffer.storage.migrations import migrate
migrate.upgrade(sys.argv[1])
"""
BREAKING = """op.execute("UPDATE schema_info SET min_client = 'later'")"""


@pytest.fixture
def later_checkout(tmp_path):
    """Return a function that upgrades a database as a later release of the package would."""

    def upgrade(url: str, more: str = "pass") -> None:
        home = Path(tmp_path / "later")
        for folder in ("sqlbuffer", "alembic"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, home / folder, ignore=ignored, dirs_exist_ok=True)
        script = ADDITIVE.format(down_revision=migrate.HEAD, more=more)
        (home / "alembic/versions/later.py").write_text(script)
        module = home / "sqlbuffer/storage/migrations/migrate.py"
        source = module.read_text()
        known = f'REVISIONS = ("{migrate.REVISIONS[0]}",'
        assert known in source
        module.write_text(
            source.replace("HEAD = REVISIONS[-1]", 'REVISIONS += ("later",)\nHEAD = REVISIONS[-1]')
        )
        subprocess.run([sys.executable, "-c", UPGRADE, url], cwd=home, check=True, timeout=120)
        assert scalar(url, f"SELECT version_num FROM {migrate.VERSION_TABLE}") == "later"

    return upgrade


def write_until_told(url: str, name: str, stop: Path) -> int:
    buffer = ReplayBuffer(url, max_capacity=200)
    batch = 0
    while not stop.exists():
        rows = [make_row(step, task=f"{name}_{batch}") for step in range(10)]
        assert buffer.store_batch(rows).inserted == 10
        assert buffer.sample(5)
        assert len(buffer) <= 200
        batch += 1
    return batch


def test_writers_go_on_while_a_later_release_adds_to_the_schema(
    buffer_url, later_checkout, tmp_path
):
    stop = tmp_path / "stop"
    buffer = ReplayBuffer(buffer_url, max_capacity=200)
    number = scalar(buffer_url, "SELECT id FROM buffers")

    def last():
        return scalar(buffer_url, "SELECT max(seq) FROM experiences") or 0

    with running([(write_until_told, buffer_url, name, stop) for name in "ab"]) as writers:
        wait_until(lambda: last() > 200, "some batches before the migration")
        later_checkout(buffer_url)
        after = last()
        wait_until(lambda: last() > after + 500, "some batches after it")
        stop.touch()
        batches = sum(writers.results())
    assert len(buffer) == buffer.size() == 200
    assert last() == 10 * batches
    assert run(buffer_url, "SELECT DISTINCT note FROM experiences") == [(None,)]
    assert run(buffer_url, "SELECT id, colour FROM buffers") == [(number, "blue")]


def test_an_older_package_opens_a_schema_that_was_only_added_to(buffer_url, later_checkout):
    ReplayBuffer(buffer_url, max_capacity=10).store_batch(make_rows(range(5)))
    later_checkout(buffer_url)
    buffer = ReplayBuffer(buffer_url)
    buffer.store_batch(make_rows(range(5, 20)))
    assert steps_of(buffer) == list(range(10, 20))
    ReplayBuffer(buffer_url, name="new", evict_by="task", max_capacity=5).store(make_row(1))
    assert ReplayBuffer.list(buffer_url) == ["default", "new"]
    assert status.check(buffer_url).revision == "later"
    migrate.upgrade(buffer_url)  # nothing to do, and nothing is undone
    assert status.upgrade(buffer_url) is False
    assert status.create(buffer_url) is False
    assert scalar(buffer_url, f"SELECT version_num FROM {migrate.VERSION_TABLE}") == "later"


def test_a_later_release_makes_the_whole_schema_in_a_new_database(
    database_url, make_database_url, later_checkout
):
    later_checkout(database_url)
    other_url = make_database_url("sqlite" if is_sqlite(database_url) else "postgresql")
    migrate.upgrade(other_url)
    later_checkout(other_url)
    with connected(database_url) as one, connected(other_url) as other:
        assert schema_of(one) == schema_of(other)
        assert "notes" in schema_of(one)


def test_a_schema_that_was_changed_is_refused(buffer_url, later_checkout):
    ReplayBuffer(buffer_url).store(make_row(1))
    later_checkout(buffer_url, BREAKING)
    for opened in (ReplayBuffer, ReplayBuffer.list, migrate.upgrade, status.check):
        with pytest.raises(SchemaTooNewError, match="git pull && pip install"):
            opened(buffer_url)
