"""Every storage keeps AWorld's interface, without AWorld's defects."""

import gc
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import threading
from pathlib import Path

import pytest

from sqlbuffer.compat.aworld import (
    ActionModel,
    InMemoryStorage,
    MultiProcMemoryStorage,
    Observation,
    QueryBuilder,
    SQLStorage,
    Storage,
)
from sqlbuffer.compat.aworld.common import ActionResult
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from tests.compat.aworld.aworld_rows import row, rows, steps_of

METHODS = {
    "add": ["data"],
    "add_batch": ["data_batch"],
    "size": ["query_condition"],
    "get_paginated": ["page", "page_size", "query_condition"],
    "get_all": ["query_condition"],
    "get_by_task_id": ["task_id"],
    "get_bacth_by_task_ids": ["task_ids"],
}
KINDS = ["in_memory", "multi_proc", "multi_proc_manager", "sqlite", "postgresql"]


@pytest.fixture(scope="module")
def manager():
    with multiprocessing.Manager() as manager:
        yield manager


@pytest.fixture(params=KINDS)
def make_storage(request, make_database_url):
    """Make `max_capacity` into a new storage; the test runs once for each kind."""

    def make(max_capacity=10_000):
        if request.param == "in_memory":
            return InMemoryStorage(max_capacity)
        if request.param == "multi_proc":
            return MultiProcMemoryStorage({}, [], threading.Lock(), max_capacity)
        if request.param == "multi_proc_manager":
            proxies = request.getfixturevalue("manager")
            return MultiProcMemoryStorage(
                proxies.dict(), proxies.list(), proxies.Lock(), max_capacity
            )
        return SQLStorage(make_database_url(request.param, schema=True), max_capacity=max_capacity)

    return make


@pytest.fixture
def storage(make_storage):
    return make_storage()


@pytest.mark.parametrize("name", METHODS)
def test_interface_has_aworlds_methods_and_argument_names(name):
    assert name in Storage.__abstractmethods__
    for kind in (Storage, SQLStorage, InMemoryStorage, MultiProcMemoryStorage):
        assert list(inspect.signature(getattr(kind, name)).parameters)[1:] == METHODS[name]


def test_constructors_have_aworlds_arguments_and_defaults():
    def shown(kind):
        return [
            (p.name, p.default) for p in list(inspect.signature(kind.__init__).parameters.values())
        ][1:]

    required = inspect.Parameter.empty
    assert shown(InMemoryStorage) == [("max_capacity", 10_000)]
    assert shown(MultiProcMemoryStorage) == [
        *((name, required) for name in ("data_dict", "fifo_queue", "lock")),
        ("max_capacity", 10_000),
    ]


@pytest.mark.thorough
def test_default_capacity_is_10_000(make_storage):
    assert make_storage().buffer.max_capacity == 10_000


@pytest.mark.thorough
def test_each_row_is_stored_once(storage):
    storage.add(row())
    assert storage.size() == len(storage.get_all()) == 1


def test_capacity_counts_rows_and_the_oldest_row_leaves(make_storage):
    storage = make_storage(3)
    for step in range(5):
        storage.add(row("task_1", step))
    assert steps_of(storage.get_all()) == [("task_1", 2), ("task_1", 3), ("task_1", 4)]


def test_a_task_that_comes_back_is_not_evicted_early(make_storage):
    storage = make_storage(6)
    storage.add_batch([row("task_1", step) for step in range(3)])
    storage.add_batch([row("task_2", step) for step in range(3)])
    storage.add(row("task_1", 3))
    assert steps_of(storage.get_by_task_id("task_1")) == [
        ("task_1", 1),
        ("task_1", 2),
        ("task_1", 3),
    ]
    assert storage.size() == 6


@pytest.mark.thorough
def test_falsy_row_is_refused(storage):
    with pytest.raises(ValueError, match=r"^Data is required$"):
        storage.add(None)
    with pytest.raises(ValueError, match=r"^Data is required$"):
        storage.add_batch([row(), None])
    assert storage.size() == 0


def test_row_without_meta_is_refused(storage):
    without = row()
    without.exp_meta = None
    with pytest.raises(ValueError, match=r"^exp_meta is required$"):
        storage.add(without)


