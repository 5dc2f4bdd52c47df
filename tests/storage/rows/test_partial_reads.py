"""Rows read in part: `fields=[...]` reads what it names, and nothing else."""

import asyncio
from contextlib import contextmanager
from itertools import chain

import numpy as np
import pytest
from pydantic import BaseModel

from sqlbuffer import (
    LatestSampler,
    PrioritizedSampler,
    QueryBuilder,
    RandomTaskSample,
    ReplayBuffer,
    aio,
)
from sqlbuffer.codec.equality import equal
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.rows import payload_parts
from sqlbuffer.storage.rows.payload_parts import PART_BYTES
from tests.support.fragments import make_fragment
from tests.support.statements import selects


@contextmanager
def pieces_read():
    """Note what is read of parts and of `arrays`, piece by piece."""
    original, noted = payload_parts.read_pieces, []

    def read_pieces(connection, buffer_id, wanted):
        noted.extend(wanted)
        yield from original(connection, buffer_id, wanted)

    payload_parts.read_pieces = read_pieces
    try:
        yield noted
    finally:
        payload_parts.read_pieces = original


SIZE = 5 * PART_BYTES
TYPED = {
    "image": ("uint8", (100, 1_000)),
    "ids": ("int32", (-1,)),
    "obs": ("float32", (4,)),
    "text": "U6",
    "audio": ("float32", (-1, 2)),
    "masks": ("bool", (3, -1)),
}


def flat(tasks):
    return list(chain.from_iterable(tasks))


READERS = {
    "sample": lambda buffer, fields: buffer.sample(3, fields=fields),
    "newest": lambda buffer, fields: buffer.sample(3, sampler=LatestSampler(), fields=fields),
    "task sampler": lambda buffer, fields: flat(
        buffer.sample(3, sampler=RandomTaskSample(), fields=fields)
    ),
    "sample_tasks": lambda buffer, fields: flat(buffer.sample_tasks(3, fields=fields)),
    "get_all": lambda buffer, fields: list(buffer.get_all(fields=fields)),
    "pages": lambda buffer, fields: buffer.get_paginated(1, 3, fields=fields),
    "task": lambda buffer, fields: [
        row for n in range(3) for row in buffer.get_by_task_id(f"t{n}", fields=fields)
    ],
    "tasks": lambda buffer, fields: flat(
        buffer.get_batch_by_task_ids(["t0", "t1", "t2"], fields=fields).values()
    ),
}


@pytest.fixture(scope="module", params=[None, "zstd"], ids=["plain", "zstd"])
def compression(request):
    return request.param


@pytest.fixture
def buffer(buffer_url, compression):
    """Return a buffer of two fragments in parts, and one in its row."""
    with ReplayBuffer(buffer_url, compression=compression) as buffer:
        buffer.store_batch([make_fragment(0, SIZE), make_fragment(1, SIZE), make_fragment(2, 5000)])
        yield buffer


@pytest.mark.slow
def test_every_reader_gives_the_fields_and_the_keys(buffer):
    rows = [make_fragment(0, SIZE), make_fragment(1, SIZE), make_fragment(2, 5000)]
    for name, read in READERS.items():
        found = read(buffer, ["state.obs.steps", "state.number", "actions", "reward"])
        found.sort(key=lambda row: row.exp_meta.step)
        for row, own in zip(found, rows, strict=True):
            assert (row.id, row.exp_meta) == (own.id, own.exp_meta), name
            steps = own.exp_data.state["obs"]["steps"]
            state = {"obs": {"steps": steps}, "number": own.exp_meta.step}
            assert equal(row.exp_data.state, state, strict=True), name
            assert equal(row.exp_data.actions, own.exp_data.actions), name
            assert row.exp_data.reward_t == own.exp_data.reward_t, name
            assert row.exp_data.messages is None
        image = read(buffer, ["state.obs.image"])[0].exp_data.state["obs"]["image"]
        image[:] = 0
        assert image.flags.owndata or image.base is not None


def test_keys_alone_read_no_payload(buffer):
    for name, read in READERS.items():
        with pieces_read() as pieces:
            found = read(buffer, [])
        assert pieces == [], name
        assert sorted(row.id for row in found) == ["f0", "f1", "f2"]
        assert all(value is None for row in found for value in vars(row.exp_data).values())
    with selects(buffer) as statements:
        buffer.sample(3, fields=[])
    for statement in statements:
        assert not any(f"experiences.{name}" in statement for name in ("state", "arrays"))


