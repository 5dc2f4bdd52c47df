"""Core calls do what the layout of a buffer needs, and nothing where it is plain."""

import subprocess
import sys
from contextlib import closing

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat import memmap
from sqlbuffer.errors import BufferConfigError
from tests.support.sql import run, scalar
from tests.support.statements import tables_used
from tests.support.stepped_rows import make_row, step_is

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
        names = ["payload_changes", "documents", "experiences"]
        with tables_used(buffer, names) as used:
            CALLS[call](buffer)
        assert used == {"experiences"}


@pytest.mark.thorough
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


def test_only_compat_names_a_layout(buffer_url):
    ReplayBuffer(buffer_url).close()
    assert scalar(buffer_url, "SELECT layout FROM buffers") is None
