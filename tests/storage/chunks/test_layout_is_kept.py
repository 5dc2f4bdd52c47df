"""A buffer keeps its layout from the day it is made."""

import gc
import weakref

import numpy as np
import pytest
from sqlalchemy import select

from sqlbuffer import LatestSampler, ReplayBuffer
from sqlbuffer.storage.buffers.stored_config import disagreements
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.chunks.step_statements import over_chunks
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


@pytest.mark.parametrize("table", [experiences, buffers], ids=lambda table: table.name)
def test_statements_that_are_made_for_one_call_are_not_kept_for_ever(table):
    statement = select(table.c[0])
    over_chunks(statement)
    made = weakref.ref(statement)
    del statement
    for n in range(200):
        over_chunks(select(table.c[0]).limit(n))
    gc.collect()
    assert made() is None