def test_what_is_no_row_is_refused_by_name(storage):
    with pytest.raises(FieldError, match=r"expected a DataRow, got \{"):
        storage.add({"exp_meta": {}})


def test_batch_is_stored_whole_without_a_reentrant_lock(storage):
    storage.add_batch(rows(2, 3))
    assert steps_of(storage.get_all()) == steps_of(rows(2, 3))


def test_batch_may_be_empty_or_an_iterator(storage):
    storage.add_batch([])
    storage.add_batch(iter(rows(1, 2)))
    assert storage.size() == 2


@pytest.mark.thorough
def test_size_counts_rows_that_match(storage):
    storage.add_batch(rows(2, 3))
    query = QueryBuilder().eq("exp_meta.task_id", "task_1").build()
    assert (storage.size(), storage.size(query), storage.size({})) == (6, 3, 6)


@pytest.mark.thorough
def test_pages_count_from_one_and_end_empty(storage):
    storage.add_batch(rows(1, 5))
    pages = [[step for _, step in steps_of(storage.get_paginated(page, 2))] for page in range(1, 5)]
    assert pages == [[0, 1], [2, 3], [4], []]
    query = QueryBuilder().gte("exp_meta.step", 3).build()
    assert steps_of(storage.get_paginated(1, 2, query)) == [("task_0", 3), ("task_0", 4)]


