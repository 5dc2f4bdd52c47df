"""Episodes that are written step by step."""

import json
import logging
import os
import pickle
import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sqlbuffer import EpisodeWriter, LatestSampler, ReplayBuffer
from sqlbuffer.errors import (
    BufferConfigError,
    BufferNotFoundError,
    EpisodeExistsError,
    FieldError,
    StorageError,
)
from sqlbuffer.storage.writing import write_queue
from tests.support.processes import FRESH, run_at_once, running, wait_until
from tests.support.sql import STEPS, run, scalar
from tests.support.waiting_steps import NEVER_S, refusing_inserts

FIELDS = {"obs": ("float32", (2,)), "action": "int64"}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S) as buffer:
        yield buffer


def step(t, **more):
    return {"obs": np.full(2, t, np.float32), "action": t, "reward": 0.5, **more}


def write(buffer, n, **options):
    with buffer.episode(**options) as episode:
        for t in range(n):
            episode.append(**step(t, terminated=t == n - 1))
    return episode


METAS = "SELECT meta FROM v_episodes ORDER BY first_seq"


def json_of(value):
    return json.loads(value) if isinstance(value, str) else value


def status_of(url, episode):
    return scalar(url, "SELECT status FROM v_episodes WHERE episode_id = :id", id=episode)


def stored(url):
    return scalar(url, "SELECT count(*) FROM step_numbers")


def test_an_episode_is_stored_when_its_block_ends(buffer_url, buffer):
    with buffer.episode("t", "a", episode_id="e", model_version=7, level=3) as episode:
        assert isinstance(episode, EpisodeWriter)
        assert status_of(buffer_url, "e") == "open"
        for t in range(3):
            episode.append(**step(t), terminated=t == 2, truncated=False)
        assert stored(buffer_url) == 0
        episode.end(obs=[9.0, 9.0])
    columns = (
        "task_id, agent_id, status, length, episode_return, first_seq, last_seq, model_version"
    )
    found = run(buffer_url, f"SELECT {columns} FROM v_episodes")
    assert found == [("t", "a", "complete", 3, 1.5, 1, 3, 7)]
    assert json_of(scalar(buffer_url, METAS)) == {"level": 3}
    batch = buffer.sample_arrays(3, sampler=LatestSampler())
    assert batch.action.tolist() == [2, 1, 0]
    assert batch.obs.tolist() == [[2, 2], [1, 1], [0, 0]]
    assert batch.terminated.tolist() == [True, False, False]
    assert batch.info["step"].tolist() == [2, 1, 0]
    assert run(buffer_url, f"SELECT t, model_version FROM {STEPS} e ORDER BY seq") == [
        (t, 7) for t in range(3)
    ]
    final = buffer.sample_transitions(20, n_step=3)
    assert {tuple(row) for row in final.next_obs.tolist()} == {(9.0, 9.0)}


def test_it_stores_what_store_episode_stores(both_urls):
    for url in both_urls.values():
        with ReplayBuffer(url, fields=FIELDS) as buffer:
            episode = write(buffer, 5, episode_id="by-step", task_id="t")
            buffer.store_episode(
                {
                    "obs": np.repeat(np.arange(5, dtype=np.float32)[:, None], 2, axis=1),
                    "action": np.arange(5),
                    "reward": np.full(5, 0.5),
                    "terminated": np.arange(5) == 4,
                },
                episode_id="whole",
                task_id="t",
            )
            assert (episode.length, episode.episode_return) == (5, 2.5)
        columns = "step, t, reward_t, terminated, truncated, model_version, arrays, extra"
        rows = run(url, f"SELECT {columns} FROM {STEPS} e ORDER BY seq")
        assert rows[:5] == rows[5:]
        columns = "task_id, agent_id, status, length, episode_return, model_version"
        first, second = run(url, f"SELECT {columns} FROM v_episodes")
        assert first == second


