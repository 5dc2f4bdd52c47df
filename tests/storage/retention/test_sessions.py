"""Training sessions and the versions of their models."""

import asyncio
import math
import pickle
import re

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer, aio
from sqlbuffer.errors import FieldError, SessionNotFoundError
from tests.support.limited_rows import FIELDS, arrays_of, rows_of
from tests.support.sql import buffer_id, is_sqlite, run, scalar
from tests.support.statements import selects


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


def versions_of_sessions(url):
    return dict(run(url, "SELECT key, current_version FROM sessions"))


def test_a_buffer_begins_without_a_session_and_a_version(buffer):
    assert buffer.session_id is None
    assert buffer.model_version() is None


def test_a_started_session_is_that_of_every_process(buffer, buffer_url):
    key = buffer.start_session()
    assert re.fullmatch(r"[0-9a-f-]{36}", key)
    with ReplayBuffer(buffer_url) as other:
        assert other.session_id == key
        assert other.start_session("named: é") == "named: é"
    assert buffer.session_id == "named: é"
    assert versions_of_sessions(buffer_url) == {key: None, "named: é": None}


def test_sessions_belong_to_one_buffer(buffer, buffer_url):
    with ReplayBuffer(buffer_url, name="other") as other:
        buffer.start_session("s")
        buffer.set_model_version(3)
        assert other.session_id is None
        other.start_session("s")
        assert (other.model_version(), buffer.model_version()) == (None, 3)


def test_the_model_version_is_the_clock_of_every_process(buffer, buffer_url):
    buffer.start_session("s")
    assert buffer.set_model_version(np.int64(5))
    with ReplayBuffer(buffer_url) as other:
        assert other.model_version() == other.clock == 5
        other.set_clock(6)
    assert buffer.model_version() == 6
    assert versions_of_sessions(buffer_url) == {"s": 6}


def test_a_version_needs_no_session(buffer):
    assert buffer.set_model_version(-(2**63))
    assert buffer.model_version() == buffer.clock == -(2**63)


def test_a_session_goes_on_with_its_version(buffer):
    buffer.start_session("first")
    buffer.set_model_version(7)
    buffer.start_session("second")
    assert buffer.model_version() is None
    buffer.set_model_version(1)
    buffer.start_session("first")
    assert buffer.model_version() == 7


def test_a_learner_of_an_earlier_session_does_not_move_the_clock(buffer, buffer_url):
    buffer.start_session("old")
    with ReplayBuffer(buffer_url) as newer:
        newer.start_session("new")
        assert newer.set_model_version(1)
        for late in (buffer, pickle.loads(pickle.dumps(buffer))):
            assert not late.set_model_version(100)
            assert late.model_version() == 1
        assert not newer.set_model_version(200, "old")
        assert buffer.set_model_version(2, session_id="new")
        assert newer.model_version() == 2
    assert versions_of_sessions(buffer_url) == {"old": 200, "new": 2}


def test_who_started_none_speaks_for_the_current_session(buffer, buffer_url):
    with ReplayBuffer(buffer_url) as other:
        other.start_session("s")
    assert buffer.set_model_version(4)
    assert versions_of_sessions(buffer_url) == {"s": 4}


def test_a_session_that_only_rows_name_may_be_resumed(buffer):
    buffer.add(state=1, session_id="s")
    assert buffer.set_model_version(3, "s")  # none was started: it moves the clock
    buffer.start_session("s")
    assert buffer.model_version() == 3


def test_a_view_lists_the_sessions(buffer, buffer_url):
    listed = "SELECT session_id, model_version, current FROM v_sessions ORDER BY session_id"
    buffer.store_batch(rows_of([1]), session_id="a")
    assert run(buffer_url, listed) == [("a", None, False)]
    buffer.start_session("b")
    buffer.set_model_version(4)
    assert run(buffer_url, listed) == [("a", None, False), ("b", 4, True)]


def test_an_unknown_session_is_named(buffer):
    with pytest.raises(SessionNotFoundError, match=r"no session 'x'; start it with start_session"):
        buffer.set_model_version(1, "x")
    assert isinstance(pickle.loads(pickle.dumps(SessionNotFoundError("a"))), KeyError)
    assert buffer.model_version() is None


@pytest.mark.parametrize("key", ["", b"s", "a\0b", "x" * 601, math.nan, True, np.True_, [3]])
def test_a_session_has_text_for_a_key(buffer, key):
    calls = (
        lambda: buffer.start_session(key),
        lambda: buffer.set_model_version(1, key),
        lambda: buffer.store_batch(rows_of([1]), session_id=key),
        lambda: buffer.episode(session_id=key),
    )
    for call in calls:
        with pytest.raises(FieldError, match="session_id: "):
            call()
    assert buffer.session_id is None
    assert len(buffer) == 0


