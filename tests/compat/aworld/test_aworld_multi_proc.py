"""Storages of one shared dict are one storage, in every process that has the dict."""

import gc
import multiprocessing
import pickle
import re
import threading
from pathlib import Path

import pytest

from sqlbuffer.compat.aworld import MultiProcMemoryStorage
from sqlbuffer.errors import BufferConfigError
from tests.compat.aworld.aworld_rows import row, rows
from tests.support.processes import FRESH


@pytest.fixture(scope="module")
def manager():
    with multiprocessing.Manager() as manager:
        yield manager


def file_of(storage):
    (path,) = re.findall(r"sqlite:///([^']+)", repr(storage.buffer))
    return Path(path)


def test_same_dict_is_the_same_data(manager):
    shared, lock = manager.dict(), manager.Lock()
    one = MultiProcMemoryStorage(data_dict=shared, fifo_queue=manager.list(), lock=lock)
    one.add(row())
    other = MultiProcMemoryStorage(data_dict=shared, fifo_queue=manager.list(), lock=lock)
    assert other.size() == 1
    assert MultiProcMemoryStorage(manager.dict(), [], lock).size() == 0


def test_same_dict_with_another_capacity_is_refused():
    shared, lock = {}, threading.Lock()
    MultiProcMemoryStorage(shared, [], lock, 10)
    with pytest.raises(BufferConfigError, match=r"max_capacity=10\b.*max_capacity=20"):
        MultiProcMemoryStorage(shared, [], lock, 20)
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("make_lock", [threading.Lock, threading.RLock, multiprocessing.Lock])
def test_any_lock_will_do(make_lock):
    storage = MultiProcMemoryStorage({}, [], make_lock())
    storage.add_batch(rows(1, 2))
    assert pickle.loads(pickle.dumps(storage)).size() == 2


def open_and_write(shared, lock, task_id):
    MultiProcMemoryStorage(shared, [], lock).add_batch([row(task_id, step) for step in range(5)])


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", FRESH])
def test_children_that_open_the_same_dict_at_once_share_one_file(manager, method):
    context = multiprocessing.get_context(method)
    shared, lock = manager.dict(), manager.Lock()
    children = [
        context.Process(target=open_and_write, args=(shared, lock, f"task_{i}")) for i in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    assert MultiProcMemoryStorage(shared, [], lock).size() == 20


@pytest.mark.slow
def test_shared_file_lives_as_long_as_its_manager():
    manager = multiprocessing.Manager()
    shared, lock = manager.dict(), manager.Lock()
    child = multiprocessing.Process(target=open_and_write, args=(shared, lock, "task_1"))
    child.start()
    child.join(60)
    storage = MultiProcMemoryStorage(shared, [], lock)
    file = file_of(storage)
    assert storage.size() == 5
    del storage
    gc.collect()
    assert file.exists()
    manager.shutdown()
    assert not file.parent.exists()


def look_into(shared):
    assert shared.copy()


def test_process_that_looks_into_the_dict_does_not_remove_the_file(manager):
    shared, lock = manager.dict(), manager.Lock()
    storage = MultiProcMemoryStorage(shared, [], lock)
    child = multiprocessing.Process(target=look_into, args=(shared,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    storage.add(row())
    assert storage.size() == 1


@pytest.mark.slow
def test_storage_keeps_the_manager_of_its_dict_alive():
    def make():
        manager = multiprocessing.Manager()
        return MultiProcMemoryStorage(manager.dict(), manager.list(), manager.Lock())

    storage = make()
    gc.collect()
    storage.add(row())
    assert storage.size() == 1


def test_dict_is_read_and_written_under_the_lock():
    class Watched(dict):
        def get(self, key):
            assert lock.locked()
            return super().get(key)

        def __setitem__(self, key, value):
            assert lock.locked()
            super().__setitem__(key, value)

    lock = threading.Lock()
    assert MultiProcMemoryStorage(Watched(), [], lock).size() == 0
    assert not lock.locked()
