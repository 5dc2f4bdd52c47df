"""Processes, threads and objects that share a buffer, and private ones that do not."""

import copy
import gc
import multiprocessing
import os
import pickle
import threading
import weakref

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding import create_buffer
from tests.compat.ding.conftest import held
from tests.compat.ding.test_used_data_remover import Tracking, items
from tests.conftest import close_pool
from tests.support.processes import TIMEOUT_S, wait_until
from tests.support.proxy import proxied
from tests.support.storage_hooks import engine_of

N_PUSHES = 12


def config_of(url, size=40):
    return {"type": "naive", "url": url, "replay_buffer_size": size, "name": "shared"}


def collect(url, collector, stop):
    """Push steps in lists of three until the learner has had enough of them."""
    buffer = create_buffer(config_of(url), instance_name=f"collector_{collector}")
    for i in range(N_PUSHES):
        obs = np.full(3, i, np.float32)
        buffer.push([{"obs": obs, "by": collector, "t": 3 * i + k} for k in range(3)], 3 * i)
    assert stop.wait(TIMEOUT_S)
    buffer.close()


@pytest.mark.thorough
def test_collector_processes_push_and_a_learner_samples(buffer_url):
    learner = create_buffer(config_of(buffer_url), instance_name="learner")
    context = multiprocessing.get_context("fork")
    stop = context.Event()
    workers = [context.Process(target=collect, args=(buffer_url, i, stop)) for i in range(2)]
    for worker in workers:
        worker.start()
    # While they push.
    wait_until(lambda: learner.sample(4, 0, replace=True), "something to sample")
    wait_until(lambda: learner.push_count == 2 * 3 * N_PUSHES, "all pushes")
    batch = learner.sample(40, 0)
    assert len({(item["by"], item["t"]) for item in batch}) == 40
    assert all((item["obs"] == item["t"] // 3).all() for item in batch)
    stop.set()
    for worker in workers:
        worker.join(TIMEOUT_S)
        assert worker.exitcode == 0
    # Closing ended nothing that others share; lists stayed together.
    state = learner.state_dict()
    assert (state["valid_count"], state["tail"], state["push_count"]) == (40, 72 % 40, 72)
    ours = [(item["by"], item["t"]) for item in held(learner)]
    whole = ours[1:]
    assert all(whole[i][0] == whole[i + 2][0] for i in range(0, 39, 3))
    learner.close()


@pytest.mark.thorough
def test_many_threads_push_and_sample_and_all_is_counted(make):
    buffer = make(size=30)
    failures = []

    def work(i):
        try:
            for k in range(5):
                buffer.push([(i, k)] * 2, 0)
                for item in buffer.sample(2, 0, replace=True):
                    assert 0 <= item[0] < 4
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert failures == []
    assert (buffer.push_count, buffer.count(), buffer.state_dict()["tail"]) == (40, 30, 10)


def test_a_fork_has_a_private_buffer_of_its_own():
    buffer = create_buffer({"type": "naive", "replay_buffer_size": 5})
    buffer.push([1, 2], 0)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        try:
            buffer.push([3], 0)
            sender.send((held(buffer), sorted(buffer.sample(3, 0))))
            buffer.close()
        finally:
            os._exit(0)
    assert receiver.poll(TIMEOUT_S)
    assert receiver.recv() == ([1, 2, 3], [1, 2, 3])
    os.waitpid(pid, 0)
    assert held(buffer) == [1, 2]
    buffer.close()


def test_a_private_buffer_leaves_no_trace_and_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    buffer = create_buffer({"type": "naive"}, None, "experiment", "buffer")
    buffer.start()
    buffer.push([1], 0)
    buffer.sample(1, 0)
    assert list(tmp_path.iterdir()) == []
    buffer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_private_buffer_that_nobody_holds_is_closed():
    buffer = create_buffer({"type": "naive"})
    buffer.push([1], 0)
    ring = weakref.ref(buffer._ring)
    del buffer
    gc.collect()
    assert ring() is None


@pytest.mark.thorough
def test_a_shared_buffer_that_nobody_holds_leaves_connections_to_others(buffer_url):
    buffer, other = create_buffer(config_of(buffer_url)), create_buffer(config_of(buffer_url))
    buffer.push([1], 0)
    engine = engine_of(buffer_url)
    del buffer
    gc.collect()
    assert engine_of(buffer_url) is engine
    assert other.count() == 1
    other.close()


def test_a_shared_buffer_goes_to_another_process_by_pickle_and_a_private_one_does_not(buffer_url):
    buffer = create_buffer(config_of(buffer_url), None, "experiment", "learner")
    buffer.push([1], 0)
    other = pickle.loads(pickle.dumps(buffer))
    assert (held(other), repr(other)) == ([1], repr(buffer))
    buffer.close()
    other.close()
    private = create_buffer({"type": "naive"})
    for copied in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="cannot be pickled or copied; give its config a url"):
            copied(private)
    private.close()


@pytest.mark.thorough
def test_a_buffer_that_was_never_made_whole_is_let_go_in_silence(recwarn):
    with pytest.raises(ValueError, match="replay_buffer_size"):
        create_buffer({"type": "naive", "replay_buffer_size": 0})
    gc.collect()
    assert len(recwarn) == 0


@pytest.mark.thorough
def test_a_buffer_that_was_made_smaller_opens_with_its_new_size(buffer_url):
    for kind in ("naive", "advanced"):
        sized = {"url": buffer_url, "type": kind, "name": kind}
        buffer = create_buffer({**sized, "replay_buffer_size": 7}, instance_name="a")
        buffer.push([{"obs": i} for i in range(12)], 0)
        buffer.close()
        with ReplayBuffer(buffer_url, name=kind) as core:
            core.resize(max_capacity=3)
        buffer = create_buffer({**sized, "replay_buffer_size": 3}, instance_name="a")
        state = buffer.state_dict()
        assert state["tail"] == 5 % 3
        buffer.load_state_dict(state)
        assert [item["obs"] for item in held(buffer)] == [9, 10, 11]
        assert buffer.state_dict() == state
        buffer.push({"obs": 12}, 0)
        assert [item["obs"] for item in held(buffer)] == [10, 11, 12]
        buffer.close()


# Connections to PostgreSQL that are cut at the commit: each push is counted once.


@pytest.fixture
def proxy(make_database_url):
    with proxied(make_database_url("postgresql", schema=True)) as proxy:
        yield proxy
        close_pool(proxy.url)


@pytest.mark.parametrize("cuts", [["before"], ["after"], ["before", "after"]], ids=str)
def test_a_push_is_counted_once_and_what_it_overwrites_used_once(proxy, cuts):
    buffer = Tracking({"replay_buffer_size": 3, "enable_track_used_data": True, "url": proxy.url})
    buffer.push(items(0, 1, 2), 0)
    proxy.cuts = list(cuts)
    buffer.push(items(3, 4), 0)
    assert proxy.n_cut == len(cuts)
    # The numbers of a push that was undone count against the capacity: items may leave early.
    used, left = buffer._remover.calls, [item["data_id"] for item in held(buffer)]
    assert (buffer.push_count, [*used, *left]) == (5, [0, 1, 2, 3, 4])
    assert left[-2:] == [3, 4]
    state = buffer.state_dict()
    buffer.push(items(5), 0)
    proxy.cuts = list(cuts)
    buffer.load_state_dict(state)
    assert proxy.n_cut == 2 * len(cuts)
    assert buffer.state_dict() == state
    assert sorted(buffer.sample(len(left), 0, slice(None)), key=str) == items(*left)
    buffer.close()


@pytest.mark.parametrize("cuts", [["before"], ["after"]], ids=str)
def test_stale_items_leave_though_the_connection_of_the_sample_is_lost(proxy, cuts):
    config = {"type": "advanced", "replay_buffer_size": 9, "max_staleness": 3}
    buffer = create_buffer({**config, "url": proxy.url})
    buffer.push([{"obs": i, "collect_iter": i} for i in range(9)], 0)
    assert len(buffer.sample(2, 2)) == 2
    proxy.cuts = list(cuts)
    drawn = buffer.sample(3, 8)
    assert proxy.n_cut == 1
    assert {item["obs"] for item in drawn} <= {6, 7, 8}
    assert buffer.count() == 3
    buffer.close()


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_a_push_whose_connection_is_lost_behind_its_commit_is_counted_once(proxy, kind):
    buffer = create_buffer({"type": kind, "replay_buffer_size": 9, "url": proxy.url})
    buffer.push([{"obs": 0}], 0)
    proxy.cuts = ["after"]
    items = [{"obs": 1}, {"obs": 2}]
    buffer.push(items, 0)
    assert proxy.n_cut == 1
    assert buffer._throughput.push_data_count == 3
    assert (buffer.count(), buffer.push_count) == (3, 3)
    state = buffer.state_dict()
    assert [item["obs"] for item in state["data"][:3]] == [0, 1, 2]
    if kind == "advanced":
        assert [item["replay_unique_id"] for item in items] == ["buffer_1", "buffer_2"]
    buffer.close()