def test_small_arrays_of_a_fragment_are_read_without_the_large_one(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch([make_fragment(0, SIZE), make_fragment(1, 5000)])
        with pieces_read() as pieces:
            buffer.sample(2, fields=["state.obs.steps", "actions.done"])
        assert sum(piece.size for piece in pieces) < 200
        assert {(piece.seq, piece.part) for piece in pieces} == {(1, 5), (2, None)}
        with pieces_read() as pieces:
            buffer.sample(2, fields=["state.obs.image"])
        assert sum(piece.size for piece in pieces) == SIZE + 5000
        assert len(pieces) == 6


def test_what_lies_between_small_arrays_is_not_read(buffer_url):
    state = {"a": np.arange(9), "image": np.zeros(SIZE, np.uint8), "z": np.arange(7.0)}
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state=state)
        buffer.add(state={**state, "image": np.zeros(50_000, np.uint8)})
        with pieces_read() as pieces:
            rows = buffer.get_paginated(1, 2, fields=["state.z", "state.a"])
        assert [piece.size for piece in pieces] == [72, 56, 72, 56]
    for row in rows:
        assert equal(row.exp_data.state, {"a": state["a"], "z": state["z"]}, strict=True)


def test_values_given_late_are_read_where_they_are_wanted(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_fragment(0, SIZE))
        buffer.annotate([1], reward=5.0, extra={"judge": "a", "note": "b"})
        for fields, reward, extra in (
            (["reward", "extra.judge"], 5.0, {"judge": "a"}),
            (["state.number"], None, None),
            ([], None, None),
        ):
            (row,) = buffer.sample(1, fields=fields)
            assert (row.exp_data.reward_t, row.exp_data.extra) == (reward, extra)
            assert buffer.get_by_task_id("t0", fields=fields) == [row]
            assert list(buffer.get_all(fields=fields)) == [row]


def test_of_compressed_parts_only_those_that_are_needed_are_read(buffer_url):
    with ReplayBuffer(buffer_url, compression="zstd") as buffer:
        buffer.store(make_fragment(0, SIZE))
        with pieces_read() as pieces:
            (row,) = buffer.sample(1, fields=["state.obs.steps"])
        assert {piece.part for piece in pieces} == {5}
        assert row.exp_data.state["obs"]["steps"].tolist() == [0, 1, 2, 3, 4]


def test_an_array_that_lies_in_two_parts_is_whole(buffer_url):
    arrays = {f"x{n}": np.full(PART_BYTES // 5 + n, n, np.uint16) for n in range(9)}
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state=arrays)
        for name, array in arrays.items():
            (row,) = buffer.sample(1, fields=[f"state.{name}"])
            assert equal(row.exp_data.state, {name: array}, strict=True)
            assert row.exp_data.state[name].flags.aligned
        (row,) = buffer.sample(1, fields=["state.x1", "state.x7", "state.x2"])
        assert equal(row.exp_data.state, {name: arrays[name] for name in ("x1", "x2", "x7")})


def test_many_small_arrays_are_read_in_few_pieces(buffer_url):
    arrays = [np.full(500, n) for n in range(1_000)]
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state={"steps": arrays, "image": np.zeros(PART_BYTES, np.uint8)})
        with pieces_read() as pieces:
            (row,) = buffer.sample(1, fields=["state.steps"])
        assert len(pieces) == 4
        assert equal(row.exp_data.state["steps"], arrays)


def test_what_columns_cannot_hold_comes_along_only_where_it_is_wanted(buffer_url):
    nan, extra = float("nan"), {"a": np.arange(3), "b": {"c": 1}}
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(reward=nan, adv_t=-0.0, v_t=1.0, extra=extra, execute_time=nan)
        buffer.add(reward=nan, adv_t=nan)

        def read(*fields):
            return [row.exp_data for row in buffer.get_all(fields=fields)]

        first, second = read("reward_t")
        assert np.isnan(first.reward_t)
        assert np.isnan(second.reward_t)
        assert (first.adv_t, first.v_t, first.extra, second.extra) == (None,) * 4
        first, second = read("extra.b.c", "adv_t")
        assert (first.reward_t, second.reward_t, second.extra) == (None,) * 3
        assert first.extra == {"b": {"c": 1}}
        assert str(first.adv_t) == "-0.0"
        assert np.isnan(second.adv_t)
        first, second = read("extra")
        assert equal(first.extra, extra)
        assert second.extra is None
        (row, _) = buffer.get_all(fields=[])
        assert np.isnan(row.exp_meta.execute_time)


class Obs(BaseModel):
    x: int
    y: list[int]


def test_a_state_is_rebuilt_as_its_type_where_it_is_read_whole(buffer_url):
    with ReplayBuffer(buffer_url, state_type=Obs, action_type=Obs) as buffer:
        obs = Obs(x=1, y=[2])
        buffer.add(state=obs, actions=[obs])
        (row,) = buffer.sample(1, fields=["state", "actions.x"])
        assert row.exp_data.state == obs
        assert row.exp_data.actions == [{"x": 1}]
        (row,) = buffer.sample(1, fields=["state.y"])
        assert row.exp_data.state == {"y": [2]}


