"""Steps encoded one at a time, as chunks. No database."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sqlbuffer.encoding.chunks import execute_times, same_steps, select_steps
from sqlbuffer.encoding.column_chunks import StepPacker, pack_columns, pack_steps
from sqlbuffer.encoding.columns import encode_columns, reward_array
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import parse_specs
from tests.encoding.chunk_columns import each, payload_of, read_chunk, rewards_of, steps

START = EpisodeStart("e", "task", "agent", 3, session="s")
SMALL = Layout(parse_specs({"x": ("int64", (2,)), "n": {"dtype": "int64", "column": True}}))
BUILT_IN = ("reward", "terminated", "truncated", "priority", "state", "extra")


def packer_of(layout=SMALL, **settings):
    return StepPacker(layout, START, "same_kind", True, **settings)


def chunks_of(steps, layout=SMALL, first_t=0):
    packer = packer_of(layout)
    encoded = [packer.encode(first_t + i, step) for i, step in enumerate(steps)]
    return pack_steps(layout, encoded).chunks


def chunk_of(steps, layout=SMALL, first_t=0):
    (chunk,) = chunks_of(steps, layout, first_t)
    return chunk


@pytest.mark.thorough
@settings(max_examples=60)
@given(steps())
def test_steps_are_packed_as_columns_are(drawn):
    names = [name for name in drawn.columns if name in {*drawn.layout.specs, *BUILT_IN}]
    columns = {name: drawn.columns[name] for name in names}
    given = [{name: columns[name][i] for name in names} for i in range(drawn.n)]
    cut = drawn.n // 2
    parts = [(0, given[:cut]), (cut, given[cut:])]
    built = [c for first_t, own in parts if own for c in chunks_of(own, drawn.layout, first_t)]
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
    packer, x, given = packer_of(), np.array([1, 2]), []
    for i in range(20):
        x[:] = i
        step = packer.encode(100 + i, {"x": x, "n": i, "reward": i / 2, "terminated": i == 3})
        assert (step.t, step.episode_key, step.task_id) == (100 + i, "e", "task")
        assert (step.reward_t, step.n_bytes) == (i / 2, 24)
        given.append(step)
    (chunk,) = pack_steps(SMALL, given).chunks
    assert (chunk.n_steps, chunk.t, chunk.step, chunk.steps) == (20, 100, 100, None)
    assert (chunk.task_id, chunk.agent_id, chunk.episode_key) == ("task", "agent", "e")
    assert (chunk.session_key, chunk.model_version) == ("s", 3)
    assert read_chunk(SMALL, chunk)["x"][:, 0].tolist() == list(range(20))
    assert chunk.fields["n"].tolist() == list(range(20))
    assert chunk.reward.tolist() == [i / 2 for i in range(20)]
    assert chunk.terminated.tolist() == [i == 3 for i in range(20)]
    assert (chunk.truncated, chunk.initial_priority, chunk.payloads) == (None, None, None)
    assert chunk.first_time <= chunk.last_time


def test_steps_of_several_episodes_are_put_together_in_their_order():
    starts = [EpisodeStart(key, "task", "agent") for key in "ab"]
    packers = [StepPacker(SMALL, start, "same_kind", True) for start in starts]
    given = [
        packers[i % 2].encode(i // 2, {"x": [i, i], "n": i, "state": {"i": i}}) for i in range(600)
    ]
    packed = pack_steps(SMALL, given)
    found = [(chunk.episode_key, chunk.t, chunk.n_steps) for chunk in packed.chunks]
    assert found == [("a", 0, 256), ("a", 256, 44), ("b", 0, 256), ("b", 256, 44)]
    numbers = np.concatenate([chunk.fields["n"] for chunk in packed.chunks])
    assert packed.order.tolist() == numbers.tolist()
    assert len({chunk.id for chunk in packed.chunks}) == 4


def test_flags_and_rewards_that_some_steps_lack_stay_none():
    chunk = chunk_of(
        [
            {"x": [1, 2], "n": 1, "terminated": False, "priority": 2},
            {"x": [1, 2], "n": 1, "reward": np.array(2.5), "truncated": np.True_},
            {"x": [1, 2], "n": 1, "reward": float("nan"), "terminated": 1},
        ]
    )
    assert chunk.reward == [None, 2.5, None]
    assert np.array_equal(rewards_of(SMALL, chunk), [np.nan, 2.5, np.nan], equal_nan=True)
    assert chunk.terminated == [False, None, True]
    assert chunk.truncated == [None, True, None]
    assert chunk.initial_priority == [2.0, None, None]


def test_payloads_are_kept_with_their_arrays():
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    chunk = chunk_of(
        [
            {"x": [1, 2], "n": 1, "state": {"image": image}, "extra": {"k": b"ab"}},
            {"x": [1, 2], "n": 1},
            {"x": [1, 2], "n": 1, "messages": ["é"], "actions": [image + 1]},
        ]
    )
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


def test_a_chunk_ends_where_another_step_would_not_fit():
    counts = [chunk.n_steps for chunk in chunks_of([{"x": [1, 2], "n": 1}] * 600)]
    assert counts == [256, 256, 88]
    frames = Layout(parse_specs({"x": ("uint8", (28_000,))}))
    given = [{"x": np.zeros(28_000, np.uint8)}] * 20
    assert [chunk.n_steps for chunk in chunks_of(given, frames)] == [9, 9, 2]
    large = Layout(parse_specs({"x": ("uint8", (2**18 + 1,))}))
    given = [{"x": np.ones(2**18 + 1, np.uint8)}] * 2
    assert [chunk.n_steps for chunk in chunks_of(given, large)] == [1, 1]


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
def test_a_step_that_cannot_be_stored_is_refused(step, reason):
    with pytest.raises(FieldError, match=reason):
        packer_of(max_row_bytes=1_000).encode(2, step)


# Parts of chunks. No database.


LAYOUT = Layout(parse_specs({"x": "int64"}))


@pytest.mark.thorough
@settings(max_examples=60)
@given(steps(), st.data())
def test_selected_steps_are_those_of_the_chunk(drawn, data):
    chunks = pack_columns(drawn.layout, drawn.columns).chunks
    assume(chunks)
    chunk = data.draw(st.sampled_from(chunks))
    places = sorted(data.draw(st.lists(st.integers(0, chunk.n_steps - 1), min_size=1, unique=True)))
    part = select_steps(drawn.layout, chunk, places)
    assert (part.id, part.n_steps) == (chunk.id, len(places))
    assert same_steps(drawn.layout, part, range(part.n_steps), chunk, places).all()
    for name in ("reward", "terminated", "initial_priority", "ids", "payloads"):
        own, of = each(getattr(part, name), part.n_steps), each(getattr(chunk, name), chunk.n_steps)
        assert [value is None for value in own] == [of[place] is None for place in places]
    assert each(part.ids, part.n_steps) == [each(chunk.ids, chunk.n_steps)[i] for i in places]
    for name, values in (part.fields or {}).items():
        assert [repr(value) for value in values] == [repr(chunk.fields[name][i]) for i in places]
    whole = select_steps(drawn.layout, chunk, range(chunk.n_steps))
    assert (whole.records, whole.payloads) == (chunk.records, chunk.payloads)


def test_the_rest_of_a_chunk_of_an_episode_begins_later():
    (chunk,) = pack_columns(LAYOUT, {"x": range(10), "step": range(5, 15)}, episode="e").chunks
    rest = select_steps(LAYOUT, chunk, range(4, 10))
    assert (rest.t, rest.step, rest.steps, rest.n_steps) == (4, 9, None, 6)
    with pytest.raises(ValueError, match="stay together"):
        select_steps(LAYOUT, chunk, [1, 3])


def test_times_are_interpolated():
    assert execute_times(10.0, 20.0, 5, np.arange(5)).tolist() == [10.0, 12.5, 15.0, 17.5, 20.0]
    assert execute_times(10.0, 10.0, 1, 0) == 10.0


# Rewards that their column cannot hold, next to arrays in the same JSON. No database.


def test_a_tagged_reward_is_read_without_the_arrays_of_its_row():
    columns = {"reward": [-0.0, np.nan], "extra": [{"a": np.ones(3)}, None]}
    records = encode_columns(columns)
    rewards = reward_array([r.reward_t for r in records], [r.extra for r in records])
    assert rewards.tobytes() == np.array([-0.0, np.nan]).tobytes()