def test_ids_and_meta_of_made_episodes_come_with_their_first_steps(buffer_url, buffer):
    one, other = buffer.episode(level=1), buffer.episode(level=2)
    assert run(buffer_url, "SELECT 1 FROM episodes") == []
    for t in range(2):
        one.append(**step(t))
        other.append(**step(10 + t))
    buffer.flush()
    assert stored(buffer_url) == 4
    found = run(buffer_url, "SELECT episode_id, task_id, status, length FROM v_episodes")
    ids = {(one.episode_id, one.episode_id), (other.episode_id, other.episode_id)}
    assert {row[:2] for row in found} == ids
    assert {row[2:] for row in found} == {("open", None)}
    other.append(**step(12))
    one.end()
    other.end()
    spans = run(buffer_url, "SELECT first_seq, last_seq, length FROM v_episodes ORDER BY first_seq")
    of_steps = f"SELECT min(seq), max(seq), count(*) FROM {STEPS} e GROUP BY episode_id"
    assert spans == sorted(run(buffer_url, of_steps))
    assert [length for _, _, length in spans] == [2, 3]
    levels = [json_of(meta)["level"] for (meta,) in run(buffer_url, METAS)]
    assert levels == [1, 2]


def test_arrays_are_copied_at_the_call(buffer):
    obs = np.zeros(2, np.float32)
    nested = {"picture": np.zeros(3, np.uint8)}
    with buffer.episode() as episode:
        for t in range(3):
            obs[:] = t
            nested["picture"][:] = t
            episode.append(obs=obs, action=t, state=nested)
        obs[:] = 99
    batch = buffer.sample_arrays(3, sampler=LatestSampler())
    assert batch.obs[:, 0].tolist() == [2, 1, 0]
    rows = buffer.get_by_task_id(episode.task_id)
    assert [row.exp_data.state["picture"].tolist() for row in rows] == [[t] * 3 for t in range(3)]


def test_steps_of_agents_have_messages_state_and_actions_beside_their_arrays(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        with buffer.episode("prompt-1", "critic") as episode:
            episode.append(
                messages=[{"role": "user", "content": "é\0"}],
                state={"x": None},
                actions=["say"],
                reward=0,
                extra={"tokens": 3},
            )
            episode.append(state=0, reward=float("nan"), extra=None)
        first, second = buffer.get_by_task_id("prompt-1")
        assert first.exp_data.messages == [{"role": "user", "content": "é\0"}]
        assert first.exp_data.extra == {"tokens": 3}
        assert (first.exp_data.state, first.exp_data.actions) == ({"x": None}, ["say"])
        assert (second.exp_data.state, second.exp_data.extra) == (0, None)
        assert np.isnan(second.exp_data.reward_t)
        assert first.exp_meta.agent_id == "critic"
        assert episode.episode_return == 0.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"action": 1}, "field 'obs' is missing: expected float32"),
        ({"obs": [1, 2], "action": 1, "speed": 3}, "unknown field 'speed'"),
        ({"obs": [1, 2, 3], "action": 1}, r"expected shape \(2,\), got \(3,\)"),
        ({"obs": [1, 2], "action": 1.5}, "field 'action': expected int64, got float64"),
        ({"obs": [1, 2], "action": 2**63}, "out of the range of int64"),
        ({"obs": [1, 1e300], "action": 1}, "too large for float32"),
        ({"obs": [1, 2], "action": 1, "reward": "much"}, "reward: expected a number"),
        ({"obs": [1, 2], "action": 1, "terminated": 2}, "terminated: expected True, False"),
        ({"obs": [1, 2], "action": 1, "extra": [1]}, "extra: expected a dict"),
    ],
)
def test_a_step_that_cannot_be_stored_is_refused_and_the_episode_goes_on(buffer, given, message):
    with buffer.episode() as episode:
        episode.append(**step(0))
        with pytest.raises(FieldError, match=message):
            episode.append(**given)
        episode.append(**step(1))
    assert episode.length == len(buffer) == 2
    assert [row.exp_meta.step for row in buffer.get_by_task_id(episode.task_id)] == [0, 1]


