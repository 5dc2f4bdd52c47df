"""Rows show the typed fields of their step, by whichever call they are read."""

import asyncio
import pickle

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, LatestSampler, ReplayBuffer
from sqlbuffer.aio import AsyncReplayBuffer
from sqlbuffer.errors import FieldError

FIELDS = {
    "obs": ("float32", (2, 3)),
    "level": {"dtype": "int64", "column": True},
    "name": "U4",
    "raw": "S3",
    "ok": "bool",
    "tokens": ("int32", (-1,)),
    "boxes": ("float64", (2, -1)),
}
N = 7


def columns():
    return {
        "obs": np.arange(6.0 * N, dtype=np.float32).reshape(N, 2, 3),
        "level": np.arange(N),
        "name": ["", "a", "äö", "名前", "abcd", "x", "y"],
        "raw": [b"", b"a", b"bb", b"\0c", b"ccc", b"x", b"y"],
        "ok": [n % 2 == 0 for n in range(N)],
        "tokens": [np.arange(n, dtype=np.int32) for n in range(N)],
        "boxes": [np.full((2, n % 3), float(n)) for n in range(N)],
        "state": [{"grid": np.full((2, 2), n)} for n in range(N)],
        "reward": np.arange(float(N)),
        "task_id": ["t"] * N,
    }


@pytest.fixture(params=[None, "zstd"], ids=["raw", "zstd"])
def buffer(buffer_url, request):
    settings = {"fields": FIELDS, "compression": request.param, "leases": True}
    with ReplayBuffer(buffer_url, **settings) as buffer:
        buffer.extend(columns())
        yield buffer


def leased(buffer):
    with buffer.lease(N) as batch:
        return batch.rows


def read_with_asyncio(buffer):
    async def read():
        async with await AsyncReplayBuffer.open(buffer.url) as other:
            return [row async for row in other]

    return asyncio.run(read())


WAYS = {
    "iteration": list,
    "get_all": lambda buffer: buffer.get_all(),
    "get_paginated": lambda buffer: buffer.get_paginated(1, N),
    "get_by_task_id": lambda buffer: buffer.get_by_task_id("t"),
    "get_batch_by_task_ids": lambda buffer: buffer.get_batch_by_task_ids(["t"])["t"],
    "sample": lambda buffer: buffer.sample(N, sampler=LatestSampler()),
    "sample_tasks": lambda buffer: buffer.sample_tasks(1)[0],
    "lease": leased,
    "aio": read_with_asyncio,
}


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("way", WAYS)
def test_every_call_shows_them(buffer, way):
    rows = sorted(WAYS[way](buffer), key=lambda row: row.seq)
    expected = columns()
    assert len(rows) == N
    for n, row in enumerate(rows):
        assert list(row.fields) == list(FIELDS)
        for name, value in row.fields.items():
            assert value.dtype.type is buffer.fields[name].dtype.type, name
            np.testing.assert_array_equal(value, expected[name][n], name)
            assert isinstance(value, np.ndarray if buffer.fields[name].shape else np.generic)
        np.testing.assert_array_equal(row.exp_data.state["grid"], expected["state"][n]["grid"])
    rows[0].fields["obs"][:] = 9  # its own memory
    assert rows[1].fields["obs"].max() < 12


def test_some_of_them_are_read(buffer):
    (row,) = buffer.sample(1, sampler=LatestSampler(), fields=["level", "tokens", "reward"])
    assert row.fields.keys() == {"level", "tokens"}
    assert (row.fields["level"], row.exp_data.reward_t, row.exp_data.state) == (
        N - 1,
        N - 1.0,
        None,
    )
    (row,) = buffer.sample(1, sampler=LatestSampler(), fields=["state"])
    assert row.fields == {}
    np.testing.assert_array_equal(row.exp_data.state["grid"], np.full((2, 2), N - 1))
    with pytest.raises(FieldError, match=r"unknown field 'levels'.*truncated, obs, level, name"):
        buffer.sample(1, sampler=LatestSampler(), fields=["levels"])


def test_rows_are_equal_by_their_fields(buffer):
    first, *_, last = buffer
    assert first == next(iter(buffer)) == pickle.loads(pickle.dumps(first))
    assert first != last
    changed = DataRow(first.exp_meta, first.exp_data, first.id, fields=dict(first.fields))
    assert changed == first
    changed.fields["obs"] = first.fields["obs"] + 1
    assert changed != first
    assert last.to_dict()["fields"]["level"] == N - 1


def test_other_rows_have_none(buffer_url):
    with ReplayBuffer(buffer_url, name="rows") as rows:
        rows.add(state=1)
        assert [row.fields for row in rows] == [{}]
    row = DataRow(ExpMeta("t", None, "a", 1, 0.0), Experience())
    assert row.fields == {}
    assert "fields" not in row.to_dict()
