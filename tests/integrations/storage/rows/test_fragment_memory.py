"""A fragment of 64 MB: how much memory a client and the server take for it."""

from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.support.processes import run_at_once
from tests.support.sql import is_sqlite

MIB = 2**20
OF_TASK = QueryBuilder().eq("exp_meta.task_id", "t")
FRAGMENT = 64 * MIB
# The one copy that the library makes beside the user's arrays, and what is in use for a while.
MOST_BYTES = 1.25 * FRAGMENT
# Of its own, without the pages that all of its processes share.
MOST_SERVER_BYTES = 16 * MIB


def status_bytes(name: str, pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def growth(call):
    """Return by how much memory grew at most while it was called, and what it returned."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # begin the peak anew
    before = status_bytes("VmRSS")
    found = call()
    return status_bytes("VmHWM") - before, found


def measure(url, compression):
    """Return by how much the memory of this process grows."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (FRAGMENT - 2 * MIB, 1), np.uint8)
    state = {"obs": {"image": images[::-1], "x": rng.random((2, MIB // 8))}, "id": "x"}
    with ReplayBuffer(url, compression=compression) as buffer:
        buffer.add(state=np.zeros(2 * MIB, np.uint8), task_id="first")
        list(buffer)  # what is imported and connected at first is no copy
        server = None
        if not is_sqlite(url):
            with buffer._store.engine.connect() as connection:
                server = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        found = {}
        found["write"], _ = growth(lambda: buffer.add(state=state, task_id="t"))
        for name, read in {
            "task": lambda: buffer.get_by_task_id("t"),
            "sample": lambda: buffer.sample(1, condition=OF_TASK),
            "part": lambda: buffer.get_by_task_id("t", fields=["state.obs.x"]),
        }.items():
            found[name], (row,) = growth(read)
            obs = row.exp_data.state["obs"]
            assert np.array_equal(obs["x"], state["obs"]["x"])
            assert name == "part" or np.array_equal(obs["image"], state["obs"]["image"])
            del row, obs
        found["server"] = status_bytes("RssAnon", server) if server else 0
        return found


@pytest.mark.parametrize(
    ("kind", "compression"), [("sqlite", None), ("sqlite", "zstd"), ("postgresql", None)]
)
def test_a_fragment_of_64_mb_is_copied_once(make_database_url, kind, compression):
    buffer_url = make_database_url(kind, schema=True)
    # A process of its own: what others have done here is in use already.
    (found,) = run_at_once([(measure, buffer_url, compression)], method="spawn")
    assert found["write"] < MOST_BYTES
    assert found["task"] < MOST_BYTES
    assert found["sample"] < MOST_BYTES
    assert found["part"] < 0.25 * FRAGMENT
    assert found["server"] < MOST_SERVER_BYTES