def test_other_casts_are_asked_for(buffer):
    with buffer.episode(casting="unsafe") as episode:
        episode.append(obs=[1, 2], action=1.9)
    assert buffer.sample_arrays(1).action.tolist() == [1]
    with pytest.raises(FieldError, match="casting is one of same_kind, unsafe, got 'free'"):
        buffer.episode(casting="free")


def test_an_exception_inside_marks_the_episode_aborted_and_keeps_its_steps(buffer_url, buffer):
    def fail():
        with buffer.episode(episode_id="e") as episode:
            episode.append(**step(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert status_of(buffer_url, "e") == "aborted"
    assert run(buffer_url, "SELECT length, episode_return FROM v_episodes") == [(1, 0.5)]
    assert len(buffer) == 1
    other = buffer.episode(episode_id="other")
    other.append(**step(0))
    other.abort()
    assert status_of(buffer_url, "other") == "aborted"


def test_an_episode_that_has_ended_takes_nothing_more(buffer):
    episode = write(buffer, 2)
    for call in (lambda: episode.append(**step(2)), episode.end, episode.abort):
        with pytest.raises(FieldError, match="has ended; begin another one"):
            call()
    assert len(buffer) == 2
    assert "2 steps, ended" in repr(episode)


def test_a_final_observation_with_other_fields_leaves_the_episode_open(buffer_url, buffer):
    with buffer.episode(episode_id="e") as episode:
        episode.append(**step(0))
        with pytest.raises(FieldError, match="the final observation has the fields obs"):
            episode.end(action=1)
        with pytest.raises(FieldError, match=r"expected shape \(2,\)"):
            episode.end(obs=[1.0])
        episode.append(**step(1))
    assert run(buffer_url, "SELECT status, length FROM v_episodes") == [("complete", 2)]


def test_an_episode_without_a_step_leaves_no_row_or_an_empty_one(buffer_url, buffer):
    with buffer.episode():
        pass
    assert run(buffer_url, "SELECT 1 FROM episodes") == []
    with buffer.episode(episode_id="named"):
        pass
    found = run(buffer_url, "SELECT status, length, episode_return, first_seq FROM v_episodes")
    assert found == [("complete", 0, None, None)]


def test_an_id_that_is_taken_is_refused_at_once(buffer):
    write(buffer, 1, episode_id="e")
    with pytest.raises(EpisodeExistsError, match=r"'e' of task 'e' is stored already \(it is comp"):
        buffer.episode(episode_id="e")
    buffer.episode(episode_id="e", task_id="another task").abort()
    buffer.clear()
    assert write(buffer, 1, episode_id="e").length == 1
    assert len(buffer) == 1


def test_keys_and_meta_are_checked_at_the_beginning(buffer_url, buffer):
    for name, value in (("episode_id", 3), ("task_id", b"t"), ("agent_id", 1)):
        with pytest.raises(FieldError, match=f"{name}: expected text"):
            buffer.episode(**{name: value})
    with pytest.raises(FieldError, match="episode_id: longer than 500 bytes"):
        buffer.episode(episode_id="x" * 501)
    with pytest.raises(FieldError, match="model_version: expected an integer"):
        buffer.episode(model_version="new")
    with pytest.raises(FieldError, match="meta"):
        buffer.episode(picture=np.zeros(3))
    assert run(buffer_url, "SELECT 1 FROM episodes") == []


@pytest.mark.thorough
@pytest.mark.slow
def test_the_timer_stores_steps_without_another_call(buffer_url):
    others = set(threading.enumerate())
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=0.05) as buffer:
        episode = buffer.episode()
        for n in (1, 2, 3):
            episode.append(**step(n))
            wait_until(lambda n=n: stored(buffer_url) == n, "the timer stores the step")
        wait_until(
            lambda: set(threading.enumerate()) <= others,
            "the thread ends when there is nothing to do",
        )
        episode.append(**step(4))
        wait_until(lambda: stored(buffer_url) == 4, "another thread goes on")


def test_many_steps_are_stored_before_their_time(buffer_url, monkeypatch):
    monkeypatch.setattr(write_queue, "FLUSH_ROWS", 10)
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S) as buffer:
        episode = buffer.episode()
        for t in range(10):
            episode.append(**step(t))
        wait_until(lambda: stored(buffer_url) == 10, "a full batch is stored")
        monkeypatch.setattr(write_queue, "FLUSH_BYTES", 16)
        episode.append(**step(10))
        episode.append(**step(11))
        wait_until(lambda: stored(buffer_url) == 12, "large steps are stored")


