"""Every call that writes takes the same keys of sessions."""

import numpy as np
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.errors import FieldError


@pytest.fixture(params=[None, {"x": "int64"}], ids=["rows", "chunks"])
def buffer(buffer_url, request):
    with ReplayBuffer(buffer_url, fields=request.param) as buffer:
        yield buffer


def values(buffer):
    return {"x": 1} if buffer.fields else {"state": 1}


def columns(buffer):
    return {name: [value, value] for name, value in values(buffer).items()}


def append(buffer, session):
    with buffer.episode(session_id=session) as episode:
        episode.append(**values(buffer))


CALLS = {
    "add": lambda buffer, session: buffer.add(**values(buffer), session_id=session),
    "add at once": lambda buffer, session: buffer.add(
        **values(buffer), session_id=session, id="own"
    ),
    "extend": lambda buffer, session: buffer.extend(columns(buffer), session_id=session),
    "store_batch": lambda buffer, session: buffer.store_batch(
        [DataRow(ExpMeta("t"), Experience(), fields={"x": 1} if buffer.fields else {})],
        session_id=session,
    ),
    "store_episode": lambda buffer, session: buffer.store_episode(
        columns(buffer), session_id=session
    ),
    "episode": append,
    "start_session": lambda buffer, session: (
        buffer.start_session(session),
        buffer.add(**values(buffer), session_id=buffer.session_id),
    ),
}


@pytest.mark.each_value
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(
    ("given", "key"),
    [
        (5, "5"),
        (np.int64(5), "5"),
        (2.5, "2.5"),
        (np.float32(2.5), "2.5"),
        ("a", "a"),
        (2.0, "2.0"),
    ],
)
def test_numbers_become_text(buffer, call, given, key):
    call(buffer, given)
    assert {row.exp_meta.session_id for row in buffer} == {key}


@pytest.mark.each_value
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize("given", ["", True, float("nan"), b"a", {}])
def test_what_names_no_session_is_refused(buffer, call, given):
    with pytest.raises(FieldError, match=r"^session_id: expected (text|one value), got"):
        call(buffer, given)
    assert len(buffer) == 0


def test_a_column_of_sessions_has_one_for_each_step(buffer):
    for given in ([5, "a"], np.array([5, 6]), ("x", "y")):
        buffer.clear()
        buffer.extend(columns(buffer), session_id=given)
        assert [row.exp_meta.session_id for row in buffer] == [str(each) for each in given]
    for wrong in (["a", ""], [1, True]):
        with pytest.raises(FieldError, match=r"^session_id: expected text, got"):
            buffer.extend(columns(buffer), session_id=wrong)
