"""A buffer keeps its layout from the day it is made."""

import sqlite3
from contextlib import closing

import numpy as np
from sqlalchemy import make_url

from sqlbuffer import LatestSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.storage.buffers.catalog import disagreements
from tests.support.sql import connected

FIELDS = {"obs": ("float32", (2,))}


def test_a_change_of_settings_leaves_the_layout(buffer_url):
    obs = np.arange(20, dtype=np.float32).reshape(10, 2)
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=50) as buffer:
        buffer.extend({"obs": obs})
    with ReplayBuffer(buffer_url) as buffer:
        buffer.resize(40)
        assert len(buffer) == 10
    with ReplayBuffer(buffer_url, fields=FIELDS) as again:
        again.extend({"obs": obs})
        assert len(again) == again.size() == 20
        found = again.sample_arrays(20, sampler=LatestSampler())["obs"]
        np.testing.assert_array_equal(found[::-1], np.concatenate([obs, obs]))
    with connected(buffer_url) as connection:
        assert disagreements(connection) == {"default": []}


def test_a_copy_of_a_file_goes_on_as_the_original(tmp_path, sqlite_url):
    settings = {"fields": FIELDS, "max_capacity": 50, "priorities": True}
    with ReplayBuffer(sqlite_url, create=True, **settings) as original:
        for start in (0, 30):
            original.extend(
                {"obs": np.full((30, 2), start)}, id=[f"{start}_{i}" for i in range(30)]
            )
        original.annotate([59], reward=2.0)
        original.delete(QueryBuilder().eq("seq", 58))
        copied = tmp_path / "copy.db"
        with (
            closing(sqlite3.connect(make_url(sqlite_url).database)) as source,
            closing(sqlite3.connect(copied)) as target,
        ):
            source.backup(target)
        with ReplayBuffer(f"sqlite:///{copied}") as copy:
            assert list(copy) == list(original)
            for buffer in (original, copy):
                again = buffer.extend({"obs": np.full((2, 2), 30.0)}, id=["30_0", "new"], step=0)
                assert (again.duplicates, again.seqs.tolist()) == (1, [31, 61])
            assert [row.id for row in copy] == [row.id for row in original]
            assert len(copy) == len(original) == 49
            drawn = copy.sample_arrays(64)
            assert (drawn["obs"][:, 0] == np.where(drawn.info["seq"] > 30, 30, 0)).all()
