"""Arrays in typed fields: declared once, stored as columns, drawn as batches."""

import pickle

import gymnasium
import numpy as np
import pytest

from sqlbuffer import LatestSampler, QueryBuilder, RandomSampler, ReplayBuffer
from sqlbuffer.errors import FieldError, InsufficientDataError
from tests.support.processes import FRESH, run_at_once
from tests.support.sql import STEPS, scalar
from tests.support.stepped_rows import make_row

FIELDS = {
    "obs": ("float32", (3, 2)),
    "action": ("int64", (2,)),
    "tokens": ("int32", (-1,)),
    "level": ("uint8", (), 7),
    "name": "U8",
}
N = 20


def make_columns(n=N, start=0):
    numbers = np.arange(start, start + n)
    return {
        "obs": np.broadcast_to(numbers[:, None, None], (n, 3, 2)).astype(np.float32),
        "action": np.stack([numbers, -numbers], axis=1),
        "tokens": [np.arange(i % 4, dtype=np.int32) + i for i in numbers],
        "name": np.array([f"ä{i}" for i in numbers]),
        "reward": numbers * 0.5,
        "terminated": numbers % 5 == 4,
        "truncated": numbers % 7 == 6,
    }


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def all_of(buffer, n=N, **options):
    """Return every row, newest first."""
    return buffer.sample_arrays(n, sampler=LatestSampler(), **options)