@pytest.mark.parametrize(
    ("page", "page_size", "message"),
    [
        (0, 1, "page is an integer from 1 on, got 0"),
        (-1, 1, "page is an integer from 1 on, got -1"),
        (1, 0, "page_size is an integer from 1 on, got 0"),
    ],
)
def test_page_below_one_is_refused(storage, page, page_size, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        storage.get_paginated(page, page_size)


@pytest.mark.thorough
def test_get_all_returns_a_list_in_insert_order(storage):
    storage.add_batch([row("task_b", 2), row("task_a", 1), row("task_b", 1)])
    found = storage.get_all(QueryBuilder().ne("exp_meta.task_id", "task_a").build())
    assert isinstance(found, list)
    assert steps_of(found) == [("task_b", 2), ("task_b", 1)]
    assert steps_of(storage.get_all()) == [("task_b", 2), ("task_a", 1), ("task_b", 1)]


@pytest.mark.thorough
def test_is_null_of_the_builder_works(storage):
    storage.add_batch([row("task_1"), row("task_2")])
    named = row("task_3")
    named.exp_meta.pre_agent = "agent_0"
    storage.add(named)
    assert storage.size(QueryBuilder().is_null("exp_meta.pre_agent").build()) == 2
    assert storage.size(QueryBuilder().is_not_null("exp_meta.pre_agent").build()) == 1


@pytest.mark.thorough
def test_unknown_field_is_refused_with_the_nearest_one(storage):
    with pytest.raises(ConditionError, match=r"did you mean exp_meta\.task_id"):
        storage.size(QueryBuilder().eq("exp_meta.taskid", "task_1").build())


@pytest.mark.thorough
def test_task_comes_back_in_insert_order(storage):
    storage.add_batch([row("task_1", 2), row("task_1", 1, time=5)])
    storage.add(row("task_1", 1, time=4))
    found = storage.get_by_task_id("task_1")
    assert [(r.exp_meta.step, r.exp_meta.execute_time) for r in found] == [(2, 2), (1, 5), (1, 4)]
    assert storage.get_bacth_by_task_ids(["task_1"]) == {"task_1": found}


def test_unknown_task_is_an_empty_list(storage):
    assert storage.get_by_task_id("unknown") == []
    storage.add(row("task_1"))
    found = storage.get_bacth_by_task_ids(["unknown", "task_1"])
    assert {task_id: len(found[task_id]) for task_id in found} == {"unknown": 0, "task_1": 1}
    assert list(found) == ["unknown", "task_1"]


@pytest.mark.thorough
def test_clear_removes_every_row(storage):
    storage.add_batch(rows(2, 2))
    storage.clear()
    assert storage.size() == 0


@pytest.mark.thorough
def test_row_comes_back_equal_with_its_models(storage):
    result = ActionResult(success=True, content=[1, 1, None, None])
    stored = row()
    stored.exp_data.state = Observation(content={"url": "x"}, action_result=[result])
    stored.exp_data.actions = [ActionModel(tool_name="browser", params={"n": 1, "m": 1})]
    stored.exp_data.messages = [{"role": "user", "content": None}] * 2
    storage.add(stored)
    (found,) = storage.get_all()
    assert found == stored
    assert isinstance(found.exp_data.state.action_result[0], ActionResult)
    assert found.to_dict() == stored.to_dict()


def test_repeated_scalars_of_a_row_stay_what_they_are(storage):
    stored = row()
    stored.exp_data.state = [1, 1, None, None]
    storage.add(stored)
    for data in (stored, *storage.get_all()):
        assert data.to_dict()["exp_data"]["state"] == [1, 1, None, None]


@pytest.mark.thorough
@pytest.mark.parametrize("state", [{"x": 1}, {"content": "an observation in part"}, 7, None])
def test_state_that_is_no_observation_stays_what_it_is(storage, state):
    stored = row()
    stored.exp_data.state = state
    storage.add(stored)
    assert storage.get_all()[0].exp_data.state == state


def test_model_changed_to_what_its_fields_forbid_can_still_be_read():
    storage, stored = InMemoryStorage(), row()
    stored.exp_data.state.image = ["not", "text"]
    storage.add(stored)
    assert storage.get_all()[0].exp_data.state["image"] == ["not", "text"]


@pytest.mark.thorough
def test_pickled_storage_has_the_same_rows(storage):
    copy = pickle.loads(pickle.dumps(storage))
    copy.add(row())
    assert storage.size() == copy.size() == 1
    assert isinstance(copy.get_all()[0].exp_data.state, Observation)


def test_storages_without_a_place_of_their_own_are_private():
    one, other = InMemoryStorage(), InMemoryStorage()
    one.add(row())
    assert (one.size(), other.size()) == (1, 0)


@pytest.mark.thorough
def test_refused_capacity_leaves_no_file_behind(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="an integer from 1 on"):
        InMemoryStorage(0)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_forked_child_that_ends_leaves_the_private_file():
    storage = InMemoryStorage()
    child = multiprocessing.get_context("fork").Process(target=storage.add, args=(row(),))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert storage.size() == 1


SCRIPT = """
    import multiprocessing, threading
    from sqlbuffer.compat.aworld import InMemoryStorage, MultiProcMemoryStorage
    from tests.compat.aworld.aworld_rows import write_slowly

    if __name__ == "__main__":
        manager = multiprocessing.Manager()
        storages = [
            InMemoryStorage(),
            MultiProcMemoryStorage({}, [], threading.Lock()),
            MultiProcMemoryStorage(manager.dict(), manager.list(), manager.Lock()),
        ]
        for storage in storages[:2]:
            multiprocessing.Process(target=write_slowly, args=(storage,)).start()
"""


@pytest.mark.slow
def test_nothing_is_left_when_the_owner_ends_and_children_may_write_till_then(tmp_path):
    """The children are not joined by the script: Python does that when it ends."""
    script = tmp_path / "owner.py"
    script.write_text(textwrap.dedent(SCRIPT))
    # Not below tmp_path: the manager has a socket there, and its path may have 107 characters.
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, script],
            env={**os.environ, "TMPDIR": temporary, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("written") == 2
        assert list(Path(temporary).glob("sqlbuffer-*")) == []


def test_sql_storage_is_kept_and_shared(make_database_url):
    url = make_database_url("sqlite")
    SQLStorage(url).add(row())
    assert SQLStorage(url).size() == 1
    assert SQLStorage(url, name="other").size() == 0


def test_sql_storage_takes_the_stored_capacity_unless_another_is_asked_for(sqlite_url):
    SQLStorage(sqlite_url, max_capacity=7)
    assert SQLStorage(sqlite_url).buffer.max_capacity == 7
    with pytest.raises(BufferConfigError, match="max_capacity=7"):
        SQLStorage(sqlite_url, max_capacity=8)
