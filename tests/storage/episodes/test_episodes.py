"""Episodes that are stored whole, and what is kept of them."""

import numpy as np
import pytest

from sqlbuffer import LatestSampler, ReplayBuffer
from sqlbuffer.errors import EpisodeExistsError, FieldError
from sqlbuffer.interchange import export_parquet, import_parquet
from tests.support.processes import run_at_once
from tests.support.sql import STEPS, is_sqlite, run, scalar

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}
EPISODES = "SELECT * FROM v_episodes ORDER BY episode_id"


def make_arrays(n, start=0):
    numbers = np.arange(start, start + n)
    return {
        "obs": np.stack([numbers, numbers], axis=1).astype(np.float32),
        "action": numbers,
        "reward": np.full(n, 0.5),
        "terminated": numbers == start + n - 1,
        "truncated": np.zeros(n, bool),
    }


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def episodes(url):
    columns = (
        "buffer, episode_id, task_id, agent_id, status, length, episode_return, first_seq, "
        "last_seq, model_version"
    )
    return run(url, f"SELECT {columns} FROM v_episodes ORDER BY first_seq")


def test_an_episode_is_its_steps_and_one_row_beside_them(buffer_url, buffer):
    result = buffer.store_episode(
        make_arrays(4), episode_id="e1", task_id="t", agent_id="a", model_version=7, level=3
    )
    assert result.inserted == 4
    assert episodes(buffer_url) == [("default", "e1", "t", "a", "complete", 4, 2.0, 1, 4, 7)]
    assert run(buffer_url, f"SELECT t, step FROM {STEPS} e ORDER BY seq") == [
        (i, i) for i in range(4)
    ]
    rows = buffer.get_by_task_id("t")
    assert {row.exp_meta.episode_id for row in rows} == {"e1"}
    batch = buffer.sample_arrays(4, sampler=LatestSampler())
    assert batch.terminated.tolist() == [True, False, False, False]
    meta = scalar(buffer_url, "SELECT meta FROM v_episodes")
    assert meta == ('{"level":3}' if is_sqlite(buffer_url) else {"level": 3})
    assert scalar(buffer_url, "SELECT ended_at >= started_at FROM v_episodes") in (1, True)


def test_ids_are_made_when_they_are_left_out(buffer_url, buffer):
    for _ in range(3):
        buffer.store_episode(make_arrays(2))
    found = episodes(buffer_url)
    assert len({episode for _, episode, *_ in found}) == 3
    assert all(episode == task for _, episode, task, *_ in found)


def test_an_episode_that_is_sent_again_is_stored_once(buffer_url, buffer):
    assert buffer.store_episode(make_arrays(5), episode_id="e", level=1).inserted == 5
    again = buffer.store_episode(make_arrays(5), episode_id="e", level=2)
    assert (again.inserted, again.duplicates) == (0, 5)
    assert buffer.store_episode(make_arrays(5, start=9), episode_id="e").conflicts == 5
    assert len(buffer) == 5
    assert len(episodes(buffer_url)) == 1
    assert "1" in str(scalar(buffer_url, "SELECT meta FROM v_episodes"))


def test_the_learning_curve_outlives_the_steps(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=5) as buffer:
        for i in range(4):
            buffer.store_episode(make_arrays(3), episode_id=f"e{i}")
        assert len(buffer) == 5
    assert [row[5:7] for row in episodes(buffer_url)] == [(3, 1.5)] * 4