def check_rows(batch, n=N):
    expected = make_columns(n)
    order = batch.info["step"]
    assert sorted(order) == list(range(n))
    for name in ("obs", "action", "name", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(batch[name], expected[name][order])
    assert (batch.level == 7).all()
    assert batch.tokens.shape == (n, 3)
    for row, length, i in zip(batch.tokens, batch.tokens_lens, order, strict=True):
        np.testing.assert_array_equal(row[:length], expected["tokens"][i])
        assert not row[length:].any()


def test_what_was_stored_as_columns_is_drawn_as_columns(buffer):
    result = buffer.extend(make_columns(), task_id="t", agent_id="a", model_version=3)
    assert (result.inserted, result.duplicates) == (N, 0)
    batch = all_of(buffer)
    check_rows(batch)
    assert batch.obs.dtype == batch.reward.dtype == np.float32
    assert batch.action.dtype == np.int64
    assert batch.level.dtype == np.uint8
    assert set(batch.info["task_id"]) == {"t"}
    assert set(batch.info["agent_id"]) == {"a"}
    np.testing.assert_array_equal(batch.info["seq"], np.arange(N, 0, -1))
    assert [row.exp_meta.model_version for row in buffer] == [3] * N


def test_a_buffer_opened_again_knows_its_fields(buffer_url, buffer):
    buffer.extend(make_columns())
    again = ReplayBuffer(buffer_url)
    check_rows(all_of(again))
    check_rows(all_of(pickle.loads(pickle.dumps(again))))
    check_rows(all_of(ReplayBuffer(buffer_url, fields=FIELDS)))
    (from_child,) = run_at_once([(all_of, buffer)], FRESH)
    check_rows(from_child)


def test_other_fields_than_the_stored_ones_are_refused(buffer_url, buffer):
    with pytest.raises(FieldError, match=r"'obs' is stored as float32\(3, 2\).*given as float32"):
        ReplayBuffer(buffer_url, fields={**FIELDS, "obs": "float32"})
    with pytest.raises(FieldError, match="'extra_one' is stored as nothing"):
        ReplayBuffer(buffer_url, fields={**FIELDS, "extra_one": "float32"})
    ReplayBuffer(buffer_url, name="plain")
    with pytest.raises(FieldError, match="is stored as nothing"):
        ReplayBuffer(buffer_url, name="plain", fields=FIELDS)


def without(name):
    columns = make_columns()
    del columns[name]
    return columns


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (without("obs"), r"'obs' is missing: expected float32\(3, 2\)"),
        ({**make_columns(), "speed": np.ones(N)}, "unknown field 'speed'; the buffer has obs"),
        ({**make_columns(), "obs": np.ones((N, 3))}, r"'obs': expected shape \(3, 2\), got \(3,\)"),
        ({**make_columns(), "obs": np.ones((N, 3, 2)) * 1e300}, "'obs'.*too large for float32"),
        ({**make_columns(), "action": np.ones((N, 2))}, "'action': expected int64.*float64"),
        ({**make_columns(), "level": np.full(N, 256)}, "'level': 256 is out of the range of uint8"),
        ({**make_columns(), "name": ["much too long"] * N}, "'name': a text of 13"),
        ({**make_columns(), "tokens": [np.ones(2)] * N}, "'tokens': expected int32"),
        ({**make_columns(), "reward": np.ones(N + 1)}, "same number of rows, got.*'reward': 21"),
        ({**make_columns(), "reward": ["a"] * N}, "'reward': expected float64"),
        (
            {**make_columns(), "terminated": np.full(N, 2)},
            "'terminated': 2 is out of the range",
        ),
        ({**make_columns(2), "state": {"a": 1, "b": 2}}, "state: expected a column"),
        ({**make_columns(3), "id": "abc"}, "id: expected a column"),
        ({**make_columns(), "tokens": None}, "'tokens' is missing"),
        ({**make_columns(), "task_id": ["a", "b"]}, "task_id: expected 20 values or one, got 2"),
        ({**make_columns(), "step": 1.5}, "step: expected an integer of 64 bits, got 1.5"),
        ({**make_columns(), "obs": 3}, "'obs': expected a row for each step, got 3"),
        ({}, "is missing"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(buffer, columns, message):
    with pytest.raises(FieldError, match=message):
        buffer.extend(columns)
    assert len(buffer) == 0


def test_rows_carry_messages_and_states_beside_their_arrays(buffer):
    states = [{"grid": np.full((2, 2), i), "note": f"n{i}"} for i in range(N)]
    messages = [[{"role": "user", "content": f"ä{i}"}] for i in range(N)]
    rewards = np.where(np.arange(N) == 3, np.nan, 1.0)
    extra = [{"k": i} if i % 2 else None for i in range(N)]
    buffer.extend(
        {**make_columns(), "reward": rewards, "state": states, "messages": messages, "extra": extra}
    )
    rows = list(buffer)
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row.exp_data.state["grid"], np.full((2, 2), i))
        assert row.exp_data.messages == messages[i]
        assert row.exp_data.extra == extra[i]
        assert np.isnan(row.exp_data.reward_t) == (i == 3)
    batch = all_of(buffer)
    np.testing.assert_array_equal(batch.obs[:, 0, 0], batch.info["step"])
    assert np.isnan(batch.reward).sum() == 1
    with pytest.raises(FieldError, match=r"row 1: state\.f: cannot store a .*function"):
        buffer.extend({**make_columns(2), "state": [None, {"f": make_columns}]})


def test_one_row_is_decoded_from_what_plain_sql_returns(buffer_url, buffer):
    buffer.extend(make_columns(), task_id="t")
    blob = scalar(buffer_url, f"SELECT arrays FROM {STEPS} e WHERE step = 3")
    found = buffer.decode(blob)
    assert list(found) == list(FIELDS)
    np.testing.assert_array_equal(found["obs"], np.full((3, 2), 3, np.float32))
    np.testing.assert_array_equal(found["tokens"], [3, 4, 5])
    assert found["name"] == "ä3"
    with pytest.raises(FieldError, match="too short"):
        buffer.decode(b"ab")


def test_rows_without_arrays_are_refused_where_fields_are_declared(buffer):
    for store in (lambda: buffer.add(state=1), lambda: buffer.store_batch([make_row(1)])):
        with pytest.raises(FieldError, match="field 'obs' is missing: expected float32"):
            store()
    assert len(buffer) == 0


def test_flags_may_be_zeros_and_ones(buffer):
    buffer.extend({**make_columns(4), "terminated": [0, 1, 0, 1], "step": np.array(7)})
    assert all_of(buffer, 4).terminated.tolist() == [True, False, True, False]
    assert set(all_of(buffer, 4).info["step"]) == {7}


def test_a_buffer_with_defaults_is_listed_opened_and_dropped(buffer_url):
    declared = {
        "obs": ("float32", (2,), [np.nan, 1.0]),
        "tokens": ("int32", (-1,), np.zeros(0, np.int32)),
    }
    with ReplayBuffer(buffer_url, name="defaults", fields=declared) as buffer:
        buffer.extend({"reward": [1.0, 2.0]})
        batch = all_of(buffer, 2)
        np.testing.assert_array_equal(batch.obs, np.float32([[np.nan, 1.0]] * 2))
        assert batch.tokens.shape == (2, 0)
    ReplayBuffer(buffer_url, name="defaults", fields=declared)
    assert "defaults" in ReplayBuffer.list(buffer_url)
    ReplayBuffer.drop(buffer_url, "defaults")


def test_observation_fields_alone_say_nothing(buffer_url):
    with pytest.raises(FieldError, match="observation_fields go with fields"):
        ReplayBuffer(buffer_url, observation_fields=["obs"])


def test_fields_are_a_list_of_names(buffer):
    buffer.extend(make_columns())
    with pytest.raises(FieldError, match=r"fields is a list of names .*, got 'obs'"):
        all_of(buffer, fields="obs")


def test_a_buffer_without_fields_takes_rewards_and_flags_alone(buffer_url):
    with ReplayBuffer(buffer_url, name="plain") as buffer:
        buffer.extend({"reward": [1.0, 2.0], "terminated": [False, True]})
        batch = all_of(buffer, 2)
        assert batch.reward.tolist() == [2.0, 1.0]
        assert batch.terminated.tolist() == [True, False]
        with pytest.raises(FieldError, match="the number of rows is unknown"):
            buffer.extend({})


def test_the_buffer_tells_its_fields(buffer):
    assert {name: str(spec) for name, spec in buffer.fields.items()} == {
        "obs": "float32(3, 2)",
        "action": "int64(2,)",
        "tokens": "int32(-1,)",
        "level": "uint8",
        "name": "U8",
    }
    assert buffer.observation_fields == ("obs",)


def test_a_field_given_twice_is_refused(buffer):
    with pytest.raises(FieldError, match="'task_id' is given twice"):
        buffer.extend({**make_columns(), "task_id": "a"}, task_id="b")


def test_unsafe_casts_are_made_when_asked_for(buffer):
    buffer.extend({**make_columns(), "level": np.full(N, 257)}, casting="unsafe")
    assert (all_of(buffer).level == 1).all()


def test_ids_make_a_batch_repeatable(buffer):
    columns = {**make_columns(), "id": [f"r{i}" for i in range(N)]}
    assert buffer.extend(columns).inserted == N
    again = buffer.extend(columns, task_id="default")
    assert (again.inserted, again.duplicates) == (0, N)
    other = {**columns, "obs": columns["obs"] + 1}
    assert buffer.extend(other).conflicts == N
    check_rows(all_of(buffer))


def test_rewards_that_a_column_cannot_hold_come_back(buffer):
    rewards = np.array([np.nan, -0.0, np.inf, -np.inf, 0.0, 0.1])
    columns = {name: values[:6] for name, values in make_columns().items()}
    buffer.extend({**columns, "reward": rewards})
    found = all_of(buffer, 6).reward[::-1]
    np.testing.assert_array_equal(found, rewards.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(rewards))
    assert buffer.size(QueryBuilder().gte("exp_data.reward_t", 0).build()) == 4


def test_rows_without_rewards_and_flags_have_nan_and_false(buffer):
    columns = {name: values for name, values in make_columns().items() if name in FIELDS}
    buffer.extend(columns)
    batch = all_of(buffer)
    assert np.isnan(batch.reward).all()
    assert not batch.terminated.any()
    assert not batch.truncated.any()


def test_chosen_fields_alone_are_drawn(buffer):
    buffer.extend(make_columns())
    batch = all_of(buffer, fields=["reward", "action"])
    assert sorted(batch) == ["action", "reward"]
    with pytest.raises(FieldError, match="unknown field 'speed'; steps have obs"):
        all_of(buffer, fields=["speed"])
    with pytest.raises(AttributeError, match="the batch has no 'obs'; it has"):
        _ = batch.obs


def test_a_batch_has_as_many_rows_as_asked_for_whatever_the_buffer_holds(buffer):
    buffer.extend(make_columns())
    assert buffer.sample_arrays(300).obs.shape == (300, 3, 2)
    with pytest.raises(InsufficientDataError, match="asked for 21, and 20 match"):
        buffer.sample_arrays(21, sampler=RandomSampler())


def test_an_empty_buffer_has_no_batch(buffer):
    with pytest.raises(InsufficientDataError, match="asked for 1, and 0 match"):
        buffer.sample_arrays(1)
    assert buffer.extend({name: [] for name in make_columns()}).inserted == 0


def test_a_condition_says_which_rows_may_be_drawn(buffer):
    buffer.extend(make_columns(), task_id=[f"t{i % 4}" for i in range(N)])
    condition = QueryBuilder().eq("exp_meta.task_id", "t1").build()
    batch = buffer.sample_arrays(50, condition=condition, sampler=RandomSampler(replace=True))
    assert set(batch.info["task_id"]) == {"t1"}
    assert set(batch.info["step"]) == set(range(1, N, 4))


def test_a_seed_repeats_the_batches(buffer):
    buffer.extend(make_columns())
    first, second = (
        [buffer.sample_arrays(8, sampler=sampler).info["seq"].tolist() for _ in range(3)]
        for sampler in (RandomSampler(replace=True, seed=5), RandomSampler(replace=True, seed=5))
    )
    assert first == second


def test_arrays_of_a_batch_may_be_changed(buffer):
    buffer.extend(make_columns())
    batch = all_of(buffer)
    for array in batch.values():
        array[:] = array
    assert batch.obs.flags.c_contiguous


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_leave_first_in_first_out_and_writers_share_the_buffer(buffer_url):
    buffer = ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=30)
    calls = [(extend_often, buffer, start) for start in (0, 100)]
    assert run_at_once(calls) == [5 * N, 5 * N]
    assert len(buffer) == 30
    check = all_of(buffer, 30)
    np.testing.assert_array_equal(check.obs[:, 0, 0], check.action[:, 0])


def extend_often(buffer, start):
    return sum(
        buffer.extend(make_columns(start=start), step=np.arange(start, start + N)).inserted
        for _ in range(5)
    )


@pytest.mark.parametrize(
    ("env_id", "fields"),
    [
        ("CartPole-v1", {"obs": ("float32", (4,)), "action": "int64", "next_obs": ("float32", 4)}),
        (
            "Pendulum-v1",
            {"obs": ("float32", (3,)), "action": ("float32", (1,)), "next_obs": ("float32", (3,))},
        ),
    ],
)
def test_what_an_environment_gives_is_stored_as_it_is(buffer_url, env_id, fields):
    env = gymnasium.make(env_id)
    env.action_space.seed(3)
    obs, _ = env.reset(seed=3)
    steps = {
        name: [] for name in ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    }
    for _ in range(50):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        for name, value in zip(
            steps, (obs, action, reward, terminated, truncated, next_obs), strict=True
        ):
            steps[name].append(value)
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        assert buffer.extend(steps).inserted == 50
        batch = all_of(buffer, 50)
        order = batch.info["step"]
        for name, values in steps.items():
            expected = np.array(values, batch[name].dtype)[order]
            np.testing.assert_array_equal(batch[name], expected)
