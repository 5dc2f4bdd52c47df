"""A stream reads the steps that a buffer holds, while writers write."""

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from sqlbuffer import BufferConfig, DataRow, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import CopyError, FieldError
from sqlbuffer.interchange import BufferStream
from sqlbuffer.interchange.streams import HeldStream
from sqlbuffer.steps import ColumnBatch
from tests.support.copied_buffers import columns, comparable, json_rows, odd_steps, typed_steps
from tests.support.sql import connected, scalar

Make = Callable[..., ReplayBuffer]
MAKE = [json_rows, typed_steps, odd_steps]
REALS = {"reward": "reward_t", "advantage": "adv_t", "value": "v_t"}
META = (
    "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "step", "execute_time",
    "model_version", "session_id",
)  # fmt: skip


def values(batch: ColumnBatch, name: str) -> list[Any]:
    found = batch.column(name)
    listed = found.tolist() if isinstance(found, np.ndarray) else list(found)
    missing = batch.is_null.get(name, np.zeros(len(batch), bool))
    return [None if is_none else value for value, is_none in zip(listed, missing, strict=True)]


def check_same(batches: Iterable[ColumnBatch], rows: list[DataRow]) -> None:
    batches, done = list(batches), 0
    for batch in batches:
        own = rows[done : done + len(batch)]
        done += len(batch)
        assert values(batch, "seq") == [row.seq for row in own]
        assert values(batch, "id") == [row.id for row in own]
        for name in META:
            assert repr(values(batch, name)) == repr([getattr(r.exp_meta, name) for r in own]), name
        for name, attribute in {**REALS, "terminated": "terminated"}.items():
            expected = [getattr(row.exp_data, attribute) for row in own]
            assert repr(values(batch, name)) == repr(expected), name
        for name in own[0].fields:
            found = [np.asarray(batch.fields[name][i]) for i in range(len(own))]
            assert comparable(found) == comparable([np.asarray(row.fields[name]) for row in own])
    assert done == len(rows)


@pytest.mark.thorough
@pytest.mark.parametrize("make", MAKE)
def test_a_stream_has_the_steps_and_values_that_a_buffer_shows(
    buffer_url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make(buffer_url, "source")
    rows = list(buffer)
    with BufferStream(buffer) as stream:
        check_same(stream, rows)
    for most in ("MOST_ROWS", "MOST_CHUNKS"):
        monkeypatch.setattr(f"sqlbuffer.storage.copies.source.{most}", 1)
    with BufferStream(buffer) as stream:
        batches = list(stream)
        assert len(batches) > 2
        check_same(batches, rows)


@pytest.mark.parametrize("make", MAKE)
def test_other_processes_read_pieces_of_a_stream(buffer_url: str, make: Make) -> None:
    buffer = make(buffer_url, "source")
    with BufferStream(buffer) as stream:
        pieces = pickle.loads(pickle.dumps(stream.pieces(4)))
        assert len(pieces) == 4
        check_same([batch for piece in pieces for batch in piece], list(buffer))
        (whole,) = stream.pieces(1)
        check_same(whole, list(buffer))


@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_condition_and_fields_choose(buffer_url: str, make: Make) -> None:
    buffer = make(buffer_url, "source")
    condition = QueryBuilder().eq("task_id", "task-0").or_().gt("reward", 0.6).build()
    matching = buffer.get_all(condition)
    with BufferStream(buffer, condition, fields=[]) as stream:
        assert [seq for batch in stream for seq in values(batch, "seq")] == [
            r.seq for r in matching
        ]
        assert all(not batch.fields for batch in stream)


@pytest.mark.thorough
@pytest.mark.parametrize("fields", [None, {"x": "float32"}])
def test_an_empty_buffer_has_no_batches(database_url: str, fields: Any) -> None:
    buffer = ReplayBuffer(database_url, create=True, fields=fields)
    with BufferStream(buffer) as stream:
        assert (list(stream), stream.low, stream.high, stream.pieces(3)) == ([], 0, 0, [])


@pytest.mark.thorough
def test_steps_that_leave_in_the_meantime_are_held(
    buffer_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_CHUNKS", 1)
    buffer = typed_steps(buffer_url, "source")
    rows, found = list(buffer), []
    with BufferStream(buffer) as stream:
        for batch in stream:
            found.append(batch)
            buffer.extend(columns(40, len(found)), task_id="later")
        pieces = stream.pieces(2)
        assert sum(len(batch) for piece in pieces for batch in piece) == len(rows)
    assert [seq for batch in found for seq in values(batch, "seq")] == [row.seq for row in rows]
    assert min(row.seq for row in buffer) > max(row.seq for row in rows)
    assert scalar(buffer_url, "SELECT count(*) FROM holds") == 0


@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_steps_that_leave_although_they_were_held_are_an_error(
    buffer_url: str, evict_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqlbuffer.storage.copies.source.MOST_CHUNKS", 1)
    buffer = typed_steps(buffer_url, "source", evict_by=evict_by)

    def evict() -> None:  # as if the process had slept for longer than a hold lasts
        with connected(buffer_url) as connection:
            connection.exec_driver_sql("DELETE FROM holds")
            connection.commit()
        for i in range(5):
            buffer.extend(columns(40, i), task_id=f"later-{i}")

    with BufferStream(buffer) as stream:
        batches = iter(stream)
        next(batches)
        evict()
        with pytest.raises(CopyError, match=r"left .* before they were"):
            list(batches)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_held_steps_are_read_until_they_are_deleted(buffer_url: str, evict_by: str) -> None:
    buffer = typed_steps(buffer_url, "source", evict_by=evict_by)
    held = HeldStream(buffer, None, [])
    pieces, rows = held.pieces(3), list(buffer)
    for i in range(5):
        buffer.extend(columns(40, i), task_id=f"later-{i}")
    copy = pickle.loads(pickle.dumps(held))
    del copy
    assert sum(len(batch) for piece in pieces for batch in piece) == len(rows)
    del held
    assert scalar(buffer_url, "SELECT count(*) FROM holds") == 0
    buffer.extend(columns(40, 9), task_id="later-9")
    with pytest.raises(CopyError, match=r"left .* before they were"):
        list(pieces[0])


def test_a_stream_is_read_while_it_is_open(buffer_url: str) -> None:
    buffer = json_rows(buffer_url, "source")
    with pytest.raises(CopyError, match="read inside `with`"):
        list(BufferStream(buffer))


def test_buffers_of_compat_are_named(buffer_url: str) -> None:
    ReplayBuffer(buffer_url, "ring", config=BufferConfig()).close()
    with connected(buffer_url) as connection:
        connection.exec_driver_sql("UPDATE buffers SET layout = 'ring'")
    with pytest.raises(CopyError, match=r"layout 'ring' of sqlbuffer\.compat, and is not exported"):
        BufferStream(ReplayBuffer(buffer_url, "ring"))


def test_an_unknown_field_is_named(buffer_url: str) -> None:
    buffer = typed_steps(buffer_url, "source")
    with pytest.raises(FieldError, match="no column 'obz'"):
        BufferStream(buffer, fields=["obz"])
