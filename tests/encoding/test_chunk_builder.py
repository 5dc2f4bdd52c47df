"""Steps collected one at a time, as chunks. No database."""

import numpy as np
import pytest
from hypothesis import given, settings

from sqlbuffer.encoding.chunk_builder import ChunkBuilder
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.packed_chunk import MAX_BYTES
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.encoding.same_steps import same_steps
from sqlbuffer.errors import FieldError
from sqlbuffer.fields.buffer_fields import parse_specs
from tests.encoding.chunk_columns import each, payload_of, read_chunk, rewards_of, steps

START = EpisodeStart("e", "task", "agent", 3, session="s")
SMALL = Layout(parse_specs({"x": ("int64", (2,)), "n": {"dtype": "int64", "column": True}}))
BUILT_IN = ("reward", "terminated", "truncated", "priority", "state", "extra")


def builder_of(layout=SMALL, **settings):
    return ChunkBuilder(layout, START, "same_kind", True, **settings)


@settings(max_examples=60)
@given(steps())
def test_steps_are_packed_as_columns_are(drawn):
    names = [name for name in drawn.columns if name in {*drawn.layout.specs, *BUILT_IN}]
    columns = {name: drawn.columns[name] for name in names}
    builder, built = builder_of(drawn.layout), []
    for i in range(drawn.n):
        builder.add({name: columns[name][i] for name in names})
        if builder.is_full or i == drawn.n // 2:
            built.append(builder.pack(sum(chunk.n_steps for chunk in built)))
    if builder.n_steps:
        built.append(builder.pack(sum(chunk.n_steps for chunk in built)))
    keys = {"task_id": "task", "agent_id": "agent", "model_version": 3, "session_id": "s"}
    expected = pack_columns(drawn.layout, {**columns, **keys}, episode="e").chunks
    assert sum(chunk.n_steps for chunk in built) == drawn.n
    if not expected:
        return
    (whole,) = expected
    for chunk in built:
        places = range(chunk.t, chunk.t + chunk.n_steps)
        assert same_steps(drawn.layout, chunk, range(chunk.n_steps), whole, places).all()
        own = each(chunk.initial_priority, chunk.n_steps)
        assert own == [each(whole.initial_priority, whole.n_steps)[place] for place in places]


def test_a_step_is_a_copy_with_what_it_was_given():
    builder, x = builder_of(), np.array([1, 2])
    for i in range(20):
        x[:] = i
        assert builder.add({"x": x, "n": i, "reward": i / 2, "terminated": i == 3}) == i / 2
    assert (builder.n_steps, builder.n_bytes) == (20, 20 * 24)
    chunk = builder.pack(100)
    assert (builder.n_steps, builder.n_bytes) == (0, 0)
    assert (chunk.n_steps, chunk.t, chunk.step, chunk.steps) == (20, 100, 100, None)
    assert (chunk.task_id, chunk.agent_id, chunk.episode_key) == ("task", "agent", "e")
    assert (chunk.session_key, chunk.model_version) == ("s", 3)
    assert read_chunk(SMALL, chunk)["x"][:, 0].tolist() == list(range(20))
    assert chunk.fields["n"].tolist() == list(range(20))
    assert chunk.reward.tolist() == [i / 2 for i in range(20)]
    assert chunk.terminated.tolist() == [i == 3 for i in range(20)]
    assert (chunk.truncated, chunk.initial_priority, chunk.payloads) == (None, None, None)
    assert chunk.first_time <= chunk.last_time
    builder.add({"x": [7, 7], "n": 7})
    assert chunk.fields["n"].tolist() == list(range(20))
    assert builder.pack(120).fields["n"].tolist() == [7]