def test_what_a_row_does_not_have_is_left_out(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for state in ({"a": 1, "b": 2}, {"b": 3}, [1], None, "text", {}):
            buffer.add(state=state)
        found = [row.exp_data.state for row in buffer.get_all(fields=["state.a", "state.c"])]
        assert found == [{"a": 1}, None, None, None, None, None]
        assert [row.exp_data.state for row in buffer.get_all(fields=["state"])][-1] == {}


def test_conditions_limits_and_priorities_hold_beside_fields(buffer_url):
    settings = {"max_use": 1, "priorities": True, "track_samples": True}
    with ReplayBuffer(buffer_url, **settings) as buffer:
        buffer.store_batch([make_fragment(n, SIZE) for n in range(2)])
        first = QueryBuilder().eq("exp_meta.step", 0)
        sampler = PrioritizedSampler(seed=0, exact=True)
        rows = buffer.sample(4, sampler=sampler, condition=first, fields=["reward_t"])
        assert [row.exp_data.reward_t for row in rows] == [0.0]
        assert rows.batch_id == 1
        assert len(rows.probabilities) == 1
        assert [row.id for row in buffer.sample(4, fields=[])] == ["f1"]
        assert buffer.sample(4, fields=[]) == []
        ids = buffer.sample(2, fields=[], converter=lambda rows: [row.id for row in rows])
        assert ids == []


def test_an_empty_buffer_and_an_unknown_task_have_no_rows(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for name, read in READERS.items():
            assert read(buffer, ["state.x"]) == [], name


@pytest.mark.parametrize("fields", ["state", ["stat"], [1], ["reward_t.x"], ["state."]])
def test_unknown_fields_are_refused_at_the_door(buffer_url, fields):
    with ReplayBuffer(buffer_url) as buffer:
        for read in (*READERS.values(), lambda buffer, fields: buffer.get_all(fields=fields)):
            with pytest.raises(FieldError):
                read(buffer, fields)


def test_asyncio_reads_in_part_as_well(buffer_url):
    async def read():
        async with await aio.AsyncReplayBuffer.open(buffer_url) as buffer:
            await buffer.store(make_fragment(0, SIZE))
            fields = ["state.number"]
            found = [
                *await buffer.sample(1, fields=fields),
                *(await buffer.sample_tasks(1, fields=fields))[0],
                *[row async for row in buffer.get_all(fields=fields)],
                *await buffer.get_paginated(1, 1, fields=fields),
                *await buffer.get_by_task_id("t0", fields=fields),
                *(await buffer.get_batch_by_task_ids(["t0"], fields=fields))["t0"],
            ]
            assert [row.exp_data.state for row in found] == [{"number": 0}] * 6
            assert [row async for row in buffer.get_all()] == [make_fragment(0, SIZE)]

    asyncio.run(read())


def typed_steps(n, rng):
    """Return columns of `TYPED` whose lengths differ; every third step is large in two fields."""
    lengths = rng.integers(0, 9, n)
    return {
        "image": rng.integers(0, 255, (n, 100, 1_000), np.uint8),
        "ids": [np.arange(k, dtype=np.int32) for k in lengths],
        "obs": rng.random((n, 4), np.float32),
        "text": [f"né{k}" for k in lengths],
        "audio": [rng.random((90_000 if i % 3 == 0 else k, 2), np.float32)
                  for i, k in enumerate(lengths)],
        "masks": [np.ones((3, k), bool) for k in lengths],
    }  # fmt: skip


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize(("packing", "small_block"), [(None, 0), (None, 2**16), ("zstd", 0)])
@pytest.mark.parametrize("fields", [TYPED, {k: v for k, v in TYPED.items() if k != "image"}],
                         ids=["large records", "small records"])  # fmt: skip
def test_typed_fields_are_read_without_the_others(
    buffer_url, fields, packing, small_block, monkeypatch
):
    monkeypatch.setattr(payload_parts, "SMALL_BLOCK", small_block)
    rng = np.random.default_rng(0)
    with ReplayBuffer(buffer_url, fields=fields, compression=packing) as buffer:
        columns = {name: v for name, v in typed_steps(5, rng).items() if name in fields}
        states = [{"x": np.arange(i)} for i in range(5)]
        buffer.extend({**columns, "state": states}, task_id=["t0", "t0", "t1", "t2", "t2"])
        buffer.delete(QueryBuilder().eq("seq", 4))
        whole = {row.seq: row for row in buffer.get_all()}
        for names in (["ids"], ["audio", "obs"], ["text", "masks"], list(fields)[:1], []):
            for read in READERS.values():
                rows = read(buffer, [*names, "state", "reward"])
                assert rows
                for row in rows:
                    own = whole[row.seq]
                    assert list(row.fields) == [name for name in fields if name in names]
                    assert all(equal(row.fields[n], own.fields[n], strict=True) for n in names)
                    assert equal(row.exp_data.state, own.exp_data.state)


def test_a_large_block_of_typed_fields_is_not_read_for_a_small_field(buffer_url):
    with ReplayBuffer(buffer_url, fields=TYPED) as buffer:
        buffer.extend(typed_steps(3, np.random.default_rng(0)))
        with pieces_read() as pieces:
            (row,) = buffer.sample(1, fields=["ids", "obs"])
        assert 0 < sum(piece.size for piece in pieces) < 200
        assert list(row.fields) == ["ids", "obs"]
        with pieces_read() as pieces:
            list(buffer.get_all(fields=["image"]))
        assert sum(piece.size for piece in pieces) == 3 * 100_000
