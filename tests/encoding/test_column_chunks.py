"""Columns as chunks: what was packed comes back, in the order that was said. No database."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlbuffer.codec.equality import equal
from sqlbuffer.codec.plain_values import tag_float, tag_text
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import parse_specs
from tests.encoding.chunk_columns import each, payload_of, read_chunk, rewards_of, steps

SMALL = Layout(parse_specs({"x": "int64"}))
KEYS = ("task_id", "agent_id", "model_version", "session_id")


def tagged(value):
    return tag_float(value) if isinstance(value, float) else value


def same(left, right):
    return equal(left, right, strict=True)


def bits(value, spec):
    return np.asarray(value, spec.dtype).tobytes()  # scalars of text have lost their padding


def key_of(columns, name, i):
    default = "default" if name in ("task_id", "agent_id") else None
    given_key = columns.get(name, default)
    return given_key[i] if isinstance(given_key, list) else given_key


@pytest.mark.thorough
@settings(max_examples=100)
@given(steps(), st.sampled_from([None, "an episode"]))
def test_what_was_packed_comes_back(drawn, episode):
    layout, columns = drawn.layout, drawn.columns
    packed = pack_columns(layout, columns, episode=episode)
    order = packed.order.tolist()
    assert sorted(order) == list(range(drawn.n))
    assert [chunk.n_steps for chunk in packed.chunks if chunk.n_steps < 1] == []
    assert len({chunk.id for chunk in packed.chunks}) == len(packed.chunks)
    done = 0
    for chunk in packed.chunks:
        places = order[done : done + chunk.n_steps]
        done += chunk.n_steps
        fields, rewards = read_chunk(layout, chunk), rewards_of(layout, chunk)
        assert chunk.t == (None if episode is None else places[0])
        assert chunk.episode_key == episode
        step_numbers = (
            list(range(chunk.step, chunk.step + chunk.n_steps))
            if chunk.steps is None
            else chunk.steps.tolist()
        )
        assert step_numbers[0] == chunk.step
        for k, i in enumerate(places):
            assert step_numbers[k] == columns.get("step", range(drawn.n))[i]
            assert (chunk.task_id, chunk.agent_id, chunk.model_version, chunk.session_key) == tuple(
                key_of(columns, name, i) for name in KEYS
            )
            for name, spec in layout.specs.items():
                own, expected = fields[name][k], columns[name][i]
                if spec.is_variable:
                    axis = spec.shape.index(-1)
                    assert fields[f"{name}_lens"][k] == expected.shape[axis]
                    own = own.take(range(expected.shape[axis]), axis)
                assert bits(own, spec) == bits(expected, spec)
                if spec.column and spec.dtype.kind == "U":
                    assert chunk.fields[name][k] == tag_text(str(own))
                elif spec.column and spec.dtype.kind == "f":
                    assert tagged(chunk.fields[name][k]) == tagged(float(own))
                elif spec.column:
                    assert bits(chunk.fields[name][k], spec) == bits(own, spec)
            if "reward" in columns:
                assert same(float(rewards[k]), float(columns["reward"][i]))
            else:
                assert chunk.reward is None
            for name, values in [
                ("terminated", chunk.terminated),
                ("truncated", chunk.truncated),
                ("priority", chunk.initial_priority),
                ("id", chunk.ids),
            ]:
                expected = columns[name][i] if name in columns else None
                assert each(values, chunk.n_steps)[k] == expected
            payload = [columns.get(name, [None] * drawn.n)[i] for name in ("state", "extra")]
            state, _, _, extra = payload_of(layout, chunk, k)
            assert same([state, extra], payload)
    assert done == drawn.n


def test_columns_without_steps_make_no_chunk():
    packed = pack_columns(SMALL, {"x": []})
    assert (list(packed.chunks), packed.order.tolist()) == ([], [])
    packed = pack_columns(SMALL, {"x": [], "task_id": []})
    assert (list(packed.chunks), packed.order.tolist()) == ([], [])


@pytest.mark.parametrize(("n", "sizes"), [(1, [1]), (256, [256]), (257, [256, 1])])
def test_a_chunk_has_at_most_256_steps(n, sizes):
    packed = pack_columns(SMALL, {"x": np.arange(n)}, episode="e")
    assert [chunk.n_steps for chunk in packed.chunks] == sizes
    assert [chunk.t for chunk in packed.chunks] == [256 * i for i in range(len(sizes))]
    assert all(chunk.block_steps == chunk.n_steps for chunk in packed.chunks)
    assert np.frombuffer(b"".join(c.records for c in packed.chunks), "i8").tolist() == [*range(n)]


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("shape", [(1_000,), (-1,)])
def test_a_chunk_has_at_most_256_kib_but_at_least_a_step(compression, shape):
    layout = Layout(parse_specs({"x": ("uint8", shape)}), compression)
    rng = np.random.default_rng(1)
    values = [rng.integers(0, 256, 1_000, np.uint8) for _ in range(300)]
    if shape == (-1,):
        values[7] = rng.integers(0, 256, 2 * layout.chunk_bytes, np.uint8)
    chunks = pack_columns(layout, {"x": values}).chunks
    raw = []
    done = 0
    for chunk in chunks:
        raw.append(sum(map(len, values[done : done + chunk.n_steps])))
        done += chunk.n_steps
    assert done == 300
    assert all(
        size <= layout.chunk_bytes or c.n_steps == 1 for size, c in zip(raw, chunks, strict=True)
    )
    assert len(chunks) == (2 if shape == (1_000,) else 4)
    found = [read_chunk(layout, chunk)["x"] for chunk in chunks]
    assert [len(value) for value in found] == [chunk.n_steps for chunk in chunks]


def test_payloads_count_towards_the_size_of_a_chunk():
    state = [{"text": "é" * 50_000}] * 6
    chunks = pack_columns(SMALL, {"x": range(6), "state": state}).chunks
    assert [chunk.n_steps for chunk in chunks] == [2, 2, 2]
    arrays = [np.ones(100_000, np.uint8)] * 5
    chunks = pack_columns(SMALL, {"x": range(5), "state": arrays}).chunks
    assert [chunk.n_steps for chunk in chunks] == [2, 2, 1]


def test_groups_come_in_the_order_of_their_first_steps():
    tasks = ["b", "a", "b", "c", "a", "b"]
    packed = pack_columns(SMALL, {"x": np.arange(6), "task_id": tasks, "step": [5, 0, 6, 1, 2, 9]})
    assert packed.order.tolist() == [0, 2, 5, 1, 4, 3]
    assert [(c.task_id, c.n_steps) for c in packed.chunks] == [("b", 3), ("a", 2), ("c", 1)]
    assert [np.frombuffer(c.records, "i8").tolist() for c in packed.chunks] == [
        [0, 2, 5],
        [1, 4],
        [3],
    ]
    steps_of = [None if c.steps is None else c.steps.tolist() for c in packed.chunks]
    assert steps_of == [[5, 6, 9], [0, 2], None]
    assert [c.step for c in packed.chunks] == [5, 0, 1]


def test_an_episode_keeps_its_order_where_keys_change():
    packed = pack_columns(
        SMALL, {"x": range(4), "agent_id": ["a", "b", "b", "a"]}, episode="episode"
    )
    assert packed.order.tolist() == [0, 1, 2, 3]
    assert [(c.agent_id, c.t, c.n_steps) for c in packed.chunks] == [
        ("a", 0, 1),
        ("b", 1, 2),
        ("a", 3, 1),
    ]


@pytest.mark.parametrize("extremes", [[2**63 - 1, -(2**63)], [-(2**63), 2**63 - 1]])
def test_steps_do_not_follow_each_other_around_the_end(extremes):
    (chunk,) = pack_columns(SMALL, {"x": [1, 2], "step": extremes}).chunks
    assert chunk.steps.tolist() == extremes


def test_nan_and_minus_zero_are_tagged():
    rewards = [np.nan, -0.0, 1.0]
    (chunk,) = pack_columns(SMALL, {"x": [1, 2, 3], "reward": rewards}).chunks
    assert chunk.reward == [None, 0.0, 1.0]
    assert chunk.payloads == [
        '{"extra":{"$none":true,"$reals":{"reward_t":{"$float":"nan"}}}}',
        '{"extra":{"$none":true,"$reals":{"reward_t":{"$float":"-0.0"}}}}',
        None,
    ]
    (chunk,) = pack_columns(SMALL, {"x": [1], "reward": [np.nan]}).chunks
    assert chunk.reward is None


def test_flags_that_are_false_are_kept():
    (chunk,) = pack_columns(SMALL, {"x": [1, 2], "terminated": [0, 1]}).chunks
    assert chunk.terminated.tolist() == [False, True]
    assert chunk.terminated.dtype == bool
    assert chunk.truncated is None


def test_a_packed_chunk_shares_no_memory_with_what_was_given():
    layout = Layout(parse_specs({"x": {"dtype": "int64", "column": True}}))
    given_columns = {
        "x": np.arange(3),
        "reward": np.ones(3),
        "terminated": np.zeros(3, bool),
        "step": np.array([3, 5, 9]),
        "priority": np.ones(3),
    }
    (chunk,) = pack_columns(layout, given_columns).chunks
    for values in given_columns.values():
        values[:] = 1
    assert chunk.reward.tolist() == [1.0] * 3
    assert not chunk.terminated.any()
    assert chunk.steps.tolist() == [3, 5, 9]
    assert np.frombuffer(chunk.records, "i8").tolist() == [0, 1, 2]
    assert chunk.fields["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"x": [1.5]}, "field 'x'"),
        ({"x": [1], "y": [2]}, "unknown field 'y'"),
        ({"x": [1, 2], "reward": [1]}, "the same number of rows"),
        ({"x": [1, 2], "task_id": ["a"]}, "task_id: expected 2 values or one, got 1"),
        ({"x": [1, 2], "task_id": ["a", 3]}, "task_id: expected text, got 3"),
        ({"x": [1, 2], "task_id": ["a", "\0"]}, r"U\+0000"),
        ({"x": [1, 2], "task_id": ["a", "b" * 601]}, "longer than 600 bytes"),
        ({"x": [1, 2], "model_version": [1, 2.0]}, "model_version: expected an integer"),
        ({"x": [1, 2], "state": [1, object()]}, "row 1: state"),
        ({"x": [1, 2], "extra": [None, 1]}, "row 1: exp_data.extra"),
        ({"x": [1, 2], "priority": [1, -1]}, r"priority\[1\]"),
    ],
)
def test_columns_that_cannot_be_stored_are_refused(columns, reason):
    with pytest.raises(FieldError, match=reason):
        pack_columns(SMALL, columns)


def test_a_step_above_the_limit_is_refused():
    with pytest.raises(FieldError, match="row 1: the payload has 1,0"):
        pack_columns(SMALL, {"x": [1, 2], "state": [None, "a" * 1_000]}, max_row_bytes=1_000)
    with pytest.raises(FieldError, match="row 0: the payload has 8 bytes"):
        pack_columns(SMALL, {"x": [1, 2]}, max_row_bytes=7)
    layout = Layout(parse_specs({"x": ("uint8", (-1,))}))
    with pytest.raises(FieldError, match="row 1: the payload has 104 bytes"):
        pack_columns(layout, {"x": [[1], np.ones(100, np.uint8)]}, max_row_bytes=100)


def test_texts_that_conditions_use_are_tagged_where_json_has_none_like_them():
    layout = Layout(parse_specs({"x": {"dtype": "U3", "column": True}}))
    (chunk,) = pack_columns(layout, {"x": ["ä", "a\0b"]}).chunks
    assert chunk.fields == {"x": ["ä", {"$str": "000061;000000;000062;"}]}


@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("seed", range(6))
def test_random_keys_are_grouped_as_by_a_dict(n, seed):
    rng = np.random.default_rng(seed)
    n_tasks = (1, 5, 1_000)[seed % 3]
    keys = {"task_id": [f"task-{i}" for i in rng.integers(0, n_tasks, n)]}
    if seed >= 3:
        keys["model_version"] = rng.integers(0, 3, n).tolist()
    columns = {"x": np.arange(n), "reward": np.arange(n) / 8, "terminated": rng.random(n) < 0.1}
    packed = pack_columns(SMALL, {**columns, **keys})
    places_by_key: dict[tuple, list[int]] = {}
    for i, key in enumerate(zip(*keys.values(), strict=True)):
        places_by_key.setdefault(key, []).append(i)
    assert packed.order.tolist() == [i for places in places_by_key.values() for i in places]
    done = 0
    for chunk in packed.chunks:
        places = packed.order[done : done + chunk.n_steps].tolist()
        done += chunk.n_steps
        key = (chunk.task_id, chunk.model_version)[: len(keys)]
        assert set(places) <= set(places_by_key[key])
        assert np.frombuffer(chunk.records, "i8").tolist() == places
        assert chunk.reward.tolist() == columns["reward"][places].tolist()
        assert chunk.terminated.tolist() == columns["terminated"][places].tolist()
        numbers = [chunk.step + k for k in range(chunk.n_steps)]
        assert (numbers if chunk.steps is None else chunk.steps.tolist()) == places
    assert done == n


ONE_OR_EACH = {
    "task_id": ["a", "b", "a", "c"],
    "agent_id": "left",
    "step": [4, 5, 9, 2],
    "model_version": np.array([1, 1, 2, 2]),
    "session_id": "session",
    "episode_id": ["e", "f", "e", "g"],
}


@pytest.mark.parametrize("names", [(), *((name,) for name in ONE_OR_EACH), tuple(ONE_OR_EACH)])
def test_arrays_that_need_no_cast_are_packed_as_lists_are(names):
    arrays = {
        "x": np.arange(4),
        "reward": np.arange(4) / 8,
        "terminated": np.array([False, True, False, False]),
        "truncated": np.zeros(4, bool),
    }
    keys = {name: ONE_OR_EACH[name] for name in names}
    lists = {name: values.tolist() for name, values in arrays.items()}
    packed, expected = (pack_columns(SMALL, {**values, **keys}) for values in (arrays, lists))
    assert packed.order.tolist() == expected.order.tolist()
    assert len(packed.chunks) == len(expected.chunks)
    own = ("id", "first_time", "last_time")
    for ours, theirs in zip(packed.chunks, expected.chunks, strict=True):
        for name in vars(theirs).keys() - {*own}:
            left, right = (
                value.tolist() if isinstance(value, np.ndarray) else value
                for value in (getattr(ours, name), getattr(theirs, name))
            )
            assert left == right, name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task_id": ["a"] * 3}, "task_id: expected 4 values"),
        ({"id": "abcd"}, "id: expected a column"),
        ({"step": [1, 2, 3, "4"]}, "step: expected an integer"),
        ({"parent_id": "p"}, "parent_id"),
        ({"group_id": "g"}, "group_id"),
        ({"tasks": ["a"] * 4}, "unknown field 'tasks'"),
    ],
)
def test_wrong_keys_next_to_plain_arrays_are_named(keys, message):
    arrays = {"x": np.arange(4), "reward": np.zeros(4), "terminated": np.zeros(4, bool)}
    with pytest.raises(FieldError, match=message):
        pack_columns(SMALL, {**arrays, "truncated": np.zeros(4, bool), **keys})
