"""Steps with typed fields that are added one at a time, and columns that name their episode."""

import threading

import numpy as np
import pandas as pd
import pytest

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.errors import EpisodeEndedError, FieldError, SQLBufferError
from tests.support.sql import run, scalar

FIELDS = {
    "obs": ("float32", (2,)),
    "action": "int64",
    "next_obs": ("float32", (2,)),
    "tokens": ("int32", (-1,), np.zeros(0, np.int32)),
}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=3_600.0) as buffer:
        yield buffer


def step(n, **more):
    obs = np.full(2, n, np.float32)
    return {"obs": obs, "action": n, "next_obs": obs + 1, "reward": float(n), **more}


def test_transitions_are_added_one_at_a_time(buffer, buffer_url):
    obs = np.zeros(2, np.float32)
    for n in range(300):
        obs[:] = n  # as environments do, in place
        assert (
            buffer.add(**{**step(n), "obs": obs}, terminated=n % 10 == 9, truncated=False) is None
        )
    assert scalar(buffer_url, "SELECT count(*) FROM chunks") == 0
    batch = buffer.sample_transitions(64)
    np.testing.assert_array_equal(batch.obs[:, 0], batch.action)
    np.testing.assert_array_equal(batch.next_obs, batch.obs + 1)
    rows = list(buffer)
    assert [row.exp_meta.step for row in rows] == list(range(300))
    assert [row.exp_data.terminated for row in rows] == [n % 10 == 9 for n in range(300)]
    assert scalar(buffer_url, "SELECT count(*) FROM chunks") == 2