def test_the_final_observation_is_kept_with_the_episode_and_is_no_step(buffer_url, buffer):
    buffer.store_episode(make_arrays(2), final={"obs": [7.0, 8.0]})
    assert len(buffer) == 2
    final = scalar(buffer_url, "SELECT final_arrays FROM episodes")
    np.testing.assert_array_equal(np.frombuffer(final, "<f4"), [7.0, 8.0])
    buffer.store_episode(make_arrays(2), episode_id="none")
    assert scalar(buffer_url, "SELECT final_arrays FROM episodes WHERE key = 'none'") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"final": {"obs": [1.0]}}, r"field 'obs': expected shape \(2,\), got \(1,\)"),
        ({"final": {"action": 1}}, "final observation has .* and was given with .*act"),
        ({"final": {"obs": [1.0, 2.0], "action": 1}}, "final observation has the fields obs"),
        ({"level": np.ones(2)}, "meta: arrays and bytes are not kept"),
        ({"level": object()}, r"meta\.level: cannot store"),
        ({"episode_id": "e" * 501}, "episode_id: longer than 500 bytes"),
        ({"episode_id": 3}, "episode_id: expected text, got 3"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(buffer_url, buffer, options, message):
    with pytest.raises(FieldError, match=message):
        buffer.store_episode(make_arrays(2), **options)
    assert len(buffer) == 0
    assert episodes(buffer_url) == []


@pytest.mark.parametrize(
    ("arrays", "options", "name"),
    [
        ({"task_id": ["x"] * 2}, {}, "task_id"),
        ({"task_id": "x"}, {"task_id": "t"}, "task_id"),
        ({"agent_id": ["a", "b"]}, {"agent_id": "default"}, "agent_id"),
        ({"model_version": 1}, {"model_version": 0}, "model_version"),
    ],
)
def test_what_an_episode_says_of_its_steps_is_not_given_as_a_column_too(
    buffer_url, buffer, arrays, options, name
):
    with pytest.raises(FieldError, match=f"'{name}' is given twice"):
        buffer.store_episode({**make_arrays(2), **arrays}, **options)
    assert len(buffer) == 0
    assert episodes(buffer_url) == []


def test_steps_of_one_episode_may_have_agents_versions_and_ids_of_their_own(buffer_url, buffer):
    columns = {"agent_id": ["a", "b"], "model_version": [1, 2], "id": ["x", "y"]}
    buffer.store_episode({**make_arrays(2), **columns})
    found = [(row.exp_meta.agent_id, row.exp_meta.model_version, row.id) for row in buffer]
    assert found == [("a", 1, "x"), ("b", 2, "y")]


@pytest.mark.parametrize("arrays", [None, [1, 2], np.ones(3)])
def test_arrays_are_given_by_name(buffer, arrays):
    for store in (buffer.extend, buffer.store_episode):
        with pytest.raises(FieldError, match="arrays are given as a dict"):
            store(arrays)


def test_an_episode_has_at_least_one_step(buffer):
    with pytest.raises(FieldError, match="at least one step"):
        buffer.store_episode(make_arrays(0))


def test_an_episode_without_rewards_has_no_return(buffer_url, buffer):
    arrays = make_arrays(2)
    del arrays["reward"]
    buffer.store_episode(arrays)
    assert episodes(buffer_url)[0][6] is None


@pytest.mark.thorough
@pytest.mark.slow
def test_many_writers_store_episodes_of_one_task_at_once(buffer_url, buffer):
    calls = [(store_episodes, buffer, name) for name in "abcd"]
    assert run_at_once(calls) == [30] * 4
    found = episodes(buffer_url)
    assert len(found) == 40
    assert {row[4:7] for row in found} == {("complete", 3, 1.5)}
    assert len(buffer) == 120


def store_episodes(buffer, name):
    return sum(
        buffer.store_episode(make_arrays(3), episode_id=f"{name}{i}", task_id="shared").inserted
        for i in range(10)
    )


def test_another_episode_of_a_known_id_is_not_stored_at_all(buffer_url, buffer):
    assert buffer.store_episode(make_arrays(3), episode_id="e", level=1).inserted == 3
    other = buffer.store_episode(make_arrays(6, start=9), episode_id="e", level=2)
    assert (other.inserted, other.duplicates, other.conflicts) == (0, 0, 6)
    longer = buffer.store_episode(make_arrays(4), episode_id="e")
    # Its third step did not end the episode.
    assert (longer.inserted, longer.duplicates, longer.conflicts) == (0, 2, 2)
    assert episodes(buffer_url) == [
        ("default", "e", "e", "default", "complete", 3, 1.5, 1, 3, None)
    ]
    assert len(buffer) == 3


def test_an_episode_that_was_cut_by_eviction_is_still_known(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, max_capacity=5) as buffer:
        buffer.store_episode(make_arrays(4), episode_id="e")
        buffer.store_episode(make_arrays(3), episode_id="f")
        again = buffer.store_episode(make_arrays(4), episode_id="e")
        assert (again.inserted, again.duplicates, again.conflicts) == (0, 4, 0)
        assert len(buffer) == 5


@pytest.mark.each_value
@pytest.mark.parametrize("limits", [{"max_capacity": 4}, {"max_episodes": 2}])
def test_the_id_of_an_episode_that_has_left_is_free(buffer_url, limits):
    with ReplayBuffer(buffer_url, fields=FIELDS, **limits) as buffer:
        for run_number in range(3):
            for i in range(4):
                start = 100 * run_number + 10 * i
                stored = buffer.store_episode(make_arrays(2, start), episode_id=f"e{i}")
                assert (stored.inserted, stored.conflicts) == (2, 0)
                newest = buffer.sample_arrays(2, sampler=LatestSampler())
                assert newest.action.tolist() == [start + 1, start]
        assert len(buffer) == 4
        listed = run(buffer_url, "SELECT episode_id, length FROM v_episodes ORDER BY first_seq")
        assert listed == [(f"e{i}", 2) for i in range(4)]
        with buffer.episode(episode_id="e0") as episode:
            episode.append(obs=[1, 1], action=1)
        assert buffer.sample_arrays(1, sampler=LatestSampler()).action.tolist() == [1]


def test_an_open_or_aborted_episode_keeps_its_id(buffer_url, buffer):
    episode = buffer.episode(episode_id="e")
    with pytest.raises(EpisodeExistsError, match=r"'e' of task 'e' is stored already \(it is open"):
        buffer.store_episode(make_arrays(3), episode_id="e")
    episode.append(obs=[1, 1], action=1)
    episode.abort()
    with pytest.raises(EpisodeExistsError, match="it is aborted"):
        buffer.store_episode(make_arrays(3), episode_id="e")
    assert len(buffer) == 1


@pytest.mark.parametrize("fields", [None, FIELDS], ids=["json", "typed"])
def test_an_episode_is_stored_once_whatever_ids_other_steps_have(buffer_url, fields):
    with ReplayBuffer(buffer_url, fields=fields) as buffer:
        columns = make_arrays(3) if fields else {"reward": [0.0, 1.0, 2.0]}
        one = {name: values[:1] for name, values in columns.items()}
        assert buffer.extend({**one, "id": ["e/1"]}).inserted == 1
        for task in ("t", "u"):
            for result in (3, 0, 0):
                stored = buffer.store_episode(columns, episode_id="e", task_id=task)
                assert (stored.inserted, stored.duplicates) == (result, 3 - result)
        assert buffer.extend({**one, "id": ["e/2"]}).inserted == 1
        other = {name: values[::-1] for name, values in columns.items()}
        conflicting = buffer.store_episode(other, episode_id="e", task_id="t")
        assert conflicting.conflicting_ids == ("e/0", "e/2")
        assert len({row.id for row in buffer}) == len(buffer) == 8


KINDS = {
    "text": ("U20", lambda t: f"Zimmer ß{t}"),
    "bytes": ("S8", lambda t: b"x%d" % t),
    "texts": (("U6", (2,)), lambda t: np.array([f"a{t}", "ü"])),
    "image": (("uint8", (20, 20, 3)), lambda t: np.full((20, 20, 3), t, np.uint8)),
    "number": ("int64", lambda t: t),
}
VARYING = {
    "tokens": (("int64", (-1,)), lambda t: np.arange(t)),
    "rows": (("float32", (-1, 2)), lambda t: np.full((t, 2), t, np.float32)),
}


def check_finals(source, kinds):
    """Draw whole episodes, and transitions of fixed shape, whose last observation is number 3."""
    batch = next(iter(source.loader("trajectory", 2)))
    for name, (_, value) in kinds.items():
        for final in batch[f"final_{name}"]:
            np.testing.assert_array_equal(final, value(3))
    if kinds == KINDS:
        for n_step in (1, 3):
            batch = source.sample_transitions(32, n_step=n_step)
            after = np.minimum(batch["number"] + n_step, 3)
            for name, (_, value) in kinds.items():
                for t, found in zip(after.tolist(), batch[f"next_{name}"], strict=True):
                    np.testing.assert_array_equal(found, value(t))


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kinds", "compression"),
    [(KINDS, "zstd"), ({**KINDS, **VARYING}, None), ({**KINDS, **VARYING}, "zstd")],
    ids=["fixed-zstd", "varying", "varying-zstd"],
)
def test_a_final_observation_may_be_of_any_kind(
    buffer_url, make_database_url, tmp_path, kinds, compression
):
    fields = {name: declared for name, (declared, _) in kinds.items()}
    made = {"fields": fields, "observation_fields": list(fields), "compression": compression}
    steps = [{name: value(t) for name, (_, value) in kinds.items()} for t in range(4)]
    with ReplayBuffer(buffer_url, **made) as buffer:
        with buffer.episode() as episode:
            for t in range(3):
                episode.append(**steps[t], truncated=t == 2)
            episode.end(**steps[3])
        columns = {name: [step[name] for step in steps[:3]] for name in kinds}
        buffer.store_episode({**columns, "terminated": [0, 0, 1]}, final=steps[3])
        check_finals(buffer, kinds)
        with buffer.mirror() as mirror:
            check_finals(mirror, kinds)
        with ReplayBuffer(make_database_url("sqlite"), config=buffer.config) as copy:
            buffer.copy_to(copy)
            check_finals(copy, kinds)
        export_parquet(buffer, tmp_path / "out")
    import_parquet(tmp_path / "out", buffer_url, "restored")
    with ReplayBuffer(buffer_url, "restored") as restored:
        check_finals(restored, kinds)


@pytest.mark.parametrize("final", [np.zeros(2), [1], 3, "obs"])
def test_a_final_observation_that_is_no_dict_is_refused(buffer, final):
    with pytest.raises(FieldError, match=r"a dict with a value for each observation field \(obs\)"):
        buffer.store_episode(make_arrays(2), final=final)
    assert len(buffer) == 0


def test_rewards_without_a_sum_leave_the_return_empty(buffer_url, buffer):
    rewards = np.array([np.inf, -np.inf])
    buffer.store_episode({**make_arrays(2), "reward": rewards}, episode_id="e")
    assert scalar(buffer_url, "SELECT episode_return FROM v_episodes") is None