@pytest.mark.parametrize("version", [None, True, 1.0, math.nan, "3"])
def test_a_version_is_an_integer(buffer, version):
    with pytest.raises(TypeError, match=r"version is an integer of 64 bits, .* got"):
        buffer.set_model_version(version)


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1])
def test_a_version_has_64_bits(buffer, version):
    with pytest.raises(ValueError, match="version is an integer of 64 bits"):
        buffer.set_model_version(version)


def test_a_dropped_buffer_says_so(buffer, buffer_url):
    ReplayBuffer.drop(buffer_url, "default")
    for call in (
        buffer.start_session,
        lambda: buffer.set_model_version(1),
        buffer.model_version,
    ):
        with pytest.raises(KeyError, match="was dropped"):
            call()


def test_rows_carry_the_session_that_they_were_made_in(buffer):
    buffer.store_batch(rows_of([1, 2]), session_id="a")
    buffer.store_batch([*rows_of([1])], session_id=None)
    row = rows_of([1])[0]
    row.exp_meta.session_id = "own"
    buffer.store_batch([row], session_id="a")
    found = [each.exp_meta.session_id for each in buffer.get_all()]
    assert found == ["a", "a", None, "own"]


@pytest.mark.parametrize(("key", "text"), [(5, "5"), (np.int64(-7), "-7"), (0, "0"), (0.5, "0.5")])
def test_a_number_for_a_session_becomes_text_wherever_it_is_given(buffer, buffer_url, key, text):
    assert buffer.start_session(key) == text
    assert buffer.set_model_version(3, key)
    buffer.add(state=1, session_id=key)
    buffer.store_batch(rows_of([1]), session_id=key)
    assert sessions_in(buffer_url, buffer.name) == [text] * 2
    assert buffer.session_id == text


def sessions_in(url, name):
    statement = "SELECT session_id FROM v_experiences WHERE buffer = :name ORDER BY seq"
    return [key for (key,) in run(url, statement, name=name)]


def test_columns_and_episodes_carry_it_too(buffer_url):
    with ReplayBuffer(buffer_url, name="typed", fields=FIELDS) as buffer:
        buffer.extend(arrays_of(2), session_id="a")
        buffer.extend(arrays_of(2), session_id=["b", "c"])
        buffer.extend(arrays_of(1))
        buffer.store_episode(arrays_of(1), session_id="d")
        with buffer.episode(session_id="e") as episode:
            episode.append(obs=[1.0])
        buffer.extend(arrays_of(1), session_id=5)
        with pytest.raises(FieldError, match="session_id"):
            buffer.extend(arrays_of(1), session_id=True)
    assert sessions_in(buffer_url, "typed") == ["a", "a", "b", "c", None, "d", "e", "5"]


def test_recorded_environments_carry_it(buffer_url):
    gymnasium = pytest.importorskip("gymnasium")
    from sqlbuffer import fields_from_env

    env = gymnasium.make("CartPole-v1")
    with (
        ReplayBuffer(buffer_url, name="env", **fields_from_env(env)) as buffer,
        buffer.record(env, session_id="a") as recorded,
    ):
        recorded.reset(seed=1)
        recorded.step(0)
        recorded.session_id = "b"
        recorded.step(0)
        recorded.reset()
        recorded.step(0)
        with pytest.raises(FieldError, match="session_id"):
            recorded.session_id = b"c"
    assert sessions_in(buffer_url, "env") == ["a", "a", "b"]


def test_the_version_is_one_read_by_key(buffer, buffer_url):
    # Of so many that no planner reads all of them.
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
    run(buffer_url, f"{numbers} INSERT INTO buffers (name) SELECT 'b' || i FROM n")
    with selects(buffer) as noted:
        assert buffer.model_version() is None
    (statement,) = noted
    number = buffer_id(buffer_url)
    explain, values = (
        ("EXPLAIN QUERY PLAN", (number,))
        if is_sqlite(buffer_url)
        else ("EXPLAIN", {"id_1": number})
    )
    with buffer._store.engine.connect() as connection:
        found = connection.exec_driver_sql(f"{explain} {statement}", values).all()
    plan = "\n".join(str(row[-1]) for row in found)
    assert re.search(r"SEARCH buffers USING INTEGER PRIMARY KEY|Index Scan using pk_buffers", plan)


def test_asyncio_has_the_same_calls(buffer_url):
    async def use():
        async with await aio.AsyncReplayBuffer.open(buffer_url) as buffer:
            assert await buffer.session_id() is None
            key = await buffer.start_session()
            assert await buffer.session_id() == key
            assert await buffer.set_model_version(3)
            assert await buffer.set_model_version(4, key)
            return await buffer.model_version()

    assert asyncio.run(use()) == 4
    assert scalar(buffer_url, "SELECT current_version FROM sessions") == 4