@pytest.mark.thorough
def test_what_waits_is_bounded(buffer_url):
    options = {"flush_s": NEVER_S, "max_pending": 5}
    with ReplayBuffer(buffer_url, fields=FIELDS, **options) as buffer:
        episode = buffer.episode()
        for t in range(23):
            episode.append(**step(t))
            assert (t + 1) - stored(buffer_url) <= 5


def test_steps_wait_while_the_database_refuses_them(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S) as buffer:
        episode = buffer.episode(level=1)
        with refusing_inserts(buffer_url):
            for t in range(3):
                episode.append(**step(t))
            for _ in range(2):
                with pytest.raises(StorageError, match="no rows today"):
                    buffer.flush()
            with pytest.raises(StorageError, match="no rows today"):
                episode.end(obs=[0.0, 0.0])
        buffer.flush()
        assert run(buffer_url, "SELECT length, status FROM v_episodes") == [(3, "complete")]
        assert [row.exp_meta.step for row in buffer] == [0, 1, 2]


def test_an_error_of_the_timer_is_raised_at_the_next_step(buffer_url, caplog):
    buffer = ReplayBuffer(buffer_url, fields=FIELDS, flush_s=0.02)
    episode = buffer.episode()
    with refusing_inserts(buffer_url):
        episode.append(**step(0))
        wait_until(lambda: "1 steps could not be stored yet" in caplog.text, "the timer fails")

        def go_on():
            while True:
                episode.append(**step(episode.length))

        with pytest.raises(StorageError, match="no rows today"):
            go_on()
    wait_until(lambda: stored(buffer_url) == episode.length, "the timer tries again")
    assert episode.length >= 1
    buffer.close()


class _SlowHandler(logging.Handler):
    """A log that takes a while to write a record."""

    def __init__(self):
        super().__init__()
        self.has_begun = threading.Event()

    def emit(self, record):
        self.has_begun.set()
        time.sleep(0.3)


def test_an_error_of_the_timer_does_not_outlive_a_flush_that_stored_the_steps(buffer_url):
    log, handler = logging.getLogger("sqlbuffer"), _SlowHandler()
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=0.02) as buffer:
        episode = buffer.episode()
        with refusing_inserts(buffer_url):
            log.addHandler(handler)
            try:
                episode.append(**step(0))
                assert handler.has_begun.wait(20), "the timer fails"
            finally:
                log.removeHandler(handler)
        buffer.flush()
        time.sleep(0.4)  # the timer has written its record
        episode.append(**step(1))
        episode.end()
    assert run(buffer_url, "SELECT length, status FROM v_episodes") == [(2, "complete")]


def test_steps_of_a_dropped_buffer_are_an_error(buffer_url, buffer):
    episode = buffer.episode()
    episode.append(**step(0))
    ReplayBuffer.drop(buffer_url, "default")
    with pytest.raises(BufferNotFoundError):
        episode.end()
    buffer._writer._queue.forget()