def test_steps_of_several_tasks_keep_their_order(buffer):
    for n in range(30):
        more = {"state": {"n": n}} if n % 7 == 0 else {}
        buffer.add(
            **step(n, task_id=n % 3, agent_id="a", model_version=n // 10, tokens=[1] * (n % 3)),
            **more,
        )
    for task in "012":
        found = buffer.get_by_task_id(task)
        assert [row.fields["action"] for row in found] == list(range(int(task), 30, 3))
        assert [row.exp_data.state for row in found] == [
            {"n": n} if n % 7 == 0 else None for n in range(int(task), 30, 3)
        ]
    assert {row.exp_meta.model_version for row in buffer} == {0, 1, 2}


def test_a_step_takes_the_names_of_other_buffers_too(buffer_url):
    with ReplayBuffer(buffer_url, fields={"obs": "float32"}) as buffer:
        buffer.add(obs=1.0, action="left", reward_t=2.0)
        buffer.add(obs=1.0, actions=["left", "up"])
        with pytest.raises(FieldError, match=r"give actions=\.\.\. or action=\.\.\., not both"):
            buffer.add(obs=1.0, action="left", actions=["up"])
        found = [(row.exp_data.actions, row.exp_data.reward_t) for row in buffer]
        assert found == [(["left"], 2.0), (["left", "up"], None)]


def test_a_step_number_that_is_given_is_kept(buffer):
    for number in (5, 7, -1, 7):
        buffer.add(**step(0, step=number))
    assert [row.exp_meta.step for row in buffer] == [5, 7, -1, 7]


def test_what_chunks_seldom_have_is_stored_at_once_and_in_order(buffer):
    buffer.add(**step(0))
    assert buffer.add(**step(1), id="x", adv_t=0.5).inserted == 1
    assert buffer.add(**step(1), id="x", adv_t=0.5).duplicates == 1
    buffer.add(**step(2))
    assert [(row.fields["action"], row.exp_data.adv_t) for row in buffer] == [
        (0, None), (1, 0.5), (2, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (step(0, acton=1), r"unknown field 'acton' \(did you mean action\?\)"),
        ({"obs": [0, 0], "action": 1}, "field 'next_obs' is missing"),
        (step(0, obs=[1.0]), "obs"),
        (step(0, action=0.5), "action"),
        (step(0, task_id=["a"]), "task_id: expected one value"),
        (step(0, step=0.5), "step: expected an integer"),
        (step(0, model_version=0.5), "model_version: expected an integer"),
        (step(0, reward_t=2.0), r"give reward=\.\.\. or reward_t=\.\.\., not both"),
        (step(0, reward="much"), "reward"),
        (step(0, priority=1.0), "priorit"),
        (step(0, task_id="\0"), "task_id"),
    ],
)
def test_a_step_that_does_not_fit_is_refused_at_once(buffer, given, message):
    buffer.add(**step(7))
    with pytest.raises(SQLBufferError, match=message):
        buffer.add(**given)
    assert [row.fields["action"] for row in buffer] == [7]


def test_priorities(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, priorities=True) as buffer:
        for n in range(3):
            buffer.add(**step(n), priority=n + 0.5)
        buffer.flush()
        shown = run(buffer_url, "SELECT initial_priority FROM chunk_steps ORDER BY seq")
        assert [own for (own,) in shown] == [0.5, 1.5, 2.5]


def test_threads_add_at_once(buffer):
    def add(k):
        for n in range(200):
            buffer.add(**step(1_000 * k + n), task_id="t")

    threads = [threading.Thread(target=add, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = buffer.get_by_task_id("t")
    assert sorted(row.exp_meta.step for row in rows) == list(range(800))
    assert len({int(row.fields["action"]) for row in rows}) == 800


def columns(numbers):
    obs = np.repeat(np.array(numbers, np.float32)[:, None], 2, axis=1)
    return {"obs": obs, "action": numbers, "next_obs": obs + 1, "reward": np.ones(len(numbers))}


def test_columns_are_appended_to_their_episode(buffer, buffer_url):
    buffer.extend(columns(range(3)), task_id="t", episode_id="e")
    buffer.extend(columns(range(3, 9)), task_id="t", episode_id=["e", "f"] * 3)
    found = run(
        buffer_url, "SELECT e.key, s.t FROM chunk_steps s JOIN episodes e ON e.id = s.episode_id"
    )
    assert sorted(found) == [*(("e", t) for t in range(6)), *(("f", t) for t in range(3))]
    # Steps without a number follow those of their episode.
    ids = {"id": list("xy"), "task_id": "t", "episode_id": "e"}
    assert buffer.extend(columns(range(9, 11)), **ids).inserted == 2
    assert buffer.extend(columns(range(9, 11)), **ids).duplicates == 2
    buffer.add(**step(11), task_id="t", episode_id="e")
    buffer.add(**step(12), task_id="t", episode_id="e", step=20)
    buffer.add(**step(13), task_id="t", episode_id="e")
    steps = [r.exp_meta.step for r in buffer if r.exp_meta.episode_id == "e"]
    assert steps == [*range(9), 20, 21]
    with buffer.episode(episode_id="g", task_id="t") as episode:
        episode.append(**step(1))
    with pytest.raises(EpisodeEndedError, match="'g' of task 't' has ended"):
        buffer.extend(columns(range(2)), task_id="t", episode_id="g")


def test_a_buffer_without_fields_takes_the_episode_too(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.extend({"reward": [1.0, 2.0]}, episode_id=["e", "f"])
        assert [row.exp_meta.episode_id for row in buffer] == ["e", "f"]
        with pytest.raises(FieldError, match="'episode_id' is given twice"):
            buffer.store_episode({"reward": [1.0], "episode_id": ["e"]})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("observation", "obs"),
        ("next_observation", "next_obs"),
        ("acton", "action"),
        ("act", "action"),
        ("done", "terminated or truncated"),
        ("timeout", "truncated"),
        ("next_state", "next_obs"),
    ],
)
def test_an_unknown_name_has_a_hint_at_the_nearest_one(buffer, name, near):
    hint = rf"unknown field '{name}' \(did you mean {near}\?\)"
    with pytest.raises(FieldError, match=hint):
        buffer.add(**step(0), **{name: 1})
    with pytest.raises(FieldError, match=hint):
        buffer.extend({**{key: [value] for key, value in step(0).items()}, name: [1]})
    with pytest.raises(FieldError, match=rf"unknown field '{name}'; did you mean {near}\?"):
        buffer.add(**step(0), **{name: 1}, id="single")


def test_a_step_that_is_refused_leaves_no_gap_in_the_numbers(buffer):
    buffer.add(**step(0))
    for wrong in ({"obs": np.zeros(3)}, {"action": "left"}, {"speed": 1}, {"reward": "high"}):
        with pytest.raises(FieldError):
            buffer.add(**step(1, **wrong))
    buffer.add(**step(1))
    buffer.add(**step(5, task_id="other"))
    buffer.add(**step(2))
    assert [row.exp_meta.step for row in buffer if row.exp_meta.task_id == "default"] == [0, 1, 2]


def test_a_step_that_was_not_taken_leaves_no_gap_either(buffer, buffer_url):
    buffer.add(**step(0))
    run(buffer_url, "ALTER TABLE chunk_data RENAME TO chunk_data_away")
    try:
        with pytest.raises(SQLBufferError):
            buffer.flush()
        with pytest.raises(SQLBufferError):
            buffer.sample_arrays(1)
        with pytest.raises(SQLBufferError):
            buffer.add(**step(1))
    finally:
        run(buffer_url, "ALTER TABLE chunk_data_away RENAME TO chunk_data")
    buffer.add(**step(1))
    assert [row.exp_meta.step for row in buffer] == [0, 1]


PLAIN = {"a": [1, 2], "b": [3, 4]}
WRONG = {
    "one message": ("messages", {"role": "user", "content": "?"}, "give messages=\\[message\\]"),
    "a table": ("state", pd.DataFrame(PLAIN), "would lose its columns"),
    "a time": ("extra", {"at": [pd.NaT]}, r"extra\.at\[0\]: NaT, a pandas.NaTType, is not exactly"),
}


@pytest.mark.parametrize("fields", [None, {"obs": "float32"}], ids=["json", "typed"])
@pytest.mark.parametrize(("name", "value", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_value_that_would_lose_something_is_refused_by_each_call(
    buffer_url, fields, name, value, message
):
    own = {"obs": 1.0} if fields else {}
    columns = {name: [value, value], **{field: [1.0, 1.0] for field in own}}
    row = DataRow(ExpMeta("t"), Experience(**{name: value}), fields=own)
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        episode = buffer.episode()
        for call in (
            lambda: buffer.add(**{name: value}, **own),
            lambda: buffer.store(row),
            lambda: buffer.extend(columns),
            lambda: buffer.store_episode(columns),
            lambda: episode.append(**{name: value}, **own),
        ):
            with pytest.raises(FieldError, match=message):
                call()
        episode.end()
        assert len(buffer) == 0


@pytest.mark.parametrize("name", ["state", "actions", "messages", "extra"])
@pytest.mark.parametrize("n", [2, 3])
def test_a_table_is_not_a_column_of_payloads(buffer_url, name, n):
    table = pd.DataFrame({"a": range(n), "b": range(n)})
    with ReplayBuffer(buffer_url) as buffer:
        with pytest.raises(FieldError, match=rf"{name}: .* give its rows: table.to_dict"):
            buffer.extend({name: table})
        buffer.extend({"state": table["a"]})
        assert [row.exp_data.state for row in buffer] == list(range(n))
