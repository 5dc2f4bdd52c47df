"""`ReplayBuffer` by AWorld's calls."""

import inspect
import multiprocessing
import pickle

import pytest

from sqlbuffer.compat.aworld import (
    Converter,
    DefaultConverter,
    InMemoryStorage,
    QueryBuilder,
    RandomTaskSample,
    ReplayBuffer,
)
from tests.compat.aworld.aworld_rows import row, rows, steps_of, write_processing
from tests.support.processes import FRESH


class Counting(Converter):
    def __init__(self):
        self.seen = []

    def to_dataset_row(self, task_experience):
        self.seen.append(task_experience)
        return len(task_experience)


@pytest.fixture
def buffer():
    return ReplayBuffer()


@pytest.mark.parametrize("method", ["sample", "sample_task"])
def test_sampling_has_aworlds_arguments_in_order(method):
    parameters = inspect.signature(getattr(ReplayBuffer, method)).parameters
    names = ["self", "sampler", "query_condition", "converter", "batch_size"]
    assert list(parameters) == names
    assert parameters["batch_size"].default == 1000


@pytest.mark.parametrize("method", ["sample", "sample_task"])
def test_arguments_go_by_position_too(buffer, method):
    buffer.store_batch(rows(3, 2))
    query = QueryBuilder().eq("exp_meta.task_id", "task_1").build()
    found = getattr(buffer, method)(RandomTaskSample(), query, DefaultConverter(), 10)
    assert [steps_of(task) for task in found] == [[("task_1", 0), ("task_1", 1)]]


def test_buffers_without_a_storage_are_private_and_empty(monkeypatch, tmp_path):
    monkeypatch.setenv("SQLBUFFER_URL", f"sqlite:///{tmp_path}/shared.db")
    one, other = ReplayBuffer(), ReplayBuffer()
    one.store(row())
    assert (len(one.sample_task()), other.sample_task()) == (1, [])
    assert list(tmp_path.iterdir()) == []


def test_buffers_of_one_url_share_their_rows(schema_url):
    ReplayBuffer(url=schema_url).store(row())
    assert len(ReplayBuffer(url=schema_url).sample_task()) == 1


def test_storage_and_url_are_not_given_both():
    with pytest.raises(ValueError, match="not both"):
        ReplayBuffer(InMemoryStorage(), url="sqlite:///replay.db")


def test_store_refuses_nothing(buffer):
    with pytest.raises(ValueError, match=r"^Data is required$"):
        buffer.store(None)


@pytest.mark.parametrize("nothing", [None, []])
def test_store_batch_of_nothing_warns(buffer, nothing, caplog):
    assert buffer.store_batch(nothing) is None
    assert "Data batch is required" in caplog.text


def test_store_tells_what_became_of_the_row(buffer):
    data = row()
    assert [buffer.store(data).inserted, buffer.store(data).duplicates] == [1, 1]


def test_sample_gives_a_list_of_tasks(buffer):
    buffer.store_batch(rows(2, 2))
    batch = buffer.sample()
    assert isinstance(batch, list)
    assert sorted(steps_of(task) for task in batch) == [
        [("task_0", 0), ("task_0", 1)],
        [("task_1", 0), ("task_1", 1)],
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("batch_size", [1, 4, 5, 1000])
def test_sampling_from_few_rows_works(buffer, batch_size):
    buffer.store_batch(rows(2, 2))
    assert len(buffer.sample(batch_size=batch_size)) == min(2, batch_size)
    assert len(buffer.sample_task(batch_size=batch_size)) == min(2, batch_size)


def test_batch_of_none_is_empty(buffer):
    buffer.store(row())
    assert buffer.sample(batch_size=0) == buffer.sample_task(batch_size=0) == []


def test_sample_converts_once_and_sample_task_once_a_task(buffer):
    buffer.store_batch(rows(3, 2))
    whole, each = Counting(), Counting()
    assert buffer.sample(converter=whole) == 3
    assert buffer.sample_task(converter=each) == [2, 2, 2]
    assert [len(whole.seen), len(each.seen)] == [1, 3]
    assert sorted(map(steps_of, whole.seen[0])) == sorted(map(steps_of, each.seen))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", FRESH])
def test_children_write_to_a_private_buffer(buffer, method):
    context = multiprocessing.get_context(method)
    buffer.store(row("task_0"))
    children = [
        context.Process(target=write_processing, args=(buffer, f"task_{i}")) for i in (1, 2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert sorted(len(task) for task in buffer.sample()) == [1, 10, 10]


def test_pickled_buffer_is_the_same_buffer(buffer):
    pickle.loads(pickle.dumps(buffer)).store(row())
    assert len(buffer.sample()) == 1
