"""The buffer inside, used through `sqlbuffer.ReplayBuffer` and by SQL."""

import json
import threading

import numpy as np
import pytest

import sqlbuffer
from sqlbuffer import QueryBuilder
from sqlbuffer.compat.memmap import MemmapError, MemmapTypeError
from sqlbuffer.errors import BufferConfigError, FieldError
from tests.support.sql import run, scalar

UP_TO_3 = QueryBuilder().lte("seq", 3).build()


def fill(buffer, lengths=(3, 2)):
    for slot, length in enumerate(lengths):
        buffer.store_episode(s=np.full((length, 2), slot), r=np.arange(length) + 10.0, task=slot)
    return buffer


@pytest.fixture
def native(buffer_url, make):
    """Return a function that opens the buffer inside."""
    opened = []

    def native():
        opened.append(sqlbuffer.ReplayBuffer(buffer_url, name="memmap", create=False))
        return opened[-1]

    yield native
    for buffer in opened:
        buffer.close()


def test_the_core_reads_and_samples_what_the_adapter_stored(make, native):
    fill(make())
    core = native()
    assert [row.exp_meta.step for row in core.get_all()] == [0, 1, 2, 0, 1]
    condition = QueryBuilder().gte("r", 11).build()
    assert core.size(condition) == 3
    assert {row.exp_meta.step for row in core.sample(3, condition=condition)} == {1, 2}
    batch = core.sample_arrays(64)
    assert set(batch.r.tolist()) == {10, 11, 12}
    assert batch.s.shape == (64, 2)
    assert [len(rows) for rows in core.sample_tasks(2)] in ([3, 2], [2, 3])


def test_conditions_of_the_core_find_rewards_flags_and_other_numbers(make, native, buffer_url):
    fields = {"reward": "float", "terminated": "bool", "level": "int"}
    buffer = make(fields=fields)
    buffer.store_episode(reward=[1, 2, 4], terminated=[False, False, True], level=[7, 8, 9])
    core = native()
    for condition in (
        QueryBuilder().gte("reward_t", 3),
        QueryBuilder().eq("terminated", True),
        QueryBuilder().eq("level", 9),
    ):
        assert [row.exp_meta.step for row in core.sample(1, condition=condition.build())] == [2]
        assert core.size(condition.build()) == 1
    assert scalar(buffer_url, "SELECT CAST(fields AS text) FROM chunks").count("[") == 1
    # A step whose values were set has the same fields as the others.
    buffer.data["reward"][0, 1] = 5.0
    assert core.size(QueryBuilder().gte("reward_t", 3).build()) == 2
    assert core.size(QueryBuilder().eq("level", 8).build()) == 1
    shown = run(buffer_url, "SELECT CAST(fields AS text) FROM v_experiences ORDER BY seq")
    assert [sorted(json.loads(text)) for (text,) in shown] == [["level"]] * 3


def test_transitions_need_observation_fields_and_the_constructor_names_them(make, native):
    fields = {"state": ("float", 2), "reward": "float", "terminated": "bool"}
    make(fields=fields)
    with pytest.raises(FieldError, match=r"made without: .*ReplayBuffer\(.., observation_fields="):
        native().sample_transitions(1)
    buffer = make(fields=fields, overwrite=True, observation_fields=("state",))
    state = np.arange(6).reshape(3, 2)
    buffer.store_episode(state=state, reward=[1, 2, 4], terminated=[False, False, True])
    batch = native().sample_transitions(32, n_step=2, gamma=0.5)
    columns = batch.state_[:, 0], batch.state_[:, 1], batch.reward, batch.discount
    assert set(zip(*(column.tolist() for column in columns), strict=True)) == {
        (0, 1, 2, 0.25), (2, 3, 4, 0), (4, 5, 4, 0),
    }  # fmt: skip


def observations(url, name):
    config = scalar(url, "SELECT config FROM buffers WHERE name = :name", name=name)
    found = json.loads(config) if isinstance(config, str) else config
    return found["fields"]["observations"]


def test_observation_fields_are_kept_and_compared_where_they_are_given(make, buffer_url):
    make(observation_fields=["s"])
    make()
    assert observations(buffer_url, "memmap") == ["s"]
    make(fields={"obs": "float"}, name="other")
    assert observations(buffer_url, "other") == ["obs"]
    with pytest.raises(FieldError, match=r"stored as \['s'\], and were given as \['a'\]"):
        make(observation_fields=["a"])


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (("nope",), MemmapError, "'nope' is none of the fields s, r, a"),
        ("s", MemmapTypeError, r"names of fields such as \('state',\), got 's'"),
        (3, MemmapTypeError, "got 3"),
        ((None,), MemmapError, "None is none of the fields"),
    ],
)
def test_observation_fields_that_are_none_are_refused(tmp_path, make, given, error, says):
    with pytest.raises(error, match=says):
        make(folder=tmp_path / "new", observation_fields=given)
    assert not (tmp_path / "new").exists()