def test_closing_stores_what_waits(buffer_url):
    buffer = ReplayBuffer(buffer_url, fields=FIELDS, flush_s=NEVER_S)
    buffer.episode().append(**step(0))
    buffer.close()
    assert stored(buffer_url) == 1


def leave_open(url, n):
    buffer = ReplayBuffer(url, flush_s=NEVER_S)
    episode = buffer.episode(episode_id="left")
    for t in range(n):
        episode.append(**step(t))


@pytest.mark.parametrize("method", ["fork", FRESH])
def test_a_process_that_ends_stores_what_waits(buffer_url, buffer, method):
    run_at_once([(leave_open, buffer_url, 3)], method)
    wait_until(lambda: stored(buffer_url) == 3, "the steps of the ended process")
    assert status_of(buffer_url, "left") == "open"


def end_inherited(episode):
    assert episode._queue.is_empty
    os._exit(0)


def test_a_forked_child_leaves_the_steps_of_its_parent_alone(buffer_url, buffer):
    episode = buffer.episode()
    episode.append(**step(0))
    with running([(end_inherited, episode)]) as workers:
        wait_until(lambda: not workers.running, "the child ends")
        assert [process.exitcode for process in workers.processes] == [0]
    assert stored(buffer_url) == 0
    episode.end()
    assert stored(buffer_url) == 1


def write_until_killed(url, name):
    buffer = ReplayBuffer(url, flush_s=0.05)
    for number in range(10**6):
        episode = buffer.episode(episode_id=f"{name}-{number}")
        for t in range(20):
            episode.append(**step(t))
        episode.finish({"obs": [0.0, 0.0]})


@pytest.mark.thorough
def test_writers_that_are_killed_leave_whole_episodes_and_open_ones(buffer_url, buffer):
    names = ["a", "b"]
    with running([(write_until_killed, buffer_url, name) for name in names]) as workers:
        wait_until(lambda: stored(buffer_url) > 500, "both have written")
        for process in workers.processes:
            process.kill()
    lengths = run(
        buffer_url,
        "SELECT p.status, p.length, count(e.seq), min(e.t), max(e.t) FROM episodes p "
        f"LEFT JOIN {STEPS} e ON e.episode_id = p.id GROUP BY p.id, p.status, p.length",
    )
    complete = [row for row in lengths if row[0] == "complete"]
    assert {row[1:] for row in complete} == {(20, 20, 0, 19)}
    rest = [row for row in lengths if row[0] == "open"]
    assert len(complete) + len(rest) == len(lengths)
    # Steps are stored in their order: no hole.
    assert all(n == 0 or (first, last) == (0, n - 1) for _, _, n, first, last in rest)


def write_some(url, name):
    with ReplayBuffer(url) as buffer:
        episodes = [buffer.episode(episode_id=f"{name}-{i}") for i in range(5)]
        for t in range(30):
            for i, episode in enumerate(episodes):
                if t < 10 + i:
                    episode.append(**step(t))
        for episode in episodes:
            episode.end(obs=[0.0, 0.0])


@pytest.mark.thorough
def test_several_are_open_at_once_in_several_processes(buffer_url, buffer):
    run_at_once([(write_some, buffer_url, name) for name in "abc"])
    found = run(buffer_url, "SELECT episode_id, length, status FROM v_episodes")
    assert sorted(found) == [(f"{n}-{i}", 10 + i, "complete") for n in "abc" for i in range(5)]
    assert len(buffer) == 3 * (10 + 11 + 12 + 13 + 14)


