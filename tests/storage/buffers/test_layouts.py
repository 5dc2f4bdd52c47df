"""Core calls do what the layout of a buffer needs, and nothing where it is plain."""

import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Table

import sqlbuffer
from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.extensions import tables
from sqlbuffer.storage.schema.views import VIEWS
from tests.support.sql import run, scalar
from tests.support.statements import tables_used
from tests.support.stepped_rows import make_row, step_is

ROOT = Path(sqlbuffer.__file__).parent
COMPAT_TABLES = {"buffer_layouts", "participants", "slots", "payload_changes"}
CALLS = {
    "delete": lambda buffer: buffer.delete(step_is(1)),
    "clear": lambda buffer: buffer.clear(),
    "resize": lambda buffer: buffer.resize(2),
}
IN_SLOTS = {"name": "slots", "max_episodes": 3, "max_timesteps": 4, "fields": {"r": "float"}}
DELETE = """
import sys
from sqlbuffer import QueryBuilder, ReplayBuffer
with ReplayBuffer(sys.argv[1], name="slots", create=False) as buffer:
    assert buffer.delete(QueryBuilder().eq("r", 1).build()) == 1
assert not [name for name in sys.modules if name.startswith("sqlbuffer.compat")]
"""


@pytest.mark.parametrize("call", CALLS)
def test_a_call_on_a_plain_buffer_uses_no_table_of_compat(buffer_url, call):
    with ReplayBuffer(buffer_url, max_capacity=9) as buffer:
        buffer.store_batch([make_row(step) for step in range(5)])
        names = [*COMPAT_TABLES, "experiences"]
        with tables_used(buffer, names) as used:
            CALLS[call](buffer)
        assert used == {"experiences"}


def test_the_layout_of_slots_is_followed(buffer_url):
    with closing(memmap.ReplayBuffer(buffer_url, **IN_SLOTS)) as slots:
        slots.store_episode(r=[1.0])
        with ReplayBuffer(buffer_url, name="slots", create=False) as buffer:
            with tables_used(buffer, COMPAT_TABLES) as used:
                buffer.delete(QueryBuilder().eq("r", 1).build())
            assert used == {"slots", "buffer_layouts"}


def test_a_process_without_compat_empties_slots(buffer_url):
    with closing(memmap.ReplayBuffer(buffer_url, **IN_SLOTS)) as buffer:
        buffer.store_episode(r=[1.0])
        buffer.store_episode(r=[2.0])
        subprocess.run([sys.executable, "-c", DELETE, buffer_url], check=True)
        assert buffer.episode_lens[:].tolist() == [0, 1, 0]


@pytest.mark.parametrize("call", CALLS)
def test_a_layout_that_the_process_does_not_know_is_refused(buffer_url, call):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_row(1))
    run(buffer_url, "UPDATE buffers SET layout = 'spiral'")
    with ReplayBuffer(buffer_url, create=False) as buffer:
        with pytest.raises(BufferConfigError, match="'spiral', which this process does not know"):
            CALLS[call](buffer)
        assert len(buffer) == 1


def test_compat_alone_has_five_tables():
    found = {name for name, table in vars(tables).items() if isinstance(table, Table)}
    assert found == COMPAT_TABLES
    assert [*(ROOT / "storage" / "extensions").rglob("tables.py")] == [Path(tables.__file__)]
    assert len(COMPAT_TABLES) <= 5
    assert "chunks" not in COMPAT_TABLES  # of fragments: chunks of steps are core's
    assert "v_chunks" not in VIEWS


def test_core_names_no_table_of_compat():
    words = re.compile(rf"\b({'|'.join(COMPAT_TABLES)})\b")
    # In these a slot is a place in an array.
    of_arrays = [ROOT / name for name in ("weighted_sampling", "batches", "mirror")]
    others = [ROOT / "compat", ROOT / "storage" / "extensions", *of_arrays]
    others.append(ROOT / "storage" / "sampling")
    found = [
        f"{path}: {words.search(path.read_text())}"
        for path in [*ROOT.rglob("*.py"), *ROOT.rglob("*.sql")]
        if words.search(path.read_text()) and not any(path.is_relative_to(p) for p in others)
    ]
    assert found == []


def test_only_compat_names_a_layout(buffer_url):
    ReplayBuffer(buffer_url).close()
    assert scalar(buffer_url, "SELECT layout FROM buffers") is None