def test_a_slot_whose_steps_the_core_deleted_is_empty(make, native, reopen):
    pytest.importorskip("torch")
    buffer = fill(make())
    dataset = buffer.dataset()
    assert native().delete(UP_TO_3) == 3
    for opened in (lambda: buffer, reopen):
        each = opened()
        assert each.episode_lens[:].tolist() == [0, 2, 0]
        assert each.data["r"][0].tolist() == [-1] * 4
        assert each.meta_data["task"][:].tolist() == [-1, 1, -1]
        assert len(each) == len(each.dataset()) == 1
    assert len(dataset.__getitems__([0, 1])) == 1
    buffer.store_episode(r=[7.0])
    assert buffer.episode_lens[:].tolist() == [0, 2, 1]


def test_of_an_episode_that_lost_some_steps_those_have_defaults(make, native):
    buffer = fill(make())
    assert native().delete(QueryBuilder().eq("seq", 2).build()) == 1
    assert buffer.episode_lens[0] == 3
    assert buffer.data["r"][0].tolist() == [10, -1, 12, -1]


def test_a_core_delete_leaves_open_episodes_and_lengths_that_were_set(make, native):
    buffer = fill(make(), (3,))
    buffer.meta_data["episode_lens"][2] = 4
    buffer.store(r=5.0)
    assert native().delete(UP_TO_3) == 3
    buffer.store(r=6.0)
    buffer.advance_episode()
    assert buffer.episode_lens[:].tolist() == [0, 2, 4]
    assert buffer.data["r"][1].tolist() == [5, 6, -1, -1]


@pytest.mark.thorough
def test_slots_and_steps_agree_while_the_core_deletes(make, native, buffer_url):
    buffer, core = make(circular=True), native()

    def write():
        for n in range(20):
            buffer.store_episode(r=np.full(n % 4 + 1, n))

    writer = threading.Thread(target=write)
    writer.start()
    n_deleted = 0
    while writer.is_alive() or not n_deleted:
        n_deleted += core.delete(QueryBuilder().gte("seq", 0).build())
    writer.join()
    buffer.store_episode(r=[1.0, 2.0])
    steps = run(buffer_url, "SELECT episode_id, count(*) FROM v_experiences GROUP BY 1")
    assert sorted(n for _, n in steps) == sorted(n for n in buffer.episode_lens.tolist() if n)
    assert len(core) == buffer.episode_lens.sum() >= 2


def test_a_core_clear_leaves_an_empty_buffer(make, native, reopen):
    buffer = fill(make())
    assert native().clear() == 5
    for each in (buffer, reopen()):
        assert (each.num_episodes, len(each), each.episode_index) == (0, 0, 0)
    buffer.store_episode(r=[7.0])
    assert buffer.episode_lens[:].tolist() == [1, 0, 0]


def test_what_plain_sql_deleted_is_forgotten_when_the_buffer_is_opened(make, buffer_url):
    fill(make()).close()
    run(buffer_url, "DELETE FROM experiences WHERE seq <= 3")
    run(buffer_url, "DELETE FROM chunks WHERE first_seq <= 3")
    assert make(overwrite=False).episode_lens[:].tolist() == [0, 2, 0]


def test_the_core_does_not_resize_what_slots_hold(make, native):
    buffer = fill(make())
    with pytest.raises(
        BufferConfigError, match=r"is one of sqlbuffer.compat.memmap .*max_episodes"
    ):
        native().resize(2)
    assert len(native()) == 5
    assert buffer.episode_lens[:].tolist() == [3, 2, 0]


def test_rows_of_the_core_are_no_episode_of_the_adapter(make, native):
    buffer = fill(make())
    core = native()
    core.add(state=1)
    core.store_episode({"s": np.zeros((1, 2))})
    assert len(core) == 7
    assert buffer.episode_lens[:].tolist() == [3, 2, 0]


def test_v_episodes_shows_the_episodes_of_slots(make, buffer_url):
    buffer = fill(make(), (3,))
    listed = "SELECT length, status, meta FROM v_episodes ORDER BY started_at"
    with buffer.one_episode(task=5):
        buffer.store(r=1.0)
        buffer.flush()
        found = run(buffer_url, listed)
    assert [(*row[:2], _task(row[2])) for row in found] == [(3, "complete", 0), (None, "open", 5)]
    buffer.store_meta_datapoint(1, "task", 6)
    found = run(buffer_url, listed)
    assert [(*row[:2], _task(row[2])) for row in found] == [
        (3, "complete", 0), (1, "complete", 6),
    ]  # fmt: skip


def _task(meta):
    meta = json.loads(meta) if isinstance(meta, str) else meta
    return None if meta is None else meta["task"]