def test_flags_and_rewards_that_some_steps_lack_stay_none():
    builder = builder_of()
    builder.add({"x": [1, 2], "n": 1, "terminated": False, "priority": 2})
    builder.add({"x": [1, 2], "n": 1, "reward": np.array(2.5), "truncated": np.True_})
    builder.add({"x": [1, 2], "n": 1, "reward": float("nan"), "terminated": 1})
    chunk = builder.pack(0)
    assert chunk.reward == [None, 2.5, None]
    assert np.array_equal(rewards_of(SMALL, chunk), [np.nan, 2.5, np.nan], equal_nan=True)
    assert chunk.terminated == [False, None, True]
    assert chunk.truncated == [None, True, None]
    assert chunk.initial_priority == [2.0, None, None]


def test_the_last_step_is_marked_as_truncated():
    builder = builder_of()
    builder.add({"x": [1, 2], "n": 1})
    builder.add({"x": [1, 2], "n": 1, "truncated": False})
    builder.mark_truncated()
    assert builder.pack(0).truncated == [None, True]


def test_payloads_are_kept_with_their_arrays():
    builder = builder_of()
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    builder.add({"x": [1, 2], "n": 1, "state": {"image": image}, "extra": {"k": b"ab"}})
    builder.add({"x": [1, 2], "n": 1})
    builder.add({"x": [1, 2], "n": 1, "messages": ["é"], "actions": [image + 1]})
    chunk = builder.pack(0)
    assert chunk.payloads[0] == (
        '{"state":{"image":{"$array":["|u1",[2,3],0,6]}},"extra":{"k":{"$bytes":[6,2]}},'
        '"arrays":[0,8]}'
    )
    assert chunk.payloads[1] is None
    state, _, _, extra = payload_of(SMALL, chunk, 0)
    assert np.array_equal(state["image"], image)
    assert extra == {"k": b"ab"}
    _, actions, messages, _ = payload_of(SMALL, chunk, 2)
    assert np.array_equal(actions[0], image + 1)
    assert messages == ["é"]


def test_a_chunk_is_full_where_another_step_would_not_fit():
    builder = builder_of()
    for _ in range(256):
        assert not builder.is_full
        builder.add({"x": [1, 2], "n": 1})
    assert builder.is_full
    frames = Layout(parse_specs({"x": ("uint8", (28_000,))}))
    builder = builder_of(frames)
    while not builder.is_full:
        builder.add({"x": np.zeros(28_000, np.uint8)})
    assert builder.n_steps == 9
    large = builder_of(Layout(parse_specs({"x": ("uint8", (MAX_BYTES + 1,))})))
    large.add({"x": np.ones(MAX_BYTES + 1, np.uint8)})
    assert large.is_full
    assert large.pack(0).n_steps == 1


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"x": [1, 2]}, "field 'n' is missing"),
        ({"x": [1, 2], "n": 1, "y": 2}, "unknown field 'y'; the buffer has n, x"),
        ({"x": [1.5, 2], "n": 1}, "field 'x': expected int64"),
        ({"x": [1, 2, 3], "n": 1}, "expected shape"),
        ({"x": [1, 2], "n": 2**63}, "out of the range"),
        ({"x": [1, 2], "n": 1, "reward": "a"}, "reward: expected a number"),
        ({"x": [1, 2], "n": 1, "terminated": 2}, "terminated: expected True, False or None"),
        ({"x": [1, 2], "n": 1, "priority": -1}, "priority: expected"),
        ({"x": [1, 2], "n": 1, "state": object()}, "state: cannot store"),
        ({"x": [1, 2], "n": 1, "state": "a" * 1_000}, "step 2: the payload has 1,0"),
    ],
)
def test_a_step_that_cannot_be_stored_is_not_added(step, reason):
    builder = builder_of(max_row_bytes=1_000)
    builder.add({"x": [1, 2], "n": 1})
    builder.pack(0)
    builder.add({"x": [3, 4], "n": 2, "reward": 1.0})
    with pytest.raises(FieldError, match=reason):
        builder.add(step)
    assert builder.n_steps == 1
    chunk = builder.pack(1)
    assert read_chunk(SMALL, chunk)["x"].tolist() == [[3, 4]]
    assert chunk.reward.tolist() == [1.0]


def test_nothing_is_packed_of_no_steps():
    with pytest.raises(ValueError, match="no step"):
        builder_of().pack(0)