@pytest.mark.thorough
def test_threads_write_episodes_of_one_buffer(buffer_url, buffer):
    def work(name):
        for i in range(10):
            write(buffer, 7, episode_id=f"{name}-{i}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run(buffer_url, "SELECT DISTINCT length, status FROM v_episodes") == [(7, "complete")]
    assert len(buffer) == 210


def test_an_open_episode_without_a_write_is_abandoned_until_it_goes_on(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, open_timeout_s=0.2, flush_s=NEVER_S) as buffer:
        episode = buffer.episode(episode_id="e")
        wait_until(lambda: status_of(buffer_url, "e") == "abandoned", "no step at all")
        episode.append(**step(0))
        buffer.flush()
        assert scalar(buffer_url, "SELECT status FROM episodes") == "open"
        wait_until(lambda: status_of(buffer_url, "e") == "abandoned", "no step for a while")
        whole = {name: [value] for name, value in step(0).items()}
        for taken in (
            lambda: buffer.episode(episode_id="e"),
            lambda: buffer.store_episode(whole, episode_id="e"),
        ):
            with pytest.raises(EpisodeExistsError, match=r"stored already \(it is abandoned\)"):
                taken()
        episode.append(**step(1))
        episode.end()
        assert status_of(buffer_url, "e") == "complete"


def test_seconds_are_checked(buffer_url):
    for name in ("open_timeout_s", "flush_s"):
        for value in (0, -1, float("nan"), float("inf"), "1", True):
            with pytest.raises(BufferConfigError, match=f"{name} is a number of seconds above 0"):
                ReplayBuffer(buffer_url, name="b", **{name: value})
    ReplayBuffer(buffer_url, open_timeout_s=60)
    with pytest.raises(BufferConfigError, match=r"open_timeout_s=60\.0, and was opened with"):
        ReplayBuffer(buffer_url, open_timeout_s=61)
    assert ReplayBuffer(buffer_url).name == "default"


VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.sampled_from([np.float32(1.5), np.int8(3), np.uint64(2**63), np.bool_(True), np.array(3)]),
)


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=200)
@given(
    dtype=st.sampled_from(["bool", "uint8", "int8", "int64", "uint64", "float16", "float32"]),
    value=VALUES,
)
def test_a_step_is_cast_as_a_column_is(dtype, value):
    """The quick way in for single rows refuses and stores what `extend` refuses and stores."""
    from sqlbuffer.encoding.packing import Layout, RowPacker
    from sqlbuffer.fields import FieldSpec

    spec = FieldSpec.parse("x", dtype)
    layout = Layout({"x": spec})
    assert outcome(lambda: RowPacker(layout).pack({"x": value})) == outcome(
        lambda: layout.pack({"x": spec.cast(value)[None]}, 1)[0]
    )


def outcome(call):
    try:
        return call()
    except FieldError as error:
        return str(error)


def test_ids_of_users_keep_no_step_of_an_episode_out(buffer_url, buffer):
    episode = buffer.episode("t", episode_id="e")
    buffer.extend({"obs": [[9, 9]], "action": [9], "id": ["e/1"]})
    for t in range(3):
        episode.append(**step(t))
    episode.end()
    again = buffer.extend({"obs": [[9, 9]] * 2, "action": [9, 9], "id": ["e/1", "e/2"]})
    assert (again.inserted, again.duplicates, again.conflicts) == (1, 1, 0)
    assert run(buffer_url, "SELECT status, length FROM v_episodes") == [("complete", 3)]
    assert len({row.id for row in buffer}) == len(buffer) == 5


def append_inherited(episode):
    with pytest.raises(FieldError, match="written by the process that began it; begin another"):
        episode.append(**step(1))


def test_a_writer_is_for_the_process_that_began_it(buffer):
    episode = buffer.episode()
    episode.append(**step(0))
    run_at_once([(append_inherited, episode)])
    episode.end()
    assert len(buffer) == 1
    with pytest.raises(TypeError, match="an episode is written by one process; pickle the buffer"):
        pickle.dumps(episode)


def test_flags_may_be_0_and_1(buffer):
    with buffer.episode() as episode:
        episode.append(**step(0), terminated=0, truncated=np.int8(1))
    batch = buffer.sample_arrays(1)
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False], [True])
